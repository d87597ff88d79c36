"""Accelerators, their kernels and hosts, and memory below; from the catalog or a spec file.

Figures of one kind of kernels on a GPU: shares of its peaks, and times on top.

A kernel takes

    floor + serial x depth + per_input x values put in + sqrt(compute^2 + memory^2)

with compute = FLOPs / (mfu x peak) and memory = bytes / (mbu x bandwidth): the two overlap, but
for the ramps at both ends, and the root of the sum of squares is nearer to measured kernels than
the longer of the two. Every figure comes from a table of measured kernels (`tools/kernels`), by
architecture: what two cards of one architecture reach differs by their peaks alone.

Finds an accelerator by name in the catalog, or reads the TOML spec file of one.

A spec file carries units and may start from a catalog entry, or from another spec file, and change
some keys:

    based_on = "h100-sxm"
    memory = "120 GB"
    memory_bandwidth = "6 TB/s"
    flops.fp8 = "3 PFLOP/s"
    interconnect = {kind = "nvlink", bandwidth = "900 GB/s"}
    prefill = {mfu = 0.7, mbu = 0.85}

A partial table keeps the other keys of the base, except that an interconnect of a named kind
replaces the base's. `GpuSpec.based_on` keeps the name of the catalog's entry. Missing efficiencies
are those of the base, or `TYPICAL_PREFILL` and `TYPICAL_DECODE`, and so are the shares of its power
(`draw`, or `TYPICAL_DRAW`); the confidence of changed figures is "spec-only" unless the file sets
it.

Finds a host by name in the catalog, or reads one from a TOML spec file or a mapping.

A host connects GPUs on PCIe: see `HostSpec`. A spec file may start from a catalog entry and change
some keys:

    based_on = "pcie-peer"
    pcie_lanes = 8
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, get_args

from mist_sim.checks import Checked, NotNegative, Positive, Range, Share, check_fields, check_name
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.eviction import LRU, Eviction, check_eviction
from mist_sim.hardware.power import TYPICAL_DRAW, PowerDraw
from mist_sim.spec_files import (
    Table,
    all_names,
    load_toml,
    name_of,
    read_table,
    tables_in,
    unknown_name,
)
from mist_sim.units import SIZE, Bytes, BytesPerSecond, FlopPerSecond, Seconds, Watts
from mist_sim.user_paths import user_path

PRODUCTS = ("bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4")
"""Formats of a matrix that have kernels of their own."""

STATES = ("gdn", "kda", "mamba2")
"""Layers with a state that have kernels of their own."""

_CHOSEN = ("sparse", "compressed", "blocks", "index", "block_index")

KERNELS = (
    *PRODUCTS,
    "fp8_widened",
    *(f"experts_{name}" for name in PRODUCTS),
    "vector",
    "prefill_attention",
    "decode_attention",
    "prefill_attention_fp8",
    "decode_attention_fp8",
    "latent_prefill_attention",
    "latent_decode_attention",
    "tower_attention",
    *(f"{kind}_{phase}_attention" for kind in _CHOSEN for phase in ("prefill", "decode")),
    *(f"{kind}_{phase}" for kind in STATES for phase in ("prefill", "decode")),
)
"""Kinds of kernels. `fp8_widened`: products of FP8 weights where the GPU multiplies no FP8;
`experts_*`: grouped products of experts; `vector`: norms, activations,
embeddings, rotary embeddings; `*_attention_fp8`: with cache entries of 8 bits; `tower_attention`:
of the patches of an image to one another; `sparse_*`: attention to entries that were chosen;
`compressed_*`: to a window and to entries of several tokens; `blocks_*`: to blocks of keys;
`index_*`, `block_index_*`: scores of entries and the choice among them; `gdn_*`, `kda_*`,
`mamba2_*`: recurrences over a state."""

DIFFERING = frozenset(
    name for name in KERNELS if name.startswith(_CHOSEN) or name.startswith(STATES)
)
"""Kernels that only models whose layers differ use."""

# if a kind has no figures, those of the next are used
_INSTEAD = {
    "fp8_block": "fp8",
    "int8": "fp8",
    "nvfp4": "fp8",
    "fp8": "bf16",
    "int4": "bf16",
    "mxfp4": "int4",
    "fp8_widened": "int4",
    "prefill_attention_fp8": "prefill_attention",
    "decode_attention_fp8": "decode_attention",
    "latent_prefill_attention": "prefill_attention",
    "latent_decode_attention": "decode_attention",
    "tower_attention": "prefill_attention",
    "kda_prefill": "gdn_prefill",
    "kda_decode": "gdn_decode",
    "mamba2_prefill": "gdn_prefill",
    "mamba2_decode": "gdn_decode",
    "gdn_prefill": "vector",
    "gdn_decode": "vector",
    "blocks_prefill_attention": "prefill_attention",
    "blocks_decode_attention": "decode_attention",
    "block_index_prefill_attention": "index_prefill_attention",
    "block_index_decode_attention": "index_decode_attention",
    "index_prefill_attention": "sparse_prefill_attention",
    "index_decode_attention": "sparse_decode_attention",
    "compressed_prefill_attention": "sparse_prefill_attention",
    "compressed_decode_attention": "sparse_decode_attention",
    "sparse_prefill_attention": "latent_prefill_attention",
    "sparse_decode_attention": "latent_decode_attention",
}
_INSTEAD |= {
    f"experts_{name}": f"experts_{_INSTEAD[name]}" for name in PRODUCTS if name in _INSTEAD
}
_INSTEAD["experts_bf16"] = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel(Checked):
    """Figures of one kind of kernels; by default no time is added to the shares of a phase.

    mfu, mbu: shares of the peaks, in (0, 1]; None: those of the phase (`prefill`, `decode`).
    floor: seconds of the shortest kernel.
    serial: seconds for each 1,000 steps that a block takes one after the other: inputs of a
        product that is not split along them, keys of a prompt's last token, new tokens of a prompt
        that go through a state, keys of a decode whose heads have no groups (of 128 values; of
        other heads in proportion), where the kernel splits contexts for groups alone.
    per_input: seconds for each million values put in, which are brought into another format
        first (activations of FP8 products).
    padding: rows more that a product computes for every expert that it reaches, and keys more
        that each token of a prompt attends to: kernels work in tiles.
    padding_from: rows of an expert with which it has half of that padding, where a kernel takes
        larger tiles for more rows; 0: any number of rows has all of it.
    filled: rows more that a product computes for every expert on the GPU, reached or not.
    per_pair: FLOPs per (query, key) pair and head beyond its two products (exponentials).
    beside_prompts: how many times as long decodes take in a step with prompts (>= 1), where one
        kernel computes both and does not split the contexts of decodes.
    beyond_experts: how many times as long a product takes with more tokens than the GPU has experts
        (>= 1), where a kernel then takes tiles that were not tuned.
    """

    mfu: Share | None = None
    mbu: Share | None = None
    floor: NotNegative[Seconds] = 0.0
    serial: NotNegative[Seconds] = 0.0
    per_input: NotNegative[Seconds] = 0.0
    padding: NotNegative[float] = 0.0
    padding_from: NotNegative[float] = 0.0
    filled: NotNegative[float] = 0.0
    per_pair: NotNegative[float] = 0.0
    beside_prompts: Annotated[float, Range("[1, inf)")] = 1.0
    beyond_experts: Annotated[float, Range("[1, inf)")] = 1.0


_PLAIN = Kernel()


def kernel_of(kernels: Mapping[str, Kernel], name: str) -> Kernel:
    """Return the figures of a kind of kernels, or those of the nearest kind that has some."""
    return kernels.get(figures_of(kernels, name), _PLAIN)


def figures_of(kernels: Mapping[str, Kernel], name: str) -> str:
    """Return the nearest kind of kernels with figures; empty if there is none."""
    while name not in kernels:
        if name not in _INSTEAD:
            return ""
        name = _INSTEAD[name]
    return name


FIGURES = tuple(item.name for item in fields(Kernel))

_EXPERTS = tuple(name for name in KERNELS if name.startswith("experts_"))
_PROMPTS = (*(name for name in KERNELS if "prefill_attention" in name), "tower_attention")
_DECODES = tuple(name for name in KERNELS if "decode_attention" in name)
_ONLY_OF = {
    "serial": (
        *(*PRODUCTS, *_EXPERTS, *_PROMPTS, *(f"{name}_prefill" for name in STATES)),
        "decode_attention",
    ),
    "per_input": (*PRODUCTS, *_EXPERTS),
    "padding": (*_EXPERTS, *_PROMPTS),
    "padding_from": _EXPERTS,
    "filled": _EXPERTS,
    "per_pair": _PROMPTS,
    "beside_prompts": _DECODES,
    "beyond_experts": _EXPERTS,
}


def check_figures(name: str, kernel: Kernel) -> None:
    """Raise ValueError for a figure without effect on kernels of a kind."""
    for figure, kinds in _ONLY_OF.items():
        value = getattr(kernel, figure)
        if name not in kinds and value != getattr(_PLAIN, figure):
            raise ValueError(
                f"kernels.{name}: {figure} must be left out, got {value:g}; it counts for "
                f"{', '.join(kinds)}"
            )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency(Checked):
    """The share of a peak that kernels reach in one phase (prefill or decode).

    mfu: of the dense compute rate, in (0, 1].
    mbu: of the memory bandwidth, in (0, 1].
    """

    mfu: Share
    mbu: Share


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
    gpus_per_switch: Positive[int] = 1
    efficiency: Share = HOST_EFFICIENCY
    bus_bandwidth: Mapping[str, Positive[BytesPerSecond]] = field(default_factory=dict, hash=False)
    measured_with: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.pcie_generation is not None and self.pcie_generation not in PCIE_GENERATIONS:
            raise ValueError(f"pcie_generation must be 3 to 7, got {self.pcie_generation}")
        if self.pcie_lanes not in PCIE_LANES:
            raise ValueError(f"pcie_lanes must be 1, 2, 4, 8 or 16, got {self.pcie_lanes}")
        check_fields(self)
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
        for written in self.bus_bandwidth:
            if not (written.isdecimal() and len(written) <= 4 and int(written) > 1):
                raise ValueError(
                    f"bus_bandwidth: a number of accelerators must be >= 2, got {brief(written)}"
                )
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
    bandwidth: Positive[BytesPerSecond]
    all_reduce: AllReduce
    domain: Positive[int] | None = None
    tray: int | None = None
    efficiency: Share = 0.8
    bus_bandwidth: Mapping[str, Positive[BytesPerSecond]] = field(default_factory=dict, hash=False)
    nccl_latency: Positive[float] = 1.0
    kernel_latency: Positive[float] = 1.0
    peer_access: bool = True
    host: HostSpec | None = field(default=None, metadata=NOT_IN_FILES)

    def __post_init__(self) -> None:
        check_fields(self)
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

    @property
    def reach(self) -> float:
        """Bytes/s that collectives of one device reach in one direction."""
        return self.bandwidth * self.efficiency

    def _check_bus_bandwidth(self) -> None:
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
    memory: Positive[Bytes]
    memory_bandwidth: Positive[BytesPerSecond]
    flops: Mapping[str, Positive[FlopPerSecond]] = field(hash=False)
    interconnect: Interconnect
    host_bandwidth: Positive[BytesPerSecond] | None = None
    power: Positive[Watts] | None = None
    prefill: Efficiency = TYPICAL_PREFILL
    decode: Efficiency = TYPICAL_DECODE
    draw: PowerDraw = TYPICAL_DRAW
    dispatch: Mapping[str, Positive[Seconds]] = field(default_factory=dict, hash=False)
    overhead: Mapping[str, NotNegative[Seconds]] = field(default_factory=dict, hash=False)
    attention_slots: Positive[int] | None = None
    l2_cache: Positive[Bytes] | None = None
    l2_bandwidth: Positive[BytesPerSecond] | None = None
    architecture: str = ""
    compute_capability: Positive[float] | None = None
    kernels: Mapping[str, Kernel] = field(default_factory=dict, hash=False)
    based_on: str = ""
    clock: Share = field(default=1.0, metadata=NOT_IN_FILES)
    confidence: Confidence = "spec-only"
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if "bf16" not in self.flops:
            raise ValueError("flops.bf16 is missing")
        names = {"flops": DTYPES, "dispatch": MODULES, "overhead": OVERHEADS, "kernels": KERNELS}
        for name, known in names.items():
            for key in getattr(self, name):
                check_name(name, key, known)
        self._check_cache()
        for kind, kernel in self.kernels.items():
            check_figures(kind, kernel)

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

    def _check_cache(self) -> None:
        names = ("l2_cache", "l2_bandwidth")
        for name, other in (names, names[::-1]):
            if getattr(self, name) is None and getattr(self, other) is not None:
                raise ValueError(f"{name} must be given with {other}, or both left out")


_DATA_SHEET = (
    "memory",
    "memory_bandwidth",
    "flops",
    "host_bandwidth",
    "power",
    "l2_cache",
    "architecture",
    "compute_capability",
)
_NO_FIGURES = ("name", "based_on", "confidence", "sources")
_PRICES = ("price", "gpu_price", "cost", "usd_per_hour")
_DEFAULT_ALL_REDUCE = {"nvlink": "auto", "pcie": "host", "hccs": "auto"}


def gpu_names(*, with_aliases: bool = False) -> list[str]:
    """Return the names of the catalog, sorted."""
    return sorted(all_names(_catalog()) if with_aliases else _catalog())


def load_gpu(said: str | Table | GpuSpec) -> GpuSpec:
    """Return an accelerator of the catalog, of a TOML spec file, or of a spec's keys.

    said: a catalog name or alias ("h100-sxm"), in any case; the path of a spec file; a spec's table
        ({"based_on": "b200", "memory_bandwidth": "10 TB/s"}); or the accelerator itself.

    Raises ScenarioError with the file and the field when there is no such accelerator, or when
    the file cannot be read or holds a key, unit or value that is not right.
    """
    if isinstance(said, GpuSpec):
        return said
    if not isinstance(said, str):
        return gpu_from_table(said, name=_changed_name(said), source="its mapping")
    name_or_path = said
    slug = name_of(name_or_path, _catalog())
    if slug is not None:
        return _catalog_gpu(slug)
    path = user_path(name_or_path)
    if not path.is_file():
        raise unknown_name(name_or_path, "no accelerator and no file is named", _catalog())
    return _read_entry(whole_table(path), path.stem, str(path))


def _changed_name(table: Table) -> str:
    base = str(table.get("based_on", "gpu"))
    changed = [key for key in table if key != "based_on"]
    return f"{base} with other {' and '.join(changed)}" if changed else base


def whole_table(path: Path) -> dict[str, object]:
    """Return the table of a spec file, completed with what it is based on."""
    return _on_base(load_toml(path), str(path), (path,))


CDNA = "cdna"
"""The architecture of AMD's GPUs, whose kernels are ROCm's."""


def architecture_names() -> list[str]:
    """Return the names of the architectures whose kernels have figures, sorted."""
    return list(_architectures())


@cache
def kernels_of(architecture: str) -> Mapping[str, Kernel]:
    """Return the figures of an architecture's kernels, by kind."""
    where, tables = f"{architecture}.toml", _architectures()[architecture]
    return {
        kind: read_table(Kernel, table, where, f"{kind}.")
        for kind, table in tables.items()
        if kind != "sources"
    }


def device_of(gpu: GpuSpec) -> GpuSpec:
    """Return the catalog's entry of the device that an accelerator is based on, or itself."""
    return load_gpu(gpu.based_on) if gpu.based_on in _catalog() else gpu


def is_its_device(gpu: GpuSpec) -> bool:
    """Tell whether an accelerator is the device of the catalog that it is based on.

    Efficiencies, overheads and other measurements may differ; what a data sheet says may not.
    """
    base, links = device_of(gpu), ("kind", "bandwidth", "domain", "tray")
    return gpu.based_on in _catalog() and (
        all(getattr(gpu, name) == getattr(base, name) for name in _DATA_SHEET)
        and all(getattr(gpu.interconnect, n) == getattr(base.interconnect, n) for n in links)
    )


def gpu_from_table(table: Table, *, name: str, source: str) -> GpuSpec:
    """Return the accelerator of a parsed spec file, `based_on` included.

    name: the accelerator's name unless the table has one.
    source: prefix of error messages, such as the file's path.
    """
    return _read_entry(_on_base(table, source, ()), name, source)


def _on_base(table: Table, source: str, files: tuple[Path, ...]) -> dict[str, object]:
    """Return the table of a spec file, completed with what it is based on.

    files: the spec file, after the files that are based on it. A base's path starts at the folder
    of the file that names it.
    """
    own = {key: value for key, value in table.items() if key != "based_on"}
    if not isinstance(own.get("sources", {}), dict):
        raise ScenarioError(f"{source}: sources must be a table, got {brief(own['sources'])}")
    if "based_on" in table:
        base = _base(str(table["based_on"]), source, files) | {"confidence": "spec-only"}
        draw = base.get("draw")
        if own.keys() & {"draw", "power"} and isinstance(draw, dict):
            base["draw"] = {**draw, "confidence": "spec-only"}
        own = merge_tables(base, own) | {"sources": _merged_sources(base, own, source)}
    return own


def _base(named: str, source: str, files: tuple[Path, ...]) -> dict[str, object]:
    """Return the table that a spec file starts from: of a catalog entry or of another file."""
    slug = name_of(named, _catalog())
    if slug is not None:
        return _entry(slug)
    path = _beside(named, files)
    if not path.is_file():
        problem = f"{source}: based_on: no accelerator and no file is named"
        raise unknown_name(named, problem, _catalog())
    if any(path.samefile(file) for file in files):
        raise ScenarioError(f"{source}: based_on must not lead back to {path}; name another base")
    table = _on_base(load_toml(path), str(path), (*files, path))
    _read_entry(table, path.stem, str(path))  # errors in the base name the base's file
    figures = {key: value for key, value in table.items() if key not in _NO_FIGURES}
    sources = dict.fromkeys(_flatten(figures), str(path)) | _flatten(table.get("sources", {}))
    return {key: value for key, value in table.items() if key != "name"} | {"sources": sources}


def _beside(named: str, files: tuple[Path, ...]) -> Path:
    """Return the path of a base: in the folder of the file naming it, or the working directory."""
    path = user_path(named)
    if files and (beside := files[-1].parent / path).is_file():
        return beside
    return path


def base_files(path: Path) -> list[Path]:
    """Return the files that a spec file is based on, one after the other; none of a broken one."""
    found = [path]
    while found[-1].suffix == ".toml":
        try:
            named = load_toml(found[-1]).get("based_on")
        except ScenarioError:
            break
        if not isinstance(named, str) or name_of(named, _catalog()) is not None:
            break
        base = _beside(named, tuple(found))
        if not base.is_file() or any(base.samefile(file) for file in found):
            break
        found.append(base)
    return found[1:]


def merge_tables(base: Table, own: Table) -> dict[str, object]:
    """Return a base's table updated with a file's keys; `sources` are the caller's.

    A link of another kind replaces the base's; a link of the same kind keeps the base's other keys.
    """
    merged = {**base, **own}
    for key, value in own.items():
        under = base.get(key)
        if not (isinstance(value, dict) and isinstance(under, dict)):
            continue
        if value.get("kind") in (None, under.get("kind")):
            merged[key] = merge_tables(under, value) if key == "kernels" else {**under, **value}
    return merged


def _merged_sources(base: Table, own: Table, source: str) -> dict[str, object]:
    """Return the base's sources; figures that the file changes have the file as source."""
    own_sources = _flatten(own.get("sources", {}))
    figures = {key: value for key, value in own.items() if key not in _NO_FIGURES}
    return _flatten(base["sources"]) | dict.fromkeys(_flatten(figures), source) | own_sources


def _read_entry(table: Table, name: str, where: str) -> GpuSpec:
    for key in _PRICES:
        if key in table:
            raise ScenarioError(
                f"{where}: {key} must not stand here, since offers change; say it in the scenario, "
                "gpu_price: 5 $/h under the client, or with mist plan --price NAME=5"
            )
    entry = _with_architecture({"name": name, **table}, where)
    link = entry.get("interconnect")
    if isinstance(link, dict):
        all_reduce = _DEFAULT_ALL_REDUCE.get(str(link.get("kind")), "auto")
        entry["interconnect"] = {"all_reduce": all_reduce, **link}
    if isinstance(entry.get("sources"), dict):
        entry["sources"] = _flatten(entry["sources"])
    return read_table(GpuSpec, entry, where)


def _with_architecture(entry: Table, where: str) -> dict[str, object]:
    name = entry.get("architecture")
    if not name:
        return {**entry}
    known = _architectures()
    if name not in known:
        hint = did_you_mean(str(name), known)
        raise ScenarioError(
            f"{where}: architecture has no {brief(name)}{hint} Known: {', '.join(known)}"
        )
    table = dict(known[str(name)])
    sources = _flatten(table.pop("sources"), "kernels.")
    merged = merge_tables({"kernels": table}, {"kernels": {}, **entry})
    return merged | {"sources": sources | _flatten(entry.get("sources", {}))}


def _flatten(table: object, prefix: str = "") -> dict[str, object]:
    """Nested tables as dotted names: {"prefill": {"mfu": x}} becomes {"prefill.mfu": x}."""
    if not isinstance(table, dict):
        return {prefix.removesuffix("."): table}
    flat: dict[str, object] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.")
    return flat


@cache
def fitted_gpus() -> tuple[GpuSpec, ...]:
    """Return the catalog's accelerators whose kernels and shares of the peaks were timed.

    Those of CDNA were fitted to whole runs, as multiples of another architecture's.
    """
    gpus = [load_gpu(name) for name in gpu_names()]
    fitted = [gpu for gpu in gpus if gpu.kernels and gpu.confidence == "fitted"]
    return tuple(gpu for gpu in fitted if gpu.architecture != CDNA)


@cache
def _catalog() -> Mapping[str, Table]:
    return tables_in("mist_sim.hardware", "catalog")


@cache
def _architectures() -> Mapping[str, Table]:
    return tables_in("mist_sim.hardware", "architectures")


@cache
def _catalog_gpu(slug: str) -> GpuSpec:
    return _read_entry(_entry(slug), slug, f"{slug}.toml")


def _entry(slug: str) -> dict[str, object]:
    figures = {key: value for key, value in _catalog()[slug].items() if key != "aliases"}
    return {"based_on": slug, **figures}


_OLDER, _PCIE_5 = "host-bridge", "host-bridge-pcie5"

_BY_RULE = {"efficiency", "gpus_per_switch"}  # fields replaced by measured rates


def host_names() -> list[str]:
    """Return the names of the catalog, sorted."""
    return sorted(_host_catalog())


def load_host(name_or_path: str) -> HostSpec:
    """Return a host of the catalog, or one read from a TOML spec file.

    name_or_path: a catalog name ("pcie-peer"), in any case; or the path of a spec file.

    Raises ScenarioError with the file and the field when there is no such host, or when the file
    cannot be read or holds a key, unit or value that is not right.
    """
    name = name_or_path.lower()
    if name in _host_catalog():
        return _catalog_host(name)
    path = user_path(name_or_path)
    if not path.is_file():
        raise unknown_name(name_or_path, "no host and no file is named", _host_catalog())
    return host_from_table(load_toml(path), name=path.stem, source=str(path))


def host_from_table(table: Table, *, name: str, source: str) -> HostSpec:
    """Return the host of a parsed spec file or of a scenario's mapping.

    name: the host's name unless the table has one. source: prefix of error messages.
    """
    own = {key: value for key, value in table.items() if key != "based_on"}
    if "based_on" in table:
        base = str(table["based_on"]).lower()
        if base not in _host_catalog():
            raise unknown_name(
                base, f"{source}: based_on: no host is named", _host_catalog(), or_a_file=False
            )
        left = _left_out(own)
        own = {key: value for key, value in _host_catalog()[base].items() if key not in left} | own
        own["sources"] = {**_sources(_host_catalog()[base]), **_sources(table)}
    if isinstance(rates := own.get("bus_bandwidth"), dict):
        own["bus_bandwidth"] = {str(ranks): rate for ranks, rate in rates.items()}
    return read_table(HostSpec, {"name": name, **own}, source)


def _left_out(own: Table) -> Collection[str]:
    """Return the keys of a base that a file's own take the place of."""
    if "bus_bandwidth" in own:
        return _BY_RULE
    return {"bus_bandwidth"} if own.keys() & _BY_RULE else set()


def default_host(link: Interconnect) -> HostSpec:
    """Return the cautious host, which holds for GPUs on PCIe where none is named."""
    return _catalog_host(_PCIE_5 if link.bandwidth > PCIE_GENERATIONS[4] else _OLDER)


def bus_rate(link: Interconnect, ranks: int) -> float:
    """Return the bytes/s that a collective of large tensors reaches over PCIe.

    As nccl-tests has its bus bandwidth: an all-reduce takes 2 (n - 1) / n of the tensor over it.
    Measured times are interpolated in the logarithm of the accelerators. The rate of the fewest
    holds below them; beyond the most, all together move no more than these did.
    """
    host = link.host or default_host(link)
    reach = host.slot_rate(link.bandwidth) * link.efficiency
    if host.bus_bandwidth:
        return min(reach, _measured(host.bus_rates, ranks))
    return reach * host.efficiency / min(ranks, host.gpus_per_switch)


def _measured(rates: list[tuple[int, float]], ranks: int) -> float:
    if ranks <= rates[0][0]:
        return rates[0][1]
    for (few, fast), (many, slow) in pairwise(rates):
        if ranks <= many:
            share = math.log(ranks / few) / math.log(many / few)
            times = (1 - 1 / few) / fast, (1 - 1 / many) / slow
            return (1 - 1 / ranks) / (times[0] + (times[1] - times[0]) * share)
    most, rate = rates[-1]
    return rate * most / ranks


@cache
def _host_catalog() -> Mapping[str, Table]:
    return tables_in("mist_sim.hardware", "catalog/hosts")


@cache
def _catalog_host(name: str) -> HostSpec:
    return host_from_table(_host_catalog()[name], name=name, source=f"{name}.toml")


def _sources(table: Table) -> Table:
    sources = table.get("sources", {})
    return sources if isinstance(sources, dict) else {}


WritePolicy = Literal["write_through", "write_back"]
WRITE_POLICIES: tuple[str, ...] = get_args(WritePolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """One tier: host memory, a disk, a store in the network.

    name: unique among the tiers of an engine, such as "cpu".
    capacity: bytes for the cache of one engine; a client has data_parallel_size engines.
    read_bandwidth: bytes/s to all accelerators of the engine together; None: that of their
        host links (`GpuSpec.host_bandwidth`) side by side, as for host memory, at their full rate,
        which results list as assumed.
    latency: seconds before the first byte of a load. The default is that of DDR4 memory in MIST
        §IV-B: 80 ns; there an NVMe disk has 50 us and 7 GB/s.
    at: its place on a network with a topology: "host" or "storage", that of the node of each GPU,
        or a place such as "remote/storage". Loads share the links from there to the GPUs with all
        other traffic, and `read_bandwidth` is the tier's own limit. None: "host".
    shared: whether all engines that name such a tier share its content, so that it outlives each of
        them; `capacity` is then for all. It must be the last tier, write through, and have a
        `read_bandwidth`, or with a topology a place outside the nodes. A block is written when its
        prompt has been computed, or its request leaves.
    loads_in_step: whether the step that admits a request waits for its blocks, as with LMCache's
        defaults, and not the request, while steps go on, as with vLLM's `OffloadingConnector`. All
        tiers of an engine must have the same. null: the step, where that is simulated.
    eviction: which blocks go first where there is no room.
    write_policy: "write_through" writes a block when it is computed, "write_back" when the memory
        above gives it up (the names are SGLang's `--hicache-write-policy`).
    """

    name: str
    capacity: Positive[Bytes]
    read_bandwidth: Positive[BytesPerSecond] | None = None
    latency: NotNegative[Seconds] = 80e-9
    at: str | None = None
    shared: bool = False
    write_policy: WritePolicy = "write_through"
    loads_in_step: bool | None = False
    eviction: Eviction = LRU

    def __post_init__(self) -> None:
        check_eviction(self.eviction)
        if not self.name:
            raise ValueError("name must not be empty")
        check_fields(self)
        if self.shared:
            self._check_shared()

    def _check_shared(self) -> None:
        if self.write_policy != "write_through":
            raise ValueError(
                f"write_policy must be write_through with shared, got {self.write_policy}"
            )
        if self.at in ("host", "storage"):
            raise ValueError(
                f"at must be a place that all reach with shared, such as remote/storage, "
                f"got {self.at}, which is each node's own"
            )
        if self.at is None and self.read_bandwidth is None:
            raise ValueError(
                "read_bandwidth must be given with shared, or at, got neither; host memory is an "
                "engine's own"
            )

    def read_time(self, num_bytes: float, host_bandwidth: float) -> float:
        """Seconds of an undisturbed load (MIST eq. for T_retrieval with a hit: T + S / BW)."""
        return self.latency + num_bytes / (self.read_bandwidth or host_bandwidth)
