"""The work of one engine step, its growth from step to step, and its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import arange
from numpy.typing import NDArray

ReadsAgain = Callable[[Mapping[int, int], int, int], int]
"""Called with the tokens that several decodes share, by the number of these, the number of all
decodes and that of all keys, returns the keys that come from the GPU's cache."""


class AdapterWork(NamedTuple):
    """The LoRA adapters of a step: how many, and the tokens that have one."""

    num_adapters: int
    num_tokens: int


@dataclass(slots=True)
class StepBatch:
    """The work of one engine step, as a predictor sees it.

    chunks: prefill chunks as (num_new_tokens, num_context_tokens); the context is the number of
        tokens in the cache before the step.
    num_decodes: requests that generate tokens: one each, or more with speculative decoding.
    context_sum: tokens that the cache holds for the decoding requests before the step, summed.
    window_sum: the part of `context_sum` that layers with a sliding window of W tokens see: the sum
        of min(context, W - 1). None if not counted: predictors of models with windows then assume
        equal contexts.
    longest_context: longest context among the decoding requests before the step, in tokens; None
        unless the predictor needs it (see `PredictorTraits`).
    num_drafts: draft tokens per decode that the step verifies (speculative decoding).
    adapters: adapters of its tokens; None: the engine serves none.
    num_read_again: keys that several decodes of the step read, and that come from the GPU's cache
        instead of its memory (see `PredictorTraits.reads_again`).
    replicas: tokens of the step on each replica that shares experts and steps together, this one
        included; None: equally many on all. Experts, and the exchange of tokens, see their sum.
    """

    chunks: tuple[tuple[int, int], ...] = ()
    num_decodes: int = 0
    context_sum: int = 0
    window_sum: int | None = None
    longest_context: int | None = None
    num_drafts: int = 0
    adapters: AdapterWork | None = None
    replicas: tuple[int, ...] | None = None
    num_read_again: int = 0

    @property
    def num_decode_queries(self) -> int:
        """Tokens that the decodes bring into the step: the newest of each, and its drafts."""
        return self.num_decodes * (1 + self.num_drafts)

    @property
    def num_prefill_tokens(self) -> int:
        """New prompt tokens in the step."""
        return sum([num_new for num_new, _ in self.chunks]) if self.chunks else 0


class StepLimits(NamedTuple):
    """Limits of the steps of a client whose engines can admit requests at any step.

    tokens: prompt and decode tokens per step; tokens_a_decode: tokens that each decode takes.
    sequences: limit of sequences per step for each track, engine by engine.
    num_blocks, block_size: KV blocks of a track, and tokens per block; blocks_each: pool blocks
        that one block of tokens takes. adapters: LoRA adapters that a step may use; 0: none.
    """

    tokens: int
    tokens_a_decode: int
    sequences: tuple[int, ...]
    num_blocks: int
    block_size: int
    blocks_each: int = 1
    adapters: int = 0


def attended(chunks: Sequence[tuple[int, int]], num_steps: int) -> tuple[int, int, int]:
    """Return the prompt tokens that a run's steps compute, and the context they attend to.

    The result is (tokens per step, cached context before the run, (query, key) pairs with that
    context). The chunks of a run follow one another, so the steps together are one chunk of each
    prompt.
    """
    num_new = context = pairs = 0
    for new, before in chunks:
        num_tokens = new * num_steps
        num_new += new
        context += before
        pairs += num_tokens * before + num_tokens * (num_tokens + 1) // 2
    return num_new, context, pairs


@dataclass(slots=True)
class StepGrowth:
    """Growth of a batch from step to step, while its members stay the same.

    The context of each chunk grows by the chunk's new tokens in every step.

    context_sum: tokens that every step adds to `StepBatch.context_sum`. An array if steps add
        different numbers: item i is the sum over the first i steps, and item 0 is 0.
    window_sum: tokens that every step adds to `StepBatch.window_sum`, or an array as for
        `context_sum`.
    longest_context: tokens that every step adds to `StepBatch.longest_context`, or an array as for
        `context_sum`.
    """

    context_sum: int | NDArray[np.int64] = 0
    window_sum: int | NDArray[np.int64] = 0
    longest_context: int | NDArray[np.int64] = 0

    def contexts(self, ahead: Sized, first: int = 0) -> NDArray[np.float64]:
        """Return `first` plus the growth of `context_sum` after `ahead` = 0, 1, ... steps.

        The array is new. Its values are exact, because token counts stay far below 2^53.
        """
        added = self.context_sum
        if isinstance(added, int) and added:
            return arange(first, first + len(ahead) * added, added, dtype=float)
        return _sums(first, added, len(ahead))

    def windows(self, ahead: Sized, first: int = 0) -> NDArray[np.float64]:
        """Return the same for `window_sum`."""
        return _sums(first, self.window_sum, len(ahead))

    def longest(self, ahead: Sized, first: int = 0) -> NDArray[np.float64]:
        """Return the same for `longest_context`."""
        return _sums(first, self.longest_context, len(ahead))


def _sums(first: int, added: int | NDArray[np.int64], num_steps: int) -> NDArray[np.float64]:
    if not isinstance(added, int):
        return first + added[:num_steps].astype(float)
    if not added:
        return np.full(num_steps, float(first))
    return np.arange(first, first + num_steps * added, added, dtype=float)


def grown(batch: StepBatch, growth: StepGrowth, num_steps: int) -> StepBatch:
    """Return the batch `num_steps` steps later."""
    window_sum, longest = batch.window_sum, batch.longest_context
    return StepBatch(
        tuple((new, context + num_steps * new) for new, context in batch.chunks),
        batch.num_decodes,
        batch.context_sum + _added(growth.context_sum, num_steps),
        None if window_sum is None else window_sum + _added(growth.window_sum, num_steps),
        None if longest is None else longest + _added(growth.longest_context, num_steps),
        batch.num_drafts,
        batch.adapters,
        batch.replicas,
        batch.num_read_again,
    )


def _added(added: int | NDArray[np.int64], num_steps: int) -> int:
    return num_steps * added if isinstance(added, int) else int(added[num_steps])
