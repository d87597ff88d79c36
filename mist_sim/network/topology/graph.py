"""A cluster as a graph: accelerators, switches, hosts, NICs, storage, and the links between them.

A node (a machine) has accelerators, on an NVSwitch if there is one, and on PCIe: below switches
that have NICs beside them, or at the host itself. NICs are at the leaf switch of their rack, and
leaf switches at a spine. The two directions of a cable are links of their own.

A topology is one of the presets, by name, or a TOML spec, which carries units and may start from a
preset and change some keys:

    based_on = "hgx-h100"
    nodes = 4
    nic = "200 Gb/s"
    oversubscription = 2.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Annotated

from mist_sim.bounds import COPIES
from mist_sim.checks import NotNegative, Positive, Range, check_fields
from mist_sim.errors import ScenarioError, brief
from mist_sim.spec_files import (
    Table,
    all_names,
    load_toml,
    name_of,
    read_table,
    tables_in,
    unknown_name,
)
from mist_sim.units import BytesPerSecond, Seconds
from mist_sim.user_paths import user_path

if TYPE_CHECKING:
    from networkx import DiGraph


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Equal nodes in racks. Bandwidths are bytes/s in one direction, latencies seconds a link.

    gpus: accelerators per node.
    nvlink: of an accelerator to the node's NVSwitch; None: no NVSwitch.
    pcie: of an accelerator, and of a PCIe switch to the host.
    gpus_per_switch: accelerators below one PCIe switch; None: directly at the host.
    nics, nic: network cards of a node and the bandwidth of each; the first is beside the first
        PCIe switch, and so on, or all are at the host.
    storage: of a node's own drives; None: unknown.
    remote_storage: of a store at the spine, or at the leaf without a spine; None: none.
    nodes, nodes_per_rack: number of nodes, and of nodes per rack; None: one rack.
    oversubscription: bandwidth of a rack's NICs divided by its leaf switch's uplink bandwidth.
    uplink: of a leaf switch to the spine; None: from the oversubscription.
    nvlink_latency, pcie_latency, nic_latency: the last also of links between switches.
    about: one line of description. sources: origin of each figure, by field.
    Raises ValueError for impossible values.
    """

    name: str
    gpus: Positive[int]
    pcie: Positive[BytesPerSecond]
    nvlink: Positive[BytesPerSecond] | None = None
    gpus_per_switch: Positive[int] | None = None
    nics: Annotated[int, Range(f"[0, {COPIES}]")] = 1
    nic: Positive[BytesPerSecond]
    storage: Positive[BytesPerSecond] | None = None
    remote_storage: Positive[BytesPerSecond] | None = None
    nodes: Positive[int] = 1
    nodes_per_rack: Positive[int] | None = None
    oversubscription: Positive[float] = 1.0
    uplink: Positive[BytesPerSecond] | None = None
    nvlink_latency: NotNegative[Seconds] = 0.3e-6
    pcie_latency: NotNegative[Seconds] = 0.5e-6
    nic_latency: NotNegative[Seconds] = 0.35e-6
    about: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.gpus * self.nodes > COPIES:
            raise ValueError(f"nodes must have <= {COPIES} GPUs in all, got {self.num_gpus}")
        if self.gpus_per_switch is not None and self.nics > self.num_switches:
            raise ValueError(
                f"nics must be <= {self.num_switches}, the number of PCIe switches that they hang "
                f"on, got {self.nics}; nic may be the bandwidth of several"
            )
        if self.gpus_per_switch is None and self.nics > 1:
            raise ValueError(
                "nics must be <= 1 where they are at the host, since a route takes one, "
                f"got {self.nics}; nic may be the bandwidth of several"
            )

    @property
    def num_gpus(self) -> int:
        """Accelerators of all nodes."""
        return self.gpus * self.nodes

    @property
    def num_switches(self) -> int:
        """PCIe switches of a node."""
        return math.ceil(self.gpus / self.gpus_per_switch) if self.gpus_per_switch else 0

    @property
    def num_racks(self) -> int:
        """Racks, the last of which may have room."""
        return math.ceil(self.nodes / (self.nodes_per_rack or self.nodes))

    @property
    def rack_bandwidth(self) -> float:
        """Bytes/s of a leaf switch to the spine."""
        nodes = min(self.nodes_per_rack or self.nodes, self.nodes)
        return self.uplink or nodes * self.nics * self.nic / self.oversubscription

    def graph(self) -> DiGraph[str]:
        """Return the graph.

        Its nodes are called node0/gpu0, node0/nvswitch, node0/pcie0, node0/host, node0/nic0,
        node0/storage, rack0/leaf, spine and remote/storage, and have a `kind`; its links have a
        `bandwidth`, a `latency` and a `number` from 0.
        """
        from networkx import DiGraph

        graph: DiGraph[str] = DiGraph(name=self.name)
        cable = partial(self._cable, graph, count())
        for rack in range(self.num_racks):
            graph.add_node(f"rack{rack}/leaf", kind="leaf")
            if self.num_racks > 1:
                graph.add_node("spine", kind="spine")
                cable(f"rack{rack}/leaf", "spine", self.rack_bandwidth, "nic")
        for node in range(self.nodes):
            self._add_node(graph, cable, f"node{node}", node // (self.nodes_per_rack or self.nodes))
        if self.remote_storage:
            graph.add_node("remote/storage", kind="storage")
            top = "spine" if self.num_racks > 1 else "rack0/leaf"
            cable("remote/storage", top, self.remote_storage, "nic")
        return graph

    def _add_node(
        self, graph: DiGraph[str], cable: Callable[..., None], node: str, rack: int
    ) -> None:
        host = f"{node}/host"
        graph.add_node(host, kind="host")
        for switch in range(self.num_switches):
            graph.add_node(f"{node}/pcie{switch}", kind="pcie")
            cable(f"{node}/pcie{switch}", host, self.pcie, "pcie")
        if self.nvlink:
            graph.add_node(f"{node}/nvswitch", kind="nvswitch")
        for number in range(self.gpus):
            gpu, per_switch = f"{node}/gpu{number}", self.gpus_per_switch
            above = f"{node}/pcie{number // per_switch}" if per_switch else host
            graph.add_node(gpu, kind="gpu")
            cable(gpu, above, self.pcie, "pcie")
            if self.nvlink:
                cable(gpu, f"{node}/nvswitch", self.nvlink, "nvlink")
        for number in range(self.nics):
            nic = f"{node}/nic{number}"
            above = f"{node}/pcie{number}" if self.gpus_per_switch else host
            graph.add_node(nic, kind="nic")
            cable(nic, above, max(self.pcie, self.nic), "pcie")
            cable(nic, f"rack{rack}/leaf", self.nic, "nic")
        if self.storage:
            graph.add_node(f"{node}/storage", kind="storage")
            cable(f"{node}/storage", host, self.storage, "pcie")

    def _cable(
        self,
        graph: DiGraph[str],
        numbers: Iterator[int],
        one: str,
        other: str,
        bandwidth: float,
        kind: str,
    ) -> None:
        latency = getattr(self, f"{kind}_latency")
        for pair in ((one, other), (other, one)):
            graph.add_edge(*pair, bandwidth=bandwidth, latency=latency, number=next(numbers))


_NOT_FIGURES = ("aliases", "based_on")


def topology_names(*, with_aliases: bool = False) -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(all_names(_presets()) if with_aliases else _presets())


def load_topology(name_or_path: str) -> Topology:
    """Return a preset, or the topology of a TOML spec file.

    name_or_path: a preset's name or alias ("hgx-h100"), in any case; or the path of a spec file.
    Raises ScenarioError with the file and the field when there is no such topology, or when the
    file cannot be read or holds a key, unit or value that is not right.
    """
    preset = name_of(name_or_path, _presets())
    if preset is not None:
        return topology_from_table(_presets()[preset], name=preset, source=f"{preset}.toml")
    path = user_path(name_or_path)
    if not path.is_file():
        raise unknown_name(name_or_path, "no topology and no file is named", _presets())
    table = load_toml(path)
    return topology_from_table(table, name=path.stem, source=str(path))


def topology_from_table(table: Table, *, name: str, source: str) -> Topology:
    """Return the topology of a parsed spec, `based_on` included.

    name: its name unless the table has one. source: prefix of error messages.
    """
    return read_table(Topology, {"name": name, **_with_base(table, source)}, source)


def _with_base(table: Table, source: str) -> dict[str, object]:
    own = {key: value for key, value in table.items() if key not in _NOT_FIGURES}
    if not isinstance(own.get("sources", {}), dict):
        raise ScenarioError(f"{source}: sources must be a table, got {brief(own['sources'])}")
    if "based_on" not in table:
        return own
    base = name_of(str(table["based_on"]), _presets())
    if base is None:
        problem = f"{source}: based_on: no topology is named"
        raise unknown_name(str(table["based_on"]), problem, _presets())
    whole = _with_base(_presets()[base], f"{base}.toml")
    figures = own.keys() - {"name", "about", "sources"}
    sources = {**_sources(whole), **dict.fromkeys(sorted(figures), source), **_sources(own)}
    return {**whole, "about": "", **own, "sources": sources}


def _sources(table: Table) -> dict[str, object]:
    sources = table.get("sources", {})
    return dict(sources) if isinstance(sources, dict) else {}


@cache
def _presets() -> Mapping[str, Table]:
    return tables_in("mist_sim.network.topology", "presets")
