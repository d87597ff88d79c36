"""The work of one engine step, and its growth from step to step."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

import numpy as np
from numpy import arange
from numpy.typing import NDArray


@dataclass(slots=True)
class StepBatch:
    """The work of one engine step, as a predictor sees it.

    chunks: prefill chunks as (num_new_tokens, num_context_tokens); the context is what the
        cache holds before the step.
    num_decodes: requests that generate tokens: one each, or more where drafts are accepted.
    context_sum: tokens that the cache holds for those requests before the step, in all.
    window_sum: of those, the tokens that the requests see in layers with a sliding window of W
        tokens: min(context, W - 1) of each. None where it was not counted: predictors of models
        with windows then take all contexts as equal.
    longest_context: most tokens that the cache holds for one of those requests before the step;
        None unless a predictor needs it (see `PredictorTraits`).
    num_drafts: draft tokens of each decode, which the step verifies (speculative decoding).
    """

    chunks: tuple[tuple[int, int], ...] = ()
    num_decodes: int = 0
    context_sum: int = 0
    window_sum: int | None = None
    longest_context: int | None = None
    num_drafts: int = 0

    @property
    def num_decode_queries(self) -> int:
        """Tokens that the decodes bring into the step: the newest of each, and its drafts."""
        return self.num_decodes * (1 + self.num_drafts)

    @property
    def num_prefill_tokens(self) -> int:
        """New prompt tokens in the step."""
        return sum([num_new for num_new, _ in self.chunks]) if self.chunks else 0


@dataclass(slots=True)
class StepGrowth:
    """Growth of a batch from step to step, while its members stay the same.

    The context of each chunk grows by the chunk's new tokens in every step.

    context_sum: tokens that every step adds to the sum of `StepBatch`. An array where steps add
        different numbers: item i is what the first i steps add, and item 0 is 0.
    window_sum: tokens that every step adds to that sum, or an array as for `context_sum`.
    longest_context: tokens that every step adds to `StepBatch.longest_context`.
    """

    context_sum: int | NDArray[np.int64] = 0
    window_sum: int | NDArray[np.int64] = 0
    longest_context: int = 0

    def contexts(self, ahead: Sized, first: int = 0) -> NDArray[np.float64]:
        """Return `first` and what `context_sum` gains by the steps `ahead` = 0, 1, ...

        A new array; exact, since token counts are far below 2^53.
        """
        added = self.context_sum
        if isinstance(added, int) and added:
            return arange(first, first + len(ahead) * added, added, dtype=float)
        return _sums(first, added, len(ahead))

    def windows(self, ahead: Sized, first: int = 0) -> NDArray[np.float64]:
        """Return the same for `window_sum`."""
        return _sums(first, self.window_sum, len(ahead))


def _sums(first: int, added: int | NDArray[np.int64], num_steps: int) -> NDArray[np.float64]:
    if not isinstance(added, int):
        return first + added[:num_steps].astype(float)
    if not added:
        return np.full(num_steps, float(first))
    return np.arange(first, first + num_steps * added, added, dtype=float)


def grown(batch: StepBatch, growth: StepGrowth, num_steps: int) -> StepBatch:
    """Return the batch as it is `num_steps` steps later."""
    window_sum, longest = batch.window_sum, batch.longest_context
    return StepBatch(
        tuple((new, context + num_steps * new) for new, context in batch.chunks),
        batch.num_decodes,
        batch.context_sum + _added(growth.context_sum, num_steps),
        None if window_sum is None else window_sum + _added(growth.window_sum, num_steps),
        None if longest is None else longest + num_steps * growth.longest_context,
        batch.num_drafts,
    )


def _added(added: int | NDArray[np.int64], num_steps: int) -> int:
    return num_steps * added if isinstance(added, int) else int(added[num_steps])
