"""Tokens that rows of the records are made of."""

from __future__ import annotations

from collections.abc import Sequence

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


def mean_number(
    number: int, changes: Sequence[tuple[float, int]] | None, begin: float, end: float
) -> float:
    """Return how many there are on average from `begin` to `end` (s).

    number: at first. changes: (seconds, how many from then on), in order.
    """
    if not changes or begin == end:
        return number
    area = number * (end - begin)
    for time, later in changes:
        area += (later - number) * max(end - max(time, begin), 0.0)
        number = later
    return area / (end - begin)
