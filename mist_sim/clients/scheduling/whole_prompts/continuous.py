"""Continuous batching: prompts first and alone, then decode steps."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.scheduling.admission import steps_until_join, steps_until_pages
from mist_sim.clients.scheduling.base import SCHEDULERS
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.preemption import make_room
from mist_sim.clients.scheduling.whole_prompts.base import WholePromptScheduler, decode_steps


@SCHEDULERS.register("continuous")
@dataclass(frozen=True, kw_only=True)
class ContinuousScheduler(WholePromptScheduler):
    """Orca and vLLM v0: as soon as a prompt fits, the running decodes wait for its prefill.

    A step is either a batch of whole prompts or a decode of all running requests.
    Source: MIST §II-B and §III-E1, Fig. 3(b); vLLM (SOSP 2023) §4.5.
    """

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        """Plan all prompts that fit; the decodes only if there are none."""
        plan = StepPlan()
        self.admit_prompts(lane, plan)
        if plan.prefills:
            return plan
        disturbed = make_room(lane, plan)
        if disturbed or plan.resumed or plan.moves:
            limit = steps_until_join(lane, limit)
        return decode_steps(lane, plan, steps_until_pages(lane, limit))
