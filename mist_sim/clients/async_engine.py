"""An engine with async scheduling: a step is planned when the step before it starts."""

from __future__ import annotations

from collections import deque
from math import inf

from mist_sim.clients.engine import Engine
from mist_sim.clients.lane import Lane
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence import Sequence
from mist_sim.clients.step_records import Run
from mist_sim.environment import Environment
from mist_sim.hardware.predictors.base import Predictor


class AsyncEngine(Engine):
    """An engine whose plans know only what was known one step earlier (vLLM's async scheduling).

    While a step runs, the next one is planned already. So a request joins the step after the next,
    and what a finished one leaves, its seat and its blocks, can be lent to another one then. That
    a request finishes is known in time, since its answer ends at a given length. An engine that
    has nothing to run plans at once. Decodes that grow take freed blocks without delay. Who gives
    up while it runs leaves at the end of the step in flight, and its seat and blocks, too, can be
    lent one step later; who waits leaves at once.

    Source: vLLM, `EngineCore.step_with_batch_queue` in `vllm/v1/engine/core.py`, with two batches
    in flight, and `vllm/v1/core/sched/async_scheduler.py`.
    """

    def __init__(self, env: Environment, lane: Lane, predictor: Predictor) -> None:
        lane.scheduler.plans_ahead = True
        self._held: deque[tuple[float, Sequence]] = deque()  # arrival, who no plan knows yet
        self._ended_loads: deque[tuple[float, Sequence]] = deque()  # nor that their blocks came
        self._latest: Run | None = None
        super().__init__(env, lane, predictor)

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + len(self._held)

    def _plan(self) -> StepPlan | None:
        self._let_in(self._planned_at())
        scheduler = self.lane.scheduler
        news = self._held or self._ended_loads
        head = scheduler.swapped or scheduler.head()
        changes = news or (scheduler.holds_back and head)
        plan = self.lane.plan(1 if changes else None, self._learn)
        if plan is None and news:
            self._learn()
            plan = self.lane.plan()
        if plan is None:
            self._latest = None
        return plan

    def _planned_at(self) -> float:
        """Return when the step that starts now was planned: at the start of the step before."""
        run = self._latest
        if run is None:
            return inf
        if run.num_steps == 1 or isinstance(run.ends, float):
            return run.start
        return run.ends.item(run.num_steps - 2)

    def _let_in(self, until: float) -> None:
        while self._held and self._held[0][0] <= until:
            self.lane.scheduler.add_request(self._held.popleft()[1])
        while self._ended_loads and self._ended_loads[0][0] <= until:
            self.lane.scheduler.finish_load(self._ended_loads.popleft()[1])

    def _learn(self) -> None:
        """Let everybody in: nothing runs, so the next plan is made now."""
        self._let_in(inf)

    def _start(self, plan: StepPlan) -> Run:
        self._latest = super()._start(plan)
        return self._latest

    def add_request(self, sequence: Sequence) -> Lane:
        """Queue a sequence; while a step is in flight, hold it until the next plan is made."""
        if self._idle:
            return super().add_request(sequence)
        self._held.append((self.env.now, sequence))
        if self._run is not None:
            self._cut_ahead(self._run)
        return self.lane

    def _end_load(self, sequence: Sequence) -> None:
        if self._idle:
            super()._end_load(sequence)
            return
        self._ended_loads.append((self.env.now, sequence))
        if self._run is not None:
            self._cut_ahead(self._run)

    def abort(self, sequence: Sequence, lane: Lane) -> None:
        for arrival in self._held:
            if arrival[1] is sequence:
                self._held.remove(arrival)
                lane.forget(sequence)
                return
        super().abort(sequence, lane)

    def _cut_ahead(self, run: Run) -> None:
        """End a run one step after the step in flight, unless there is no seat then either."""
        if isinstance(run.ends, float) or self.num_running >= self.lane.scheduler.max_num_seqs:
            return
        now = self.env.now
        # what comes at the very start of the run, such as an empty load, is known to its next step
        num_steps = int(run.ends.searchsorted(now)) + 2 if now > run.start else 1
        if num_steps < run.num_steps:
            self._end_after(run, num_steps, run.ends.item(num_steps - 1))
