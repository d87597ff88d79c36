"""The operators of a roofline's step, one by one: the same terms as in its sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import figures_of
from mist_sim.hardware.predictors.analytic.attention_time import (
    DecodeAttention,
    PromptAttention,
    decode_pairs,
    longest_decode,
    seen_in_window,
)
from mist_sim.hardware.predictors.analytic.compile import Phase, attention_kernel
from mist_sim.hardware.predictors.analytic.phase_time import Communication, PhaseTime, Term
from mist_sim.hardware.predictors.explained import Bound, OperatorTime
from mist_sim.models import operators
from mist_sim.models.operators import Operator
from mist_sim.models.spec import ModelSpec


def outside(
    model: ModelSpec,
    cluster: Cluster,
    phase_time: PhaseTime,
    sizes: tuple[int, int, int | None],
    *,
    prefill: bool,
) -> list[OperatorTime]:
    """Return all operators of a step but attention, in the order of a layer.

    phase_time: the sums of the same terms. sizes: tokens that the step computes, with padding of
    CUDA graphs, tokens that it samples, and tokens of all replicas if they are known.
    """
    num_tokens, num_samples, known = sizes
    shared = num_tokens * phase_time.num_replicas if known is None else known
    t = cluster.tensor_parallel_size
    replicas = shared / max(num_tokens, 1) if cluster.gathers_tokens else 1.0
    phase = Phase(cluster.gpu, cluster.gpu.prefill if prefill else cluster.gpu.decode)
    found: list[OperatorTime] = []
    parts = [operators.token_operators(model, n, t, prefill, replicas) for n in (0, 1, num_tokens)]
    for (layers, none), (_, one), (_, here) in zip(*parts, strict=True):
        terms = phase.terms(layers, none, one)
        found += [
            _product(term, operator, layers, num_tokens, phase)
            for term, operator in zip(terms, here, strict=True)
        ]
    found += _experts(model, cluster, phase_time, shared, phase)
    if phase_time.communication is not None:
        found += _collectives(phase_time.communication, num_tokens, shared)
    for term, operator in zip(
        phase_time.by_sample, operators.logits(model, num_samples, t), strict=True
    ):
        found.append(_product(term, operator, 1, num_samples, phase))
    return found


def _product(term: Term, operator: Operator, layers: int, n: int, phase: Phase) -> OperatorTime:
    """Return an operator for n tokens: a product, or one without weights."""
    compute, memory = n * term.work, term.weights + n * term.traffic
    seconds = term.time(n) if term.weights else term.fixed + n * max(term.work, term.traffic)
    return OperatorTime(
        operator.name,
        seconds,
        _bound(compute, memory, seconds),
        layers,
        float(layers * operator.flops),
        float(layers * operator.bytes),
        phase.figures(operator.kernel, operator.dtype),
        operator.dtype,
    )


def _bound(compute: float, memory: float, seconds: float) -> Bound:
    """Return what binds: compute or memory; latency if together they are under half of the time."""
    if compute + memory < seconds / 2:
        return "latency"
    return "compute" if compute > memory else "memory"


def _experts(
    model: ModelSpec, cluster: Cluster, phase_time: PhaseTime, routed: int, phase: Phase
) -> Iterator[OperatorTime]:
    experts, moe = phase_time.experts, model.moe
    if experts is None or moe is None:
        return
    distinct = moe.on_busiest_rank(routed, experts.num_ranks)
    here = operators.routed_experts(
        model,
        moe,
        routed,
        distinct,
        cluster.tensor_parallel_size,
        cluster.expert_parallel_size,
        cluster.expert_load_imbalance,
    )
    layers = model.num_moe_layers
    for operator, each in zip(here, experts.times(routed), strict=True):
        yield OperatorTime(
            operator.name,
            each.seconds,
            _bound(each.compute, each.memory, each.seconds),
            layers,
            float(layers * operator.flops),
            float(layers * operator.bytes),
            phase.figures(operator.kernel, operator.dtype),
            operator.dtype,
        )


def _collectives(
    communication: Communication, num_tokens: int, shared: int
) -> Iterator[OperatorTime]:
    size = float(num_tokens * communication.bytes_per_token)
    num = communication.num_all_reduces
    yield OperatorTime("all_reduce", num * communication.all_reduce(size), "links", num)
    if (exchange := communication.exchange) is not None:
        seconds = exchange.seconds(num_tokens, shared)
        yield OperatorTime(exchange.name, seconds, "links", exchange.count)


class Attention:
    """The attention of a step in some layers.

    window: keys that a query attends to at most; None: all of them.
    """

    def __init__(
        self, model: ModelSpec, cluster: Cluster, layers: int, window: int | None = None
    ) -> None:
        self._model, self._cluster, self._layers, self._window = model, cluster, layers, window

    def of_prompts(self, times: PromptAttention, chunks: Sequence[tuple[int, int]]) -> OperatorTime:
        """Return the attention of a step's prompts."""
        window = self._window
        longest = max([new + context for new, context in chunks])
        latency = times.fixed + times.serial * (longest if window is None else min(longest, window))
        queries = sum([new for new, _ in chunks])
        cached = sum([context for _, context in chunks])
        seen = [
            (new + context, new * (context + (new + 1) * 0.5))
            if window is None
            else seen_in_window(window, new, context)
            for new, context in chunks
        ]
        keys, pairs = sum([each for each, _ in seen]), sum([each for _, each in seen])
        if window is not None:
            cached = keys - queries
        compute = pairs * times.per_pair
        memory = keys * times.per_key + queries * times.per_query + cached * times.per_cached
        return self._operator((queries, keys, pairs), (compute, memory, latency), prefill=True)

    def of_decodes(self, times: DecodeAttention, batch: StepBatch, keys: int) -> OperatorTime:
        """Return the attention of a step's decodes, which read so many keys."""
        queries, window = batch.num_decode_queries, self._window
        pairs = decode_pairs(batch, keys)
        if window is not None and batch.num_drafts:
            pairs = min(pairs, queries * window)
        compute = pairs * times.per_pair
        read = keys if window is not None else keys - batch.num_read_again
        memory = read * times.per_key
        if times.per_own_key:
            longest = min(longest_decode(batch), inf if window is None else window - 1)
            memory = max(memory, (longest + (1 + batch.num_drafts)) * times.per_own_key)
        memory += queries * times.per_query
        return self._operator((queries, keys, pairs), (compute, memory, times.fixed), prefill=False)

    def _operator(
        self,
        sizes: tuple[float, float, float],
        seconds: tuple[float, float, float],
        *,
        prefill: bool,
    ) -> OperatorTime:
        """Return attention of (queries, keys, pairs) in seconds of (compute, memory, latency)."""
        (queries, keys, pairs), (compute, memory, latency) = sizes, seconds
        t, layers = self._cluster.tensor_parallel_size, self._layers
        work = operators.attention(self._model, queries, keys, pairs, t, prefill=prefill)
        kind = "prefill" if prefill else "decode"
        total = latency + (compute + memory if prefill else max(compute, memory))
        return OperatorTime(
            f"{kind}_attention" + ("" if self._window is None else f"_window_{self._window}"),
            total,
            _bound(compute, memory, total),
            layers,
            float(layers * work.flops),
            float(layers * work.bytes),
            figures_of(self._cluster.gpu.kernels, attention_kernel(self._model, kind)),
            work.dtype,
        )
