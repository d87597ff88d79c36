"""Step times that are linear in the tokens and requests of a step, with given coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.checks import Checked, NotNegative, Positive
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.models.spec import ModelSpec
from mist_sim.units import Seconds


@PREDICTORS.register("linear")
@dataclass
class LinearPredictor(Checked):
    """A fixed time per step, plus a time per prompt token and per decode; contexts cost nothing.

    model, cluster: what is timed; they only determine memory.
    step: seconds of every step (> 0).
    prefill_token: seconds more for each prompt token that the step computes.
    decode: seconds more for each request that decodes in it.

    44 ms a step and 0.2045 ms a prompt token give the line of TaiChi's figure 4: Llama-2-70B on
    four A100s.

    Raises ValueError for times that are not finite and >= 0, and for a step of 0.
    """

    always_positive: ClassVar[bool] = True  # times are sums of positive ones

    model: ModelSpec
    cluster: Cluster
    step: Positive[Seconds]
    prefill_token: NotNegative[Seconds] = 0.0
    decode: NotNegative[Seconds] = 0.0

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times, whose origin is the user."""
        return PredictorTraits()

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds."""
        prompts = self.prefill_token * batch.num_prefill_tokens
        return self.step + prompts + self.decode * batch.num_decodes

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the durations of consecutive steps in seconds, shape (num_steps,); all equal."""
        return np.full(num_steps, self.step_time(batch))
