"""Attention-FFN disaggregation (AFD): times and power of the parts of a bundle's cycle.

Demand of decode steps on one GPU of a bundle, by attention and FFN workers.

The operators are those of `hardware/work.py`, divided as in arXiv 2601.21351v3, appendix B: norms,
projections and attention itself belong to attention, the MLP or the experts to the FFN. The paper
leaves out the vocabulary. Here the attention workers, which hold the requests, embed and sample
tokens. Routers, shared experts and the sum over experts belong to the FFN.

The GPUs of a bundle: a group of attention workers and a group of FFN workers.

Steps of a bundle are recorded with the time that a worker spends on them, mean over both kinds. The
FFN's time follows from the batch and the coefficients, and the rest is attention's. The power of
such workers was never measured; the law of `power.py` is applied with half of a step's operators
each, over the seconds in which they work. In between they draw `idle`.

The latency coefficients of a bundle from the sizes of its model and the figures of its cards.

`derive_coefficients` has those of one layer with experts, as the paper; `step_coefficients` those
of a step of all layers, by the kernels of the cards. All times are seconds. Equation numbers are
those of arXiv 2601.21351v3, appendix B.

By how much kernels would change coefficients that are derived from flat shares of the peaks.

Appendix B takes one share of the bandwidth for attention and one of the rate for experts: here
those of a GPU's entry in decode (`decode.mbu`, `decode.mfu`). Engines in a run are timed by the
figures of kernels instead, where the GPU's architecture has some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from mist_sim.bounds import NUMBER
from mist_sim.checks import Checked, NotNegative, Positive, check_fields
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import GpuSpec, Kernel, architecture_names, kernel_of, kernels_of
from mist_sim.hardware.gpu_group import GpuWork
from mist_sim.hardware.kernel_choice import attention_kinds, experts_kind
from mist_sim.hardware.power import Array, Demand, Load, step_watts
from mist_sim.hardware.work import StepCounts, attention_demand, demand_of, expert_demand, peak
from mist_sim.models import MoeSpec, operators
from mist_sim.models.spec import ModelSpec
from mist_sim.units import BytesPerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class AfdCoefficients(Checked):
    """Times linear in the load of each part of the cycle, in cycles or any unit of time.

    alpha_a, beta_a: attention of one worker, per token in its KV cache, and fixed.
    alpha_f, beta_f: FFN, per request in the batch of one FFN worker, and fixed.
    alpha_c, beta_c: communication both ways, per such request, and fixed.
    Slopes of attention and FFN are > 0, the others >= 0.
    Raises ValueError for other values.
    Source: arXiv 2601.21351v3, section 3.1.
    """

    alpha_a: Positive[float]
    beta_a: NotNegative[float]
    alpha_f: Positive[float]
    beta_f: NotNegative[float]
    alpha_c: NotNegative[float]
    beta_c: NotNegative[float]

    # numbers, or arrays of them
    def attention_time(self, num_tokens: Any) -> Any:
        """Return the time of a worker whose requests hold that many tokens."""
        return self.alpha_a * num_tokens + self.beta_a

    def ffn_time(self, num_requests: Any) -> Any:
        """Return the time of an FFN worker for so many requests."""
        return self.alpha_f * num_requests + self.beta_f

    def communication_time(self, num_requests: Any) -> Any:
        """Return the time of both transfers for so many requests of an FFN worker."""
        return self.alpha_c * num_requests + self.beta_c

    def times(self, factor: float) -> AfdCoefficients:
        """Return them in another unit, of which one of the present makes `factor`."""
        scaled = {field.name: getattr(self, field.name) * factor for field in fields(self)}
        return AfdCoefficients(**scaled)


PRESETS: Mapping[str, AfdCoefficients] = {
    # arXiv 2601.21351v3, table 3: fitted there to traces of Ascend 910C cards, in cycles
    "deepseek-v3-ascend-910c": AfdCoefficients(
        alpha_a=1.65e-3, beta_a=50.0, alpha_f=0.083, beta_f=100.0, alpha_c=0.022, beta_c=20.0
    ),
}
"""Published coefficients, by model and accelerator."""


def attention_work(
    model: ModelSpec, cluster: Cluster, counts: StepCounts, num_workers: Array
) -> Demand:
    """Return the demand of runs on a GPU of an attention worker, mean over active workers.

    cluster: GPUs of one worker. counts: of whole batches. num_workers: workers with requests of
        them.
    """
    gpu, t, steps = cluster.gpu, cluster.tensor_parallel_size, counts.num_steps
    num_tokens = counts.num_queries / num_workers
    found = Demand(np.zeros_like(num_tokens), np.zeros_like(num_tokens))
    none, one = ([parts[0], parts[-1]] for parts in _of_tokens(model, t))
    for (layers, at_none), (_, at_one) in zip(none, one, strict=True):
        found = found + demand_of(gpu, at_none, at_one, num_tokens, layers * steps)
    at_none, at_one = (operators.logits(model, n, t) for n in (0, 1))
    found = found + demand_of(gpu, at_none, at_one, num_tokens, steps)
    windows = len(model.window_layers)
    for layers, window in ((model.num_layers - windows, None), (windows, model.sliding_window)):
        if layers:
            of_all = attention_demand(model, cluster, counts, layers, window)
            found = found + Demand(of_all.compute / num_workers, of_all.memory / num_workers)
    return found


def ffn_work(model: ModelSpec, cluster: Cluster, counts: StepCounts, num_tokens: Array) -> Demand:
    """Return the demand of runs on a GPU of an FFN worker, mean over its experts' GPUs.

    cluster: GPUs of one worker, over which whole experts are spread. num_tokens: per step.
    """
    gpu, t, steps = cluster.gpu, cluster.tensor_parallel_size, counts.num_steps
    found = Demand(np.zeros_like(num_tokens), np.zeros_like(num_tokens))
    none, one = (parts[1:-1] for parts in _of_tokens(model, t))
    for (layers, at_none), (_, at_one) in zip(none, one, strict=True):
        found = found + demand_of(gpu, at_none, at_one, num_tokens, layers * steps)
    if model.moe is not None:
        found = found + expert_demand(model, model.moe, cluster, counts, num_tokens)
    return found


def _of_tokens(
    model: ModelSpec, t: int
) -> tuple[list[tuple[int, list[operators.Operator]]], list[tuple[int, list[operators.Operator]]]]:
    """Return the work linear in tokens, for 0 and 1 token: projections, FFNs, vocabulary."""
    none, one = (operators.token_operators(model, n, t, False) for n in (0, 1))
    return none, one


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleShape:
    """The number of workers that share a batch, and the time of each.

    coefficients: in seconds. slots: of a batch, on all attention workers. static_graph: whether
    empty ones cost the FFN as much as full ones.
    """

    coefficients: AfdCoefficients
    attention_workers: int
    ffn_workers: int
    slots: int
    static_graph: bool

    def ffn_requests(self, counts: StepCounts) -> Array:
        """Return the requests that an FFN worker computes in each step of some runs."""
        requests = counts.num_decodes
        if self.static_graph:
            requests = np.full_like(requests, self.slots)
        return requests / self.ffn_workers

    def ffn_seconds(self, counts: StepCounts) -> Array:
        """Return how long each FFN worker works in some runs."""
        each: Array = self.coefficients.ffn_time(self.ffn_requests(counts))
        return counts.num_steps * each

    def attention_seconds(self, counts: StepCounts, busy: Array) -> Array:
        """Return how long attention workers work in some runs, added up over them.

        busy: seconds of a worker, mean over both kinds.
        """
        in_all = busy * (self.attention_workers + self.ffn_workers)
        return np.maximum(in_all - self.ffn_seconds(counts) * self.ffn_workers, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers of one kind; a group of equal GPUs.

    cluster: the GPUs of one worker. number: of workers. price: dollars of a GPU an hour; None: of
    the catalog.
    """

    model: ModelSpec
    cluster: Cluster
    number: int
    shape: BundleShape
    price: float | None = None

    @property
    def gpu(self) -> GpuSpec:
        """The type of GPU, the same for all workers."""
        return self.cluster.gpu

    @property
    def num_gpus(self) -> int:
        """GPUs of all workers of the kind."""
        return self.number * self.gpus_an_engine

    @property
    def gpus_an_engine(self) -> int:
        """GPUs of one worker, which load its weights together."""
        return self.cluster.num_gpus

    @property
    def idle_watts(self) -> float:
        """Watts of one idle GPU."""
        return self.gpu.draw.idle * self.gpu.watts

    def _watts(self, demand: Demand, seconds: Array, *, has_experts: bool = False) -> Array:
        """Return the mean watts of a GPU in runs that took a worker so many seconds."""
        load = Load(has_experts=has_experts, has_peers=self.gpus_an_engine > 1)
        seconds = np.where(seconds > 0, seconds, 1.0)
        return step_watts(self.gpu.draw, self.gpu.watts, demand, seconds, load)


class AttentionGpus(Workers):
    """The GPUs of all attention workers, each of which holds all weights of attention."""

    __slots__ = ()

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that one worker loads: all except the FFN's."""
        ranks = self.gpus_an_engine
        return ranks * self.model.attention_weight_bytes_per_rank(ranks)

    def work(self, counts: StepCounts, busy: Array) -> GpuWork:
        """Return the work of the GPUs in runs of steps. busy: as recorded of each run, seconds.

        Without a static graph, requests are assumed to be on as many workers as possible.
        """
        seconds = self.shape.attention_seconds(counts, busy)
        num_working = np.full_like(seconds, self.number)
        if not self.shape.static_graph:
            num_working = np.clip(counts.num_decodes, 1, self.number)
        demand = attention_work(self.model, self.cluster, counts, num_working)
        return GpuWork(seconds * self.gpus_an_engine, self._watts(demand, seconds / num_working))


class FfnGpus(Workers):
    """The GPUs of all FFN workers, each of which holds all experts, or the whole MLP."""

    __slots__ = ()

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that one worker loads: of MLPs, experts and routers."""
        cluster = self.cluster
        ranks, experts = cluster.tensor_parallel_size, cluster.expert_parallel_size
        return ranks * self.model.ffn_weight_bytes_per_rank(ranks, experts)

    def work(self, counts: StepCounts, busy: Array) -> GpuWork:
        """Return the work of the GPUs in runs of steps. busy: as recorded of each run, seconds."""
        seconds, requests = self.shape.ffn_seconds(counts), self.shape.ffn_requests(counts)
        demand = ffn_work(self.model, self.cluster, counts, requests)
        watts = self._watts(demand, seconds, has_experts=self.model.moe is not None)
        return GpuWork(seconds * self.num_gpus, watts)


@dataclass(frozen=True, slots=True)
class BundleMachine:
    """The GPUs of a bundle. Their watts are always an assumption."""

    attention: AttentionGpus
    ffn: FfnGpus

    @property
    def groups(self) -> tuple[AttentionGpus, FfnGpus]:
        """Attention workers, then FFN workers."""
        return self.attention, self.ffn

    @property
    def num_drafts(self) -> int:
        """None: bundles do not draft."""
        return 0

    @property
    def watts_origin(self) -> Literal["assumed"]:
        """Always "assumed": the power of such workers was never measured."""
        return "assumed"


def named_coefficients(name: str) -> AfdCoefficients:
    """Return published coefficients. Raises ScenarioError for an unknown name."""
    if name not in PRESETS:
        raise ScenarioError(
            f"no coefficients named {brief(name)}{did_you_mean(name, PRESETS)} "
            f"Known: {', '.join(PRESETS)}"
        )
    return PRESETS[name]


def chosen_coefficients(
    base: AfdCoefficients | None,
    given: Mapping[str, float | None],
    written: Callable[[str], str] = str,
) -> AfdCoefficients:
    """Return the given coefficients, with those of `base` for the others.

    given: all six by name. written: how the user writes a name.
    Raises ScenarioError where some are missing or out of range.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if base is not None:
        named = {name: getattr(base, name) for name in given} | named
    if missing := [written(name) for name in given if name not in named]:
        raise ScenarioError(
            f"coefficients are missing: {', '.join(missing)}; give all six, or "
            f"{written('coefficients')} with a name ({', '.join(PRESETS)})"
        )
    for name, value in named.items():
        if value > NUMBER[1]:
            raise ScenarioError(f"coefficients: {name} must be <= {NUMBER[1]:g}, got {value:g}")
    try:
        return AfdCoefficients(**named)
    except ValueError as error:
        raise ScenarioError(f"coefficients: {error}") from error


_BYTES_IN, _BYTES_OUT = 1, 2  # of an activation: INT8 to the experts, BF16 back (eq. 27)


@dataclass(frozen=True, kw_only=True)
class FfnCards:
    """The cards of one FFN worker, over which the experts are spread.

    num_cards: >= 1. network_bandwidth: bytes/s at which activations reach one of them (> 0).
    expert_load_imbalance: tokens of the busiest card over the mean (from 1 to num_cards); all wait
        for it.
    Raises ValueError for values outside these ranges.
    """

    gpu: GpuSpec
    num_cards: Positive[int]
    network_bandwidth: Positive[BytesPerSecond]
    expert_load_imbalance: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.expert_load_imbalance <= self.num_cards:
            raise ValueError(
                f"expert_load_imbalance must be from 1 to the {self.num_cards} cards, "
                f"got {self.expert_load_imbalance}"
            )


def activation_bytes(model: ModelSpec) -> tuple[int, int]:
    """Return the bytes of a request that go to the FFN in a step, and that come back (27).

    Each of the experts of a token gets its activations; a layer without experts gets one copy.
    """
    copies = model.num_dense_layers
    if model.moe is not None:
        copies += model.num_moe_layers * model.moe.num_experts_per_token
    return _BYTES_IN * model.hidden_size * copies, _BYTES_OUT * model.hidden_size * copies


def derive_coefficients(
    model: ModelSpec,
    attention_gpu: GpuSpec,
    ffn: FfnCards,
    *,
    communication_base: float = 0.0,
    ffn_base: float | None = None,
    attention_base: float | None = None,
    mtp_depth: int = 0,
    num_requests: float = math.inf,
) -> AfdCoefficients:
    """Return the coefficients of one layer with experts, in seconds.

    Attention is bound by memory, experts by compute. Bandwidths and rates are those reached in
    decode. Shared experts are not counted, as in the paper.

    attention_base, ffn_base: seconds of a layer's attention beyond the KV cache, and of an FFN card
        beyond its FLOPs; None: the time to read the weights of the projections, and of the experts
        that the busiest card reads. communication_base: start-up of transfers, seconds. Times not
        explained by any size, such as dispatch, must be measured.
    mtp_depth: further tokens that a request has in a step (multi-token prediction, >= 0).
    num_requests: in the batch of an FFN worker (> 0); few reach some of the experts only.
    Raises ScenarioError for a model without experts, experts that do not fit, and a GPU without
    the data type of the experts; ValueError for numbers outside their ranges.
    """
    if model.moe is None:
        raise ScenarioError(f"model must have experts, on which the FFN is based; got {model.name}")
    if model.layers:
        raise ScenarioError(
            f"model must have layers that are alike, for which the paper has formulas; those of "
            f"{model.name} differ"
        )
    if mtp_depth < 0:
        raise ValueError(f"mtp_depth must be >= 0, got {mtp_depth}")
    experts_per_card = _experts_per_card(model, model.moe, ffn)
    bandwidth = attention_gpu.memory_bandwidth * attention_gpu.decode.mbu  # (18)
    if attention_base is None:
        weights = model.attention_params_per_layer * model.bytes_per_param("attention")
        attention_base = weights / bandwidth
    if ffn_base is None:
        read = float(experts_per_card)
        if num_requests < math.inf:
            tokens = math.ceil(num_requests * (1 + mtp_depth))
            read = model.moe.on_busiest_rank(tokens, ffn.num_cards)
        weights = read * _expert_bytes(model, model.moe)
        ffn_base = weights / (ffn.gpu.memory_bandwidth * ffn.gpu.decode.mbu)
    # (24): tokens of an expert per request, with the load of the busiest card
    tokens_per_expert = (
        model.moe.num_experts_per_token * (1 + mtp_depth) / model.moe.num_experts
    ) * ffn.expert_load_imbalance
    expert_flop = 2 * model.mlp_params(model.moe.intermediate_size)  # (20)
    rate = _rate(model, ffn.gpu, "routed_experts")
    activation_bytes = (_BYTES_IN + _BYTES_OUT) * model.hidden_size  # (27)
    return AfdCoefficients(
        alpha_a=model.kv_bytes_per_token / model.num_layers / bandwidth,  # (17), (19)
        beta_a=attention_base,
        alpha_f=experts_per_card * expert_flop / rate * tokens_per_expert,  # (26)
        beta_f=ffn_base,
        alpha_c=experts_per_card * activation_bytes / ffn.network_bandwidth * tokens_per_expert,
        beta_c=communication_base,
    )


def step_coefficients(
    model: ModelSpec,
    attention_gpu: GpuSpec,
    ffn: FfnCards,
    *,
    communication_base: float = 0.0,
    ffn_base: float | None = None,
    attention_base: float | None = None,
    mtp_depth: int = 0,
    num_requests: float = math.inf,
) -> AfdCoefficients:
    """Return the coefficients of a step of all layers, in seconds.

    Attention and experts reach the shares of the cards' own kernels where these are known and
    differ by more than `LEAST_CHANGE` (`kernel_shares`). Layers without experts have an MLP, which
    the FFN cards divide among them; each of its requests is sent once. The bases are of every
    layer. The embedding and the head are not counted.

    Parameters and errors are those of `derive_coefficients`.
    """
    layer = derive_coefficients(
        model,
        attention_gpu,
        ffn,
        communication_base=communication_base,
        ffn_base=ffn_base,
        attention_base=attention_base,
        mtp_depth=mtp_depth,
        num_requests=num_requests,
    )
    shares = kernel_shares(model, attention_gpu, ffn.gpu)
    factor = {name: found.low if found.matters else 1.0 for name, found in shares.items()}
    with_experts, dense = model.num_moe_layers, model.num_dense_layers
    alpha_f = with_experts * layer.alpha_f * factor["alpha_f"]
    beta_f, alpha_c = with_experts * layer.beta_f, with_experts * layer.alpha_c
    if dense:
        of_a_card = model.mlp_params_per_layer / ffn.num_cards
        tokens = 1 + mtp_depth
        alpha_f += dense * 2 * of_a_card * tokens / _rate(model, ffn.gpu, "mlp")
        if ffn_base is None:
            weights = of_a_card * model.bytes_per_param("mlp")
            ffn_base = weights / (ffn.gpu.memory_bandwidth * ffn.gpu.decode.mbu)
        beta_f += dense * ffn_base
        sent = (_BYTES_IN + _BYTES_OUT) * model.hidden_size * tokens / ffn.num_cards
        alpha_c += dense * sent / ffn.network_bandwidth
    return AfdCoefficients(
        alpha_a=model.num_layers * layer.alpha_a * factor["alpha_a"],
        beta_a=model.num_layers * layer.beta_a,
        alpha_f=alpha_f,
        beta_f=beta_f,
        alpha_c=alpha_c,
        beta_c=model.num_layers * layer.beta_c,
    )


def _rate(model: ModelSpec, gpu: GpuSpec, part: Literal["mlp", "routed_experts"]) -> float:
    """Return the FLOP/s that MLPs or experts reach on a GPU (21)."""
    quantization = model.quantization_of(part)
    dtype = quantization.compute if quantization else "bf16"
    if dtype not in gpu.flops:
        raise ScenarioError(
            f"gpu must have a rate for {dtype}, in which the {_PARTS[part]} of {model.name} are "
            f"computed; {gpu.name} has {', '.join(gpu.flops)}"
        )
    return gpu.flops[dtype] * gpu.decode.mfu


_PARTS = {"mlp": "MLPs", "routed_experts": "experts"}


def _experts_per_card(model: ModelSpec, moe: MoeSpec, ffn: FfnCards) -> int:
    """Return the experts of a layer on one card. Raises ScenarioError where they do not fit."""
    held = math.ceil(moe.num_experts / ffn.num_cards)
    needed = held * model.num_moe_layers * _expert_bytes(model, moe)
    if needed > ffn.gpu.memory:
        least = math.ceil(moe.num_experts / max(1, held * ffn.gpu.memory // needed))
        raise ScenarioError(
            f"num_cards must be >= {least}: {held} experts of each of the {model.num_moe_layers} "
            f"layers of {model.name} take {needed / 2**30:.1f} GiB on a card, {ffn.gpu.name} has "
            f"{ffn.gpu.memory / 2**30:.1f} GiB; got {ffn.num_cards}"
        )
    return held


def _expert_bytes(model: ModelSpec, moe: MoeSpec) -> float:
    return model.mlp_params(moe.intermediate_size) * model.bytes_per_param("routed_experts")


LEAST_CHANGE = 0.1
"""Change of a coefficient by kernels that counts: half the expected error of TPOT."""


@dataclass(frozen=True, slots=True)
class KernelShares:
    """How the coefficient of a part would change with the kernels of its GPU.

    part: "attention" or "experts". share: taken of the peak. low, high: by which the coefficient
    would be multiplied; equal where is_known says that the GPU's own kernels have figures. Sizes
    are large: no kernel is as short as its floor.
    """

    part: str
    gpu: GpuSpec
    share: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether the GPU's own kernels have figures; else these are of all architectures."""
        return bool(self.gpu.kernels)

    @property
    def matters(self) -> bool:
        """Whether the GPU's own kernels change the coefficient."""
        return self.is_known and abs(self.low - 1) >= LEAST_CHANGE


def kernel_shares(
    model: ModelSpec, attention_gpu: GpuSpec, ffn_gpu: GpuSpec
) -> dict[str, KernelShares]:
    """Return what kernels would make of the coefficients derived from shares, by name."""
    return {
        "alpha_a": _attention_shares(model, attention_gpu),
        "alpha_f": _expert_shares(model, ffn_gpu),
    }


def _attention_shares(model: ModelSpec, gpu: GpuSpec) -> KernelShares:
    """Return what kernels would make of alpha_a, by the bandwidth and the rate that they reach.

    Latent attention (MLA) computes for longer than it reads on GPUs of much bandwidth.
    """
    share = gpu.decode.mbu
    kernels = _kernels(gpu, attention_kinds(model)[1])
    key = operators.attention(model, 0, 1, 1, 1, False)
    to_compute = float(key.flops) / peak(gpu, key.dtype)
    to_read = float(key.bytes) / gpu.memory_bandwidth
    factors = [
        share
        * max(1 / (kernel.mbu or share), to_compute / to_read / (kernel.mfu or gpu.decode.mfu))
        for kernel in kernels
    ]
    return KernelShares("attention", gpu, share, min(factors), max(factors))


def _expert_shares(model: ModelSpec, gpu: GpuSpec) -> KernelShares:
    """Return what kernels would make of the experts' part of alpha_f, by the rate they reach."""
    share = gpu.decode.mfu
    kernels = _kernels(gpu, experts_kind(model, Cluster(gpu)))
    factors = [share / (kernel.mfu or share) for kernel in kernels]
    return KernelShares("experts", gpu, share, min(factors), max(factors))


def _kernels(gpu: GpuSpec, kind: str) -> list[Kernel]:
    tables: list[Mapping[str, Kernel]] = [gpu.kernels]
    if not gpu.kernels:
        tables = [kernels_of(name) for name in architecture_names()]
    return [kernel_of(table, kind) for table in tables]
