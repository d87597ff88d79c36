"""Appendix A of Seesaw as a predictor of step times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.hardware.resharding.device import device_of
from mist_sim.hardware.resharding.resharding_times import FP16, check_model, params_per_layer
from mist_sim.models.spec import ModelSpec

Array = NDArray[np.float64]

_NO_GROWTH = StepGrowth()


@PREDICTORS.register("seesaw")
@dataclass
class SeesawPredictor:
    """Table 3 of Seesaw's appendix A: a roofline of four parts and the all-reduces, by layers.

    Embedding, output head and transfers between ranks are left out, as in the paper.

    model, cluster: the timed model and GPUs; raises ScenarioError if the model cannot be split that
        way, or is not a dense one in 16 bits.
    piggyback: how much the linear layers of answers gain from those of prompts in a mixed step,
        from 0 (each by itself, summed as in eq. 1) to 1 (one pass for both). The paper does not
        give its baseline's value, and its gain depends on it.
    Raises ValueError for a piggyback outside [0, 1].
    """

    model: ModelSpec
    cluster: Cluster
    piggyback: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.piggyback <= 1:
            raise ValueError(f"piggyback must be in [0, 1], got {self.piggyback}")
        check_model(self.model)
        self.cluster.check_split(self.model)
        self._device = device = device_of(self.cluster.gpu)
        self._tensor = tensor = self.cluster.tensor_parallel_size
        self._sums = device.all_reduce_bandwidth(tensor)
        self._weights = FP16 * params_per_layer(self.model) / device.memory_bandwidth / tensor

    @property
    def traits(self) -> PredictorTraits:
        """Its times come from figures with the confidence of the GPU's entry."""
        return PredictorTraits(estimate=self.cluster.gpu.confidence, sums_over_links=True)

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of a step in seconds."""
        return self._seconds(batch, _NO_GROWTH, np.zeros(1)).item()

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        return self._seconds(batch, growth, np.arange(float(num_steps)))

    def _seconds(self, batch: StepBatch, growth: StepGrowth, ahead: Array) -> Array:
        """Return the seconds of the steps that many `ahead`, shape as theirs."""
        model, device, tensor = self.model, self._device, self._tensor
        heads, kv_heads, d = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        contexts = batch.context_sum + growth.contexts(ahead)
        num_tokens = batch.num_prefill_tokens + batch.num_decodes
        pairs, num_read = contexts, contexts  # (query, key) pairs; tokens whose entries are read
        for new, context in batch.chunks:
            before = context + new * ahead
            pairs = pairs + new * (before + new / 2)
            num_read = num_read + before
        num_bytes = 2 * FP16 * kv_heads * d * num_read
        num_bytes = num_bytes + FP16 * batch.num_prefill_tokens * (heads + 2 * kv_heads) * d
        entries = num_bytes / device.memory_bandwidth
        attention = 4 * heads * d * pairs / device.flops
        linear = self._linear(batch.num_prefill_tokens, batch.num_decodes)
        network = 2 * FP16 * num_tokens * heads * d / self._sums
        layer = linear + np.maximum(entries, attention) / tensor + network
        return model.num_layers * layer

    def _linear(self, num_prompt_tokens: int, num_decodes: int) -> float:
        """Return the seconds of the linear layers of a layer."""
        each = 2 * params_per_layer(self.model) / self._device.flops / self._tensor
        together = max(self._weights, each * (num_prompt_tokens + num_decodes))
        if not (num_prompt_tokens and num_decodes):
            return together
        apart = max(self._weights, each * num_prompt_tokens)
        apart += max(self._weights, each * num_decodes)
        return self.piggyback * together + (1 - self.piggyback) * apart
