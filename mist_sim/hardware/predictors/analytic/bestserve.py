"""BestServe's oracle: its operator tables, with dispatch and compute on two clocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

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


@PREDICTORS.register("bestserve")
@dataclass
class BestServePredictor:
    """Algorithm 1 of BestServe: every operator of a layer runs by itself.

    A module's kernels are dispatched by the host while earlier ones compute, so a layer runs on
    two clocks; communication follows attention and MLP when there are several ranks.

    model, cluster: what is timed; raises ScenarioError when the model cannot be split that way,
        or is not a dense one in 16 bits.
    composition: "running_clocks" carries both clocks through all layers, the reading that fits
        the totals of the paper's table 3; "algorithm_1" is the printed algorithm, one layer's
        clock times the number of layers.
    """

    model: ModelSpec
    cluster: Cluster
    composition: Literal["running_clocks", "algorithm_1"] = "running_clocks"

    def __post_init__(self) -> None:
        model = self.model
        plain = model.quantization is None and model.kv_entry_bytes == 2
        if model.moe or model.mla or model.sliding_window or not plain:
            raise ScenarioError(
                "bestserve has tables for dense models in 16 bits without sliding windows only, "
                f"not for {model.name}; roofline times it"
            )
        self.cluster.check_split(self.model)
        gpu = self.cluster.gpu
        self._prefill_rates = sustained_rates(gpu, gpu.prefill)
        self._decode_rates = sustained_rates(gpu, gpu.decode)
        self._times: dict[tuple[object, ...], float] = {}

    @property
    def traits(self) -> PredictorTraits:
        """What its times are; they come from figures with the confidence of the GPU's entry."""
        return PredictorTraits(
            estimate=self.cluster.gpu.confidence,
            sums_over_links=True,
            times_drafts=True,
        )

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of a step in seconds; cached by its arguments (§3.3.4)."""
        key = (batch.chunks, batch.num_decodes, batch.context_sum, batch.num_drafts)
        seconds = self._times.get(key)
        if seconds is None:
            seconds = self._times[key] = self.run(batch, StepGrowth(), 1).item()
        return seconds

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,).

        The paper has no step with prompts and decodes; here it is never shorter than the
        decodes alone, whose efficiencies are lower.
        """
        seconds = self._oracle(batch, growth, num_steps)
        if batch.chunks and batch.num_decodes:
            decodes = replace(batch, chunks=())
            seconds = np.maximum(seconds, self._oracle(decodes, growth, num_steps))
        return seconds

    def _oracle(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Compose dispatch and compute of all layers (Algorithm 1)."""
        dispatch = self.cluster.gpu.dispatch
        modules = self.modules(batch, growth, num_steps)
        once = self.composition == "algorithm_1"
        dispatched = 0.0
        computed = np.zeros(num_steps)
        for _ in range(1 if once else self.model.num_layers):
            for name, compute, communication in modules:
                dispatched += dispatch.get(name, 0.0)
                computed = np.maximum(dispatched, computed) + compute + communication
        return computed * self.model.num_layers if once else computed

    def modules(
        self, batch: StepBatch, growth: StepGrowth, num_steps: int
    ) -> list[tuple[str, Number, float]]:
        """Return (module, compute, communication) of one layer in seconds, in order (table 3).

        A step with prompts uses the prefill tables and efficiencies for everything but the
        attention of its decodes. A decode with drafts is one decode for each token that it
        verifies (the paper has none; vLLM v0 expanded batches so, `batch_expansion.py`).
        """
        model, t = self.model, self.cluster.tensor_parallel_size
        ahead = np.arange(float(num_steps))
        prefill = bool(batch.chunks)
        rates = self._prefill_rates if prefill else self._decode_rates
        n = float(batch.num_prefill_tokens + batch.num_decode_queries)
        norm = _total(operators.eager_norm(model, n), rates)
        attention = _total(operators.eager_projections(model, n, t, prefill), rates)
        for new, context in batch.chunks:
            contexts = context + new * ahead
            chunk = operators.eager_prefill_attention(model, float(new), contexts, t)
            attention = attention + _total(chunk, self._prefill_rates)
        if batch.num_decodes:
            drafts, queries = batch.num_drafts, batch.num_decode_queries
            contexts = batch.context_sum + growth.contexts(ahead)
            lengths = contexts * (1 + drafts) + queries * (1 + drafts / 2)
            decode = operators.eager_decode_attention(model, queries, lengths, t)
            attention = attention + _total(decode, self._decode_rates)
        mlp = _total(operators.eager_mlp(model, n, t, prefill), rates)
        communication = self.cluster.all_reduce_time(n * model.hidden_size * model.dtype_bytes)
        return [
            ("rmsnorm", norm, 0.0),
            ("attention", attention, communication),
            ("rmsnorm", norm, 0.0),
            ("mlp", mlp, communication),
        ]


def _total(parts: Iterable[Operator], rates: tuple[float, float]) -> Number:
    """Seconds of operators that run one after another."""
    seconds: Number = 0.0
    for part in parts:
        seconds = seconds + np.maximum(part.flops / rates[0], part.bytes / rates[1])
    return seconds
