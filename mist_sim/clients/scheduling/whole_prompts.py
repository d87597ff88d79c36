"""What the policies share that compute prompts whole, a batch of them in one step."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from mist_sim.clients.scheduling.base import Scheduler
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState


@dataclass(kw_only=True)
class WholePromptScheduler(Scheduler):
    """Prompts are never cut.

    max_num_batched_tokens: prompt tokens of one step; a longer prompt is refused (vLLM v0
        ignores it), and a preempted request that has grown beyond it is computed alone. None:
        as many as memory holds (vLLM v0 defaults to the model's maximum length).
    """

    max_num_batched_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < 1:
            raise ValueError(
                f"max_num_batched_tokens must be >= 1, got {self.max_num_batched_tokens}"
            )

    def refusal(self, sequence: SequenceState) -> str | None:
        """Return why a sequence can never be served: for a prompt that no step can take, too."""
        limit = self.max_num_batched_tokens
        if limit is not None and sequence.num_tokens > limit:
            return (
                f"a prompt of {sequence.num_tokens} tokens exceeds "
                f"max_num_batched_tokens={limit}; raise it or use the chunked scheduler"
            )
        return super().refusal(sequence)

    def _admit_prompts(self, plan: StepPlan) -> None:
        """Admit waiting prompts, whole, until a limit or memory stops it."""
        budget = self.max_num_batched_tokens or inf
        while sequence := self._next_head(plan):
            num_tokens = self._tokens_to_admit(sequence)
            if plan.prefills and num_tokens > budget:
                break
            budget -= self._take_head(plan, sequence, num_tokens)

    def _decode(self, plan: StepPlan, limit: int) -> StepPlan | None:
        """Let the running decodes, which have room for a step, run until something changes.

        Returns None when there are none and nothing else is planned.
        """
        if not self.clock.num_decodes:
            return None if plan.is_empty else plan
        plan.decodes = True
        plan.num_steps = self._steps_until_change(limit)
        return plan
