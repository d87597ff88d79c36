"""Seconds of attention in the roofline: all keys, latents that are expanded, sliding windows.

Methods for runs of steps do for arrays what those for one step do for numbers, operation by
operation, so that both give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth

Array = NDArray[np.float64]
Keys = TypeVar("Keys", int, Array)


def decode_pairs(batch: StepBatch, keys: Keys) -> Keys:
    """Return the (query, key) pairs of a step's decodes, which read so many keys in all.

    The keys of a sequence are read once for all its queries; a draft sees those before it.
    """
    num_drafts = batch.num_drafts
    if not num_drafts:
        return keys
    return keys * (1 + num_drafts) - batch.num_decode_queries * num_drafts // 2


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """Seconds that attention takes in all layers: the slower of memory and compute.

    `add_run` does for arrays what `add` does for numbers, operation by operation.
    """

    per_query: float
    per_key: float
    per_pair: float

    def add(self, seconds: float, queries: int, keys: int, pairs: float) -> float:
        """Return `seconds` with the attention of so many queries, keys and pairs on top."""
        memory = keys * self.per_key + (queries * self.per_query + seconds)
        compute = pairs * self.per_pair + seconds
        return max(memory, compute)

    def add_run(self, seconds: Array | float, queries: int, keys: Array, pairs: Array) -> Array:
        """Do the same for arrays; `keys` is overwritten."""
        waits_for_memory = pairs is keys and self.per_key >= self.per_pair
        compute = None if waits_for_memory else pairs * self.per_pair + seconds
        np.multiply(keys, self.per_key, keys)  # half the time of `*=` for a short array
        np.add(keys, queries * self.per_query + seconds, keys)
        return keys if compute is None else np.maximum(keys, compute, out=keys)


@dataclass(frozen=True, slots=True)
class ExpandedAttentionTime(AttentionTime):
    """Attention of a prompt that first expands what the cache holds of it (MLA)."""

    per_cached: float

    def add(self, seconds: float, queries: int, keys: int, pairs: float) -> float:
        expanded = (keys - queries) * self.per_cached + seconds
        return AttentionTime.add(self, expanded, queries, keys, pairs)

    def add_run(self, seconds: Array | float, queries: int, keys: Array, pairs: Array) -> Array:
        expanded = (keys - queries) * self.per_cached + seconds
        return AttentionTime.add_run(self, expanded, queries, keys, pairs)


@dataclass(frozen=True, slots=True)
class WindowAttentionTime:
    """Attention of the layers with a sliding window.

    The tokens that a decode verifies read its window once, and each sees a window of keys at most.

    window: keys that a query attends to at most, its own included.
    prefill, decode: what queries, keys and pairs cost in the window layers.
    """

    window: int
    prefill: AttentionTime
    decode: AttentionTime

    def add(self, seconds: float, batch: StepBatch) -> float:
        """Return `seconds` with the window layers of a step on top."""
        window = self.window
        for new, context in batch.chunks:
            before = max(context - window, 0)  # queries of the context that missed keys
            after = max(context + new - window, 0)
            missed = after * (after + 1) * 0.5 - before * (before + 1) * 0.5
            pairs = new * (context + (new + 1) * 0.5) - missed
            keys = new + min(context, window - 1)
            seconds = self.prefill.add(seconds, new, keys, pairs)
        if batch.num_decodes:
            queries = batch.num_decode_queries
            keys = self._seen(batch) + queries
            pairs = decode_pairs(batch, keys)
            if batch.num_drafts:
                pairs = min(pairs, queries * window)
            seconds = self.decode.add(seconds, queries, keys, pairs)
        return seconds

    def add_run(
        self, seconds: Array | float, batch: StepBatch, growth: StepGrowth, ahead: Array
    ) -> Array | float:
        """Do the same for the steps `ahead` = 0, 1, ..."""
        window = self.window
        for new, context in batch.chunks:
            contexts = ahead * new + context
            before = np.maximum(contexts - window, 0.0)
            after = np.maximum(contexts + new - window, 0.0)
            missed = after * (after + 1) * 0.5 - before * (before + 1) * 0.5
            pairs = new * (contexts + (new + 1) * 0.5) - missed
            keys = new + np.minimum(contexts, window - 1)
            seconds = self.prefill.add_run(seconds, new, keys, pairs)
        if batch.num_decodes:
            queries = batch.num_decode_queries
            keys = self._seen_run(batch, growth, ahead) + queries
            pairs = decode_pairs(batch, keys)
            if batch.num_drafts:
                pairs = np.minimum(pairs, queries * window)
            seconds = self.decode.add_run(seconds, queries, keys, pairs)
        return seconds

    def _seen(self, batch: StepBatch) -> int:
        """Cached tokens in the windows of the decodes; if not counted, those of equal contexts."""
        if batch.window_sum is not None:
            return batch.window_sum
        return min(batch.context_sum, batch.num_decodes * (self.window - 1))

    def _seen_run(self, batch: StepBatch, growth: StepGrowth, ahead: Array) -> Array:
        if batch.window_sum is not None:
            return growth.windows(ahead, batch.window_sum)
        contexts = growth.contexts(ahead) + batch.context_sum
        return np.minimum(contexts, batch.num_decodes * (self.window - 1))
