"""The analytic predictor: an adapted roofline over the operators of a step.

An operator takes max(FLOPs / (MFU x peak), bytes / (MBU x bandwidth)), which is BestServe's
eq. 3 with P = min(I, I*) e_m S_m. Operators of a step add up; tensor parallelism adds an
all-reduce after attention and after the MLP. CUDA graphs leave no dispatch time; where a GPU's
entry has dispatch times, they are a floor under the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.base import PREDICTORS, sustained_rates
from mist_sim.hardware.specs import Efficiency
from mist_sim.models import operators
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

    def __post_init__(self) -> None:
        self.model.check_tensor_parallel(self.cluster.tensor_parallel_size)
        gpu = self.cluster.gpu
        self._prefill = self._compile(gpu.prefill)
        self._decode = self._compile(gpu.decode)
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

    def _compile(self, efficiency: Efficiency) -> _PhaseTime:
        """Turn the operators of one phase into linear terms of their token counts."""
        model, cluster = self.model, self.cluster
        rates = sustained_rates(cluster.gpu, efficiency)
        t, layers = cluster.tensor_parallel_size, model.num_layers

        def attention(queries: float, keys: float, pairs: float) -> Operator:
            return operators.fused_attention(model, queries, keys, pairs, t)

        none, one = (operators.fused_layer(model, n, t) for n in (0, 1))
        by_token = _linear_terms(none, one, rates, layers)
        none, one = (operators.fused_ends(model, n, t) for n in (0, 1))
        by_token += _linear_terms(none, one, rates, 1)
        none, one = (operators.fused_logits(model, n, t) for n in (0, 1))
        token_bytes = model.hidden_size * model.dtype_bytes
        return _PhaseTime(
            by_token=tuple(by_token),
            by_sample=tuple(_linear_terms(none, one, rates, 1)),
            all_reduce=2 * layers * cluster.all_reduce_time(float(token_bytes)),
            attention=_AttentionTime(
                per_query=float(layers * attention(1, 0, 0).bytes / rates[1]),
                per_key=float(layers * attention(0, 1, 0).bytes / rates[1]),
                per_pair=float(layers * attention(0, 0, 1).flops / rates[0]),
            ),
        )


# (seconds of work for each token, seconds of traffic for the weights, and for each token)
_Term = tuple[float, float, float]


def _linear_terms(
    none: list[Operator], one: list[Operator], rates: tuple[float, float], layers: int
) -> list[_Term]:
    """Return the terms of operators, given what they need for no token and for one."""
    return [
        (
            float(layers * one_token.flops / rates[0]),
            float(layers * no_token.bytes / rates[1]),
            float(layers * (one_token.bytes - no_token.bytes) / rates[1]),
        )
        for no_token, one_token in zip(none, one, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _PhaseTime:
    """Seconds of a step in one phase, by what they depend on."""

    by_token: tuple[_Term, ...]
    by_sample: tuple[_Term, ...]
    all_reduce: float
    attention: _AttentionTime

    def fixed(self, num_tokens: int, num_samples: int) -> float:
        """Return the seconds of all operators but attention, communication included."""
        seconds = num_tokens * self.all_reduce
        for work, weights, traffic in self.by_token:
            seconds += max(num_tokens * work, weights + num_tokens * traffic)
        for work, weights, traffic in self.by_sample:
            seconds += max(num_samples * work, weights + num_samples * traffic)
        return seconds


@dataclass(frozen=True, slots=True)
class _AttentionTime:
    """Seconds that attention takes in all layers: the slower of memory and compute.

    `add_run` does for arrays what `add` does for numbers, operation by operation.
    """

    per_query: float
    per_key: float
    per_pair: float

    def add(self, seconds: float, queries: int, keys: int, pairs: float) -> float:
        """Return `seconds` with the attention of so many queries, keys and pairs on top."""
        memory = keys * self.per_key + (queries * self.per_query + seconds)
        compute = pairs * self.per_pair + seconds
        return max(memory, compute)

    def add_run(self, seconds: Array | float, queries: int, keys: Array, pairs: Array) -> Array:
        """Do the same for arrays; `keys` is overwritten."""
        waits_for_memory = pairs is keys and self.per_key >= self.per_pair
        compute = None if waits_for_memory else pairs * self.per_pair + seconds
        keys *= self.per_key
        keys += queries * self.per_query + seconds
        return keys if compute is None else np.maximum(keys, compute)
