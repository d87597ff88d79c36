"""Mixed batching: prompts first, and the running decodes in the same step."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.scheduling.admission import steps_until_join, steps_until_pages
from mist_sim.clients.scheduling.base import SCHEDULERS
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.preemption import make_room
from mist_sim.clients.scheduling.whole_prompts.base import WholePromptScheduler, decode_steps


@SCHEDULERS.register("mixed")
@dataclass(frozen=True, kw_only=True)
class MixedScheduler(WholePromptScheduler):
    """Whole prompts join the step of the running decodes, which ride along.

    max_num_batched_tokens limits the prompts; the decodes come on top of it. Decodes are not
    stalled, but a step lasts as long as its prompts take. No prompt is admitted in a step that
    preempted one.
    Source: MIST §II-B and §III-E1; Splitwise (ISCA 2024) §IV, mixed batching.
    """

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        """Plan all prompts that fit together with the decodes."""
        plan = StepPlan()
        disturbed = make_room(lane, plan)
        if not disturbed:
            self.admit_prompts(lane, plan)
        if plan.prefills:
            plan.decodes = lane.clock.num_decodes > 0
            return plan
        limit = steps_until_join(lane, limit) if disturbed else steps_until_pages(lane, limit)
        return decode_steps(lane, plan, limit)
