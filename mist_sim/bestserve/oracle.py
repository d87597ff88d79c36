"""Step times for BestServe's simulators, from any predictor, remembered by arguments.

The paper's oracle is Algorithm 1, which `BestServePredictor` is. Its batches are equal requests;
here the prompts of a batch may differ, and each answer has a context of its own.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.base import Predictor, traits_of
from mist_sim.hardware.predictors.ranks import PipelinePredictor, ranks_of

_MOST_KNOWN = 2**18  # answers of each kind that are remembered: tens of megabytes


class Batch(NamedTuple):
    """Seconds of a batch of prompts.

    latency: seconds until its first tokens are out. busy: seconds until the next batch may begin;
        equal except in a pipeline, whose first rank is free earlier.
    """

    latency: float
    busy: float


class Times(Protocol):
    """Step times that the simulators ask for."""

    def prefill(self, prompts: tuple[int, ...]) -> Batch:
        """Return how long a batch of prompts, given by their tokens, takes."""

    def decode(self, batch: int, context: int) -> float:
        """Return the seconds of a decode step of so many answers with so many tokens each."""


class Oracle:
    """Step times of a predictor, each asked for once (the paper's section 3.3.4).

    In a pipeline, which the paper leaves open, a batch of prompts goes through all ranks, and the
    next may follow as soon as the slowest rank has done its part. Answers are spread over as many
    microbatches as there are ranks, each of which goes through all ranks for a token.
    """

    def __init__(self, predictor: Predictor | PipelinePredictor) -> None:
        found = ranks_of(predictor)
        self._ranks = found.ranks
        self._rank_delay = found.rank_delay
        self._needs_longest = any(traits_of(r).needs_longest_context for r in found.ranks)
        self._prefills: dict[tuple[int, ...], Batch] = {}
        self._decodes: dict[tuple[int, int], float] = {}

    def prefill(self, prompts: tuple[int, ...]) -> Batch:
        """Return how long a batch of prompts, given by their tokens, takes."""
        known = self._prefills.get(prompts)
        if known is None:
            if len(self._prefills) >= _MOST_KNOWN:
                self._prefills.clear()
            known = self._prefills[prompts] = self._time_of_prompts(prompts)
        return known

    def decode(self, batch: int, context: int) -> float:
        """Return the seconds of a decode step of so many answers with so many tokens each."""
        known = self._decodes.get((batch, context))
        if known is None:
            if len(self._decodes) >= _MOST_KNOWN:
                self._decodes.clear()
            known = self._decodes[batch, context] = self._time_of_a_step(batch, context)
        return known

    def _time_of_prompts(self, prompts: tuple[int, ...]) -> Batch:
        batch = StepBatch(chunks=tuple((tokens, 0) for tokens in prompts))
        seconds = [rank.step_time(batch) for rank in self._ranks]
        return Batch(sum(seconds) + self._between(sum(prompts)), max(seconds))

    def _time_of_a_step(self, batch: int, context: int) -> float:
        share = -(-batch // len(self._ranks))
        longest = context if self._needs_longest else None
        step = StepBatch(num_decodes=share, context_sum=share * context, longest_context=longest)
        return sum(rank.step_time(step) for rank in self._ranks) + self._between(share)

    def _between(self, num_tokens: int) -> float:
        gaps = len(self._ranks) - 1
        return gaps * self._rank_delay(num_tokens) if gaps else 0.0
