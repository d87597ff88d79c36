"""One accelerator: memory, compute, links, and the shares of them that a kernel reaches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.devices.kernels import KERNELS, Kernel, check_figures, kernel_of
from mist_sim.hardware.power import TYPICAL_DRAW, PowerDraw
from mist_sim.units import SIZE, Bytes, BytesPerSecond, FlopPerSecond, Seconds, Watts

LinkKind = Literal["nvlink", "pcie", "hccs", "xgmi", "ici"]
AllReduce = Literal["auto", "ring", "tree", "hierarchical", "host", "host_shared", "bestserve"]
Confidence = Literal["measured", "fitted", "analytic", "spec-only"]

PCIE_GENERATIONS = {3: 16e9, 4: 32e9, 5: 64e9, 6: 128e9, 7: 256e9}
"""Bytes/s of 16 lanes in one direction."""
PCIE_LANES = (1, 2, 4, 8, 16)

NOT_IN_FILES = {"in_files": False}
"""Metadata of a field that a spec file cannot say."""

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
        raise ValueError(f"{name} has no {brief(value)}{hint} Known: {', '.join(known)}")


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


# For a card without measurements: somewhat below the fitted cards of the catalog.
TYPICAL_PREFILL = Efficiency(mfu=0.65, mbu=0.8)
TYPICAL_DECODE = Efficiency(mfu=0.55, mbu=0.8)


HOST_EFFICIENCY = 0.8  # with it, 0.63 of PCIe's rate: see catalog/hosts/pcie-peer.toml


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """The host of the accelerators of a node that are linked only by PCIe.

    peer_access: whether one accelerator reads another's memory. Otherwise everything between them
        is written to the host's memory and read from there.
    pcie_generation: of the slots, 3 to 7; None: the cards' generation.
    pcie_lanes: of each slot: 1, 2, 4, 8 or 16.
    gpus_per_switch: accelerators that share one uplink to the host's memory (>= 1).
    efficiency: share of the bandwidth left by the cards' protocols (the interconnect's bandwidth x
        efficiency) that a collective of large tensors reaches, in (0, 1].
    bus_bandwidth: measured bytes/s of large collectives by number of accelerators ("4"), as
        nccl-tests prints them (busbw); takes the place of efficiency and switches.
    measured_with: the machines of bus_bandwidth, for results; empty: the user's own.
    sources: origin of each figure, by field name.
    """

    name: str
    peer_access: bool
    pcie_generation: int | None = None
    pcie_lanes: int = 16
    gpus_per_switch: int = 1
    efficiency: float = HOST_EFFICIENCY
    bus_bandwidth: Mapping[str, BytesPerSecond] = field(default_factory=dict, hash=False)
    measured_with: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.pcie_generation is not None and self.pcie_generation not in PCIE_GENERATIONS:
            raise ValueError(f"pcie_generation must be 3 to 7, got {self.pcie_generation}")
        if self.pcie_lanes not in PCIE_LANES:
            raise ValueError(f"pcie_lanes must be 1, 2, 4, 8 or 16, got {self.pcie_lanes}")
        if self.gpus_per_switch < 1:
            raise ValueError(f"gpus_per_switch must be >= 1, got {self.gpus_per_switch}")
        _check_fraction("efficiency", self.efficiency)
        if self.bus_bandwidth and self.efficiency != HOST_EFFICIENCY:
            raise ValueError(
                f"efficiency must be left out with bus_bandwidth, which is measured, "
                f"got {self.efficiency}"
            )
        if self.gpus_per_switch > 1 and (self.peer_access or self.bus_bandwidth):
            reason = "a ring crosses an uplink once" if self.peer_access else "rates are measured"
            raise ValueError(
                f"gpus_per_switch must be 1 with {self._without_switches}, where {reason}, "
                f"got {self.gpus_per_switch}"
            )
        self._check_bus_bandwidth()

    @property
    def _without_switches(self) -> str:
        return "peer_access" if self.peer_access else "bus_bandwidth"

    def _check_bus_bandwidth(self) -> None:
        for written, rate in self.bus_bandwidth.items():
            if not (written.isdecimal() and len(written) <= 4 and int(written) > 1):
                raise ValueError(
                    f"bus_bandwidth: a number of accelerators must be >= 2, got {brief(written)}"
                )
            _check_positive(f"bus_bandwidth.{written}", rate)
        for (few, rate), (more, faster) in pairwise(self.bus_rates):
            if (1 - 1 / more) / faster < (1 - 1 / few) / rate:
                raise ValueError(
                    f"bus_bandwidth must not make {more} accelerators faster than {few}, "
                    f"got {rate:g} and {faster:g} B/s"
                )

    @property
    def bus_rates(self) -> list[tuple[int, float]]:
        """Measured bytes/s by number of accelerators, sorted."""
        return sorted((int(ranks), rate) for ranks, rate in self.bus_bandwidth.items())

    def slot_rate(self, card: float) -> float:
        """Return the bytes/s of a card in its slot. card: its bytes/s over 16 lanes."""
        best = card if self.pcie_generation is None else PCIE_GENERATIONS[self.pcie_generation]
        return min(card, best) * self.pcie_lanes / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """The links between the accelerators of one node.

    kind: NVLink, PCIe, Huawei's HCCS, AMD's Infinity Fabric (xgmi), Google's ICI.
    bandwidth: bytes/s of one device in one direction.
    domain: devices that these links join, such as the eight of a board with NVSwitches; None: not
        known, or as many as a host has slots.
    tray: devices of one host, where the links join those of several; None: all that they join.
    efficiency: share of the bandwidth that a collective reaches, in (0, 1].
    all_reduce: algorithm of the all-reduce (see `collectives.all_reduce`).
    bus_bandwidth: measured bytes/s of collectives by size of the message ("1 MiB"), as
        nccl-tests prints them (busbw); takes the place of latencies and efficiency.
    nccl_latency, kernel_latency: latencies of NCCL and of vLLM's own all-reduce over NVLink,
        divided by those of an H100.
    peer_access: whether the driver lets one device read another's memory over PCIe.
    host: the host of devices linked by PCIe; None: the cautious default. Set by clients, not by a
        GPU's file.
    """

    kind: LinkKind
    bandwidth: BytesPerSecond
    all_reduce: AllReduce
    domain: int | None = None
    tray: int | None = None
    efficiency: float = 0.8
    bus_bandwidth: Mapping[str, BytesPerSecond] = field(default_factory=dict, hash=False)
    nccl_latency: float = 1.0
    kernel_latency: float = 1.0
    peer_access: bool = True
    host: HostSpec | None = field(default=None, metadata=NOT_IN_FILES)

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, get_args(LinkKind))
        _check_choice("all_reduce", self.all_reduce, get_args(AllReduce))
        for name in ("bandwidth", "nccl_latency", "kernel_latency"):
            _check_positive(name, getattr(self, name))
        _check_fraction("efficiency", self.efficiency)
        if self.domain is not None and self.domain < 1:
            raise ValueError(f"domain must be >= 1 device, got {self.domain}")
        if self.tray is not None and not 1 <= self.tray <= (self.domain or 0):
            raise ValueError(
                f"tray must be 1 to {self.domain or 0} devices, the domain, got {self.tray}"
            )
        if self.all_reduce == "host" and self.kind != "pcie":
            raise ValueError(f"all_reduce must not be host with {self.kind}, which is no PCIe")
        if self.host and self.host.peer_access and not self.peer_access:
            raise ValueError(
                f"host must not be {self.host.name}, which has peer access: the driver of these "
                "cards has none (interconnect.peer_access in a GPU's file says otherwise)"
            )
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

    based_on: the catalog's name of this device, or of the device whose figures were changed; empty
        if there is none. It selects engine defaults that depend on the device (see
        `server_limits`).
    memory: bytes of device memory.
    memory_bandwidth: bytes/s of the device memory.
    flops: dense FLOP/s (without sparsity) by data type; "bf16" is required.
    interconnect: links to the other accelerators of a node.
    host_bandwidth: bytes/s between device and host memory, one direction; None: not known, which
        no step needs. power: thermal design power, watts; None: not known, and joules neither.
    draw: the components of its power, as shares of `power`.
    prefill, decode: efficiencies of the two phases.
    dispatch: seconds of host time to launch a module ("rmsnorm", "attention", "mlp"); empty
        where CUDA graphs are replayed, which leaves no floor under a step.
    attention_slots: blocks of a decode attention kernel that run at once, for engines whose CUDA
        graphs keep the kernel from splitting contexts (FlashAttention 2: blocks that fit into the
        shared memory of all multiprocessors); None if it splits them, or unknown.
    l2_cache: bytes of keys that the chip's cache holds for a decode attention kernel; None:
        unknown, and decodes read all keys from memory. l2_bandwidth: bytes/s that such a kernel
        reaches from it; both or none.
    architecture: name of the architecture whose table of kernels applies ("hopper"); empty: none.
    compute_capability: NVIDIA's (7.0 is Volta, 7.5 Turing), of which some versions of vLLM have no
        kernels; None: unknown, or supported by all versions.
    kernels: figures of kernels by kind, those of the architecture with the entry's changes; a kind
        without figures reaches the efficiencies of its phase at any size.
    overhead: an engine's own time, as fitted together with the efficiencies; seconds by field of
        `EngineOverhead`. Used where a scenario does not set it.
    clock: share of the cores' full clock at which they run, in (0, 1]; set by a power cap, not by a
        file. Every rate of arithmetic is multiplied by it (`sustained_rates`).
    confidence: origin of the efficiencies.
    sources: where each figure comes from, by dotted field name ("prefill.mfu"), or that of all
        figures of a table ("prefill").
    """

    name: str
    memory: Bytes
    memory_bandwidth: BytesPerSecond
    flops: Mapping[str, FlopPerSecond] = field(hash=False)
    interconnect: Interconnect
    host_bandwidth: BytesPerSecond | None = None
    power: Watts | None = None
    prefill: Efficiency = TYPICAL_PREFILL
    decode: Efficiency = TYPICAL_DECODE
    draw: PowerDraw = TYPICAL_DRAW
    dispatch: Mapping[str, Seconds] = field(default_factory=dict, hash=False)
    overhead: Mapping[str, Seconds] = field(default_factory=dict, hash=False)
    attention_slots: int | None = None
    l2_cache: Bytes | None = None
    l2_bandwidth: BytesPerSecond | None = None
    architecture: str = ""
    compute_capability: float | None = None
    kernels: Mapping[str, Kernel] = field(default_factory=dict, hash=False)
    based_on: str = ""
    clock: float = field(default=1.0, metadata=NOT_IN_FILES)
    confidence: Confidence = "spec-only"
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("memory", "memory_bandwidth", "host_bandwidth", "power"):
            if (value := getattr(self, name)) is not None:
                _check_positive(name, value)
        _check_fraction("clock", self.clock)
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
        if self.compute_capability is not None:
            _check_positive("compute_capability", self.compute_capability)
        if self.attention_slots is not None and self.attention_slots < 1:
            raise ValueError(f"attention_slots must be >= 1, got {self.attention_slots}")
        self._check_cache()
        for kind, kernel in self.kernels.items():
            _check_choice("kernels", kind, KERNELS)
            check_figures(kind, kernel)
        _check_choice("confidence", self.confidence, get_args(Confidence))

    @property
    def watts(self) -> float:
        """Its thermal design power; NaN: not known."""
        return math.nan if self.power is None else self.power

    @property
    def from_host(self) -> float:
        """Its `host_bandwidth`. Raises ScenarioError where that is not known."""
        if self.host_bandwidth is None:
            raise ScenarioError(
                f"host_bandwidth of {self.name} is not known, by which weights, adapters or KV "
                "entries come from the host here; say it with the GPU's figures"
            )
        return self.host_bandwidth

    @property
    def splits_every_context(self) -> bool:
        """Whether decode attention shares out contexts over several blocks whatever the heads.

        FlashAttention 2 does so for grouped heads in steps without prompts alone
        (`mha_varlen_fwd` in csrc/flash_attn/flash_api.cpp).
        """
        return kernel_of(self.kernels, "decode_attention").beside_prompts == 1

    def _check_cache(self) -> None:
        names = ("l2_cache", "l2_bandwidth")
        for name, other in (names, names[::-1]):
            value = getattr(self, name)
            if value is None and getattr(self, other) is not None:
                raise ValueError(f"{name} must be given with {other}, or both left out")
            if value is not None:
                _check_positive(name, value)
