"""BestServe's oracle: its operator tables, with dispatch and compute on two clocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits, sustained_rates
from mist_sim.models import operators
from mist_sim.models.operators import Number, Operator
from mist_sim.models.spec import ModelSpec

Array = NDArray[np.float64]

_NO_GROWTH = StepGrowth()
_MOST_KNOWN = 16384  # numbers of tokens whose products are remembered


@PREDICTORS.register("bestserve")
@dataclass
class BestServePredictor:
    """Algorithm 1 of BestServe: the operators of a layer run one by one.

    A module's kernels are dispatched by the host while earlier ones compute, so a layer runs on two
    clocks; communication follows attention and MLP when there are several ranks.

    model, cluster: what is timed; raises ScenarioError if the model cannot be split that way, or is
        not a dense one in 16 bits.
    composition: "running_clocks" carries both clocks through all layers, the reading that fits the
        totals of the paper's table 3; "algorithm_1" is the printed algorithm, one layer's clock
        times the number of layers.
    """

    always_positive: ClassVar[bool] = True  # times are sums of positive ones

    model: ModelSpec
    cluster: Cluster
    composition: Literal["running_clocks", "algorithm_1"] = "running_clocks"

    def __post_init__(self) -> None:
        model = self.model
        plain = model.quantization is None and model.kv_entry_bytes == 2
        if model.moe or model.mla or model.sliding_window or model.layers or not plain:
            raise ScenarioError(
                "bestserve has tables for dense models in 16 bits without sliding windows only, "
                f"not for {model.name}; roofline times it"
            )
        self.cluster.check_split(self.model)
        gpu = self.cluster.gpu
        self._prefill_rates = sustained_rates(gpu, gpu.prefill)
        self._decode_rates = sustained_rates(gpu, gpu.decode)
        self._fixed: dict[tuple[int, bool], tuple[float, float, float, float]] = {}

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times, which come from figures with the confidence of the GPU's entry."""
        return PredictorTraits(
            estimate=self.cluster.gpu.confidence,
            sums_over_links=True,
            times_drafts=True,
        )

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of a step in seconds."""
        return float(self._seconds(batch, _NO_GROWTH, 0.0))

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,).

        The paper has no step with prompts and decodes; here it is never shorter than the
        decodes alone, whose efficiencies are lower.
        """
        seconds = self._seconds(batch, growth, np.arange(float(num_steps)))
        return seconds if isinstance(seconds, np.ndarray) else np.full(num_steps, seconds)

    def _seconds(self, batch: StepBatch, growth: StepGrowth, ahead: Number) -> Number:
        """Return the seconds of the steps `ahead`: of one step, or of each step of a run."""
        seconds = self._oracle(batch, growth, ahead)
        if batch.chunks and batch.num_decodes:
            seconds = _longer(seconds, self._oracle(replace(batch, chunks=()), growth, ahead))
        return seconds

    def _oracle(self, batch: StepBatch, growth: StepGrowth, ahead: Number) -> Number:
        """Compose dispatch and compute of all layers (Algorithm 1).

        On running clocks a layer of modules 1 to m ends at max(D_i + S_i), where D_i is the
        dispatch time up to module i and S_i the work from module i on. Every further layer adds the
        longer of its dispatch and its work.
        """
        dispatch, layers = self.cluster.gpu.dispatch, self.model.num_layers
        modules = self.modules(batch, growth, ahead)
        dispatched = 0.0
        computed: Number = 0.0
        work: Number = 0.0
        for name, compute, communication in modules:
            dispatched += dispatch.get(name, 0.0)
            computed = _longer(dispatched, computed) + compute + communication
            work = work + compute + communication
        if self.composition == "algorithm_1":
            return computed * layers
        return computed + (layers - 1) * _longer(dispatched, work)

    def modules(
        self, batch: StepBatch, growth: StepGrowth, ahead: Number
    ) -> list[tuple[str, Number, float]]:
        """Return (module, compute, communication) of one layer in seconds, in order (table 3).

        A step with prompts uses the prefill tables and efficiencies for everything but the
        attention of its decodes. A decode with drafts is one decode for each token that it
        verifies (the paper has none; vLLM v0 expanded batches so, `batch_expansion.py`).
        """
        model, t = self.model, self.cluster.tensor_parallel_size
        key = batch.num_prefill_tokens + batch.num_decode_queries, bool(batch.chunks)
        norm, projections, mlp, communication = self._fixed.get(key) or self._of_tokens(*key)
        attention: Number = projections
        for new, context in batch.chunks:
            before = context + new * ahead
            chunk = operators.eager_prefill_attention(model, float(new), before, t)
            attention = attention + _total(chunk, self._prefill_rates)
        if batch.num_decodes:
            drafts, queries = batch.num_drafts, batch.num_decode_queries
            contexts: Number = float(batch.context_sum)
            if isinstance(ahead, np.ndarray):
                contexts = batch.context_sum + growth.contexts(ahead)
            lengths = contexts * (1 + drafts) + queries * (1 + drafts / 2)
            decode = operators.eager_decode_attention(model, queries, lengths, t)
            attention = attention + _total(decode, self._decode_rates)
        return [
            ("rmsnorm", norm, 0.0),
            ("attention", attention, communication),
            ("rmsnorm", norm, 0.0),
            ("mlp", mlp, communication),
        ]

    def _of_tokens(self, num_tokens: int, prefill: bool) -> tuple[float, float, float, float]:
        """Return norm, projections, MLP and communication of a layer; remembered by token count."""
        model, t, n = self.model, self.cluster.tensor_parallel_size, float(num_tokens)
        rates = self._prefill_rates if prefill else self._decode_rates
        if len(self._fixed) >= _MOST_KNOWN:
            self._fixed.clear()
        parts = (
            operators.eager_norm(model, n),
            operators.eager_projections(model, n, t, prefill),
            operators.eager_mlp(model, n, t, prefill),
        )
        norm, projections, mlp = (float(_total(part, rates)) for part in parts)
        communication = self.cluster.all_reduce_time(n * model.hidden_size * model.dtype_bytes)
        found = self._fixed[num_tokens, prefill] = norm, projections, mlp, communication
        return found


def _total(parts: Iterable[Operator], rates: tuple[float, float]) -> Number:
    seconds: Number = 0.0
    for part in parts:
        seconds = seconds + _longer(part.flops / rates[0], part.bytes / rates[1])
    return seconds


def _longer(one: Number, other: Number) -> Number:
    if isinstance(one, float) and isinstance(other, float):
        return max(one, other)
    return np.maximum(one, other)
