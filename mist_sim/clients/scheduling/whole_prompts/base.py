"""Shared code of the policies that compute a batch of whole prompts in one step."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from mist_sim.clients.scheduling.admission import (
    add_piece,
    admit,
    next_to_admit,
    steps_until_gain,
    tokens_to_compute,
)
from mist_sim.clients.scheduling.base import Scheduler
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState


@dataclass(frozen=True, kw_only=True)
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

    def refusal(self, lane: LaneState, sequence: SequenceState) -> str | None:
        """Return why a sequence can never be served: for a prompt that no step can take, too."""
        limit = self.max_num_batched_tokens
        num_to_go = 0 if sequence.waits_to_decode else sequence.num_tokens - sequence.num_brought
        if limit is not None and num_to_go > limit:
            return (
                f"a prompt of {num_to_go} tokens exceeds "
                f"max_num_batched_tokens={limit}; raise it or use the chunked scheduler"
            )
        return super().refusal(lane, sequence)

    def admit_prompts(self, lane: LaneState, plan: StepPlan) -> None:
        """Admit waiting prompts, whole, until a limit or memory stops it.

        Prompts whose step was lost when the engine halted are computed again.
        """
        budget = self.max_num_batched_tokens or inf
        for lost in lane.prefilling:
            num_to_go = lost.num_tokens - lost.num_computed_tokens
            budget -= add_piece(lane, plan, lost, num_to_go)
        while sequence := next_to_admit(lane, plan):
            num_tokens = tokens_to_compute(lane, sequence)
            if plan.prefills and num_tokens > budget:
                break
            budget -= admit(lane, plan, sequence, num_tokens)


def decode_steps(lane: LaneState, plan: StepPlan, limit: int) -> StepPlan | None:
    """Plan steps for the running decodes, which have room for one, until something changes.

    limit: the most steps.
    Returns the plan, or None if there are no decodes and nothing else is planned.
    """
    if not lane.clock.num_decodes:
        return None if plan.is_empty else plan
    plan.decodes = True
    if lane.kv_cache.tiers is not None:
        limit = lane.kv_cache.tiers.most_steps(limit)
    plan.num_steps = steps_until_gain(lane, lane.steps_until_change(limit))
    return plan
