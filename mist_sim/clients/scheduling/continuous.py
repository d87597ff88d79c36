"""Continuous batching: prompts first and alone, then decode steps."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.scheduling.base import SCHEDULERS
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.whole_prompts import WholePromptScheduler


@SCHEDULERS.register("continuous")
@dataclass(kw_only=True)
class ContinuousScheduler(WholePromptScheduler):
    """Orca and vLLM v0: as soon as a prompt fits, the running decodes wait for its prefill.

    A step is either a batch of whole prompts or a decode of all running requests.
    Source: MIST §II-B and §III-E1, Fig. 3(b); vLLM (SOSP 2023) §4.5.
    """

    def schedule(self, limit: int) -> StepPlan | None:
        """Plan all prompts that fit; the decodes only where there are none."""
        plan = StepPlan()
        self._admit_prompts(plan)
        if plan.prefills:
            return plan
        disturbed = self._make_room(plan)
        if disturbed or plan.swaps:
            limit = self._steps_until_join(limit)
        return self._decode(plan, limit)
