"""The analytic predictor: an adapted roofline over the operators of a step.

An operator takes max(FLOPs / (MFU x peak), bytes / (MBU x bandwidth)), which is BestServe's
eq. 3 with P = min(I, I*) e_m S_m. Operators of a step add up; tensor parallelism adds an
all-reduce after attention and after the MLP. Products run at the rate of the type they are
computed in, with the MFU of 16 bits. CUDA graphs leave no dispatch time; where a GPU's entry has
dispatch times, they are a floor under the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.attention_time import (
    AttentionTime,
    ExpandedAttentionTime,
    WindowAttentionTime,
)
from mist_sim.hardware.predictors.base import PREDICTORS, sustained_rates
from mist_sim.hardware.specs import Efficiency
from mist_sim.models import operators
from mist_sim.models.moe import MoeSpec
from mist_sim.models.operators import Operator
from mist_sim.models.spec import ModelSpec

Array = NDArray[np.float64]

_AHEAD = np.arange(1024.0)
_MODULES = ("rmsnorm", "attention", "rmsnorm", "mlp")


@PREDICTORS.register("roofline")
@dataclass
class RooflinePredictor:
    """Step times from a model's operators and a cluster's figures; needs no measurement.

    model, cluster: what is timed; raises ScenarioError when the model cannot be split that way.
    """

    model: ModelSpec
    cluster: Cluster

    kernels_only: ClassVar[bool] = True  # an engine's own time comes on top

    def __post_init__(self) -> None:
        self.model.check_tensor_parallel(self.cluster.tensor_parallel_size)
        gpu = self.cluster.gpu
        self._prefill = self._compile(gpu.prefill, prefill=True)
        self._decode = self._compile(gpu.decode, prefill=False)
        self._windows = self._compile_windows()
        dispatch = sum(gpu.dispatch.get(module, 0.0) for module in _MODULES)
        self._floor = self.model.num_layers * dispatch
        self._decode_only: dict[int, float] = {}

    @property
    def estimate(self) -> str:
        """Where the figures come from: the confidence of the GPU's entry."""
        return self.cluster.gpu.confidence

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds."""
        seconds = self._fixed(batch)
        for new, context in batch.chunks:
            pairs = new * (context + (new + 1) * 0.5)
            seconds = self._prefill.attention.add(seconds, new, context + new, pairs)
        if batch.num_decodes:
            keys = batch.context_sum + batch.num_decodes
            seconds = self._decode.attention.add(seconds, batch.num_decodes, keys, keys)
        if self._windows:
            seconds = self._windows.add(seconds, batch)
        return max(seconds, self._floor)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        ahead = _AHEAD[:num_steps] if num_steps <= len(_AHEAD) else np.arange(float(num_steps))
        seconds: Array | float = self._fixed(batch)
        for new, context in batch.chunks:
            contexts = ahead * new + context
            pairs = new * (contexts + (new + 1) * 0.5)
            seconds = self._prefill.attention.add_run(seconds, new, contexts + new, pairs)
        if batch.num_decodes:
            keys = ahead * float(growth.context_sum)
            keys += batch.context_sum + batch.num_decodes
            seconds = self._decode.attention.add_run(seconds, batch.num_decodes, keys, keys)
        if self._windows:
            seconds = self._windows.add_run(seconds, batch, growth, ahead)
        if isinstance(seconds, float):  # an empty batch
            seconds = np.full(num_steps, seconds)
        return np.maximum(seconds, self._floor, out=seconds) if self._floor else seconds

    def _fixed(self, batch: StepBatch) -> float:
        """Seconds of a step without attention; they depend on token counts only.

        Prompts reach a higher MFU than decodes, but adding one never makes a step shorter.
        """
        num_decodes = batch.num_decodes
        decodes_alone = self._decodes_alone(num_decodes) if num_decodes else 0.0
        if not batch.chunks:
            return decodes_alone
        num_tokens = batch.num_prefill_tokens + num_decodes
        together = self._prefill.fixed(num_tokens, len(batch.chunks) + num_decodes)
        return max(together, decodes_alone)

    def _decodes_alone(self, num_decodes: int) -> float:
        seconds = self._decode_only.get(num_decodes)
        if seconds is None:
            seconds = self._decode.fixed(num_decodes, num_decodes)
            self._decode_only[num_decodes] = seconds
        return seconds

    def _compile(self, efficiency: Efficiency, prefill: bool) -> _PhaseTime:
        """Turn the operators of one phase into linear terms of their token counts."""
        model, cluster = self.model, self.cluster
        t = cluster.tensor_parallel_size
        num_full_layers = model.num_layers - len(model.window_layers)

        def terms(layers: int, none: list[Operator], one: list[Operator]) -> Iterator[_Term]:
            for at_none, at_one in zip(none, one, strict=True):
                flops, bandwidth = sustained_rates(cluster.gpu, efficiency, at_one.dtype)
                yield (
                    float(layers * at_one.flops / flops),
                    float(layers * at_none.bytes / bandwidth),
                    float(layers * (at_one.bytes - at_none.bytes) / bandwidth),
                )

        by_token: list[_Term] = []
        parts = (operators.token_operators(model, n, t, prefill) for n in (0, 1))
        for (layers, none), (_, one) in zip(*parts, strict=True):
            by_token += terms(layers, none, one)
        by_expert: list[_Term] = []
        if model.moe:
            none, one = (operators.routed_experts(model, model.moe, n, 1, t) for n in (0, 1))
            by_expert += terms(model.num_moe_layers, none, one)
        none, one = (operators.logits(model, n, t) for n in (0, 1))
        summed = cluster.all_reduce_time(float(model.hidden_size * model.dtype_bytes))
        weightless = [max(work, traffic) for work, weights, traffic in by_token if not weights]
        return _PhaseTime(
            per_token=2 * model.num_layers * summed + sum(weightless),
            by_token=tuple(term for term in by_token if term[1]),
            by_expert=tuple(by_expert),
            by_sample=tuple(terms(1, none, one)),
            moe=model.moe,
            attention=self._compile_attention(efficiency, prefill, num_full_layers),
        )

    def _compile_windows(self) -> WindowAttentionTime | None:
        model, gpu = self.model, self.cluster.gpu
        if model.sliding_window is None:
            return None
        layers = len(model.window_layers)
        return WindowAttentionTime(
            model.sliding_window,
            self._compile_attention(gpu.prefill, True, layers),
            self._compile_attention(gpu.decode, False, layers),
        )

    def _compile_attention(
        self, efficiency: Efficiency, prefill: bool, layers: int
    ) -> AttentionTime:
        model, t = self.model, self.cluster.tensor_parallel_size
        flops, bandwidth = sustained_rates(self.cluster.gpu, efficiency)

        def attention(queries: float, keys: float, pairs: float) -> Operator:
            return operators.attention(model, queries, keys, pairs, t, prefill)

        slopes = (
            float(layers * attention(1, 0, 0).bytes / bandwidth),
            float(layers * attention(0, 1, 0).bytes / bandwidth),
            float(layers * attention(0, 0, 1).flops / flops),
        )
        expanded = 0.0
        for part in operators.expand_context(model, 1, t) if prefill else ():
            rate = sustained_rates(self.cluster.gpu, efficiency, part.dtype)[0]
            expanded += layers * float(max(part.flops / rate, part.bytes / bandwidth))
        return ExpandedAttentionTime(*slopes, expanded) if expanded else AttentionTime(*slopes)


# (seconds of work for each token, seconds of traffic for the weights, and for each token)
_Term = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _PhaseTime:
    """Seconds of a step in one phase, by what they depend on.

    per_token: communication, and operators without weights.
    by_token, by_sample: products, by all tokens of a step and by those it samples.
    by_expert: products of routed experts; their weights are those of one expert.
    """

    per_token: float
    by_token: tuple[_Term, ...]
    by_expert: tuple[_Term, ...]
    by_sample: tuple[_Term, ...]
    moe: MoeSpec | None
    attention: AttentionTime

    def fixed(self, num_tokens: int, num_samples: int) -> float:
        """Return the seconds of all operators but attention, communication included."""
        seconds = num_tokens * self.per_token
        for work, weights, traffic in self.by_token:
            seconds += max(num_tokens * work, weights + num_tokens * traffic)
        if self.moe:
            touched = self.moe.distinct_experts(num_tokens)
            for work, weights, traffic in self.by_expert:
                seconds += max(num_tokens * work, touched * weights + num_tokens * traffic)
        for work, weights, traffic in self.by_sample:
            seconds += max(num_samples * work, weights + num_samples * traffic)
        return seconds
