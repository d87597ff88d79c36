"""The rest of a request after its client failed: stages for another client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan

from mist_sim.core.request import Stage
from mist_sim.core.visit import HeldKv, Visit
from mist_sim.stages import Decode, Prefill, Recomputation


def rest_of(visit: Visit) -> tuple[Stage, ...]:
    """Return the stages that redo the unfinished part of a lost visit."""
    stages = rest(visit.stages, visit.kv, visit.num_output_tokens, visit.last_token_at)
    first, *later = stages
    if isinstance(first, Prefill) and not first.is_again and visit.num_queried_tokens:
        return (_again(first.num_prompt_tokens), *later)
    return stages


def rest(
    stages: Sequence[Stage], kv: HeldKv | None, num_new: int = 0, last_token_at: float = 0.0
) -> tuple[Stage, ...]:
    """Return the stages that continue after a loss of all KV entries.

    The prompt and the tokens so far form a new prompt, whose prefill emits the next token. Stages
    of other kinds, and prompts without a token, start again from the beginning.

    kv: the entries with which the stages began, that are lost now. num_new: tokens emitted since
    then, the latest at `last_token_at`, seconds.
    """
    first = stages[0]
    if isinstance(first, Prefill) and num_new:
        num_known, num_left_out = first.num_prompt_tokens, num_new
        num_emitted = first.num_emitted + num_new
    elif isinstance(first, Decode) and kv is not None:
        num_emitted = kv.num_output_tokens + num_new
        if not num_emitted:  # the first token was to come from here, too
            return (_again(kv.num_prompt_tokens), *stages)
        num_known = kv.num_prompt_tokens + kv.num_output_tokens
        num_left_out = num_new + (kv.num_output_tokens > 0)
        last_token_at = last_token_at if num_new else kv.last_token_at
    else:
        return tuple(stages)
    again = _again(num_known + num_new, num_emitted, last_token_at)
    return (again, *_without(stages, num_left_out))


def _again(
    num_prompt_tokens: int, num_before: int = 0, last_token_at: float = nan
) -> Recomputation:
    """Return the prefill of a prompt that was looked up in a prefix cache before."""
    return Recomputation(
        num_prompt_tokens=num_prompt_tokens, num_before=num_before, last_token_at=last_token_at
    )


def _without(stages: Sequence[Stage], num_tokens: int) -> Iterator[Stage]:
    """Yield decodes without their first tokens, dropping decodes with no token left."""
    for stage in stages:
        if isinstance(stage, Decode):
            num_left = stage.num_tokens - num_tokens
            num_tokens = max(-num_left, 0)
            if num_left > 0:
                yield stage.with_rest(num_left)


def num_lost_tokens(visit: Visit) -> int:
    """Return how many tokens had KV entries that were lost with a visit."""
    kv, num_new = visit.kv, visit.num_output_tokens
    first = visit.stages[0]
    if kv is not None and first.continues:
        return kv.num_tokens * kv.is_computed + num_new
    if isinstance(first, Prefill) and num_new:
        return first.num_prompt_tokens + num_new - 1
    return visit.num_computed_tokens
