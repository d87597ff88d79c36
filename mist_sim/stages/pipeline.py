"""Pipelines: any ordered combination of stages that makes sense."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mist_sim.core.request import Stage
from mist_sim.stages.llm import Decode, Prefill


def completion(num_prompt_tokens: int, num_output_tokens: int) -> tuple[Stage, ...]:
    """Return the pipeline of a plain completion: prefill, then decode.

    num_prompt_tokens: > 0. num_output_tokens: >= 1; prefill emits the first.
    Raises ValueError for lengths outside these ranges.
    """
    if num_output_tokens < 1:
        raise ValueError(f"num_output_tokens must be >= 1, got {num_output_tokens}")
    return _prefill(num_prompt_tokens), _decode(num_output_tokens - 1)


# Stages never change, and lengths repeat, so requests of a trace share them.
@lru_cache(maxsize=4096)
def _prefill(num_prompt_tokens: int) -> Prefill:
    return Prefill(num_prompt_tokens=num_prompt_tokens)


@lru_cache(maxsize=4096)
def _decode(num_tokens: int) -> Decode:
    return Decode(num_tokens=num_tokens)


def validate_pipeline(stages: Sequence[Stage]) -> None:
    """Raise ValueError unless the stages can be walked in this order.

    A pipeline has at least one stage, and every decode or reasoning stage has a prefill before
    it, since tokens are generated from a context that was computed before.
    """
    if not stages:
        raise ValueError("a pipeline needs at least one stage, got none")
    has_context = False
    for position, stage in enumerate(stages):
        has_context = has_context or stage.kind == Prefill.kind
        if stage.kind in ("decode", "reasoning") and not has_context:
            raise ValueError(
                f"stage {position} ({stage.kind}) needs a prefill before it; "
                f"got {' -> '.join(s.kind for s in stages)}"
            )
