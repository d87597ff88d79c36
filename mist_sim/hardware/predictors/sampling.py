"""Step times with sampling, as one more operator after the model's kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.predictors.base import Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.explained import OperatorTime, explained
from mist_sim.hardware.predictors.ranks import PipelinePredictor
from mist_sim.hardware.sampling import SamplingTimes


def with_sampling(predictor: PipelinePredictor, times: SamplingTimes) -> PipelinePredictor:
    """Return a predictor with sampling on the last rank, which has the logits."""
    return predictor.with_last(WithSampling(predictor.ranks[-1], times))


@dataclass(slots=True)
class WithSampling:
    """What a predictor times, with sampling behind it; `EngineOverhead.around` takes it apart."""

    adds_to: ClassVar[str] = "predictor"

    predictor: Predictor
    times: SamplingTimes

    @property
    def traits(self) -> PredictorTraits:
        """The traits of the predictor inside."""
        inside = traits_of(self.predictor)
        if inside.step_time_on_the_spot is None:
            return inside
        return replace(inside, step_time_on_the_spot=self.step_time_on_the_spot)

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step, with those of drawing its tokens."""
        rows = len(batch.chunks) + batch.num_decodes * (1 + batch.num_drafts)  # no call
        return self.predictor.step_time(batch) + self.times[rows]

    def step_time_on_the_spot(self, batch: StepBatch) -> float:
        """Return the seconds of a step that was planned when it began."""
        on_the_spot = traits_of(self.predictor).step_time_on_the_spot or self.predictor.step_time
        return on_the_spot(batch) + self._seconds(batch)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of every step of a run, with those of drawing its tokens."""
        seconds = self.predictor.run(batch, growth, num_steps)
        rows = len(batch.chunks) + batch.num_decodes * (1 + batch.num_drafts)  # no call
        return np.add(seconds, self.times[rows], seconds)

    def decode_line(self, num_decodes: int) -> DecodeLine | None:
        """Return the line of decode steps, with those seconds; None if the predictor has none."""
        inside = getattr(self.predictor, "decode_line", None)
        line: DecodeLine | None = inside(num_decodes) if inside is not None else None
        return line and line.with_more(self.times[num_decodes])

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step, sampling among them."""
        found = explained(self.predictor, batch, is_on_the_spot=is_on_the_spot)
        return [*found, OperatorTime("sampling", self._seconds(batch), "memory")]

    def _seconds(self, batch: StepBatch) -> float:
        return self.times[len(batch.chunks) + batch.num_decode_queries]
