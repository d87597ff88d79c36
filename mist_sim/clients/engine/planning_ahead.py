"""An engine with async scheduling: a step is planned when the step before it starts."""

from __future__ import annotations

from collections import deque
from math import inf

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.loop import Engine
from mist_sim.clients.engine.step_records import Run
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.environment import Environment
from mist_sim.hardware.predictors.base import Predictor


class AsyncEngine(Engine):
    """An engine whose plans know only what was known one step earlier (vLLM's async scheduling).

    A step is planned when the step before it starts, and knows what happened until then. So a
    request joins the step after the next, and what a finished one leaves, its seat and its
    blocks, can be lent to another one then. That a request finishes is known in time, since its
    answer ends at a given length. Decodes that grow take freed blocks without delay. Who gives up
    while it runs leaves at the end of the step in flight, and its seat and blocks, too, can be
    lent one step later; who waits leaves at once.

    When a plan computes nothing, no step is in flight and none is ahead: the next plan is made on
    the spot, knows everything, and its step cannot hide the host's time.

    Source: vLLM, `EngineCore.step_with_batch_queue` in `vllm/v1/engine/core.py`, with two batches
    in flight, and `vllm/v1/core/sched/async_scheduler.py`.
    """

    def __init__(self, env: Environment, lane: Lane, predictor: Predictor, number: int = 0) -> None:
        lane.scheduler.plans_ahead = True
        self._arrived: deque[tuple[float, SequenceState]] = deque()  # when; no plan knows it yet
        self._loaded: deque[tuple[float, SequenceState]] = (
            deque()
        )  # nor that their blocks came then
        self._latest: Run | None = None  # None: nothing is computed, so plans know everything
        self._on_the_spot = getattr(predictor, "step_time_on_the_spot", predictor.step_time)
        super().__init__(env, lane, predictor, number)

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + len(self._arrived)

    # --- plans ----------------------------------------------------------------------------

    def _plan(self) -> StepPlan | None:
        scheduler = self.lane.scheduler
        self._let_in(self._latest.last_start if self._latest else inf)
        comes_next = self._arrived or self._loaded
        waits_for_a_seat = scheduler.holds_back and (scheduler.swapped or scheduler.head())
        limit = 1 if comes_next or waits_for_a_seat else None
        return self.lane.plan(limit, self._plan_on_the_spot)

    def _plan_on_the_spot(self) -> bool:
        """Nothing is ahead: let the next plan know everything; return whether that is more."""
        if self._latest is None:
            return False
        self._latest = None
        self._let_in(inf)
        self.lane.scheduler.release()
        return True

    def _let_in(self, known_until: float) -> None:
        """Tell the scheduler what happened until then."""
        scheduler = self.lane.scheduler
        for news, tell in (
            (self._arrived, scheduler.add_request),
            (self._loaded, scheduler.finish_load),
        ):
            while news and news[0][0] <= known_until:
                tell(news.popleft()[1])

    def _start(self, plan: StepPlan) -> Run:
        if self._latest is None:
            now, batch = self.env.now, self.lane.scheduler.batch(plan)
            end = now + (self._on_the_spot(batch) + plan.swap_time)
            self._latest = Run(plan, batch, now, end, 1, end)
        else:
            self._latest = super()._start(plan)
        return self._latest

    # --- arrivals and aborts --------------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> Lane:
        """Queue a sequence; while a step is in flight, hold it until a plan can know of it."""
        if self._idle:
            return super().add_request(sequence)
        self._hold(self._arrived, sequence)
        return self.lane

    def _end_load(self, sequence: SequenceState) -> None:
        if self._idle:
            super()._end_load(sequence)
        else:
            self._hold(self._loaded, sequence)

    def _hold(self, news: deque[tuple[float, SequenceState]], sequence: SequenceState) -> None:
        news.append((self.env.now, sequence))
        if self._run is not None:
            self._cut_ahead(self._run)

    def abort(self, sequence: SequenceState, lane: Lane) -> None:
        """Let a sequence go: one that no plan knows yet at once, others as an engine does."""
        for arrival in self._arrived:
            if arrival[1] is sequence:
                self._arrived.remove(arrival)
                lane.forget(sequence)
                return
        super().abort(sequence, lane)

    def _cut_ahead(self, run: Run) -> None:
        """End a run with the next step to start, whose successor knows what happens now.

        Unless there is no seat then either.
        """
        if isinstance(run.ends, float) or self.num_running >= self.lane.scheduler.max_num_seqs:
            return
        now = self.env.now
        num_steps = int(run.ends.searchsorted(now)) + 2 if now > run.start else 1
        if num_steps < run.num_steps:
            self._end_after(run, num_steps, run.ends.item(num_steps - 1))
