"""Prompts as ids of tokens: as long as a workload says, and equal where it says that they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mist_sim.core.request import Request

_FIRST = 100  # ids below are special tokens in many vocabularies
_OWN, _SHARED = 0, 1  # kinds of streams, so that no request's own tokens are shared ones


@dataclass(frozen=True)
class Prompts:
    """Makes the prompt of each request.

    vocabulary: ids are drawn from 100 up to this. seed: of the draws.
    """

    vocabulary: int = 30_000
    seed: int = 0

    def tokens(self, request: Request) -> list[int]:
        """Return as many ids as the prompt has tokens; equal content gives equal ids."""
        number, parts = request.num_prompt_tokens, []
        for span, length in request.content:
            parts.append(self._drawn(_SHARED, span, length))
        rest = number - sum(map(len, parts))
        if rest > 0:
            parts.append(self._drawn(_OWN, request.request_id, rest))
        found: list[int] = np.concatenate(parts)[:number].tolist()
        return found

    def _drawn(
        self, kind: int, number: int, length: int
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the first token ids of a stream; shorter prompts begin longer ones."""
        rng = np.random.Generator(np.random.PCG64([self.seed, kind, number]))
        return rng.integers(_FIRST, self.vocabulary, length)
