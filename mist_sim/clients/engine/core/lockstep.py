"""Lanes that step together: data-parallel replicas that share their experts.

They plan at the same time, and a step lasts as long as the slowest lane's. A lane without work
takes part with an empty batch (vLLM's `DPEngineCoreProc` runs dummy batches).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from numpy import maximum

from mist_sim.clients.engine.core.lane import Lane
from mist_sim.clients.engine.core.quiet import FastForward

if TYPE_CHECKING:
    from collections.abc import Callable

    from mist_sim.clients.engine.core.lane import Chunks
    from mist_sim.clients.engine.core.times import Times
    from mist_sim.clients.scheduling.cadence import StepCount

inf = float("inf")
_LEAST_ASKED, _MOST_ASKED = 16, 512  # steps whose seconds are asked for at once


class Replica(Lane):
    """One of these lanes. While it has no part in the step in flight, its `time` is inf.

    together: all of them; None: it steps alone. has_part: whether it has a part in the step in
        flight, with these chunks, decodes and contexts, and whether that was planned on the spot.
    ranks: what times a step on each rank of its engine.
    """

    def __init__(self, *arguments: Any) -> None:
        self.together: Lockstep | None = None
        self.has_part = self.was_on_the_spot = False
        self.next_chunks: Chunks = ()
        self.next_decodes = self.next_context = self.next_longest = self.next_in_windows = 0
        super().__init__(*arguments)
        self.ranks: list[Times] = [self.times]

    def wake(self, now: float) -> None:
        """Let all plan now, if they rest and requests wait here."""
        if self.together is None:
            Lane.wake(self, now)
        else:
            self.together.look(self, now)

    def begin_at(self, time: float) -> None:
        """Plan nothing before a time, and then, if anybody is in any of the lanes."""
        if self.together is None:
            Lane.begin_at(self, time)
            return
        self.begins_at = time
        self.time = inf
        self.together.begin_at(time)

    def begin(self) -> None:
        """Begin the step that was planned; it ends when those of the others do."""
        if self.together is not None:
            self.time = self.together.start
        Lane.begin(self)
        self.has_part = True

    def seconds(self, chunks: Chunks, on_the_spot: bool) -> float:
        """Note what the step computes, which is timed when all have planned."""
        if self.together is None:
            return Lane.seconds(self, chunks, on_the_spot)
        self.next_chunks, self.was_on_the_spot = chunks, on_the_spot
        self.next_decodes, self.next_context = self.num_decodes, self.context_sum
        some_need_longest = True in [times.needs_longest for times in self.ranks]
        self.next_longest = self.longest_context() if some_need_longest else -1
        self.next_in_windows = self.in_windows(0)[0] if self.is_paged else -1
        if self.is_apart:
            self.next_decodes = self.next_context = 0
        return 0.0

    def num_in_step(self) -> int:
        """Return the tokens of the step, with drafts."""
        number = self.next_decodes * self.num_queries
        for new, _ in self.next_chunks:
            number += new
        return number

    def seconds_alone(self, rank: int) -> float:
        """Return how long the step would take on a rank without the others."""
        times: Times = self.ranks[rank]
        return self.wait + times.ask(
            self.next_chunks,
            self.next_decodes,
            self.next_context,
            0 if self.is_apart else self.num_read_again,
            self.next_longest,
            self.was_on_the_spot,
            self.next_in_windows,
        )

    def halt(self) -> None:
        """Lose the step in flight, and rest."""
        Lane.halt(self)
        self.has_part = False
        if self.together is not None:
            self.together.rest_if_done()


class Lockstep(Lane):
    """All these lanes, as the core sees them: one lane, which has no requests itself.

    lanes: in order. share: takes the tokens of a step in each, before it is timed. count: of their
        steps, None: it is not asked for. active: those with a part in the step in flight.
    """

    def __init__(
        self,
        number: int,
        end_phase: int,
        plan_phase: int,
        lanes: list[Replica],
        share: Callable[[tuple[int, ...]], None],
    ) -> None:
        first = lanes[0]
        super().__init__(
            number,
            end_phase,
            plan_phase,
            first.max_num_seqs,
            first.plans_ahead,
            first.times,
            first.blocks,
            first.rows,
            first.counts,
            first.notes,
            None,
        )
        self.lanes, self.share = lanes, share
        self.count: StepCount | None = None if first.cadence is None else first.cadence.count
        self.active: list[Replica] = []
        self.quiet = FastForward()
        self.num_asked_ahead = _LEAST_ASKED
        self.is_pipeline = True  # it takes quiet steps itself
        self.couple()

    def couple(self) -> None:
        """Let each lane know of all."""
        for lane in self.lanes:
            lane.together = self

    def look(self, lane: Replica, now: float) -> None:
        """Plan now if no step is in flight, and requests wait in a lane to which some came."""
        may = not (lane.stops or lane.is_halted)
        if may and self.time == inf and lane.waits():
            self.is_planning = True
            self.time, self.phase = max(now, lane.begins_at), self.plan_phase

    def begin_at(self, time: float) -> None:
        """Plan nothing before a time, and then, if anybody is in any of the lanes."""
        self.is_planning, self.time, self.phase = True, inf, self.plan_phase
        for lane in self.lanes:
            if lane.running or lane.queue or lane.moved or lane.loaded:
                self.time = time

    def plan(self) -> None:
        """Let all plan, and begin a step if there is anything to compute."""
        self.is_planning, self.start = False, self.time
        self.plan_parts()
        if self.active:
            self.share_tokens()
            self.end_at(self.time + self.seconds_on(0))
            self.phase = self.end_phase
        else:
            self.rest_if_done()
        self.note_those_who_left()

    def plan_parts(self) -> None:
        """Let all plan now a step that starts at `start`."""
        self.active = []
        for lane in self.lanes:
            lane.time = self.time
            lane.plan()
            if lane.has_part:
                self.active.append(lane)

    def share_tokens(self) -> None:
        """Tell how many tokens each computes in the step that is planned."""
        sizes = [lane.num_in_step() for lane in self.active]
        num_idle = len(self.lanes) - len(sizes)
        self.share((*sizes, *(num_idle * [0])))

    def seconds_on(self, rank: int) -> float:
        """Return how long the slowest part of the step takes on a rank, or an empty one."""
        seconds = 0.0
        for lane in self.active:
            seconds = max(seconds, lane.seconds_alone(rank))
        if len(self.active) < len(self.lanes):
            seconds = max(seconds, self.idle_times(rank).ask((), 0, 0, 0, -1, False, -1))
        return seconds

    def idle_times(self, rank: int) -> Times:
        """Return what times an empty batch."""
        lane: Replica = self.lanes[0]
        return lane.ranks[rank]

    def end_at(self, end: float) -> None:
        """Note when the step ends that begins now."""
        for lane in self.active:
            lane.time = end
        self.time = end
        self.num_quiet, self.num_ahead, self.num_asked_ahead = -1, 0, _LEAST_ASKED

    def end(self) -> None:
        """End the step in flight in all lanes."""
        self.is_planning, self.phase = True, self.plan_phase
        if self.count is not None:
            self.count.num_steps += 1
        for lane in self.active:
            lane.has_part = False
            lane.end()
        self.note_those_who_left()

    def rest_if_done(self) -> None:
        """Rest if no step is in flight; the count of steps starts over."""
        for lane in self.active:
            if lane.has_part:
                return
        self.time, self.num_quiet = inf, 0
        if self.count is not None:
            self.count.num_steps = 0

    def note_those_who_left(self) -> None:
        """Note whether others have to be told of any request."""
        for lane in self.lanes:
            if lane.notices:
                self.note_left(-1, 0)
                return

    def is_seen(self) -> bool:
        """Tell whether others see what it does next, or its order among lanes."""
        return True

    def skip(self, until: float) -> bool:
        """Take the quiet steps that end before a time, but not the last; return whether any was."""
        self.num_quiet = 0
        number = self.num_quiet_passes()
        for lane in self.active:
            if lane.flow is not None:
                until = min(until, lane.flow.quiet_until(lane))
        if not number or self.time >= until:
            return False
        time, start, num_taken = self.time, self.start, 0
        while num_taken < number and time < until:
            if not self.num_ahead:
                self.ask_ahead(number - num_taken, num_taken)
            for lane in self.active:
                lane.rows.add_end(time)
            start = time
            time += self.ahead[self.next_ahead]
            self.next_ahead += 1
            self.num_ahead -= 1
            num_taken += 1
        for lane in self.active:
            self.quiet.note(lane, num_taken, start, time)
        if self.count is not None:
            self.count.num_steps += num_taken
        self.start, self.time = start, time
        self.num_quiet = -1 if num_taken < number else 0
        return True

    def num_quiet_passes(self) -> int:
        """Return how many steps end with the same members and memory in all lanes."""
        number = 1 << 62
        for lane in self.lanes:
            waits = lane.waits() or lane.came
            if lane.num_queries > 1 or (waits and not lane.has_part):
                return 0
            if not lane.has_part:
                continue
            if lane.num_quiet < 0:  # else steps that it lags behind are counted already
                lane.num_quiet = self.quiet.find_quiet(lane)
            number = min(number, lane.num_quiet)
        return number

    def ask_ahead(self, most: int, num_taken: int) -> None:
        """Ask for the seconds of the next steps, at most so many, behind those taken."""
        self.num_to_ask(most, num_taken)
        self.ahead = self.seconds_ahead(0, num_taken)

    def num_to_ask(self, most: int, num_taken: int) -> None:
        """Find out for how many steps to ask, at most so many, behind those taken."""
        number = min(most, self.num_asked_ahead)
        self.next_ahead = 0
        self.num_asked_ahead = min(_MOST_ASKED, 2 * self.num_asked_ahead)
        for lane in self.active:
            if lane.is_paged:
                number = min(number, lane.in_windows(num_taken + 1)[2])
        self.num_ahead = number

    def seconds_ahead(self, rank: int, num_taken: int) -> array[float]:
        """Return the seconds of these steps on a rank."""
        parts, number = [], self.num_ahead
        for lane in self.active:
            longest = num_in_windows = -1
            num_growing = 0
            times: Times = lane.ranks[rank]
            if times.needs_longest:
                longest = lane.longest_context() + num_taken + 1
            if lane.is_paged:
                num_in_windows, num_growing, _ = lane.in_windows(num_taken + 1)
            context_sum = lane.context_sum + (num_taken + 1) * lane.num_decodes
            parts.append(
                times.ask_run(
                    lane.num_decodes,
                    context_sum,
                    lane.num_read_again,
                    longest,
                    number,
                    num_in_windows,
                    num_growing,
                )
            )
        if len(self.active) < len(self.lanes):
            parts.append(self.idle_times(rank).ask_run(0, 0, 0, -1, number, -1, 0))
        return array("d", maximum.reduce(parts).tobytes())
