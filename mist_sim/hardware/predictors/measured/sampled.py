"""Step times of a slow source, asked once on a grid and then interpolated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.interpolation import seconds_plane
from mist_sim.hardware.predictors.analytic.phase_time import Known
from mist_sim.hardware.predictors.base import PredictorTraits
from mist_sim.hardware.predictors.measured.timing_store import TimingStore

Array = NDArray[np.float64]

_ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class SamplePoints:
    """The points at which a source is asked, each an increasing sequence.

    new_tokens, prompt_contexts: tokens of a chunk, and those the cache holds before it.
    decodes, decode_contexts: requests that decode, and what the cache holds for each.
    """

    new_tokens: Sequence[int]
    prompt_contexts: Sequence[int]
    decodes: Sequence[int]
    decode_contexts: Sequence[int]

    @classmethod
    def up_to(
        cls, longest: int, factor: int, *, prompt_context: int, decode_context: int
    ) -> SamplePoints:
        """Return powers of two of tokens and decodes, and contexts that grow by a factor.

        longest: context in tokens that is reached, at least 4,096.
        prompt_context, decode_context: the first one after 0.
        """
        longest = max(longest, 4096)
        return cls(
            new_tokens=powers(1, max(longest, 16384)),
            prompt_contexts=[0, *powers(prompt_context, longest, factor)],
            decodes=powers(1, 1024),
            decode_contexts=[0, *powers(decode_context, longest, factor)],
        )


def powers(first: int, last: int, factor: int = 2) -> list[int]:
    """Return first, first * factor, ... up to the first that reaches `last`, which is cut to it.

    Between them times are interpolated linearly.
    """
    points = [first]
    while points[-1] < last:
        points.append(min(points[-1] * factor, last))
    return points


def check_whole_model(cluster: Cluster, source: str) -> None:
    """Raise ScenarioError if GPUs hold only some layers, which the source cannot time."""
    if cluster.pipeline_parallel_size > 1:
        raise ScenarioError(
            f"pipeline_parallel_size must be 1 with {source}, which times whole models, "
            f"got {cluster.pipeline_parallel_size}"
        )


class StepSource(Protocol):
    """A slow source that times single steps.

    identity: what its answers depend on besides the batch, as `TimingStore.timed` takes it.
    """

    @property
    def identity(self) -> Mapping[str, object]:
        """All that its answers depend on besides the batch."""

    def seconds(self, batches: Sequence[StepBatch]) -> Sequence[float]:
        """Return the duration of each batch in seconds (> 0)."""


class SampledSteps:
    """A predictor from a source's answers on a grid; predictors with a source derive from it.

    store: asked before the source is. on_top: seconds of each batch that are added to the source's
        and not kept.

    Raises whatever the source raises, and ValueError for times that are not durations.
    """

    def __init__(
        self,
        source: StepSource,
        points: SamplePoints,
        store: TimingStore,
        on_top: Callable[[Sequence[StepBatch]], Sequence[float]] | None = None,
    ) -> None:
        prompts = list(product(points.new_tokens, points.prompt_contexts))
        decodes = list(product(points.decodes, points.decode_contexts))
        works = {
            f"prompt {new} {context}": StepBatch(((new, context),)) for new, context in prompts
        }
        works |= {f"decode {n} {each}": StepBatch((), n, n * each) for n, each in decodes}
        seconds = np.array(store.timed(source.identity, works, source.seconds))
        if on_top is not None:
            seconds += np.array(on_top(list(works.values())))
        shape = len(points.new_tokens), len(points.prompt_contexts)
        at_prompts = seconds[: len(prompts)].reshape(shape)
        at_decodes = seconds[len(prompts) :].reshape(len(points.decodes), -1)
        self._prompt = seconds_plane(points.new_tokens, points.prompt_contexts, at_prompts)
        self._decode = seconds_plane(points.decodes, points.decode_contexts, at_decodes)
        self._whole_prompt = Known(partial(self._prompt.at, x=0))
        self._no_context = Known(partial(self._decode.at, x=0))

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds."""
        num_decodes = batch.num_decodes
        each = batch.context_sum / (num_decodes or 1)
        if not batch.chunks:
            return self._decode.at(num_decodes, each)
        seconds = longest = 0.0
        before = num_decodes
        for new, context in batch.chunks:
            alone = self._prompt.at(new, context)
            seconds += alone - self._prompt.at(new, before)
            longest = max(longest, alone)
            before += new
        if num_decodes:
            alone = self._decode.at(num_decodes, each)
            seconds += alone - self._no_context[num_decodes]
            longest = max(longest, alone)
        return max(seconds + self._whole_prompt[before], longest)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        num_decodes = batch.num_decodes
        ahead = np.arange(float(num_steps))
        each = (growth.contexts(ahead) + batch.context_sum) / (num_decodes or 1)
        if not batch.chunks:
            return self._decode.along(num_decodes, each)
        seconds: Array = np.zeros(num_steps)
        longest: Array = np.zeros(num_steps)
        before = num_decodes
        for new, context in batch.chunks:
            alone = self._prompt.along(new, ahead * new + context)
            seconds += alone - self._prompt.at(new, before)
            longest = np.maximum(longest, alone)
            before += new
        if num_decodes:
            alone = self._decode.along(num_decodes, each)
            seconds += alone - self._no_context[num_decodes]
            longest = np.maximum(longest, alone)
        slowest: Array = np.maximum(seconds + self._whole_prompt[before], longest)
        return slowest

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times, as far as they are the same for all sources."""
        return PredictorTraits(steps_inside=self.steps_inside)

    def steps_inside(self, batch: StepBatch, growth: StepGrowth) -> int:
        """Return how many steps, from this one on, lie inside the grid."""
        steps, num_decodes = _ENDLESS, batch.num_decodes
        if num_decodes:
            room = self._decode.moving.top * num_decodes - batch.context_sum
            if num_decodes > self._decode.fixed.top or room < 0:
                return 0
            if growth.context_sum:
                steps = int(room // growth.context_sum) + 1
        if batch.chunks and batch.num_prefill_tokens + num_decodes > self._prompt.fixed.top:
            return 0
        for new, context in batch.chunks:
            room = self._prompt.moving.top - context
            if room < 0:
                return 0
            steps = min(steps, int(room // new) + 1)
        return steps
