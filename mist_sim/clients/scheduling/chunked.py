"""Chunked prefill: decodes first, prompt chunks fill the token budget."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler, StepPlan


@SCHEDULERS.register("chunked")
@dataclass(kw_only=True)
class ChunkedScheduler(Scheduler):
    """Sarathi-Serve and vLLM v1: one token for every decode, the rest of the budget for prompts.

    A prompt longer than what is left is cut; the next steps carry on with it before any other
    is admitted. No prompt is admitted in a step that preempted one (vLLM v1).

    max_num_batched_tokens: token budget of a step, at least max_num_seqs (vLLM's name; 2,048 is
        vLLM's default for chunked prefill, see its `SchedulerConfig`).
    Source: MIST §III-E1, Fig. 3; Sarathi-Serve (OSDI 2024) Algorithm 3.
    """

    max_num_batched_tokens: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be >= max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}; every running request may need one token"
            )

    def schedule(self, limit: int) -> StepPlan | None:
        if not self.running and not self.waiting:
            return None
        plan = StepPlan()
        self._make_room(plan)
        plan.decodes = self.clock.num_decodes > 0
        budget = self.max_num_batched_tokens - self.clock.num_decodes
        for sequence in self.prefilling:
            num_new_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            plan.prefills.append((sequence, num_new_tokens))
            budget -= num_new_tokens
        disturbed = plan.preempted or plan.dropped
        if not disturbed:
            while self.waiting and budget and (admitted := self._admit_head(plan, budget)):
                budget -= admitted
        if not plan.prefills and not plan.decodes:
            return plan if plan.dropped else None
        if not disturbed:
            plan.num_steps = self._num_steps(plan, limit)
        return plan

    def _num_steps(self, plan: StepPlan, limit: int) -> int:
        """Steps without a change of members: of decodes, or of one prompt and decodes."""
        if plan.prefills:
            sequence, num_new_tokens = plan.prefills[0]
            fills_budget = num_new_tokens + self.clock.num_decodes == self.max_num_batched_tokens
            if len(plan.prefills) > 1 or not fills_budget:
                return 1
            remaining = sequence.num_tokens - sequence.num_computed_tokens
            limit = min(limit, remaining // num_new_tokens)
        return self._steps_until_change(limit)
