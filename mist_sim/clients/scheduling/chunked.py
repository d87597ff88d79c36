"""Chunked prefill: decodes first, prompt chunks fill the token budget."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState


@SCHEDULERS.register("chunked")
@dataclass(kw_only=True)
class ChunkedScheduler(Scheduler):
    """Sarathi-Serve and vLLM v1: decodes first, the rest of the budget for prompts.

    A decode takes one token of the budget, and one for each draft that it verifies.

    A prompt longer than what is left is cut; the next steps carry on with it before any other
    is admitted. No prompt is admitted in a step that preempted one (vLLM v1).

    max_num_batched_tokens: token budget of a step, at least max_num_seqs, in scenarios by default
        what vLLM's server takes, 8,192 on GPUs of 70 GiB and more but A100s and else 2,048 (vLLM's
        name).
    long_prefill_token_threshold: most tokens that one prompt gets in a step, so that others can
        share it (vLLM's name); None: the whole budget.
    max_num_partial_prefills: prompts that may be in pieces at a time (vLLM's name; v1 sets no
        limit, nor does None); a prompt that fits whole into what is left does not count.
    Source: MIST §III-E1, Fig. 3; Sarathi-Serve (OSDI 2024) Algorithm 3.
    """

    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int | None = None
    max_num_partial_prefills: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be >= max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}; every running request may need one token"
            )
        for name in ("long_prefill_token_threshold", "max_num_partial_prefills"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")

    def cannot_verify(self, num_drafts: int) -> str | None:
        """Return the token budget that the drafts of a full step need, where it is too small."""
        needed = self.max_num_seqs * (1 + num_drafts)
        if self.max_num_batched_tokens >= needed:
            return None
        return (
            f"have max_num_batched_tokens >= max_num_seqs x (1 + num_speculative_tokens) = "
            f"{needed}, got {self.max_num_batched_tokens}; every running request verifies its "
            f"drafts in every step"
        )

    def schedule(self, limit: int) -> StepPlan | None:
        """Plan the decodes first, then chunks of prompts up to `max_num_batched_tokens`."""
        if not self.running and self.head() is None and not self.swapped:
            return None
        plan = StepPlan()
        disturbed = self._make_room(plan)
        num_decodes = self.clock.num_decodes
        plan.decodes = num_decodes > 0
        budget = self.max_num_batched_tokens - num_decodes * self.clock.num_queries_each
        for sequence in self.prefilling:
            budget -= self._add_chunk(plan, sequence, budget)
        if budget and disturbed:
            limit = self._steps_until_join(limit)
        elif budget and (self.waiting or self.loaded):
            budget = self._admit(plan, budget)
        plan.num_steps = self._num_steps(plan, limit, budget)
        return plan if plan.decodes or not plan.is_empty else None

    def _chunk(self, num_tokens: int, budget: int) -> int:
        """Tokens that a prompt with `num_tokens` to go gets out of a budget."""
        return min(num_tokens, budget, self.long_prefill_token_threshold or budget)

    def _add_chunk(self, plan: StepPlan, sequence: SequenceState, budget: int) -> int:
        num_new_tokens = self._chunk(sequence.num_tokens - sequence.num_computed_tokens, budget)
        return self._add_prefill(plan, sequence, num_new_tokens) if num_new_tokens else 0

    def _admit(self, plan: StepPlan, budget: int) -> int:
        """Admit prompts while budget and number of pieces allow it; return the budget left."""
        most = self.max_num_partial_prefills
        num_partial = 0 if most is None else _num_partial(plan)
        while budget and (sequence := self._next_head(plan)):
            num_tokens = self._tokens_to_admit(sequence)
            chunk = self._chunk(num_tokens, budget)
            if chunk < num_tokens and most is not None and num_partial >= most:
                break
            num_partial += chunk < num_tokens
            budget -= self._take_head(plan, sequence, chunk)
        return budget

    def _num_steps(self, plan: StepPlan, limit: int, budget: int) -> int:
        """Steps in which every prompt gets the same piece, and no decode changes.

        With budget to spare, another prompt may start in the step that completes one; that
        step then needs a plan of its own.
        """
        if plan.prefills and self.kv_cache.shares_blocks and self._shares_change(plan, budget):
            return 1
        spare = 1 if budget else 0
        for sequence, new in plan.prefills:
            remaining = sequence.num_tokens - sequence.num_computed_tokens
            limit = min(limit, max(1, (remaining - spare) // new))
        return self._steps_until_change(limit)

    def _shares_change(self, plan: StepPlan, budget: int) -> bool:
        """Tell whether blocks that a step enters into the cache may matter in the next one.

        They may let the head of the queue in, or be the same that another prompt enters. With
        sliding windows prompts and decodes give back blocks in turn.
        """
        if self.pool.groups and (plan.decodes or len(plan.prefills) > 1):
            return True
        entering = [each for each, _ in plan.prefills if self.kv_cache.is_entering(each)]
        if entering and budget and (head := self.head()) is not None:
            return self.kv_cache.may_gain(head)
        return len(entering) > 1 and not self.kv_cache.are_apart(entering)


def _num_partial(plan: StepPlan) -> int:
    """Prompts that are not complete after the first step of a plan."""
    return sum(
        new < sequence.num_tokens - sequence.num_computed_tokens for sequence, new in plan.prefills
    )
