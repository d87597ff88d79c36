"""Tokens that rows of the records are made of."""

from __future__ import annotations

from mist_sim.core.visit import Visit
from mist_sim.stages import Prefill


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
