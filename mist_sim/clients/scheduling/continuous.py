"""Continuous batching: prompts first and alone, then decode steps."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler, StepPlan
from mist_sim.clients.sequence import Sequence


@SCHEDULERS.register("continuous")
@dataclass(kw_only=True)
class ContinuousScheduler(Scheduler):
    """Orca and vLLM v0: as soon as a prompt fits, the running decodes wait for its prefill.

    A step is either a batch of whole prompts or a decode of all running requests.

    max_num_batched_tokens: prompt tokens of one prefill step; a longer prompt is refused
        (vLLM v0 ignores it), and a preempted request that has grown beyond it is computed
        alone. None: as many as memory holds (vLLM v0 defaults to the model's maximum length).
    Source: MIST §III-E1, Fig. 3; vLLM (SOSP 2023) §4.5.
    """

    max_num_batched_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < 1:
            raise ValueError(
                f"max_num_batched_tokens must be >= 1, got {self.max_num_batched_tokens}"
            )

    def refusal(self, sequence: Sequence) -> str | None:
        limit = self.max_num_batched_tokens
        if limit is not None and sequence.num_tokens > limit:
            return (
                f"a prompt of {sequence.num_tokens} tokens exceeds "
                f"max_num_batched_tokens={limit}; raise it or use the chunked scheduler"
            )
        return super().refusal(sequence)

    def schedule(self, limit: int) -> StepPlan | None:
        plan = StepPlan()
        self._admit_prompts(plan)
        if plan.prefills:
            return plan
        self._make_room(plan)
        if self.clock.num_decodes:
            plan.decodes = True
            if not plan.preempted and not plan.dropped:
                plan.num_steps = self._steps_until_change(limit)
            return plan
        return plan if plan.dropped else None

    def _admit_prompts(self, plan: StepPlan) -> None:
        budget = self.max_num_batched_tokens or self.pool.num_token_slots
        while self.waiting:
            num_tokens = self.waiting[0].num_tokens
            if plan.prefills and num_tokens > budget:
                break
            if not self._admit_head(plan, num_tokens):
                break
            budget -= num_tokens
