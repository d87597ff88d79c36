"""What one accelerator is: memory, compute, links, and how much of them a kernel reaches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.hardware.kernels import KERNELS, Kernel
from mist_sim.hardware.power import TYPICAL_DRAW, PowerDraw
from mist_sim.units import SIZE, Bytes, BytesPerSecond, FlopPerSecond, Seconds, Watts

LinkKind = Literal["nvlink", "pcie", "hccs", "xgmi", "ici"]
AllReduce = Literal["auto", "ring", "tree", "host_shared", "bestserve"]
Confidence = Literal["measured", "fitted", "analytic", "spec-only"]

DTYPES = ("bf16", "fp8", "int8", "fp4")  # fp16 runs at the bf16 rate on every card listed
MODULES = ("rmsnorm", "attention", "mlp")
OVERHEADS = ("step", "sequence", "prefill_step", "request", "prompt_token")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be > 0 and finite, got {value}")


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}")


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    known = list(choices)
    if value not in known:
        hint = did_you_mean(value, known)
        raise ValueError(f"{name} has no {value!r}{hint} Known: {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """The share of a peak that kernels reach in one phase (prefill or decode).

    mfu: of the dense compute rate, in (0, 1].
    mbu: of the memory bandwidth, in (0, 1].
    """

    mfu: float
    mbu: float

    def __post_init__(self) -> None:
        _check_fraction("mfu", self.mfu)
        _check_fraction("mbu", self.mbu)


# For a card without measurements: somewhat below what the fitted cards of the catalog reach.
TYPICAL_PREFILL = Efficiency(mfu=0.65, mbu=0.8)
TYPICAL_DECODE = Efficiency(mfu=0.55, mbu=0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """How the accelerators of one node reach one another.

    kind: NVLink, PCIe, Huawei's HCCS, AMD's Infinity Fabric (xgmi), Google's ICI.
    bandwidth: bytes/s of one device in one direction.
    efficiency: share of the bandwidth that a collective reaches, in (0, 1].
    all_reduce: which algorithm sums over the ranks (see `collectives.all_reduce`).
    bus_bandwidth: measured bytes/s of collectives by size of the message ("1 MiB"), as
        nccl-tests prints them (busbw); takes the place of latencies and efficiency.
    """

    kind: LinkKind
    bandwidth: BytesPerSecond
    all_reduce: AllReduce
    efficiency: float = 0.8
    bus_bandwidth: Mapping[str, BytesPerSecond] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, get_args(LinkKind))
        _check_choice("all_reduce", self.all_reduce, get_args(AllReduce))
        _check_positive("bandwidth", self.bandwidth)
        _check_fraction("efficiency", self.efficiency)
        self._check_bus_bandwidth()

    def _check_bus_bandwidth(self) -> None:
        for written, rate in self.bus_bandwidth.items():
            _check_positive(f"bus_bandwidth.{written}", rate)
        try:
            rows = sorted((SIZE.parse(key), rate) for key, rate in self.bus_bandwidth.items())
        except ScenarioError as error:
            raise ValueError(f"bus_bandwidth: {error}") from None
        for (size, rate), (larger, faster) in pairwise(rows):
            if larger / faster < size / rate:
                raise ValueError(
                    f"bus_bandwidth must not make {larger:g} B faster than {size:g} B, got {rows}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One accelerator.

    based_on: the catalog's name of the device that it is, or whose figures were changed; empty
        where there is none. Decides what engines decide by the device (see `server_limits`).
    memory: bytes of device memory.
    memory_bandwidth: bytes/s of the device memory.
    flops: dense FLOP/s (without sparsity) by data type; "bf16" is always there.
    interconnect: links to the other accelerators of a node.
    host_bandwidth: bytes/s between device and host memory, one direction.
    power: thermal design power, watts.
    draw: where its watts come from, as shares of that power.
    prefill, decode: efficiencies of the two phases.
    dispatch: seconds of host time to launch a module ("rmsnorm", "attention", "mlp"); empty
        where CUDA graphs are replayed, which leaves no floor under a step.
    attention_slots: blocks of a decode attention kernel that run at once, for engines whose CUDA
        graphs keep the kernel from splitting contexts (FlashAttention 2: blocks that fit into the
        shared memory of all multiprocessors); None where it splits them, or unknown.
    architecture: whose table of kernels holds for it ("hopper"); empty: none does.
    kernels: figures of kernels by kind, those of the architecture and what an entry changes; a
        kind without any reaches the efficiencies of its phase, from the first moment on.
    overhead: an engine's own time, as fitted together with the efficiencies; seconds by field of
        `EngineOverhead`. Used where a scenario does not set it.
    confidence: how the efficiencies were found.
    sources: where each figure comes from, by dotted field name ("prefill.mfu"), or that of all
        figures of a table ("prefill").
    """

    name: str
    memory: Bytes
    memory_bandwidth: BytesPerSecond
    flops: Mapping[str, FlopPerSecond] = field(hash=False)
    interconnect: Interconnect
    host_bandwidth: BytesPerSecond
    power: Watts
    prefill: Efficiency = TYPICAL_PREFILL
    decode: Efficiency = TYPICAL_DECODE
    draw: PowerDraw = TYPICAL_DRAW
    dispatch: Mapping[str, Seconds] = field(default_factory=dict, hash=False)
    overhead: Mapping[str, Seconds] = field(default_factory=dict, hash=False)
    attention_slots: int | None = None
    architecture: str = ""
    kernels: Mapping[str, Kernel] = field(default_factory=dict, hash=False)
    based_on: str = ""
    confidence: Confidence = "spec-only"
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("memory", "memory_bandwidth", "host_bandwidth", "power"):
            _check_positive(name, getattr(self, name))
        if "bf16" not in self.flops:
            raise ValueError("flops.bf16 is missing")
        for dtype, rate in self.flops.items():
            _check_choice("flops", dtype, DTYPES)
            _check_positive(f"flops.{dtype}", rate)
        for module, seconds in self.dispatch.items():
            _check_choice("dispatch", module, MODULES)
            _check_positive(f"dispatch.{module}", seconds)
        for name, seconds in self.overhead.items():
            _check_choice("overhead", name, OVERHEADS)
            if not 0 <= seconds < math.inf:
                raise ValueError(f"overhead.{name} must be finite and >= 0, got {seconds}")
        if self.attention_slots is not None and self.attention_slots < 1:
            raise ValueError(f"attention_slots must be >= 1, got {self.attention_slots}")
        for kernel in self.kernels:
            _check_choice("kernels", kernel, KERNELS)
        _check_choice("confidence", self.confidence, get_args(Confidence))
