"""Seesaw's performance model: the time of a layer, and layouts of a model over equal devices.

Su et al., "Seesaw: High-throughput LLM Inference via Model Re-sharding" (2025), appendix A:
`docs/background/seesaw.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.checks import Fraction, Positive, check_fields
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import GPU_MEMORY_UTILIZATION, Cluster
from mist_sim.hardware.collectives import goes_by_host
from mist_sim.hardware.devices import GpuSpec, HostSpec, Interconnect, bus_rate
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.models.spec import ModelSpec

Sum = Literal["ring", "host_shared", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as appendix A knows it: rates that kernels and collectives sustain.

    flops: FLOP/s. memory_bandwidth: bytes/s of its own memory. memory: bytes for weights and KV
        cache. link_bandwidth: bytes/s between two devices in one direction. host_bandwidth: bytes/s
        between it and the host's memory, in one direction.
    all_reduce: "ring" (NVLink), "host_shared" (PCIe: all devices sum through one host bridge), or
        "host" (PCIe: as the host lets the cards, at the rate of simulated steps).
    link: of the devices to one another, with "host" only.
    Raises ValueError for figures that are not > 0, an unknown all-reduce, and "host" without `link`
    or `link` without it.
    """

    name: str
    flops: Positive[float]
    memory_bandwidth: Positive[float]
    memory: Positive[float]
    link_bandwidth: Positive[float]
    host_bandwidth: Positive[float]
    all_reduce: Sum
    link: Interconnect | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.all_reduce == "host") != (self.link is not None):
            raise ValueError(f"link must be given with all_reduce host only, got {self.all_reduce}")

    def all_reduce_bandwidth(self, tensor_parallel_size: int) -> float:
        """Return B_ar(TP): bytes of a tensor over the seconds of its all-reduce; one device: inf.

        ring: every device sends 2 (n - 1) / n of the tensor over its own link.
        host_shared: (n - 1) copies of the tensor pass one bridge. host: that of large tensors.
        Source: Seesaw section 3.1 for the definition, which leaves both models open; the volume of
        a ring is Patarasu and Yuan (2009), the other is a reading that gives figures 13 and 14.
        """
        n = tensor_parallel_size
        if n == 1:
            return inf
        if self.link is not None:
            return bus_rate(self.link, n) * n / (2 * (n - 1))
        passes = 2 * (n - 1) / n if self.all_reduce == "ring" else n - 1
        return self.link_bandwidth / passes


def device_of(
    gpu: GpuSpec,
    *,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    link_bandwidth: float | None = None,
    host_bandwidth: float | None = None,
    host: HostSpec | None = None,
) -> Device:
    """Return a GPU of the catalog in the terms of appendix A.

    Unless its entry says ring or host_shared, NVLink sums in a ring, and PCIe as a simulated engine
    does in that host. With a `link_bandwidth`, the latter sum through one bridge of that rate. Both
    phases have the efficiencies of prefill: appendix A has one rate each.

    gpu_memory_utilization: share of the memory for an engine (vLLM's name and default).
    link_bandwidth, host_bandwidth: bytes/s in one direction, overriding the GPU's entry.
    host: of GPUs on PCIe; None: the cautious one that simulated engines have (`default_host`).
    Raises ScenarioError for bandwidths that are not > 0, a share outside (0, 1], and a host without
    effect.
    """
    link = gpu.interconnect
    from_host = gpu.from_host if host_bandwidth is None else host_bandwidth
    wire = link.bandwidth if link_bandwidth is None else link_bandwidth
    for name, value in (("link_bandwidth", wire), ("host_bandwidth", from_host)):
        if not value > 0:
            raise ScenarioError(f"{name} must be > 0 bytes/s, got {value:g}")
    if not 0 < gpu_memory_utilization <= 1:
        raise ScenarioError(
            f"gpu_memory_utilization must be in (0, 1], got {gpu_memory_utilization}"
        )
    sums = _sum_of(link)
    if host is not None:
        if sums != "host" or link_bandwidth is not None:
            why = "link_bandwidth" if sums == "host" else f"{gpu.name}, whose sums take no host"
            raise ScenarioError(f"host must be left out with {why}, got {host.name}")
        try:
            link = replace(link, host=host)
        except ValueError as error:
            raise ScenarioError(f"{error}; these are of {gpu.name}") from None
    if sums == "host" and link_bandwidth is not None:
        sums = "host_shared"
    return Device(
        name=gpu.name,
        flops=gpu.prefill.mfu * gpu.flops["bf16"],
        memory_bandwidth=gpu.prefill.mbu * gpu.memory_bandwidth,
        memory=gpu_memory_utilization * gpu.memory,
        link_bandwidth=link.efficiency * wire,
        host_bandwidth=from_host,
        all_reduce=sums,
        link=link if sums == "host" else None,
    )


def _sum_of(link: Interconnect) -> Sum:
    """Return how devices sum: as the GPU's entry says, if appendix A knows that; or by the link."""
    known: dict[str, Sum] = {"ring": "ring", "host_shared": "host_shared"}
    if link.all_reduce in known:
        return known[link.all_reduce]
    if goes_by_host(link) and not link.bus_bandwidth:
        return "host"
    return "ring" if link.kind == "nvlink" else "host_shared"


class Layout(NamedTuple):
    """How a model lies on equal devices: c_p or c_d of Seesaw.

    tensor: devices that share every layer. pipeline: such groups, each with some of the layers.
    data: copies of all that.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def num_devices(self) -> int:
        """Devices of all copies."""
        return self.tensor * self.pipeline * self.data

    @property
    def label(self) -> str:
        """As the paper writes it: "TP4PP2"; "TP1" for a single device."""
        sizes = (("DP", self.data), ("TP", self.tensor), ("PP", self.pipeline))
        return "".join(f"{name}{size}" for name, size in sizes if size > 1) or "TP1"


def layouts_of(
    model: ModelSpec, num_devices: int, data_parallel_sizes: Sequence[int] | None = None
) -> Iterator[Layout]:
    """Yield the layouts of a model on so many devices, whether or not its weights fit.

    Tensor sizes must divide the model by vLLM's rules; a pipeline has at most as many ranks as
    layers.
    data_parallel_sizes: allowed sizes; None: all.
    """
    for data in dict.fromkeys(data_parallel_sizes or range(1, num_devices + 1)):
        if num_devices % data:
            continue
        each = num_devices // data
        for tensor in range(each, 0, -1):
            pipeline = each // tensor
            if tensor * pipeline == each and pipeline <= model.num_layers and splits(model, tensor):
                yield Layout(tensor, pipeline, data)


def splits(model: ModelSpec, tensor_parallel_size: int) -> bool:
    """Tell whether a layer of the model can be divided over so many devices."""
    try:
        model.check_tensor_parallel(tensor_parallel_size)
    except ScenarioError:
        return False
    return True


FP16 = 2  # bytes of a number; "we assume the data type is float16" (Seesaw, appendix A)


class LayerTimes(NamedTuple):
    """Seconds of one layer, undivided: of a global batch on one device.

    weights: T_dm^linear. linear: T_comp^linear. entries: T_dm^attn. attention: T_comp^attn.
    network: T_nw(TP), the all-reduces.
    """

    weights: float
    linear: float
    entries: float
    attention: float
    network: float

    @property
    def roofline(self) -> float:
        """T_L of appendix A.1: the slower of memory and compute, in both parts, and the network."""
        return max(self.weights, self.linear) + max(self.entries, self.attention) + self.network


def check_model(model: ModelSpec) -> None:
    """Raise ScenarioError for a model that table 3 has no formulas for."""
    is_plain = model.quantization is None and model.kv_entry_bytes == FP16
    if model.moe or model.mla or model.sliding_window or model.layers or not is_plain:
        raise ScenarioError(
            "Seesaw's appendix A has formulas for dense models in 16 bits without sliding windows "
            f"only, not for {model.name}; simulate it: clients with resharding take any predictor"
        )


def params_per_layer(model: ModelSpec) -> int:
    """Return W: parameters of the matrices of one layer."""
    return model.attention_params_per_layer + model.mlp_params_per_layer


def prefill_layer(
    model: ModelSpec, device: Device, batch: float, num_tokens: float, tensor_parallel_size: int
) -> LayerTimes:
    """Return the times of a batch of prompts of so many tokens each.

    Source: Seesaw table 3, prefill. T_comp^attn is printed with d squared; queries times keys and
    scores times values take 2 d FLOPs each a pair of tokens, of which causal attention has half.
    """
    tokens = batch * num_tokens
    heads, kv_heads, d = _heads(model)
    return LayerTimes(
        FP16 * params_per_layer(model) / device.memory_bandwidth,
        2 * tokens * params_per_layer(model) / device.flops,
        FP16 * tokens * (heads + 2 * kv_heads) * d / device.memory_bandwidth,
        2 * tokens * heads * num_tokens * d / device.flops,
        _network(model, device, tokens, tensor_parallel_size),
    )


def decode_layer(
    model: ModelSpec, device: Device, batch: float, context: float, tensor_parallel_size: int
) -> LayerTimes:
    """Return the times of one token of each of a batch of answers with so many tokens of context.

    Source: Seesaw table 3, decode. T_comp^attn is printed with s and d squared, which would be
    0.15 s a layer and request on an A10; one query reads s keys and s values, 4 d FLOPs each.
    """
    heads, kv_heads, d = _heads(model)
    return LayerTimes(
        FP16 * params_per_layer(model) / device.memory_bandwidth,
        2 * batch * params_per_layer(model) / device.flops,
        2 * FP16 * batch * context * kv_heads * d / device.memory_bandwidth,
        4 * batch * heads * context * d / device.flops,
        _network(model, device, batch, tensor_parallel_size),
    )


def _heads(model: ModelSpec) -> tuple[int, int, int]:
    return model.num_attention_heads, model.num_key_value_heads, model.head_dim


def _network(model: ModelSpec, device: Device, num_tokens: float, ranks: int) -> float:
    """Return T_nw(TP): two all-reduces of the activations, h_q d numbers a token."""
    width = model.num_attention_heads * model.head_dim
    return 2 * FP16 * num_tokens * width / device.all_reduce_bandwidth(ranks)


Array = NDArray[np.float64]

_NO_GROWTH = StepGrowth()


@PREDICTORS.register("seesaw")
@dataclass
class SeesawPredictor:
    """Table 3 of Seesaw's appendix A: a roofline of four parts and the all-reduces, by layers.

    Embedding, output head and transfers between ranks are left out, as in the paper.

    model, cluster: the timed model and GPUs; raises ScenarioError if the model cannot be split that
        way, or is not a dense one in 16 bits.
    piggyback: how much the linear layers of answers gain from those of prompts in a mixed step,
        from 0 (each by itself, summed as in eq. 1) to 1 (one pass for both). The paper does not
        give its baseline's value, and its gain depends on it.
    Raises ValueError for a piggyback outside [0, 1].
    """

    model: ModelSpec
    cluster: Cluster
    piggyback: Fraction = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_model(self.model)
        self.cluster.check_split(self.model)
        self._device = device = device_of(self.cluster.gpu)
        self._tensor = tensor = self.cluster.tensor_parallel_size
        self._sums = device.all_reduce_bandwidth(tensor)
        self._weights = FP16 * params_per_layer(self.model) / device.memory_bandwidth / tensor

    @property
    def traits(self) -> PredictorTraits:
        """Its times come from figures with the confidence of the GPU's entry."""
        return PredictorTraits(estimate=self.cluster.gpu.confidence, sums_over_links=True)

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of a step in seconds."""
        return self._seconds(batch, _NO_GROWTH, np.zeros(1)).item()

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        return self._seconds(batch, growth, np.arange(float(num_steps)))

    def _seconds(self, batch: StepBatch, growth: StepGrowth, ahead: Array) -> Array:
        """Return the seconds of the steps that many `ahead`, shape as theirs."""
        model, device, tensor = self.model, self._device, self._tensor
        heads, kv_heads, d = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        contexts = batch.context_sum + growth.contexts(ahead)
        num_tokens = batch.num_prefill_tokens + batch.num_decodes
        pairs, num_read = contexts, contexts  # (query, key) pairs; tokens whose entries are read
        for new, context in batch.chunks:
            before = context + new * ahead
            pairs = pairs + new * (before + new / 2)
            num_read = num_read + before
        num_bytes = 2 * FP16 * kv_heads * d * num_read
        num_bytes = num_bytes + FP16 * batch.num_prefill_tokens * (heads + 2 * kv_heads) * d
        entries = num_bytes / device.memory_bandwidth
        attention = 4 * heads * d * pairs / device.flops
        linear = self._linear(batch.num_prefill_tokens, batch.num_decodes)
        network = 2 * FP16 * num_tokens * heads * d / self._sums
        layer = linear + np.maximum(entries, attention) / tensor + network
        return model.num_layers * layer

    def _linear(self, num_prompt_tokens: int, num_decodes: int) -> float:
        each = 2 * params_per_layer(self.model) / self._device.flops / self._tensor
        together = max(self._weights, each * (num_prompt_tokens + num_decodes))
        if not (num_prompt_tokens and num_decodes):
            return together
        apart = max(self._weights, each * num_prompt_tokens)
        apart += max(self._weights, each * num_decodes)
        return self.piggyback * together + (1 - self.piggyback) * apart


def weight_bytes(model: ModelSpec) -> float:
    """Return 2 L W: bytes of the layers' matrices, once."""
    return float(FP16 * model.num_layers * params_per_layer(model))


def kv_bytes(model: ModelSpec) -> float:
    """Return 4 L h_kv d: bytes of the KV entries of a token."""
    return 2.0 * FP16 * model.num_layers * model.num_key_value_heads * model.head_dim


def kv_memory(model: ModelSpec, device: Device, layout: Layout) -> float:
    """Return M_kv over all devices: bytes that the weights leave; below 0 they do not fit."""
    return device.memory * layout.num_devices - layout.data * weight_bytes(model)


def most_requests(model: ModelSpec, device: Device, layout: Layout, num_tokens: float) -> float:
    """Return b_max: requests of so many tokens each that memory holds. A real number, may be < 1.

    Source: Seesaw A.3.
    """
    return max(0.0, kv_memory(model, device, layout)) / (kv_bytes(model) * num_tokens)


def stage_time(times: LayerTimes, num_layers: int, layout: Layout) -> float:
    """Return T_stage: seconds until the last stage has finished the next micro-batch.

    times: of a layer, for the global batch. Source: Seesaw A.3.
    """
    return num_layers / layout.pipeline * _divided(times, layout)


def time_per_request(times: LayerTimes, num_layers: int, batch: float, layout: Layout) -> float:
    """Return 1 / throughput of eq. 1: seconds a request, for one pass of the global batch."""
    return stage_time(times, num_layers, layout) / (batch / layout.pipeline)


def _divided(times: LayerTimes, layout: Layout) -> float:
    """Return the seconds of a layer on one device, with the micro-batch of one stage."""
    devices = layout.num_devices
    return (
        max(times.weights / layout.tensor, times.linear / devices)
        + max(times.entries, times.attention) / devices
        + times.network / (layout.pipeline * layout.data)
    )
