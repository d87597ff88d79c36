"""Which lane or engine gets the next request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Scored(Protocol):
    """A lane or an engine, when the least loaded one is chosen (see `Lane.score`)."""

    @property
    def score(self) -> int:
        """Its load: the lower one is chosen."""


AnyPart = TypeVar("AnyPart", bound=Scored)


def least_loaded(parts: Sequence[AnyPart]) -> AnyPart:
    """Return the part with the smallest score, the first of equals.

    Source: vLLM's `DPLBAsyncMPClient.get_core_engine_for_request` in
    `vllm/v1/engine/core_client.py`, whose counts may be 100 ms old; here they are exact.
    """
    return parts[0] if len(parts) == 1 else min(parts, key=_score)


def _score(part: Scored) -> int:
    return part.score
