"""Virtual engines: lanes that take turns at the ranks of a pipeline (vLLM v0).

A pipeline of p ranks has p virtual engines, each with a scheduler, seats and memory of its own, so
that every rank can work. A pass of one goes through all ranks in order. It enters rank 0 when that
is free and the engine's last pass has returned with its tokens; of several the one that was ready
first goes first, then the one of lower number. On the ranks passes never overtake one another:

    start[r] = max(end[r - 1] + delay between ranks, end of the pass before on r)
    end[r] = start[r] + time of the batch on rank r

In pipelines in lockstep, virtual engines of equal number make their passes together, and a rank is
busy until the slowest is done (Seesaw, section 3.1 and appendix A).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from mist_sim.clients.engine.core.lane import Lane
from mist_sim.clients.engine.core.lockstep import Lockstep

if TYPE_CHECKING:
    from collections.abc import Callable

    from mist_sim.clients.engine.core.lockstep import Replica

inf = float("inf")


class VirtualEngine(Lockstep):
    """One of these engines: one lane, or the lanes of equal number of pipelines in lockstep.

    ready: since when it waits for rank 0; inf: a pass is in flight, which returns at `time`, or
        there is nothing to do. A pass starts when it is ready. busy: its seconds on all ranks.
    num_taken: quiet passes that have returned, behind which others have entered; is_taken: whether
        one more has returned. num_more: how many more may. rank_times: seconds of the passes asked
        for ahead, on each rank.
    """

    def lie(self, pipeline: VirtualPipeline) -> None:
        """Be one of a pipeline."""
        self.pipeline = pipeline
        self.ready, self.busy = inf, 0.0
        self.num_taken = self.num_more = 0
        self.is_taken = False
        self.rank_times: list[array[float]] = []

    def is_empty(self) -> bool:
        """Tell whether no request is here."""
        number = 0
        for lane in self.lanes:
            number += lane.num_inside()
        return number == 0

    def look(self, lane: Replica, now: float) -> None:
        """Wait for rank 0 from now on, if something came; or for nothing, if the last one left."""
        if self.time < inf:
            return
        if self.is_empty():
            self.ready = inf
        elif self.ready == inf and not (lane.stops or lane.is_halted):
            self.ready = max(now, lane.begins_at)
        self.pipeline.find_next()

    def begin_at(self, time: float) -> None:
        """Plan nothing before a time."""
        self.pipeline.begin_at(time)

    def rest_if_done(self) -> None:
        """Rest if no pass is in flight."""
        for lane in self.active:
            if lane.has_part:
                return
        self.time = self.ready = inf
        self.pipeline.lose_passes()

    def enter(self, now: float) -> None:
        """Plan a pass that enters rank 0 now, if there is anything to compute."""
        self.start, self.time = self.ready, now
        self.plan_parts()
        self.ready = inf
        if not self.active:
            self.time = inf
            return
        self.share_tokens()
        delay = 0.0
        for lane in self.active:
            delay = max(delay, self.pipeline.delay(lane.num_in_step()))
            if not lane.rows.num_steps:
                lane.rows.busy = 0.0
        self.delay = delay
        times, seconds = None, 0.0
        ends, time = self.pipeline.rank_ends, now
        self.busy = 0.0
        first: Replica = self.lanes[0]
        for rank in range(len(first.ranks)):
            if first.ranks[rank] is not times:
                times, seconds = first.ranks[rank], self.seconds_on(rank)
            time = self.send(ends, rank, time, seconds)
        self.end_at(time)

    def send(self, ends: array[float], rank: int, time: float, seconds: float) -> float:
        """Send a pass through a rank, which it reaches at a time; return when it has left it."""
        if rank:
            time += self.delay
        free = ends[rank]
        time = (time if time > free else free) + seconds  # max() would be a call  # noqa: FURB136
        ends[rank] = time
        self.busy += seconds
        return time

    def end_pass(self) -> None:
        """Let the pass in flight return."""
        end, self.time = self.time, inf
        for lane in self.active:
            lane.rows.busy += self.busy
            lane.has_part = False
            lane.end()
        first: Replica = self.lanes[0]
        self.ready = inf if first.stops or self.is_empty() else end

    # --- quiet passes -------------------------------------------------------------------------

    def find_more(self) -> None:
        """Find out how many quiet passes may return, the one in flight first."""
        self.num_taken, self.is_taken = 0, False
        self.num_more = self.num_quiet_passes() if self.time < inf else 0

    def is_quiet(self) -> bool:
        """Tell whether the next pass, which waits for rank 0, is like the one that returned."""
        for lane in self.active:
            if lane.num_quiet <= 0:
                return False
        return len(self.active) == len(self.lanes)

    def take_end(self) -> None:
        """Let a quiet pass return, which is written when the next one enters."""
        self.ready, self.time = self.time, inf
        self.is_taken = True
        self.num_more -= 1

    def take_plan(self, now: float) -> None:
        """Let a pass enter rank 0 like the one that has returned."""
        if not self.num_ahead:
            self.ask_times()
        for lane in self.active:
            lane.rows.add_end(self.ready)
            lane.rows.busy += self.busy
        self.start = self.ready
        self.num_taken += 1
        ends, time = self.pipeline.rank_ends, now
        self.busy = 0.0
        for rank, times in enumerate(self.rank_times):
            time = self.send(ends, rank, time, times[self.next_ahead])
        self.next_ahead += 1
        self.num_ahead -= 1
        self.time, self.ready, self.is_taken = time, inf, False

    def ask_times(self) -> None:
        """Ask for the seconds of the next passes on each rank."""
        self.share_tokens()  # others may have planned meanwhile
        self.num_to_ask(self.num_more + 1, self.num_taken)
        self.rank_times, before = [], None
        first: Replica = self.lanes[0]
        for rank, times in enumerate(first.ranks):
            if times is before:
                self.rank_times.append(self.rank_times[-1])
            else:
                self.rank_times.append(self.seconds_ahead(rank, self.num_taken))
            before = times

    def settle_passes(self) -> None:
        """Write the quiet passes to the lanes; one that returned last of all ends as any other."""
        end = self.ready if self.is_taken else self.time
        if self.num_taken:
            for lane in self.active:
                self.quiet.note(lane, self.num_taken, self.start, end)
            self.num_taken = 0
        if self.is_taken:
            self.is_taken, self.time = False, end
            self.end_pass()


class VirtualPipeline(Lane):
    """All of them, as the core sees them: one lane, which has no requests itself.

    engines: in order. delay: gives the seconds between two ranks, for so many tokens. rank_ends:
        when the latest pass leaves each rank.
    """

    def __init__(
        self,
        number: int,
        end_phase: int,
        plan_phase: int,
        engines: list[VirtualEngine],
        delay: Callable[[int], float],
    ) -> None:
        first: Replica = engines[0].lanes[0]
        super().__init__(
            number,
            end_phase,
            plan_phase,
            first.max_num_seqs,
            False,
            first.times,
            first.blocks,
            first.rows,
            first.counts,
            first.notes,
            None,
        )
        self.engines, self.delay = engines, delay
        self.rank_ends = array("d", bytes(8 * len(first.ranks)))
        self.is_pipeline = True  # it takes quiet steps itself
        for engine in engines:
            engine.lie(self)

    def begin_at(self, time: float) -> None:
        """Let no pass enter rank 0 before a time."""
        for rank in range(len(self.rank_ends)):
            self.rank_ends[rank] = time
        for engine in self.engines:
            engine.ready = inf if engine.is_empty() else time
            for lane in engine.lanes:
                lane.begins_at, lane.time = time, inf
        self.find_next()

    def lose_passes(self) -> None:
        """Note that engines rest, so that later passes wait for none before them."""
        for rank in range(len(self.rank_ends)):
            self.rank_ends[rank] = 0.0
        self.find_next()

    def next_engine(self) -> VirtualEngine | None:
        """Return the engine whose pass enters rank 0 next; None: none waits."""
        found, ready = None, inf
        for engine in self.engines:
            if engine.ready < ready:
                found, ready = engine, engine.ready
        return found

    def find_next(self) -> None:
        """Find out what comes next: a pass returns, or one enters rank 0."""
        self.time, self.phase, self.is_planning = inf, self.end_phase, False
        for engine in self.engines:
            self.time = min(self.time, engine.time)
        waiting = self.next_engine()
        if waiting is not None:
            entry = max(waiting.ready, self.rank_ends[0])
            if entry < self.time:
                self.time, self.phase, self.is_planning = entry, self.plan_phase, True

    def plan(self) -> None:
        """Let the next pass enter rank 0; engines with nothing to compute plan before it."""
        now = self.time
        while self.is_planning and self.time <= now:
            engine = self.next_engine()
            if engine is None:
                break
            engine.enter(now)
            self.note_those_who_left(engine)
            self.find_next()
            if engine.time < inf:
                break
        self.num_quiet = -1

    def end(self) -> None:
        """Let a pass return."""
        now = self.time  # that of the next one, once an engine that stops rests
        for engine in self.engines:
            if engine.time == now:
                engine.find_more()
                engine.end_pass()
                self.note_those_who_left(engine)
        self.num_quiet = -1
        self.find_next()

    def note_those_who_left(self, engine: VirtualEngine) -> None:
        """Note whether others have to be told of any request."""
        for lane in engine.lanes:
            if lane.notices:
                self.note_left(-1, 0)
                return

    def is_seen(self) -> bool:
        """Tell whether others see what it does next, or its order among lanes."""
        return True

    def skip(self, until: float) -> bool:
        """Take quiet passes before a time, as they enter and return; return whether any did."""
        self.num_quiet = 0
        if self.time >= until:
            return False
        for engine in self.engines:
            engine.find_more()
        has_taken = False
        while self.time < until:
            waiting = self.next_engine()
            if not self.is_planning:
                engine = self.first_to_return()
                if engine.num_more <= 0:
                    break
                engine.take_end()
            elif waiting is None:
                break
            elif waiting.is_taken:
                waiting.take_plan(self.time)
            elif waiting.is_quiet():
                waiting.enter(self.time)
                waiting.find_more()
            else:
                break
            has_taken = True
            self.find_next()
        for engine in self.engines:
            engine.settle_passes()
        self.find_next()
        return has_taken

    def first_to_return(self) -> VirtualEngine:
        """Return the engine whose pass returns next."""
        first: VirtualEngine = self.engines[0]
        for engine in self.engines:
            if engine.time < first.time:
                first = engine
        return first
