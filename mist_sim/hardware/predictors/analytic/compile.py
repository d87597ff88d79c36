"""Turns the operators of a model on a cluster into the few coefficients that time a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.collectives import all_reduce
from mist_sim.hardware.devices import Efficiency, GpuSpec, Kernel, figures_of, kernel_of
from mist_sim.hardware.expert_exchange import exchange_of
from mist_sim.hardware.predictors.analytic.attention_time import (
    DecodeAttention,
    PromptAttention,
    WindowAttentionTime,
)
from mist_sim.hardware.predictors.analytic.phase_time import Communication, Experts, PhaseTime, Term
from mist_sim.hardware.predictors.base import sustained_rates
from mist_sim.models import operators
from mist_sim.models.operators import Operator
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Phase:
    """A GPU in one phase, prefill or decode, and the rates that its kernels reach.

    efficiency: shares of the peaks, for kernels without figures of their own.
    """

    gpu: GpuSpec
    efficiency: Efficiency

    def rates(self, name: str, dtype: str = "bf16") -> tuple[Kernel, float, float]:
        """Return the figures of a kind of kernels, and the FLOP/s and bytes/s that they reach."""
        gpu = self.gpu
        kernel = kernel_of(gpu.kernels, self._runs(name, dtype))
        reached = Efficiency(
            mfu=self.efficiency.mfu if kernel.mfu is None else kernel.mfu,
            mbu=self.efficiency.mbu if kernel.mbu is None else kernel.mbu,
        )
        return kernel, *sustained_rates(gpu, reached, dtype)

    def figures(self, name: str, dtype: str) -> str:
        """Return the kind of kernels whose figures `rates` takes; empty if there are none."""
        return figures_of(self.gpu.kernels, self._runs(name, dtype))

    def _runs(self, name: str, dtype: str) -> str:
        return name if dtype in self.gpu.flops else _widened(name)

    def terms(self, layers: int, none: list[Operator], one: list[Operator]) -> Iterator[Term]:
        """Yield the terms of operators, from their work for no token and for one."""
        for at_none, at_one in zip(none, one, strict=True):
            kernel, flops, bandwidth = self.rates(at_one.kernel, at_one.dtype)
            yield Term(
                fixed=layers * (kernel.floor + kernel.serial * at_one.depth / 1e3),
                per_token=float(layers * kernel.per_input * at_one.inputs / 1e6),
                work=float(layers * at_one.flops / flops),
                weights=float(layers * at_none.bytes / bandwidth),
                traffic=float(layers * (at_one.bytes - at_none.bytes) / bandwidth),
            )


def _widened(name: str) -> str:
    """Return the kernels that widen weights, for a type that a GPU cannot multiply."""
    if name.startswith("experts_"):
        return "experts_int4"
    return "fp8_widened" if name.startswith("fp8") else "int4"


def phase_time(model: ModelSpec, cluster: Cluster, prefill: bool) -> PhaseTime:
    """Return the times of all operators of a step in one phase except attention."""
    t = cluster.tensor_parallel_size
    phase = Phase(cluster.gpu, cluster.gpu.prefill if prefill else cluster.gpu.decode)
    by_token, per_token = _by_token(phase, model, t, prefill, 1)
    per_other = 0.0
    if cluster.gathers_tokens:
        per_other = _by_token(phase, model, t, prefill, 2)[1] - per_token
    none, one = (operators.logits(model, n, t) for n in (0, 1))
    weightless = [term for term in by_token if not term.weights]
    return PhaseTime(
        fixed=sum([term.fixed for term in weightless]),
        per_token=per_token,
        per_other=per_other,
        by_token=tuple(term for term in by_token if term.weights),
        by_sample=tuple(phase.terms(1, none, one)),
        experts=_experts(model, cluster, phase),
        communication=_communication(model, cluster),
        num_replicas=cluster.num_sharing_replicas,
    )


def _by_token(
    phase: Phase, model: ModelSpec, t: int, prefill: bool, replicas: int
) -> tuple[list[Term], float]:
    """Return the terms of what is linear in tokens, and seconds a token of those without weights.

    replicas: that share experts, with as many tokens each.
    """
    found: list[Term] = []
    parts = (operators.token_operators(model, n, t, prefill, replicas) for n in (0, 1))
    for (layers, none), (_, one) in zip(*parts, strict=True):
        found += phase.terms(layers, none, one)
    return found, sum([max(each.work, each.traffic) for each in found if not each.weights])


def _experts(model: ModelSpec, cluster: Cluster, phase: Phase) -> Experts | None:
    moe, ranks = model.moe, cluster.expert_parallel_size
    if moe is None:
        return None
    t, imbalance = cluster.tensor_parallel_size, cluster.expert_load_imbalance
    none, one = (operators.routed_experts(model, moe, n, 1, t, ranks, imbalance) for n in (0, 1))
    terms = tuple(phase.terms(model.num_moe_layers, none, one))
    rows = [each.inputs / each.depth for each in one]
    kernels = [phase.rates(each.kernel, each.dtype)[0] for each in one]
    pairs = [*zip(kernels, rows, strict=True)]
    padding = tuple(float(kernel.padding / each) for kernel, each in pairs)
    half = tuple(float(kernel.padding_from / each) for kernel, each in pairs)
    filled = tuple(float(kernel.filled / each) * moe.num_experts / ranks for kernel, each in pairs)
    return Experts(moe, terms, padding, half, filled, ranks, kernels[0].beyond_experts)


def _communication(model: ModelSpec, cluster: Cluster) -> Communication | None:
    """All-reduces after attention and MLP; gathering and scattering around shared experts."""
    if cluster.tensor_parallel_size == cluster.num_sharing_replicas == 1:
        return None
    link = cluster.gpu.interconnect
    return Communication(
        all_reduce=all_reduce(link, cluster.tensor_parallel_size, cluster.spans.tensor),
        num_all_reduces=model.num_sums,
        bytes_per_token=model.hidden_size * model.dtype_bytes,
        exchange=exchange_of(model, cluster),
    )


def prompt_attention(model: ModelSpec, cluster: Cluster, layers: int) -> PromptAttention:
    """Return the times of the attention of prompts in so many layers."""
    t, phase = cluster.tensor_parallel_size, Phase(cluster.gpu, cluster.gpu.prefill)

    def attention(queries: float, keys: float, pairs: float) -> Operator:
        return operators.attention(model, queries, keys, pairs, t, prefill=True)

    found = prompt_times(
        phase,
        attention_kernel(model, "prefill"),
        layers,
        attention,
        heads=model.num_attention_heads / t,
        expanded=operators.expand_context(model, 1, t),
    )
    return of_all_pairs(found) if model.is_encoder else found


def of_all_pairs(prompts: PromptAttention) -> PromptAttention:
    """Return the times of attention without a causal mask.

    All n^2 pairs of n tokens count: two times the n (n + 1) / 2 of a prompt, less n.
    """
    per_query, per_pair = prompts.per_query - prompts.per_pair, 2 * prompts.per_pair
    return replace(prompts, per_query=per_query, per_pair=per_pair)


def prompt_times(
    phase: Phase,
    kernel_name: str,
    layers: int,
    attention: Callable[[float, float, float], Operator],
    *,
    heads: float,
    expanded: Iterable[Operator] = (),
    dtype: str = "bf16",
) -> PromptAttention:
    """Return the times of attention of prompts, given the cost of queries, keys and pairs.

    heads: whose pairs take the kernel's `per_pair`. expanded: cost of each cached token.
    """
    kernel, flops, bandwidth = phase.rates(kernel_name, dtype)
    per_pair = float(layers * (attention(0, 0, 1).flops + heads * kernel.per_pair) / flops)
    per_cached = 0.0
    for part in expanded:
        _, rate, width = phase.rates(part.kernel, part.dtype)
        per_cached += layers * float(max(part.flops / rate, part.bytes / width))
    return PromptAttention(
        fixed=layers * kernel.floor,
        per_query=float(layers * attention(1, 0, 0).bytes / bandwidth) + kernel.padding * per_pair,
        per_key=float(layers * attention(0, 1, 0).bytes / bandwidth),
        per_pair=per_pair + _pair_bytes(layers, attention, bandwidth),
        serial=layers * kernel.serial / 1e3,
        per_cached=per_cached,
    )


def _pair_bytes(
    layers: int, attention: Callable[[float, float, float], Operator], bandwidth: float
) -> float:
    """Return the seconds of memory traffic per (query, key) pair, which only an indexer has.

    A decode has a pair for each key; drafts have more, whose scores are not counted.
    """
    return float(layers * attention(0, 0, 1).bytes / bandwidth)


SERIAL_HEAD = 128
"""Values of the heads that `Kernel.serial` of decodes is the time of."""


def decode_attention(model: ModelSpec, cluster: Cluster, layers: int) -> DecodeAttention:
    """Return the times of the attention of decodes in so many layers."""
    phase, parts = Phase(cluster.gpu, cluster.gpu.decode), cluster.decode_context_parallel_size
    # ranks that share out contexts attend to a part of them with the heads of all
    t = cluster.tensor_parallel_size // parts

    def attention(queries: float, keys: float, pairs: float) -> Operator:
        return operators.attention(model, queries, keys / parts, pairs / parts, t, prefill=False)

    heads, name = model.num_attention_heads // t, attention_kernel(model, "decode")
    times = decode_times(phase, name, layers, attention)
    if model.mla or heads > model.kv_heads_per_rank(t):
        return times
    kernel, *_ = phase.rates(name)
    in_serial = kernel.serial / 1e3 * model.head_dim / SERIAL_HEAD
    own = layers * in_serial / parts
    return replace(times, per_own_key=own if own > times.per_key else 0.0)


def decode_times(
    phase: Phase,
    kernel_name: str,
    layers: int,
    attention: Callable[[float, float, float], Operator],
    *,
    dtype: str = "bf16",
) -> DecodeAttention:
    """Return the times of attention of decodes, given the cost of queries, keys and pairs."""
    kernel, flops, bandwidth = phase.rates(kernel_name, dtype)
    return DecodeAttention(
        fixed=layers * kernel.floor,
        per_query=float(layers * attention(1, 0, 0).bytes / bandwidth),
        per_key=float(layers * attention(0, 1, 0).bytes / bandwidth)
        + _pair_bytes(layers, attention, bandwidth),
        per_pair=float(layers * attention(0, 0, 1).flops / flops),
        beside_prompts=kernel.beside_prompts,
    )


def window_attention(model: ModelSpec, cluster: Cluster) -> WindowAttentionTime | None:
    """Return the times of the layers with a sliding window; None if the model has none."""
    if model.sliding_window is None:
        return None
    layers = len(model.window_layers)
    decodes = decode_attention(model, cluster, layers)
    prompts = prompt_attention(model, cluster, layers)
    return WindowAttentionTime(model.sliding_window, prompts, decodes, decodes.beside())


def attention_kernel(model: ModelSpec, phase: str) -> str:
    """Return the kind of kernels of a model's attention. phase: prefill or decode."""
    if model.mla:
        return f"latent_{phase}_attention"
    return f"{phase}_attention" + ("_fp8" if model.kv_entry_bytes == 1 else "")
