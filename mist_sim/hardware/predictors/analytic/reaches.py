"""Reach: the keys that a query sees if a window, a chunk or an indexer limits them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reach:
    """Keys that a query sees.

    most: at most so many, its own included; None: all before it.
    is_chunked: those since the last multiple of `most`, not the last `most`.
    is_counted: `StepBatch.window_sum` tells what decodes see.
    """

    most: int | None = None
    is_chunked: bool = False
    is_counted: bool = False

    def of_prompt(self, new: int, contexts: Array) -> tuple[Array, Array]:
        """Return the keys and the (query, key) pairs of new tokens that follow contexts."""
        all_pairs = new * (contexts + (new + 1) * 0.5)
        most = self.most
        if most is None:
            return contexts + new, all_pairs
        if self.is_chunked:
            pairs = _chunk_sum(contexts + new, most) - _chunk_sum(contexts, most)
            return new + np.mod(contexts, most), pairs
        before = np.maximum(contexts - most, 0.0)
        after = np.maximum(contexts + new - most, 0.0)
        missed = after * (after + 1) * 0.5 - before * (before + 1) * 0.5
        return new + np.minimum(contexts, most - 1), all_pairs - missed

    def of_decodes(self, batch: StepBatch, growth: StepGrowth, ahead: Array) -> Array:
        """Return the keys that decodes see in all, in the steps `ahead` = 0, 1, ..."""
        queries, number, most = batch.num_decode_queries, batch.num_decodes, self.most
        if self.is_counted and batch.window_sum is not None:
            return growth.windows(ahead, batch.window_sum) + queries
        contexts = growth.contexts(ahead, batch.context_sum)
        if most is None:
            return contexts + queries
        if self.is_chunked:  # behind the first chunk, half of one on average
            beyond = number * (most - 1) * 0.5
            return np.where(contexts < number * most, contexts, beyond) + queries
        return np.minimum(contexts, number * (most - 1.0)) + queries


def _chunk_sum(tokens: Array, chunk: int) -> Array:
    """Return the pairs of the first tokens of a context: 1, 2, ..., chunk, 1, 2, ..."""
    rest = np.mod(tokens, chunk)
    whole = (tokens - rest) / chunk
    return np.asarray(whole * (chunk * (chunk + 1) * 0.5) + rest * (rest + 1) * 0.5)
