"""Context parallelism: ranks that share out contexts, and groups that share out an engine's tokens.

Decode context parallelism: tensor-parallel ranks with the same KV head, or with the same latent,
share out the tokens of a context in turn. Each attends with the query heads of all of them to its
own part; what comes out is weighed by the sums of the softmax, and every rank gets its heads.
Source: vLLM, `vllm/attention/ops/common.py` (`cp_lse_ag_out_rs`), `_forward_with_dcp` in
`vllm/v1/attention/backends/flash_attn.py`, and `_context_parallel_compute_prefill_context` in
`vllm/v1/attention/backends/mla/common.py`.

Prefill context parallelism: with P groups every prompt of a step is cut into 2 P pieces, and group
r takes the pieces r and 2 P - 1 - r, which together attend to as many keys as any other pair.
Decodes go whole to one group after the other. All groups keep all KV entries, so in every layer
they gather what new tokens write; before the sampler they gather hidden states. Experts lie whole
on the GPUs of all groups, as with data-parallel replicas.
Source: vLLM 0.33, `PCPManager` in `vllm/v1/worker/gpu/pcp_manager.py`, `use_pcp` in
`vllm/model_executor/layers/attention/mla_attention.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.errors import ScenarioError
from mist_sim.hardware.collectives import all_gather
from mist_sim.hardware.predictors.analytic.roofline import RooflinePredictor
from mist_sim.hardware.predictors.around import Around, Beside, Seconds
from mist_sim.hardware.predictors.base import Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.explained import OperatorTime, explained
from mist_sim.hardware.predictors.ranks import PipelinePredictor

_SUM_BYTES = 4  # of the sum of a head's softmax, which is in 32 bits


def with_context_exchange(predictor: PipelinePredictor) -> PipelinePredictor:
    """Return a predictor that adds the exchange of parts to the step times of every rank.

    Raises ScenarioError for a predictor that does not look at contexts in parts.
    """
    return replace(predictor, ranks=tuple([_with_exchange(rank) for rank in predictor.ranks]))


def _with_exchange(rank: Predictor) -> Predictor:
    """Return a rank with the exchange in all layers of its part of the model.

    A reduce-scatter takes as long as a gather of the same bytes (see `all_gather`). Prompts with
    latent attention gather the latents of their contexts instead, in 16 bits.
    """
    if not isinstance(rank, RooflinePredictor):
        raise ScenarioError(
            "predictor must be roofline with decode_context_parallel_size above 1, got "
            f"{type(rank).__name__}; others do not look at contexts in parts"
        )
    model, cluster = rank.model, rank.cluster
    ranks, width, mla = cluster.decode_context_parallel_size, model.dtype_bytes, model.mla
    gather = all_gather(cluster.gpu.interconnect, ranks, cluster.spans.tensor)
    heads = model.num_attention_heads * ranks / cluster.tensor_parallel_size
    query, output = (mla.latent_size, mla.kv_lora_rank) if mla else (model.head_dim,) * 2
    per_query = (heads * query * width, heads * _SUM_BYTES, heads * output * width)
    per_cached = mla.latent_size * width if mla else 0.0

    def seconds(batch: StepBatch) -> float:
        queries, cached = batch.num_decode_queries, 0
        if batch.chunks and not per_cached:
            queries += batch.num_prefill_tokens
        elif batch.chunks:
            cached = sum([context for _, context in batch.chunks])
        found = 0.0
        if queries:
            found = sum([gather(queries * size) for size in per_query])
        if cached:
            found += gather(cached * per_cached)
        return model.num_layers * found

    def gathers_contexts(batch: StepBatch) -> bool:
        return bool(batch.chunks and per_cached)

    return Beside(rank, seconds, "context_exchange", "links", gathers_contexts)


def of_group(batch: StepBatch, groups: int) -> StepBatch:
    """Return the work of the group with most work in a step: the middle pieces of each prompt.

    Its decodes are as many as of any group, with contexts as long as the mean. Tokens that a window
    sees are not counted for it.
    """
    decodes = -(-batch.num_decodes // groups)
    pieces = [piece for chunk in batch.chunks for piece in _middle(*chunk, groups)]
    others = batch.replicas
    return replace(
        batch,
        chunks=tuple(pieces),
        num_decodes=decodes,
        context_sum=-(-batch.context_sum * decodes // max(batch.num_decodes, 1)),
        window_sum=None,
        num_read_again=batch.num_read_again * decodes // max(batch.num_decodes, 1),
        replicas=others and tuple(-(-each // groups) for each in others for _ in range(groups)),
    )


def _middle(new: int, context: int, groups: int) -> list[tuple[int, int]]:
    """Return the two middle pieces of a prompt, of 2P, as (new tokens, tokens before them)."""
    size = -(-new // (2 * groups))
    found = []
    for piece in (groups - 1, groups):
        tokens = min(size, new - piece * size)
        if tokens > 0:
            found.append((tokens, context + piece * size))
    return found or [(new - (new - 1) // size * size, context + (new - 1) // size * size)]


@dataclass(slots=True)
class SharedPrompts(Around):
    """Step times of a group. predictor: times its work. groups: that share out the tokens."""

    adds_to: ClassVar[str] = "predictor"

    groups: int

    @property
    def traits(self) -> PredictorTraits:
        """The traits of the predictor inside."""
        inside: PredictorTraits = Around.traits.fget(self)  # type: ignore[attr-defined]
        if inside.reads_again is None:
            return inside
        return replace(inside, reads_again=self._reads_again)

    def _reads_again(self, shared: Mapping[int, int], num_decodes: int, num_keys: int) -> int:
        """Return the keys that come from the caches of all groups, as `SharedReads` has it for one.

        Decodes that share a prefix are spread over the groups.
        """
        reads_again = traits_of(self.predictor).reads_again
        mine: Counter[int] = Counter()
        for readers, tokens in shared.items():
            mine[readers // self.groups] += tokens
        del mine[0], mine[1]  # the only reader in its group
        decodes = -(-num_decodes // self.groups)
        if reads_again is None or not mine:
            return 0
        again = reads_again(mine, decodes, num_keys * decodes // num_decodes)
        return again * num_decodes // decodes

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step of an engine."""
        return self.predictor.step_time(of_group(batch, self.groups))

    def _after(self, step_time: Seconds) -> Seconds:
        return lambda batch: step_time(of_group(batch, self.groups))

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of every step of a run."""
        mine = of_group(batch, self.groups)
        if not batch.chunks and growth.context_sum == batch.num_decodes:
            longest = growth.longest_context
            of_mine = StepGrowth(mine.num_decodes, longest_context=longest)
            return self.predictor.run(mine, of_mine, num_steps)
        steps = (grown(batch, growth, number) for number in range(num_steps))
        return np.array([self.step_time(step) for step in steps])

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step on a GPU of the group."""
        mine = of_group(batch, self.groups)
        return explained(self.predictor, mine, is_on_the_spot=is_on_the_spot)


def with_shared_prompts(predictor: PipelinePredictor) -> PipelinePredictor:
    """Return a predictor of steps whose tokens several groups of GPUs share out.

    Raises ScenarioError for a predictor that does not time the work of one group.
    """
    (rank,) = predictor.ranks
    if not isinstance(rank, RooflinePredictor):
        raise ScenarioError(
            "predictor must be roofline with prefill_context_parallel_size above 1, got "
            f"{type(rank).__name__}; others do not time the tokens of one group of GPUs"
        )
    cluster = rank.cluster
    if cluster.spans:
        raise ScenarioError(
            "prefill_context_parallel_size must be 1 over several nodes; groups on other nodes are "
            "not simulated"
        )
    model, groups = rank.model, cluster.prefill_context_parallel_size
    gather = all_gather(cluster.gpu.interconnect, groups, None)
    entry = model.kv_bytes_per_token_per_rank(1) / model.num_layers
    hidden = model.hidden_size * model.dtype_bytes

    def exchange(batch: StepBatch) -> float:
        """Return the seconds in which groups gather new KV entries, and hidden states once."""
        tokens = batch.num_prefill_tokens + batch.num_decode_queries
        return model.num_layers * gather(tokens * entry) + gather(tokens * hidden)

    shared = SharedPrompts(rank, groups)
    return replace(predictor, ranks=(Beside(shared, exchange, "prompt_exchange", "links"),))
