"""One of the equal devices that appendix A of Seesaw divides a model over."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from mist_sim.errors import ScenarioError
from mist_sim.hardware.devices.specs import GpuSpec

Sum = Literal["ring", "host_shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as appendix A knows it: rates that kernels and collectives sustain.

    flops: FLOP/s. memory_bandwidth: bytes/s of its own memory. memory: bytes for weights and KV
        cache. link_bandwidth: bytes/s between two devices in one direction. host_bandwidth: bytes/s
        between it and the host's memory, in one direction.
    all_reduce: "ring" (NVLink) or "host_shared" (PCIe: all devices sum through one host bridge).
    Raises ValueError for figures that are not > 0, and an unknown all-reduce.
    """

    name: str
    flops: float
    memory_bandwidth: float
    memory: float
    link_bandwidth: float
    host_bandwidth: float
    all_reduce: Sum

    def __post_init__(self) -> None:
        for field in ("flops", "memory_bandwidth", "memory", "link_bandwidth", "host_bandwidth"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be > 0, got {getattr(self, field)}")
        if self.all_reduce not in get_args(Sum):
            raise ValueError(f"all_reduce must be ring or host_shared, got {self.all_reduce}")

    def all_reduce_bandwidth(self, tensor_parallel_size: int) -> float:
        """Return B_ar(TP): bytes of a tensor over the seconds of its all-reduce; one device: inf.

        ring: every device sends 2 (n - 1) / n of the tensor over its own link.
        host_shared: (n - 1) copies of the tensor pass one bridge.
        Source: Seesaw section 3.1 for the definition, which leaves both models open; the volume of
        a ring is Patarasu and Yuan (2009), the other is a reading that gives figures 13 and 14.
        """
        n = tensor_parallel_size
        if n == 1:
            return inf
        passes = 2 * (n - 1) / n if self.all_reduce == "ring" else n - 1
        return self.link_bandwidth / passes


def device_of(
    gpu: GpuSpec,
    *,
    gpu_memory_utilization: float = 0.9,
    link_bandwidth: float | None = None,
    host_bandwidth: float | None = None,
) -> Device:
    """Return a GPU of the catalog in the terms of appendix A.

    NVLink sums in a ring, anything else through the host, unless its entry says one of the two.
    Both phases have the efficiencies of prefill: appendix A has one rate each.

    gpu_memory_utilization: share of the memory for an engine (vLLM's name and default).
    link_bandwidth, host_bandwidth: bytes/s in one direction, overriding the GPU's entry.
    Raises ScenarioError for bandwidths that are not > 0, and a share outside (0, 1].
    """
    link = gpu.interconnect
    host = gpu.from_host if host_bandwidth is None else host_bandwidth
    wire = link.bandwidth if link_bandwidth is None else link_bandwidth
    for name, value in (("link_bandwidth", wire), ("host_bandwidth", host)):
        if not value > 0:
            raise ScenarioError(f"{name} must be > 0 bytes/s, got {value:g}")
    if not 0 < gpu_memory_utilization <= 1:
        raise ScenarioError(
            f"gpu_memory_utilization must be in (0, 1], got {gpu_memory_utilization}"
        )
    return Device(
        name=gpu.name,
        flops=gpu.prefill.mfu * gpu.flops["bf16"],
        memory_bandwidth=gpu.prefill.mbu * gpu.memory_bandwidth,
        memory=gpu_memory_utilization * gpu.memory,
        link_bandwidth=link.efficiency * wire,
        host_bandwidth=host,
        all_reduce=_sum_of(gpu),
    )


def _sum_of(gpu: GpuSpec) -> Sum:
    """Return how devices sum: as the GPU's entry says, if appendix A knows that; or by the link."""
    said = gpu.interconnect.all_reduce
    known: dict[str, Sum] = {"ring": "ring", "host_shared": "host_shared"}
    if said in known:
        return known[said]
    return "ring" if gpu.interconnect.kind == "nvlink" else "host_shared"
