"""Pipeline parallelism: micro-batches that follow one another through the ranks.

A pipeline of p ranks has p lanes, each with a batch of its own, so that every rank can work. A
pass of a lane goes through all ranks in order. It enters rank 0 when rank 0 is free and the
lane's last pass has returned with its tokens; of several such lanes the one that was ready first
goes first. On the ranks passes never overtake:

    start[r] = max(end[r - 1] + hand-over, end of the pass before on r)
    end[r] = start[r] + time of the batch on rank r

A pass returns at the end of the last rank. What no pass fills is a bubble. A lane has one pass
at a time, so the chunks of a prompt follow one another (vLLM keeps a request in one batch too).
(Seesaw, section 3.1 and appendix A.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from mist_sim.clients import sequence as sequences
from mist_sim.clients.lane import Lane
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.step_records import Run
from mist_sim.environment import PLAN, STEP_END, Environment
from mist_sim.hardware.predictors.pipeline import PipelinePredictor

_FIRST_PASSES = 32  # passes computed ahead; doubles while nothing cuts them
_MOST_PASSES = 65536


class PipelineEngine:
    """Lanes that share the ranks of a pipeline, timed by a predictor.

    Passes that cannot change are computed ahead in one go; SimPy has an event for the next end
    of a lane's run or for its next plan. An arrival that its lane could admit takes back the
    passes that have not entered rank 0.
    """

    def __init__(
        self, env: Environment, lanes: Sequence[Lane], predictor: PipelinePredictor
    ) -> None:
        self.env = env
        self.lanes = [_PipelineLane(number, lane) for number, lane in enumerate(lanes)]
        self.predictor = predictor
        self._rank_ends = [0.0] * len(predictor.ranks)  # of the latest pass on each rank
        self._order: list[_PipelineLane] = []  # lanes with work, as they enter rank 0
        self._entered: deque[_Pass] = deque()  # those that an arrival may take back
        self._num_ahead = _FIRST_PASSES
        self._wake = env.event()
        for lane in self.lanes:
            lane.lane.on_load_end = partial(self._end_load, lane)
        env.start(self._serve())

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        return sum(lane.lane.num_waiting for lane in self.lanes)

    @property
    def num_running(self) -> int:
        """Sequences that hold memory."""
        return sum(lane.lane.num_running for lane in self.lanes)

    # --- the loop -------------------------------------------------------------------------

    def _serve(self) -> Generator[Event, object, None]:
        env = self.env
        while True:
            self._advance()
            time, phase = self._next_event()
            self._wake = env.event() if time == inf else env.at(time, phase)
            yield self._wake
            if not self._end_runs() or env.phase_is_last:
                self._plan()  # else requests that move at this time first enter the queues

    def _advance(self) -> None:
        """Let passes enter and go through the ranks until a lane has to plan, or enough are known.

        This is all that is done for each pass, so it is one loop of plain arithmetic.
        """
        order, entered, rank_ends = self._order, self._entered, self._rank_ends
        for _ in range(self._num_ahead):
            if not order or order[0].has_entered:
                break
            lane = order.pop(0)
            ready, hand_over, before = lane.ready, lane.hand_over, rank_ends
            arrives = entry = max(ready, before[0])
            rank_ends = []
            for free, seconds in zip(before, lane.times[len(lane.ends)].tolist(), strict=True):
                end = (max(free, arrives)) + seconds
                rank_ends.append(end)
                arrives = end + hand_over
            entered.append((entry, ready, lane, before))
            lane.entries.append(entry)
            lane.ends.append(end)
            lane.ready = end
            lane.has_entered = len(lane.ends) == lane.num_steps
            order.append(lane)
        else:
            self._num_ahead = min(2 * self._num_ahead, _MOST_PASSES)
        self._rank_ends = rank_ends

    def _next_event(self) -> tuple[float, int]:
        """Return time and phase of what happens next: a run ends, a lane plans, more passes."""
        if not self._order:
            return inf, PLAN
        now, head = self.env.now, self._order[0]
        run_ends = (lane.ready for lane in self._order if lane.run and lane.has_entered)
        run_end = max(next(run_ends, inf), now)
        if head.run is None:
            entry = max(head.ready, self._rank_ends[0], now)
            return (entry, PLAN) if entry < run_end else (run_end, STEP_END)
        if head.has_entered:
            return run_end, STEP_END
        return min(run_end, max(self._entered[-1][0], now)), STEP_END

    def _end_runs(self) -> bool:
        """Account for the runs that are over by now; return whether there were any."""
        now = self.env.now
        while self._entered and self._entered[0][0] < now:
            self._entered.popleft()
        over = [
            (lane, lane.run)
            for lane in self._order
            if lane.run and lane.has_entered and lane.ready <= now
        ]
        for lane, run in over:
            lane.end(run)
            if not _num_unfinished(lane):
                lane.idle = True
                self._order.remove(lane)
        return bool(over)

    def _plan(self) -> None:
        """Let the first lane plan if rank 0 takes its pass now."""
        now = self.env.now
        while self._order:
            lane = self._order[0]
            if lane.run or max(lane.ready, self._rank_ends[0]) > now:
                return
            plan = lane.lane.plan()
            if plan is not None:
                lane.start(plan, self.predictor)
                return
            lane.idle = True
            self._order.pop(0)

    # --- arrivals and aborts --------------------------------------------------------------

    def add_request(self, sequence: sequences.Sequence) -> Lane:
        """Queue a sequence at the lane with the fewest unfinished ones, the first of equals.

        It stays with that lane (the virtual engines of vLLM v0, `vllm/engine/llm_engine.py`).
        """
        lane = min(self.lanes, key=_num_unfinished)
        lane.lane.scheduler.add_request(sequence)
        self._notice(lane, sequence)
        return lane.lane

    def _end_load(self, lane: _PipelineLane, sequence: sequences.Sequence) -> None:
        """Let a sequence join whose blocks have come; if it was given up, its memory is free."""
        joins = lane.lane.scheduler.finish_load(sequence)
        self._notice(lane, sequence if joins else None)

    def _notice(self, lane: _PipelineLane, sequence: sequences.Sequence | None) -> None:
        """Let a lane plan, or cut the run that a sequence, or the head of its queue, could join."""
        if lane.idle:
            if not _num_unfinished(lane):
                return
            lane.idle = False
            lane.ready = self.env.now
            while self._entered and _goes_after(self._entered[-1], lane):
                self._take_back()
            insort(self._order, lane, key=_key)
            self._look_again()
        elif lane.run is not None:  # else it plans as soon as rank 0 is free
            self._cut(lane, lane.run, sequence)

    def abort(self, sequence: sequences.Sequence, lane: Lane) -> None:
        """Let a sequence go: at once while it waits, else when the pass in flight has returned."""
        its_lane = next(each for each in self.lanes if each.lane is lane)
        run = its_lane.run
        if run is not None and lane.is_running(sequence):
            lane.abort_after_run(sequence)
            self._cut(its_lane, run, always=True)
            return
        lane.abort(sequence)
        if run is None and not its_lane.idle and not _num_unfinished(its_lane):
            its_lane.idle = True
            self._order.remove(its_lane)
            self._look_again()
        else:
            self._notice(its_lane, None)  # another may be at the head of the queue now, and fit

    def _cut(
        self,
        lane: _PipelineLane,
        run: Run,
        sequence: sequences.Sequence | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Take back the passes to come if a sequence, or the head, could be admitted before."""
        num_steps = max(1, bisect_left(lane.entries, self.env.now))
        if num_steps >= run.num_steps:
            return
        if always or lane.lane.would_admit(sequence, num_steps):
            run.num_steps = lane.num_steps = num_steps
            while len(lane.ends) > num_steps:
                self._take_back()
            lane.has_entered = True
            self._look_again()

    def _look_again(self) -> None:
        """Compute passes anew, and wake at what happens next."""
        self._num_ahead = _FIRST_PASSES
        self._advance()
        self._wake = self.env.move(self._wake, *self._next_event())

    def _take_back(self) -> None:
        """Undo the latest pass."""
        _, ready, lane, self._rank_ends = self._entered.pop()
        lane.entries.pop()
        lane.ends.pop()
        lane.ready = ready
        lane.has_entered = False
        self._order.insert(0, self._order.pop())


class _PipelineLane:
    """A lane and the run of passes that it is in.

    ready: when its latest pass returned, or its work arrived; it may enter rank 0 then.
    idle: whether it has nothing to do.
    run: the steps that it has planned, `num_steps` of them; None between two runs.
    has_entered: whether all passes of the run have entered rank 0; true between two runs.
    times, hand_over: seconds of each step on each rank, and between two ranks.
    entries, ends: when the passes known so far entered rank 0 and returned.
    """

    def __init__(self, number: int, lane: Lane) -> None:
        self.number = number
        self.lane = lane
        self.ready = 0.0
        self.idle = True
        self.run: Run | None = None
        self.num_steps = 0
        self.has_entered = True
        self.times: NDArray[np.float64] = np.empty((0, 0))
        self.hand_over = 0.0
        self.entries: list[float] = []
        self.ends: list[float] = []

    @property
    def key(self) -> tuple[float, int]:
        """What orders lanes at rank 0."""
        return self.ready, self.number

    def start(self, plan: StepPlan, predictor: PipelinePredictor) -> None:
        """Begin the steps of a plan."""
        self.num_steps = num_steps = plan.num_steps
        self.has_entered = False
        batch = self.lane.scheduler.batch(plan)
        self.run = Run(plan, batch, self.ready, inf, num_steps, inf)
        self.hand_over = predictor.hand_over(batch.num_prefill_tokens + batch.num_decode_queries)
        if num_steps == 1:
            self.times = np.array([[rank.step_time(batch) for rank in predictor.ranks]])
            self.times[0] += plan.swap_time  # every rank copies its part
            return
        growth = self.lane.scheduler.growth(plan)
        self.times = np.empty((num_steps, len(predictor.ranks)))
        known: dict[int, NDArray[np.float64]] = {}
        for column, rank in enumerate(predictor.ranks):
            if id(rank) not in known:
                known[id(rank)] = rank.run(batch, growth, num_steps)
            self.times[:, column] = known[id(rank)]
        self.times[0] += plan.swap_time

    def end(self, run: Run) -> None:
        """Account for its run."""
        run.end = self.ends[-1]
        run.ends = run.end if run.num_steps == 1 else np.array(self.ends)
        run.busy = float(self.times[: run.num_steps].sum())
        self.run = None
        self.entries.clear()
        self.ends.clear()
        self.lane.end(run)


_Pass = tuple[float, float, _PipelineLane, list[float]]
"""When a pass entered rank 0, when its lane was ready, the lane, and the rank ends before it."""


def _goes_after(other: _Pass, lane: _PipelineLane) -> bool:
    """Whether a pass may follow a lane that is ready now; the first of a run is under way."""
    _, ready, of, _ = other
    return (ready, of.number) > lane.key and len(of.ends) > 1


def _key(lane: _PipelineLane) -> tuple[float, int]:
    return lane.key


def _num_unfinished(lane: _PipelineLane) -> int:
    return lane.lane.num_waiting + lane.lane.num_running
