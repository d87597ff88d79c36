"""Seconds of attention in the roofline: all keys, latents that are expanded, sliding windows.

Methods for runs of steps perform the same operations on arrays as those for one step on numbers, so
both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy import add, multiply  # found faster than in a module that makes names on demand
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth

Array = NDArray[np.float64]
Keys = TypeVar("Keys", int, Array)
Number = float | Array


def decode_pairs(batch: StepBatch, keys: Keys) -> Keys:
    """Return the (query, key) pairs of a step's decodes, which read so many keys in all.

    A sequence's keys are read once for all its queries; a draft token sees those before it.
    """
    num_drafts = batch.num_drafts
    if not num_drafts:
        return keys
    return keys * (1 + num_drafts) - batch.num_decode_queries * num_drafts // 2


def longest_decode(batch: StepBatch) -> float:
    """Return the longest context of a step's decodes; if it is not counted, that of equal ones."""
    longest = batch.longest_context
    return batch.context_sum / batch.num_decodes if longest is None else longest


def longest_decodes(batch: StepBatch, growth: StepGrowth, ahead: Sized) -> Array:
    """Return the same for the steps `ahead` = 0, 1, ..."""
    longest = batch.longest_context
    if longest is None:
        return growth.contexts(ahead, batch.context_sum) / batch.num_decodes
    return growth.longest(ahead, longest)


def seen_in_window(window: int, new: int, context: int) -> tuple[int, float]:
    """Return the keys and the (query, key) pairs of a prompt's new tokens in a sliding window."""
    before = max(context - window, 0)  # queries of the context that missed keys
    after = max(context + new - window, 0)
    missed = after * (after + 1) * 0.5 - before * (before + 1) * 0.5
    return new + min(context, window - 1), new * (context + (new + 1) * 0.5) - missed


def longest_prompt(batch: StepBatch, ahead: Array) -> Array:
    """Return the keys of the longest of a step's prompts, for the steps `ahead` = 0, 1, ..."""
    first, *others = batch.chunks
    longest: Array = ahead * first[0] + (first[0] + first[1])
    for new, context in others:
        longest = np.maximum(longest, ahead * new + (new + context))
    return longest


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Seconds that the attention of decodes takes in all layers: the slower of memory and compute.

    fixed: independent of the number of decodes. beside_prompts: factor on the time of keys in a
    step with prompts. per_own_key: for each key of the longest context, which one block of the
    kernel reads from its first key to its last; 0 where several blocks share it, or where that is
    never the slower. `add_run` performs the same operations on arrays as `add` on numbers.
    """

    fixed: float
    per_query: float
    per_key: float
    per_pair: float
    beside_prompts: float = 1.0
    per_own_key: float = 0.0

    def beside(self) -> DecodeAttention:
        """Return the same for a step with prompts."""
        if self.beside_prompts == 1:
            return self
        times = self.beside_prompts
        return replace(
            self,
            per_key=times * self.per_key,
            per_pair=times * self.per_pair,
            beside_prompts=1.0,
        )

    def add(
        self,
        seconds: float,
        batch: StepBatch,
        keys: int,
        pairs: float,
        num_read_again: int = 0,
        longest: float = 0.0,
    ) -> float:
        """Return `seconds` with the attention of a step's decodes to so many keys on top.

        num_read_again: keys among them that come from the GPU's cache. longest: the longest of
            their contexts before the step, which counts with `per_own_key` only.
        """
        queries = batch.num_decodes * (1 + batch.num_drafts)
        begun = seconds + self.fixed
        memory = (keys - num_read_again) * self.per_key
        if self.per_own_key:
            memory = max(memory, (longest + (1 + batch.num_drafts)) * self.per_own_key)
        memory += queries * self.per_query + begun
        compute = pairs * self.per_pair + begun
        return memory if memory > compute else compute  # max() would be a call  # noqa: FURB136

    def add_run(
        self,
        seconds: Array | float,
        batch: StepBatch,
        keys: Array,
        pairs: Array,
        num_read_again: int = 0,
        longest: Array | None = None,
    ) -> Array:
        """Do the same for arrays; `keys` is overwritten."""
        queries, per_key = batch.num_decode_queries, self.per_key
        begun = seconds + self.fixed
        waits_for_memory = pairs is keys and per_key >= self.per_pair and not num_read_again
        compute = None if waits_for_memory else pairs * self.per_pair + begun
        if num_read_again:
            add(keys, -num_read_again, keys)
        multiply(keys, per_key, keys)  # half the time of `*=` for a short array
        if longest is not None:
            np.maximum(keys, (longest + (1 + batch.num_drafts)) * self.per_own_key, out=keys)
        add(keys, queries * self.per_query + begun, keys)
        return keys if compute is None else np.maximum(keys, compute, out=keys)


@dataclass(frozen=True, slots=True)
class PromptAttention:
    """Seconds that the attention of prompts takes in all layers: memory and compute add up.

    fixed: once a step. serial: for each key of the longest prompt, whose last tokens process its
    keys block after block. per_cached: for each cached token, which latent attention expands first.
    per_query includes the keys that tiles add to each token. All terms are linear, and the code is
    the same for numbers and arrays.
    """

    fixed: float
    per_query: float
    per_key: float
    per_pair: float
    serial: float = 0.0
    per_cached: float = 0.0

    def of_step(self, seconds: float, chunks: Sequence[tuple[int, int]]) -> float:
        """Return `seconds` with the attention of a step's prompts on top.

        The same operations as `begin` and `add`, without a call for each prompt.
        """
        per_query, per_key, per_pair = self.per_query, self.per_key, self.per_pair
        longest = 0
        for new, context in chunks:
            if new + context > longest:  # max() would be a call  # noqa: PLR1730
                longest = new + context
        seconds = longest * self.serial + (seconds + self.fixed)
        for new, context in chunks:
            seconds = (context + new) * per_key + (new * per_query + seconds)
            if self.per_cached:
                seconds = context * self.per_cached + seconds
            seconds = new * (context + (new + 1) * 0.5) * per_pair + seconds
        return seconds

    def begin(self, seconds: Number, longest: Number) -> Number:
        """Return `seconds` with the fixed part of a step, whose longest prompt has so many keys."""
        return longest * self.serial + (seconds + self.fixed)

    def add(self, seconds: Number, queries: int, keys: Number, pairs: Number) -> Number:
        """Return `seconds` with the attention of a prompt on top."""
        seconds = keys * self.per_key + (queries * self.per_query + seconds)
        if self.per_cached:
            seconds = (keys - queries) * self.per_cached + seconds
        return pairs * self.per_pair + seconds


@dataclass(frozen=True, slots=True)
class WindowAttentionTime:
    """Attention of the layers with a sliding window.

    The tokens that a decode verifies read its window once, and each sees a window of keys at most.

    window: keys that a query attends to at most, its own included.
    prefill, decode, decode_beside: the cost of queries, keys and pairs in the window layers, of
        prompts, of decodes alone, and of decodes beside prompts.
    """

    window: int
    prefill: PromptAttention
    decode: DecodeAttention
    decode_beside: DecodeAttention

    def add(self, seconds: float, batch: StepBatch) -> float:
        """Return `seconds` with the window layers of a step on top."""
        window = self.window
        if batch.chunks:
            seconds = self._prompts(seconds, batch.chunks)
        if batch.num_decodes:
            queries = batch.num_decode_queries
            keys = self.seen(batch) + queries
            pairs = decode_pairs(batch, keys)
            if batch.num_drafts:
                pairs = min(pairs, queries * window)
            decode = self.decode_beside if batch.chunks else self.decode
            longest = min(longest_decode(batch), window - 1) if decode.per_own_key else 0.0
            seconds = decode.add(seconds, batch, keys, pairs, 0, longest)
        return seconds

    def _prompts(self, before_all: float, chunks: Sequence[tuple[int, int]]) -> float:
        window = self.window
        longest = max([context + new for new, context in chunks])
        seconds = self.prefill.begin(before_all, min(longest, window))
        for new, context in chunks:
            keys, pairs = seen_in_window(window, new, context)
            seconds = self.prefill.add(seconds, new, keys, pairs)
        return float(seconds)

    def add_run(
        self, seconds: Array | float, batch: StepBatch, growth: StepGrowth, ahead: Array
    ) -> Array | float:
        """Do the same for the steps `ahead` = 0, 1, ..."""
        window = self.window
        if batch.chunks:
            longest = longest_prompt(batch, ahead)
            seconds = self.prefill.begin(seconds, np.minimum(longest, window))
        for new, context in batch.chunks:
            contexts = ahead * new + context
            before = np.maximum(contexts - window, 0.0)
            after = np.maximum(contexts + new - window, 0.0)
            missed = after * (after + 1) * 0.5 - before * (before + 1) * 0.5
            pairs = new * (contexts + (new + 1) * 0.5) - missed
            keys = new + np.minimum(contexts, window - 1)
            seconds = self.prefill.add(seconds, new, keys, pairs)
        if batch.num_decodes:
            queries = batch.num_decode_queries
            keys = self._seen_run(batch, growth, ahead) + queries
            pairs = decode_pairs(batch, keys)
            if batch.num_drafts:
                pairs = np.minimum(pairs, queries * window)
            decode = self.decode_beside if batch.chunks else self.decode
            own: Array | None = None
            if decode.per_own_key:
                own = np.minimum(longest_decodes(batch, growth, ahead), window - 1)
            seconds = decode.add_run(seconds, batch, keys, pairs, 0, own)
        return seconds

    def seen(self, batch: StepBatch) -> int:
        """Return the cached tokens in the windows of decodes; if not counted, of equal contexts."""
        if batch.window_sum is not None:
            return batch.window_sum
        return min(batch.context_sum, batch.num_decodes * (self.window - 1))

    def _seen_run(self, batch: StepBatch, growth: StepGrowth, ahead: Array) -> Array:
        if batch.window_sum is not None:
            return growth.windows(ahead, batch.window_sum)
        contexts = growth.contexts(ahead) + batch.context_sum
        return np.minimum(contexts, batch.num_decodes * (self.window - 1))
