"""Static batching: a batch runs to completion before the next one forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mist_sim.clients.scheduling.admission import steps_until_join, steps_until_pages
from mist_sim.clients.scheduling.base import SCHEDULERS
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.preemption import make_room
from mist_sim.clients.scheduling.whole_prompts.base import WholePromptScheduler, decode_steps
from mist_sim.clients.sequence_state import SequenceState


@SCHEDULERS.register("static")
@dataclass(frozen=True, kw_only=True)
class StaticScheduler(WholePromptScheduler):
    """FasterTransformer: requests that wait when the engine is idle form a batch.

    Its prompts are computed in one step, then all decode together. A request leaves when it has its
    tokens, and its seat stays empty until all have left. A preempted request is computed again with
    a later batch. max_num_batched_tokens limits the prompts of a batch.
    Source: MIST §II-B and §III-E1, Fig. 3(a).
    """

    takes_over: ClassVar[bool] = False

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        """Plan new prompts only if no sequence runs; else the decodes."""
        plan = StepPlan()
        if lane.prefilling or not lane.running:
            self.admit_prompts(lane, plan)
        if plan.prefills:
            return plan
        if make_room(lane, plan) and (lane.swapped or lane.coming.moved or lane.paused):
            limit = steps_until_join(lane, limit)
        elif lane.swapped or lane.coming.moved:
            limit = steps_until_pages(lane, limit)
        return decode_steps(lane, plan, limit)

    def would_admit(self, lane: LaneState, sequence: SequenceState, num_steps: int) -> bool:
        """False: a static batch takes in no sequence before it ends."""
        return False
