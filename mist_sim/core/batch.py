"""What one engine step computes, and how the next steps differ from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepBatch:
    """The work of one engine step, as a predictor sees it.

    chunks: prefill chunks as (num_new_tokens, num_context_tokens); the context is what the
        cache holds before the step.
    num_decodes: requests that generate one token each.
    context_sum: tokens that the cache holds for those requests before the step, in all.
    window_sum: of those, the tokens that the requests see in layers with a sliding window of W
        tokens: min(context, W - 1) of each. None where nobody counted: predictors of models
        with windows then take all contexts as equal.
    longest_context: most tokens that the cache holds for one of those requests before the step;
        None where nobody asked for it (see `Predictor`).
    """

    chunks: tuple[tuple[int, int], ...] = ()
    num_decodes: int = 0
    context_sum: int = 0
    window_sum: int | None = None
    longest_context: int | None = None

    @property
    def num_prefill_tokens(self) -> int:
        """New prompt tokens in the step."""
        return sum([num_new for num_new, _ in self.chunks]) if self.chunks else 0


@dataclass(slots=True)
class StepGrowth:
    """What one step adds to the batch of the next, while its members stay the same.

    The context of each chunk grows by the chunk's new tokens.

    context_sum, window_sum: tokens added to the sums of `StepBatch`.
    longest_context: tokens added to `StepBatch.longest_context`.
    """

    context_sum: int = 0
    window_sum: int = 0
    longest_context: int = 0


def grown(batch: StepBatch, growth: StepGrowth, num_steps: int) -> StepBatch:
    """Return the batch as it is `num_steps` steps later."""
    window_sum, longest = batch.window_sum, batch.longest_context
    return StepBatch(
        tuple((new, context + num_steps * new) for new, context in batch.chunks),
        batch.num_decodes,
        batch.context_sum + num_steps * growth.context_sum,
        None if window_sum is None else window_sum + num_steps * growth.window_sum,
        None if longest is None else longest + num_steps * growth.longest_context,
    )
