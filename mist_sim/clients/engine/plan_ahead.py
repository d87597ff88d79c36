"""Async scheduling: a step is planned when the step before it starts."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Protocol

from mist_sim.clients.engine.run import RunningLane
from mist_sim.clients.scheduling.planned_steps import batch_of
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.base import Predictor, traits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mist_sim.clients.engine.run import Run
    from mist_sim.clients.scheduling import StepPlan
    from mist_sim.environment import Environment


class PlanningLane(RunningLane, Protocol):
    """The part of a lane that `PlanAhead` uses."""

    env: Environment
    ahead: PlanAhead | None

    def abort_late(self, sequence: SequenceState, /) -> None:
        """Forget a sequence that was given up a step ago."""

    def plan(
        self, limit: int | None, plan_on_the_spot: Callable[[], bool] | None, /
    ) -> StepPlan | None:
        """Return the next steps, at most `limit` of them; None: nothing to do."""


class PlanAhead:
    """The knowledge of plans that are made one step early (vLLM's async scheduling).

    A step is planned when the step before it starts, and its plan knows what happened until then.
    So a request that arrives joins the step after the next. A request that ends with the step in
    flight has no part in the next step, since the length of its answer is known, but it keeps its
    seat and blocks until that step is planned. A request that is given up still takes part in the
    next step, even if it was only waiting, and leaves before the step after it is planned. With
    drafts the end of an answer is not known ahead: an answer that has ended may take part in one
    more step (`Overruns`).

    After a plan that computes nothing, no step is in flight and none is planned: the next plan is
    made on the spot, knows everything, and its step cannot hide the host's time.

    Source: vLLM, `EngineCore.step_with_batch_queue` in `vllm/v1/engine/core.py`, with two batches
    in flight, and `vllm/v1/core/sched/async_state.py`.

    Lanes that step together each have their own; a lane that computes nothing while others do knows
    everything when the next common step begins.

    latest: the run that was started last; None if none is in flight, so that plans know everything.
    """

    def __init__(self, lane: PlanningLane, predictor: Predictor) -> None:
        self.latest: Run | None = None
        self.was_on_the_spot = False  # the plan of that run
        self._lane = lane
        self._predictor = predictor
        self._on_the_spot = traits_of(predictor).step_time_on_the_spot or predictor.step_time
        # (time, sequence) of arrivals, ends of loads and give-ups that no plan knows yet
        self.arrived: deque[tuple[float, SequenceState]] = deque()
        self._loaded: deque[tuple[float, SequenceState]] = deque()
        self.given_up: deque[tuple[float, SequenceState]] = deque()
        lane.ahead = self

    @property
    def comes_next(self) -> bool:
        """Whether something has happened that no plan knows of yet."""
        return bool(self.arrived or self._loaded or self.given_up)

    def hold_arrival(self, sequence: SequenceState) -> None:
        """Hold back a sequence that arrives now until a plan may know of it."""
        self.arrived.append((self._lane.env.now, sequence))

    def hold_loaded(self, sequence: SequenceState) -> None:
        """Hold back the news that a sequence's blocks have come."""
        self._loaded.append((self._lane.env.now, sequence))

    def hold_abort(self, sequence: SequenceState) -> None:
        """Hold back the news that a sequence is given up: the planned step still computes it."""
        self.given_up.append((self._lane.env.now, sequence))

    def forget(self, sequence: SequenceState) -> bool:
        """Forget an arrival that the next plan does not know of; return False if there is none."""
        known_until = inf if self.latest is None else self.latest.start_of(self._lane.env.now)
        for arrival in self.arrived:
            if arrival[1] is sequence and not arrival[0] <= known_until < inf:
                self.arrived.remove(arrival)
                return True
        return False

    def halt(self) -> None:
        """Nothing is computed any more, so the next plan knows everything."""
        self._know_all()

    def plan(self) -> StepPlan | None:
        """Return the next steps, planned with what was known when the step before them started."""
        state = self._lane.state
        if self.latest is None:
            self._know_all()
        else:
            parts = self.latest.parts  # of all lanes that step together
            plan = next(plan for lane, plan, _ in parts if lane is self._lane)
            state.known.is_behind = plan.decodes
            state.known.lacks_tokens = plan.decodes and not self.was_on_the_spot
            state.kv_cache.answers.is_ahead = True
            if self.comes_next:
                self.let_in(self.latest.last_start)
        waits_for_room = state.leaving and (state.swapped or state.coming.moved or state.head())
        limit = 1 if self.comes_next or waits_for_room or state.overruns else None
        next_plan = self._lane.plan(limit, self._plan_on_the_spot)
        self.was_on_the_spot = self.latest is None
        if state.overruns and next_plan is not None and next_plan.decodes:
            next_plan.batch = batch_of(state, next_plan)
            next_plan.num_overruns = len(state.overruns)
        if state.leaving or state.in_flight.deferred:
            state.free_leaving()
        return next_plan

    def num_steps(self, plan: StepPlan) -> int:
        """Return how many steps of a plan are final: one if it was made on the spot."""
        return plan.num_steps if self.latest else 1

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of a single step in seconds."""
        return (self._predictor.step_time if self.latest else self._on_the_spot)(batch)

    def _plan_on_the_spot(self) -> bool:
        """Let the next plan know everything if no step is in flight; return whether it does."""
        if self.latest is None:
            return False
        self._know_all()
        return True

    def _know_all(self) -> None:
        """Let the next plan know everything up to now."""
        self.latest = None
        state = self._lane.state
        state.known.is_behind = state.known.lacks_tokens = False
        state.kv_cache.answers.is_ahead = False
        state.free_leaving()
        self.let_in(inf)

    def let_in(self, known_until: float) -> None:
        """Tell the lane what happened until a time."""
        state = self._lane.state
        for news, tell in (
            (self.arrived, state.add_request),
            (self._loaded, state.coming.finish_load),
            (self.given_up, self._lane.abort_late),
        ):
            while news and news[0][0] <= known_until:
                tell(news.popleft()[1])
