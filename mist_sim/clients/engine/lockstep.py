"""Lanes that step together: data-parallel replicas that share their experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.least_loaded import least_loaded
from mist_sim.clients.engine.loop import Engine
from mist_sim.clients.engine.plan_ahead import PlanAhead
from mist_sim.clients.engine.run import Part, Run
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.scheduling.planned_steps import batch_of, growth_of
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth, share_experts
from mist_sim.environment import Environment
from mist_sim.hardware.predictors.base import Predictor

Array = NDArray[np.float64]


class LockstepEngine(Engine):
    """Lanes that plan at the same time and whose step lasts as long as the slowest lane's.

    A lane without work takes part with an empty batch (vLLM's `DPEngineCoreProc` runs dummy
    batches).
    """

    def __init__(
        self,
        env: Environment,
        lanes: Sequence[Lane],
        predictor: Predictor,
        phases: tuple[int, int],
    ) -> None:
        super().__init__(env, lanes, predictor, phases)
        cadence = lanes[0].state.cadence
        self._count = cadence.count if cadence is not None else None

    def next_lane(self) -> Lane:
        """Return the least loaded lane."""
        return least_loaded(self.lanes)

    def _end(self, event: Event) -> None:
        if self._count is not None and self._run is not None:
            self._count.num_steps += self._run.num_steps
        super()._end(event)

    def halt(self) -> None:
        """Stop, and count steps from 0 again, as restarted engines do."""
        super().halt()
        self._forget_count()

    def _forget_count(self) -> None:
        if self._count is not None:
            self._count.num_steps = 0

    def _starts_all(self) -> Callable[[], Run | None]:
        several = [(each, each.ahead) for each in self.lanes if each.ahead is not None]
        return partial(self._start_ahead_together, several) if several else self._start_together

    def _start_together(self) -> Run | None:
        """Start as many steps as every lane's plan allows."""
        plans = [(lane, plan) for lane in self.lanes if (plan := lane.plan())]
        if not plans:
            self._forget_count()
            return None
        parts = tuple((lane, plan, batch_of(lane.state, plan)) for lane, plan in plans)
        idle = share_experts([batch for _, _, batch in parts], len(self.lanes))
        num_steps = min(plan.num_steps for _, plan in plans)
        times_each = [self._times(lane, plan, batch, num_steps) for lane, plan, batch in parts]
        return self._together(parts, times_each, num_steps, idle)

    def _start_ahead_together(self, lanes: Sequence[tuple[Lane, PlanAhead]]) -> Run | None:
        """Start as many steps as every lane's plan allows; the plans were made one step ahead."""
        plans = [(lane, ahead, plan) for lane, ahead in lanes if (plan := ahead.plan())]
        if not plans:
            self._forget_count()
            return None
        num_steps = min(ahead.num_steps(plan) for _, ahead, plan in plans)
        batches = [batch_of(lane.state, plan) for lane, _, plan in plans]
        idle = share_experts(batches, len(self.lanes))
        parts, times_each = [], []
        for (lane, ahead, plan), batch in zip(plans, batches, strict=True):
            if ahead.latest is None:  # planned on the spot, so it is a single step
                times = np.array([ahead.step_time(batch) + plan.wait_time])
            else:
                times = self._times(lane, plan, batch, num_steps)
            parts.append((lane, plan, batch))
            times_each.append(times)
        run = self._together(tuple(parts), times_each, num_steps, idle)
        for _, ahead, _ in plans:
            ahead.latest = run
        return run

    def _times(self, lane: Lane, plan: StepPlan, batch: StepBatch, num_steps: int) -> Array:
        """Return the seconds of a lane's steps."""
        times = self.predictor.run(batch, growth_of(lane.state, plan), num_steps)
        times[0] += plan.wait_time
        return times

    def _together(
        self, parts: tuple[Part, ...], times_each: list[Array], num_steps: int, idle: StepBatch
    ) -> Run:
        """Return steps that last as long as the slowest lane's; `idle`: the batch of idle ones."""
        if len(parts) < len(self.lanes):
            times_each.append(self.predictor.run(idle, StepGrowth(), num_steps))
        now = self.env.now
        times = np.maximum.reduce(times_each)
        times[0] += now
        ends = np.add.accumulate(times, out=times).tolist()
        return Run(parts, now, ends, num_steps, ends[-1])

    def _could_join(
        self, run: Run, lane: Lane, sequence: SequenceState | None, num_steps: int
    ) -> bool:
        """Tell the same; any sequence could join at a lane that takes no part in the run."""
        return not run.has(lane) or super()._could_join(run, lane, sequence, num_steps)
