"""The plain lane of a client whose answers flow: with role p_heavy or d_heavy (TaiChi)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.clients.engine.flowing_lane import FlowingLane
from mist_sim.clients.engine.plain_role import PlainDecodeEngine
from mist_sim.clients.scheduling import ChunkedScheduler, StepPlan
from mist_sim.clients.scheduling.admission import bring_entries
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError
from mist_sim.hardware.predictors.base import Predictor

if TYPE_CHECKING:
    from mist_sim.clients.engine.plan_ahead import PlanAhead
    from mist_sim.clients.sequence_state import SequenceState


class PlainFlowingEngine(PlainDecodeEngine):
    """One lane of a client that computes prompts, and whose answers come from others and leave."""

    flows = True

    def __init__(
        self,
        env: Environment,
        lane: FlowingLane,
        scheduler: ChunkedScheduler,
        predictor: Predictor,
        phases: tuple[int, int],
    ) -> None:
        super().__init__(env, lane, scheduler, predictor, phases)
        self._flowing = lane

    def _hear(self, ahead: PlanAhead | None, limit: int) -> int:
        limit = super()._hear(ahead, limit)
        return 1 if limit and ahead is not None and self._flowing.is_due else limit

    def _bring(self, limit: int, budget: int) -> int:
        """Let entries come even in steps that are full of prompts."""
        if budget:
            return super()._bring(limit, budget)
        found = StepPlan()
        bring_entries(self._state, found)
        if not found.moves:
            return limit
        self._only.note(found)
        return 1

    def _until_flow(self) -> None:
        run = self._plain_run
        run.went_on = False
        if run.num_steps > 1:
            num_steps = self._flowing.steps_until_flow(self._plain_plan, run)
            if num_steps < run.num_steps:
                run.cut(num_steps)

    def _hand_back(self, finished: list[SequenceState], end: float) -> None:
        super()._hand_back(finished, end)
        self._flowing.let_leave(self._plain_run)

    def plan_anew(self) -> None:
        """Plan with the lane's new scheduler after the step in flight."""
        scheduler = self._only.scheduler
        if not isinstance(scheduler, ChunkedScheduler):
            raise InvariantError(f"a plain lane has no chunks with {scheduler}")
        self._scheduler, self._most_tokens = scheduler, scheduler.max_num_batched_tokens
        super().plan_anew()
