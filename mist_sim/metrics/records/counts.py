"""Tokens that rows of the records are made of."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.core.visit import Visit
from mist_sim.stages import Prefill


def attended(chunks: Sequence[tuple[int, int]], num_steps: int) -> tuple[int, int]:
    """Return what the cache holds of prompts before a run, and their (query, key) pairs in it.

    The chunks of a run lie end to end, so its steps together are one chunk of each prompt.
    """
    context = pairs = 0
    for num_new, before in chunks:
        num_tokens = num_new * num_steps
        context += before
        pairs += num_tokens * before + num_tokens * (num_tokens + 1) // 2
    return context, pairs


def num_input_tokens(visit: Visit) -> int:
    """Return how many prompt tokens were computed for a visit."""
    num_tokens = 0
    if visit.has_token:
        for stage in visit.stages:
            if isinstance(stage, Prefill):
                num_tokens += stage.num_prompt_tokens
    else:
        num_tokens = visit.num_computed_tokens
    return max(0, num_tokens - visit.num_cached_tokens)
