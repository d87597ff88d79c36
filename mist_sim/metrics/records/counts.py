"""Tokens that rows of the records are made of."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.core.visit import Visit
from mist_sim.stages import Prefill


def attended(chunks: Sequence[tuple[int, int]], num_steps: int) -> tuple[int, int, int]:
    """Return how many tokens of prompts a run's steps compute, and what they attend to.

    Namely the tokens of each step, what the cache holds of the prompts before the run, and their
    (query, key) pairs in it. The chunks of a run lie end to end, so its steps together are one
    chunk of each prompt.
    """
    num_new = context = pairs = 0
    for new, before in chunks:
        num_tokens = new * num_steps
        num_new += new
        context += before
        pairs += num_tokens * before + num_tokens * (num_tokens + 1) // 2
    return num_new, context, pairs


def num_input_tokens(visit: Visit) -> int:
    """Return how many prompt tokens were computed for a visit."""
    num_tokens = -visit.num_cached_tokens - visit.num_fetched_tokens
    if visit.first_token_at == visit.first_token_at:  # it has a token
        for stage in visit.stages:
            if isinstance(stage, Prefill):
                num_tokens += stage.num_prompt_tokens
    else:
        num_tokens += visit.num_computed_tokens
    return max(0, num_tokens)
