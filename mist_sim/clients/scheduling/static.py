"""Static batching: a batch runs to completion before the next one forms."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.scheduling.base import SCHEDULERS
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.whole_prompts import WholePromptScheduler
from mist_sim.clients.sequence_state import SequenceState


@SCHEDULERS.register("static")
@dataclass(kw_only=True)
class StaticScheduler(WholePromptScheduler):
    """FasterTransformer: requests that wait when the engine is idle form a batch.

    Its prompts are computed in one step, then all decode together; a request leaves when it has
    its tokens, and nobody takes its place until all have left. A request that lost its memory
    is computed again with a later batch. max_num_batched_tokens limits the prompts of a batch.
    Source: MIST §II-B and §III-E1, Fig. 3(a).
    """

    def schedule(self, limit: int) -> StepPlan | None:
        """Plan new prompts only when nobody runs any more; else the decodes."""
        plan = StepPlan()
        if not self.running:
            self._admit_prompts(plan)
        if plan.prefills:
            return plan
        if self._make_room(plan) and self.swapped:
            limit = self._steps_until_join(limit)
        return self._decode(plan, limit)

    def would_admit(self, sequence: SequenceState, num_steps: int) -> bool:
        return False
