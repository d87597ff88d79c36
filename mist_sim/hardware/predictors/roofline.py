"""The analytic predictor: an adapted roofline over the operators of a step.

An operator takes max(FLOPs / (MFU x peak), bytes / (MBU x bandwidth)), which is BestServe's
eq. 3 with P = min(I, I*) e_m S_m. Operators of a step add up; tensor parallelism adds an
all-reduce after attention and after the MLP. Where a GPU's kernels are dispatched one by one,
dispatch and compute run on two clocks (BestServe §3.3.3); CUDA graphs leave no dispatch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.base import PREDICTORS
from mist_sim.hardware.specs import Efficiency
from mist_sim.models import operators
from mist_sim.models.operators import Number, Operator
from mist_sim.models.spec import ModelSpec

Array = NDArray[np.float64]


@PREDICTORS.register("roofline")
@dataclass
class RooflinePredictor:
    """Step times from a model's operators and a cluster's figures; needs no measurement.

    model, cluster: what is timed; raises ScenarioError when the model cannot be split that way.
    kernels: "fused" (flash attention, fused norms: real memory traffic only) or "eager"
        (BestServe's tables). None: eager where the GPU has dispatch costs, else fused.
    composition: of dispatch and compute, "running_clocks" (two clocks through all layers, the
        reading that fits BestServe's table 3) or "algorithm_1" (as printed: one layer's clock
        times the number of layers).
    """

    model: ModelSpec
    cluster: Cluster
    kernels: Literal["fused", "eager"] | None = None
    composition: Literal["running_clocks", "algorithm_1"] = "running_clocks"

    def __post_init__(self) -> None:
        self.model.check_tensor_parallel(self.cluster.tensor_parallel_size)
        gpu = self.cluster.gpu
        if self.kernels is None:
            self.kernels = "eager" if gpu.dispatch else "fused"
        peak = gpu.flops["bf16"]
        self._prefill_rates = _rates(gpu.prefill, peak, gpu.memory_bandwidth)
        self._decode_rates = _rates(gpu.decode, peak, gpu.memory_bandwidth)
        self._fixed_times: dict[tuple[int, int, bool], float] = {}
        self._eager_times: dict[tuple[object, ...], float] = {}

    @property
    def estimate(self) -> str:
        """Where the figures come from: the confidence of the GPU's entry."""
        return self.cluster.gpu.confidence

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds."""
        if self.kernels == "eager":
            return self._eager_step(batch)
        seconds = self._fixed(batch)
        layers, t = self.model.num_layers, self.cluster.tensor_parallel_size
        for new, context in batch.chunks:
            attention = operators.fused_prefill_attention(
                self.model, float(new), float(context), t
            )
            flop_rate, byte_rate = self._prefill_rates
            seconds += layers * max(attention.flops / flop_rate, attention.bytes / byte_rate)
        if batch.num_decodes:
            length_sum = float(batch.context_sum + batch.num_decodes)
            attention = operators.fused_decode_attention(
                self.model, batch.num_decodes, length_sum, t
            )
            flop_rate, byte_rate = self._decode_rates
            seconds += layers * max(attention.flops / flop_rate, attention.bytes / byte_rate)
        return seconds

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        ahead = np.arange(float(num_steps))
        if self.kernels == "eager":
            return self._eager_run(batch, growth, ahead)
        seconds = np.full(num_steps, self._fixed(batch))
        layers, t = self.model.num_layers, self.cluster.tensor_parallel_size
        for new, context in batch.chunks:
            contexts = context + growth.chunk_context * ahead
            attention = operators.fused_prefill_attention(self.model, float(new), contexts, t)
            seconds += layers * _operator_time(attention, self._prefill_rates)
        if batch.num_decodes:
            first = batch.context_sum + batch.num_decodes
            length_sums = first + growth.context_sum * ahead
            attention = operators.fused_decode_attention(
                self.model, batch.num_decodes, length_sums, t
            )
            seconds += layers * _operator_time(attention, self._decode_rates)
        return seconds

    def _fixed(self, batch: StepBatch) -> float:
        """Seconds of a step without attention; depends on token counts only, so cached."""
        num_prefill_tokens = batch.num_prefill_tokens if batch.chunks else 0
        num_tokens = num_prefill_tokens + batch.num_decodes
        num_samples = len(batch.chunks) + batch.num_decodes
        key = (num_tokens, num_samples, num_prefill_tokens > 0)
        seconds = self._fixed_times.get(key)
        if seconds is None:
            seconds = self._fixed_times[key] = self._compute_fixed(*key)
        return seconds

    def _compute_fixed(self, num_tokens: int, num_samples: int, prefill: bool) -> float:
        model, t = self.model, self.cluster.tensor_parallel_size
        rates = self._prefill_rates if prefill else self._decode_rates
        layer = _total(operators.fused_layer(model, num_tokens, t), rates)
        layer += 2 * self._all_reduce_time(num_tokens)
        head = _total(operators.fused_head(model, num_tokens, num_samples, t), rates)
        return float(model.num_layers * layer + head)

    def _all_reduce_time(self, num_tokens: float) -> float:
        size = num_tokens * self.model.hidden_size * self.model.dtype_bytes
        return float(self.cluster.all_reduce_time(size))

    # --- BestServe's oracle ------------------------------------------------------------------

    def _eager_step(self, batch: StepBatch) -> float:
        """One step, cached by its arguments (BestServe §3.3.4)."""
        key = (batch.chunks, batch.num_decodes, batch.context_sum)
        seconds = self._eager_times.get(key)
        if seconds is None:
            seconds = self._eager_run(batch, StepGrowth(), np.zeros(1)).item()
            self._eager_times[key] = seconds
        return seconds

    def _eager_run(self, batch: StepBatch, growth: StepGrowth, ahead: Array) -> Array:
        dispatch = self.cluster.gpu.dispatch
        modules = [
            (dispatch.get(name, 0.0), compute + np.zeros_like(ahead), communication)
            for name, compute, communication in self.eager_modules(batch, growth, ahead)
        ]
        num_layers = self.model.num_layers if self.composition == "running_clocks" else 1
        dispatched = 0.0
        computed = np.zeros_like(ahead)
        for _ in range(num_layers):
            for dispatch_time, compute_time, communication_time in modules:
                dispatched += dispatch_time
                computed = np.maximum(dispatched, computed) + compute_time + communication_time
        return computed * (self.model.num_layers // num_layers)

    def eager_modules(
        self, batch: StepBatch, growth: StepGrowth, ahead: Array
    ) -> list[tuple[str, Number, float]]:
        """Return (module, compute seconds, communication seconds) of one layer, in order.

        This is the content of BestServe's table 3. A step with prompts uses the prefill tables
        and efficiencies for everything but the attention of its decodes.
        """
        model, t = self.model, self.cluster.tensor_parallel_size
        prefill = bool(batch.chunks)
        rates = self._prefill_rates if prefill else self._decode_rates
        n = float(batch.num_prefill_tokens + batch.num_decodes)
        norm = _total(operators.eager_norm(model, n), rates)
        attention = _total(operators.eager_projections(model, n, t, prefill), rates)
        for new, context in batch.chunks:
            contexts = context + growth.chunk_context * ahead
            chunk = operators.eager_prefill_attention(model, np.full(1, float(new)), contexts, t)
            attention = attention + _total(chunk, self._prefill_rates)
        if batch.num_decodes:
            lengths = batch.context_sum + batch.num_decodes + growth.context_sum * ahead
            decode = operators.eager_decode_attention(model, batch.num_decodes, lengths, t)
            attention = attention + _total(decode, self._decode_rates)
        mlp = _total(operators.eager_mlp(model, n, t, prefill), rates)
        communication = self._all_reduce_time(n)
        return [
            ("rmsnorm", norm, 0.0),
            ("attention", attention, communication),
            ("rmsnorm", norm, 0.0),
            ("mlp", mlp, communication),
        ]


def _rates(efficiency: Efficiency, peak_flops: float, bandwidth: float) -> tuple[float, float]:
    """Return sustained (FLOP/s, bytes/s)."""
    return efficiency.mfu * peak_flops, efficiency.mbu * bandwidth


def _operator_time(operator: Operator, rates: tuple[float, float]) -> Array:
    return np.maximum(operator.flops / rates[0], operator.bytes / rates[1])


def _total(parts: Iterable[Operator], rates: tuple[float, float]) -> Number:
    """Seconds of operators that run one after another."""
    seconds: Number = 0.0
    for part in parts:
        seconds = seconds + np.maximum(part.flops / rates[0], part.bytes / rates[1])
    return seconds
