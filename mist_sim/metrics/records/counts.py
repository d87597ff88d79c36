"""Numbers that rows of the records are made of."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.core.visit import Lost, Visit
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


def totals(visits: Sequence[Visit]) -> tuple[float, int, int, int, int, int]:
    """Return the totals over a request's visits.

    The time in queues (seconds), its output tokens, its preemptions; prompt tokens looked up in
    prefix caches, found there, and known to an unlimited one.
    """
    queued = 0.0
    num_output_tokens = num_preemptions = num_queried = num_cached = num_known = 0
    for visit in visits:
        begun_at = visit.started_at
        if begun_at != begun_at and isinstance(visit.outcome, Lost):
            begun_at = visit.finished_at  # it was lost before its turn
        queued += begun_at - visit.queued_at
        num_output_tokens += visit.num_output_tokens
        num_preemptions += visit.num_preemptions
        if visit.num_queried_tokens and not visit.stages[0].is_again:
            num_queried += visit.num_queried_tokens
            num_cached += visit.num_cached_tokens
            num_known += visit.num_known_tokens
    return (
        queued,
        num_output_tokens,
        num_preemptions,
        num_queried,
        num_cached,
        num_known,
    )


def mean_number(
    number: int, changes: Sequence[tuple[float, int]] | None, begin: float, end: float
) -> float:
    """Return the mean number from `begin` to `end` (s).

    number: at first. changes: (seconds, how many from then on), in order.
    """
    if not changes or begin == end:
        return number
    area = number * (end - begin)
    for time, later in changes:
        area += (later - number) * max(end - max(time, begin), 0.0)
        number = later
    return area / (end - begin)
