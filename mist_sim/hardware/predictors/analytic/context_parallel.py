"""Decode context parallelism: what ranks exchange that each hold a part of every context.

Tensor-parallel ranks with the same KV head, or with the same latent, share out the tokens of a
context in turn. Each attends with the query heads of all of them to its own part; what comes out is
weighed by the sums of the softmax, and every rank gets its heads.

Source: vLLM, `vllm/attention/ops/common.py` (`cp_lse_ag_out_rs`), `_forward_with_dcp` in
`vllm/v1/attention/backends/flash_attn.py`, and `_context_parallel_compute_prefill_context` in
`vllm/v1/attention/backends/mla/common.py`.
"""

from __future__ import annotations

from dataclasses import replace

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.collectives import all_gather
from mist_sim.hardware.predictors.analytic.roofline import RooflinePredictor
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.beside import Beside
from mist_sim.hardware.predictors.ranks import PipelinePredictor
from mist_sim.models.spec import ModelSpec

_SUM_BYTES = 4  # of the sum of a head's softmax, which is in 32 bits


class ContextExchange:
    """Seconds of the exchange in all layers of a rank's part of the model.

    A reduce-scatter takes as long as a gather of the same bytes (see `all_gather`). Prompts with
    latent attention gather the latents of their contexts instead, in 16 bits.
    """

    def __init__(self, model: ModelSpec, cluster: Cluster) -> None:
        ranks = cluster.decode_context_parallel_size
        self._gather = all_gather(cluster.gpu.interconnect, ranks, cluster.spans.tensor)
        self._layers, mla = model.num_layers, model.mla
        heads = model.num_attention_heads * ranks / cluster.tensor_parallel_size
        query, output = (mla.latent_size, mla.kv_lora_rank) if mla else (model.head_dim,) * 2
        width = model.dtype_bytes
        self._per_query = (heads * query * width, heads * _SUM_BYTES, heads * output * width)
        self._per_cached = mla.latent_size * width if mla else 0.0

    def seconds(self, batch: StepBatch) -> float:
        """Return the seconds of a step's exchanges."""
        queries, cached = batch.num_decode_queries, 0
        if batch.chunks and not self._per_cached:
            queries += batch.num_prefill_tokens
        elif batch.chunks:
            cached = sum([context for _, context in batch.chunks])
        found = 0.0
        if queries:
            found = sum([self._gather(queries * size) for size in self._per_query])
        if cached:
            found += self._gather(cached * self._per_cached)
        return self._layers * found

    def changes(self, batch: StepBatch) -> bool:
        """Tell whether steps gather contexts, which grow from step to step."""
        return bool(batch.chunks and self._per_cached)


def with_context_exchange(predictor: PipelinePredictor) -> PipelinePredictor:
    """Return a predictor that adds the exchange to the step times of every rank.

    Raises ScenarioError for a predictor that does not look at contexts in parts.
    """
    return replace(predictor, ranks=tuple([_with_exchange(rank) for rank in predictor.ranks]))


def _with_exchange(rank: Predictor) -> Predictor:
    if not isinstance(rank, RooflinePredictor):
        raise ScenarioError(
            "predictor must be roofline with decode_context_parallel_size above 1, got "
            f"{type(rank).__name__}; others do not look at contexts in parts"
        )
    return Beside(rank, ContextExchange(rank.model, rank.cluster), "context_exchange", "links")
