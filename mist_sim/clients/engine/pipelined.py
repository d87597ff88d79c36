"""Pipeline parallelism: micro-batches that follow one another through the ranks.

A pipeline of p ranks has p lanes, each with a batch of its own, so that every rank can work. A pass
of a lane goes through all ranks in order. It enters rank 0 when rank 0 is free and the lane's last
pass has returned with its tokens; of several such lanes the one that was ready first goes first. On
the ranks passes never overtake:

    start[r] = max(end[r - 1] + delay between ranks, end of the pass before on r)
    end[r] = start[r] + time of the batch on rank r

A pass returns at the end of the last rank. Time that no pass fills is a bubble. A lane has one pass
at a time, so the chunks of a prompt follow one another (vLLM keeps a request in one batch too).
(Seesaw, section 3.1 and appendix A.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Generator, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from simpy.events import Event

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.least_loaded import least_loaded
from mist_sim.clients.engine.loop import unwritten
from mist_sim.clients.engine.micro_batches import PipelineLane, num_unfinished
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.environment import PLAN, STEP_END, Environment
from mist_sim.hardware.predictors.ranks import PipelinePredictor

_FIRST_PASSES = 32  # passes computed ahead; doubles while nothing cuts them
_MOST_PASSES = 65536


class PipelineEngine:
    """Lanes that share the ranks of a pipeline, timed by a predictor.

    engines: the lanes of one pipeline, or of several in lockstep, whose lanes of equal number make
    their passes together.

    Passes that cannot change are computed ahead in one go; there is one event for the next end of a
    run or the next plan. An arrival that its lane could admit takes back the passes that have not
    entered rank 0.
    """

    def __init__(
        self,
        env: Environment,
        engines: Sequence[Sequence[Lane]],
        predictor: PipelinePredictor,
        phases: tuple[int, int] = (STEP_END, PLAN),
    ) -> None:
        self.replicas = [_Replica(lanes) for lanes in engines]
        self.env = env
        self._step_end, self._plan_phase = phases
        members = zip(*engines, strict=True)
        self.lanes = [PipelineLane(number, lanes) for number, lanes in enumerate(members)]
        self.predictor = predictor
        self._rank_ends = [0.0] * len(predictor.ranks)  # of the latest pass on each rank
        self._order: list[PipelineLane] = []  # lanes with work, as they enter rank 0
        self._entered: deque[_Pass] = deque()  # those that an arrival may take back
        self._num_ahead = _FIRST_PASSES
        self._is_halted = False
        self._begins_at = 0.0
        self._then: Callable[[], None] | None = None  # once it is to plan no more
        self._wake = env.event()
        for lane in self.lanes:
            for member in lane.members:
                member.engine = self
        self._lane_of = {member: lane for lane in self.lanes for member in lane.members}
        env.start(self._serve())

    @property
    def score(self) -> int:
        """How busy it is, see `Lane.score`."""
        return sum([replica.score for replica in self.replicas])

    # --- the loop -------------------------------------------------------------------------

    def _serve(self) -> Generator[Event, object, None]:
        env = self.env
        while True:
            self._advance()
            time, phase = self._next_event()
            self._wake = env.event() if time == inf else env.at(time, phase)
            yield self._wake
            has_ended = self._end_runs()
            if self._then is not None:
                self._look_whether_still()
            elif not has_ended or env.phase_is_last():
                self._plan()  # else requests that move at this time first enter the queues

    def _advance(self) -> None:
        """Send passes through the ranks until a lane has to plan, or enough are known.

        This is the only work per pass, so it is one loop of plain arithmetic.
        """
        order, entered, rank_ends = self._order, self._entered, self._rank_ends
        for _ in range(self._num_ahead):
            if not order or order[0].has_entered:
                break
            lane = order.pop(0)
            ready, delay, before, ends = lane.ready, lane.rank_delay, rank_ends, lane.ends
            # max() would be a call
            arrives = entry = ready if ready > before[0] else before[0]  # noqa: FURB136
            rank_ends = []
            for free, seconds in zip(before, lane.rows[len(ends)], strict=True):
                end = (arrives if arrives > free else free) + seconds  # noqa: FURB136
                rank_ends.append(end)
                arrives = end + delay
            entered.append((entry, ready, lane, before))
            lane.entries.append(entry)
            ends.append(end)
            lane.ready = end
            lane.has_entered = len(ends) == lane.num_steps
            order.append(lane)
        else:
            self._num_ahead = min(2 * self._num_ahead, _MOST_PASSES)
        self._rank_ends = rank_ends

    def _next_event(self) -> tuple[float, int]:
        """Return time and phase of what happens next: a run ends, a lane plans, more passes."""
        if not self._order:
            return inf, self._plan_phase
        now, head = self.env.now, self._order[0]
        run_ends = (lane.ready for lane in self._order if lane.run and lane.has_entered)
        run_end = max(next(run_ends, inf), now)
        if not head.run:
            entry = max(head.ready, self._rank_ends[0], now)
            return (entry, self._plan_phase) if entry < run_end else (run_end, self._step_end)
        if head.has_entered:
            return run_end, self._step_end
        return min(run_end, max(self._entered[-1][0], now)), self._step_end

    def _end_runs(self) -> bool:
        """Account for the runs that are over by now; return whether there were any."""
        now = self.env.now
        entered = self._entered
        if entered and entered[-1][0] < now:
            entered.clear()
        while entered and entered[0][0] < now:
            entered.popleft()
        over = [lane for lane in self._order if lane.run and lane.has_entered and lane.ready <= now]
        for lane in over:
            lane.end()
            if not lane.num_unfinished:
                lane.idle = True
                self._order.remove(lane)
        return bool(over)

    def _plan(self) -> None:
        """Let the first lane plan if rank 0 can take its pass now."""
        now = self.env.now
        while self._order:
            lane = self._order[0]
            if lane.run or max(lane.ready, self._rank_ends[0]) > now:
                return
            self.env.note_plan(self._plan_phase)
            if lane.plan(self.predictor):
                return
            lane.idle = True
            self._order.pop(0)

    # --- begin and stop -------------------------------------------------------------------

    def sleep_until(self, time: float) -> None:
        """Let no pass enter rank 0 before a time in seconds; lanes with work are ready then."""
        self._begins_at = time
        self._rank_ends = [time] * len(self._rank_ends)
        for lane in self.lanes:
            self._wake_up(lane)

    def stop(self, then: Callable[[], None]) -> None:
        """End with the passes in flight and plan no more; call `then` when all are over.

        If none is in flight, that is at once.
        """
        self._then = then
        for lane in self.lanes:
            if lane.run:
                self._cut(lane, lane.members[0], always=True)
        self._forget_lanes_without_run()
        if self._order:
            self._look_again()
        else:
            self._look_whether_still()

    def _forget_lanes_without_run(self) -> None:
        for lane in self._order:
            lane.idle = lane.run is None
        self._order = [lane for lane in self._order if lane.run]

    def _look_whether_still(self) -> None:
        """Call `then` if no pass is in flight any more."""
        self._forget_lanes_without_run()
        if not self._order and self._then is not None:
            then, self._then = self._then, _nothing
            then()

    # --- arrivals and aborts --------------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence at the lane with the fewest unfinished ones, the first of equals.

        It stays with that lane (the virtual engines of vLLM v0, `vllm/engine/llm_engine.py`).
        """
        sequence.lane = member = self.next_lane()
        member.state.add_request(sequence)
        self._notice(member, sequence)

    def next_lane(self) -> Lane:
        """Return the lane that the next request gets."""
        return min(least_loaded(self.replicas).lanes, key=num_unfinished)

    def num_unwritten(self, member: Lane) -> int:
        """Return the tokens of a lane's passes that have ended, in a run that has not."""
        lane = self._lane_of[member]
        for each, _, batch in () if lane.run is None else lane.run.parts:
            if each is member:
                return unwritten(member, batch, bisect_right(lane.ends, self.env.now))
        return 0

    def steps_over(self, member: Lane) -> tuple[StepPlan | None, int]:
        """Return a lane's plan in its run, and how many of its passes have ended."""
        lane = self._lane_of[member]
        plan = None if lane.run is None else lane.run.plan_of(member)
        return plan, 0 if plan is None else bisect_right(lane.ends, self.env.now)

    def steps_begun(self, member: Lane) -> tuple[StepPlan | None, int]:
        """Return the same, and how many of its passes began before now."""
        lane = self._lane_of[member]
        plan = None if lane.run is None else lane.run.plan_of(member)
        return plan, 0 if plan is None else self._num_begun(lane)

    def end_load(self, sequence: SequenceState, member: Lane) -> None:
        """Let a sequence join whose blocks have come; if it was given up, its memory is free."""
        lane = self._lane_of[member]
        in_step = lane.run is not None and lane.run.has(member)
        joins = member.state.coming.finish_load(sequence, in_step=in_step)
        self._notice(member, sequence if joins else None)
        if member.state.coming.forgotten:
            self._cut(lane, member, always=True)

    def _notice(self, member: Lane, sequence: SequenceState | None) -> None:
        """Let a lane plan, or cut its run if a sequence or the head of its queue could join."""
        lane = self._lane_of[member]
        if self._is_halted:
            self._is_halted = False
            for each in self.lanes:
                self._wake_up(each)
        elif lane.idle:
            self._wake_up(lane)
        elif lane.run:  # else it plans as soon as rank 0 is free
            self._cut(lane, member, sequence)

    def _wake_up(self, lane: PipelineLane) -> None:
        """Let an idle lane plan if it has work."""
        if not lane.num_unfinished or self._then is not None:
            return
        lane.idle = False
        lane.ready = max(self.env.now, self._begins_at)
        while self._entered and self._goes_after(self._entered[-1], lane):
            self._take_back()
        insort(self._order, lane, key=attrgetter("key"))
        self._look_again()

    def abort(self, sequence: SequenceState, member: Lane) -> None:
        """Remove a sequence: at once if it waits, else when the pass in flight returns."""
        lane = self._lane_of[member]
        if lane.run and sequence in member.state.running:
            member.given_up.append(sequence)
            self._cut(lane, member, always=True)
            return
        member.abort(sequence, in_step=lane.run is not None and lane.run.has(member))
        if member.state.coming.forgotten:
            self._cut(lane, member, always=True)
        if not (lane.run or lane.idle or lane.num_unfinished):
            lane.idle = True
            self._order.remove(lane)
            self._look_again()
        else:
            # another may be at the head of the queue now, and fit
            self._notice(member, None)

    def release(self, sequence: SequenceState, member: Lane) -> None:
        """Free entries that a lane held of a sequence, when the pass in flight has returned."""
        lane = self._lane_of[member]
        if lane.run is not None and lane.run.has(member):
            member.released.append(sequence)
            self._cut(lane, member, always=True)
        else:
            member.state.release_held(sequence)
            self._notice(member, None)

    def halt(self) -> None:
        """Stop: passes that returned count, those under way are lost (a failure, DESIGN §4).

        The sequences stay where they are; new work starts the pipeline again.
        """
        now = self.env.now
        for lane in self.lanes:
            lane.halt(now)
        self._is_halted = True
        self._order.clear()
        self._entered.clear()
        self._rank_ends = [now] * len(self._rank_ends)
        self._look_again()

    def _cut(
        self,
        lane: PipelineLane,
        member: Lane,
        sequence: SequenceState | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Take back passes to come if a sequence, or the head, could be admitted before them."""
        run, num_steps = lane.run, self._num_begun(lane)
        if run is None or num_steps >= lane.num_steps:
            return
        if always or not run.has(member) or member.would_admit(sequence, num_steps):
            lane.num_steps = num_steps
            while len(lane.ends) > num_steps:
                self._take_back()
            lane.has_entered = True
            self._look_again()

    def _look_again(self) -> None:
        """Compute passes anew, and wake at the next event."""
        self._num_ahead = _FIRST_PASSES
        self._advance()
        self._wake = self.env.move(self._wake, *self._next_event())

    def _num_begun(self, lane: PipelineLane) -> int:
        """Return how many passes of a lane's run have begun; the first begins as it is planned."""
        count = bisect_right if self._is_planned else bisect_left
        return max(1, count(lane.entries, self.env.now))

    @property
    def _is_planned(self) -> bool:
        """Tell whether a pass that enters rank 0 at this very instant counts as begun."""
        return self.env.is_after_plan(self._plan_phase)

    def _goes_after(self, other: _Pass, lane: PipelineLane) -> bool:
        """Tell whether a pass waits for a lane that is ready now; one that has begun does not."""
        entry, ready, of, _ = other
        has_begun = len(of.ends) == 1 or (entry == self.env.now and self._is_planned)
        return not has_begun and (ready, of.number) > lane.key

    def _take_back(self) -> None:
        """Undo the latest pass."""
        _, ready, lane, self._rank_ends = self._entered.pop()
        lane.entries.pop()
        lane.ends.pop()
        lane.ready = ready
        lane.has_entered = False
        self._order.insert(0, self._order.pop())


def _nothing() -> None:
    """Do nothing: replaces `then` once `then` was called."""


_Pass = tuple[float, float, PipelineLane, list[float]]
"""When a pass entered rank 0, when its lane was ready, the lane, and the rank ends before it."""


class _Replica(NamedTuple):
    """The lanes of one pipeline."""

    lanes: Sequence[Lane]

    @property
    def score(self) -> int:
        """How busy it is, see `Lane.score`."""
        return sum([lane.score for lane in self.lanes])
