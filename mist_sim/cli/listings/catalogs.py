"""Models, GPUs, hosts, topologies and prices that come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware import gpu_names, host_names, load_gpu, load_host
from mist_sim.hardware.devices import bus_rate
from mist_sim.hardware.prices import PriceKind, offers
from mist_sim.models import ModelSpec, load_model, model_names
from mist_sim.models.model_loading import family_of
from mist_sim.network import load_topology, topology_names
from mist_sim.network.topology.graph import Topology
from mist_sim.report.elements import listed

_SIZES = ("parameters", "layers", "context", "KV per token", "state")

_Tree = tuple[str, tuple["_Tree", ...]]


def captioned(body: RenderableType, caption: str) -> RenderableType:
    """Return something with a dim line below it."""
    return Group(body, Text(caption, style="dim italic"))


def drawing(topology: Topology) -> str:
    """Return the drawing: each line is a place of the graph, or equal ones, and its link up."""
    title = f"{topology.name}: {topology.about}" if topology.about else topology.name
    return "\n".join([title, *_lines(_tree(topology))])


def _tree(topology: Topology) -> _Tree:
    nodes = min(topology.nodes_per_rack or topology.nodes, topology.nodes)
    node = (_many("node", nodes), (*_inside(topology),))
    remote = topology.remote_storage
    store: tuple[_Tree, ...] = ((f"remote/storage  {_speed(remote)}", ()),) if remote else ()
    if topology.num_racks == 1:
        return "rack0/leaf", (*store, node)
    up = _speed(topology.rack_bandwidth)
    racks = f"{_many('rack', topology.num_racks)}/leaf  {up}", (node,)
    return "spine", (*store, racks)


def _inside(topology: Topology) -> Iterator[_Tree]:
    gpus = _many("gpu", topology.gpus)
    if topology.nics:
        yield f"{_many('nic', topology.nics)}  {_speed(topology.nic)} to the leaf", ()
    if topology.nvlink:
        yield "nvswitch", ((f"{gpus}  {_speed(topology.nvlink)}", ()),)
    pcie = _speed(topology.pcie)
    below: list[_Tree] = []
    if topology.gpus_per_switch:
        below.append((f"{_many('pcie', topology.num_switches)}  {pcie}", tuple(_on_pcie(topology))))
    else:
        below += [(f"{gpus}  {pcie}", ())]
    if topology.storage:
        below.append((f"storage  {_speed(topology.storage)}", ()))
    yield "host", tuple(below)


def _on_pcie(topology: Topology) -> Iterator[_Tree]:
    each = topology.gpus_per_switch or 1
    pcie = _speed(topology.pcie)
    yield f"{'a gpu' if each == 1 else f'{each} gpus'}  {pcie}", ()
    if topology.nics:
        beside = "a nic" if topology.nics >= topology.num_switches else "a nic at the first ones"
        yield f"{beside}  {_speed(max(topology.pcie, topology.nic))}", ()


def _many(name: str, number: int) -> str:
    return f"{name}0" if number == 1 else f"{name}0 ... {name}{number - 1}"


def _speed(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:g} GB/s"


def _lines(tree: _Tree, first: str = "", rest: str = "") -> Iterator[str]:
    text, below = tree
    yield first + text
    for part in below:
        last = part is below[-1]
        yield from _lines(
            part, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
        )


def models(family: str = "") -> RenderableType:
    """Return the models of the catalog, all or those of a series.

    Raises ScenarioError for an unknown series.
    """
    rows = [(name, *_sizes(load_model(name)).values()) for name in _names_in(family)]
    return captioned(
        listed(("model", *_SIZES), rows, right=range(1, 6)),
        "or the path of a Hugging Face config.json, whose sizes mist list models PATH shows; "
        "state: of a sequence, however long; --family SERIES lists some",
    )


def own_model(model: ModelSpec) -> RenderableType:
    """Return the sizes of a model that a user's own file describes."""
    active, weights = model.num_active_parameters, model.weight_bytes_per_rank(1)
    rows = _sizes(model) | {
        "active": _parameters(active) if active < model.num_parameters else "",
        "weights": f"{weights / 2**30:,.1f} GiB",
    }
    return listed(("model", model.name), [row for row in rows.items() if row[1]])


def _sizes(model: ModelSpec) -> dict[str, str]:
    """Return the sizes of a model by the titles `_SIZES`; empty: it has none."""
    state = model.state_bytes_per_sequence
    sizes = (
        _parameters(model.num_parameters),
        str(model.num_layers),
        f"{model.max_position_embeddings:,}",
        "encoder" if model.is_encoder else f"{model.kv_bytes_per_token / 1024:.0f} KiB",
        f"{state / 2**20:.0f} MiB" if state else "",
    )
    return dict(zip(_SIZES, sizes, strict=True))


def _names_in(family: str) -> list[str]:
    names = model_names()
    if not family:
        return names
    found = [name for name in names if family.lower() in (family_of(name), name.split("-")[0])]
    if not found:
        known = sorted({family_of(name) for name in names})
        hint = did_you_mean(family.lower(), known)
        raise ScenarioError(f"--family has no {brief(family)}{hint} Known: {', '.join(known)}")
    return found


def _parameters(number: int) -> str:
    """Return a number of parameters in billions, and below 0.2 of them in millions."""
    return f"{number / 1e6:.0f} M" if number < 0.2e9 else f"{number / 1e9:.1f} B"


def gpus() -> RenderableType:
    """Return the GPUs of the catalog."""
    rows = []
    for name in gpu_names():
        gpu = load_gpu(name)
        rows.append(
            (
                name,
                f"{gpu.memory / 2**30:.0f} GiB",
                f"{gpu.memory_bandwidth / 1e12:.2f} TB/s",
                f"{gpu.flops['bf16'] / 1e12:.0f} TFLOP/s",
                f"{gpu.interconnect.kind} {gpu.interconnect.bandwidth / 1e9:.0f} GB/s",
                gpu.confidence,
            )
        )
    titles = ("gpu", "memory", "bandwidth", "bf16", "link", "estimates")
    return captioned(listed(titles, rows, right=range(1, 4)), "or the path of a .toml spec file")


def hosts() -> RenderableType:
    """Return the hosts of the catalog, with their PCIe bandwidths."""
    rows = []
    for name in host_names():
        host = load_host(name)
        card = load_gpu("l40s" if host.pcie_generation == 4 else "rtx-pro-6000")
        link = replace(card.interconnect, host=host)
        rates = (f"{bus_rate(link, ranks) / 1e9:.1f} GB/s" for ranks in (2, 4, 8))
        rows.append((name, "yes" if host.peer_access else "no", *rates))
    titles = ("host", "peer access", "2 GPUs", "4 GPUs", "8 GPUs")
    caption = (
        "bus bandwidth of large collectives, with PCIe 5.0 cards where the host takes them; "
        "or the path of a .toml spec file, or a mapping"
    )
    return captioned(listed(titles, rows, right=range(2, 5)), caption)


def topologies() -> RenderableType:
    """Return the presets of topologies."""
    rows = []
    for name in topology_names():
        topology = load_topology(name)
        nodes = f"{topology.nodes} x {topology.gpus} GPUs"
        racks = str(topology.num_racks)
        nvlink = f"{topology.nvlink / 1e9:.0f} GB/s" if topology.nvlink else "none"
        nics = f"{topology.nics} x {topology.nic * 8e-9:.0f} Gb/s"
        rows.append((name, nodes, racks, nvlink, f"{topology.pcie / 1e9:.0f} GB/s", nics))
    titles = ("topology", "nodes", "racks", "NVLink", "PCIe", "NICs")
    return captioned(
        listed(titles, rows, right=range(1, 6)),
        "or the path of a .toml spec file; mist list topologies NAME draws one",
    )


def topology(name: str) -> RenderableType:
    """Return a topology as a tree, and where its figures come from."""
    found = load_topology(name)
    sources = [f"{figure}: {source}" for figure, source in found.sources.items()]
    return Group(Text(drawing(found)), Text("\n".join(["", *sources]), style="dim"))


def prices() -> RenderableType:
    """Return providers' prices of a GPU."""
    kinds = get_args(PriceKind)
    rows = [
        (
            offer.gpu,
            offer.provider,
            str(offer.num_gpus),
            *("-" if (price := offer.price(kind)) is None else f"{price:.2f}" for kind in kinds),
            offer.date,
        )
        for offer in offers()
    ]
    titles = ("gpu", "provider", "GPUs", "on demand", "spot", "1 year", "3 years", "date")
    caption = "$ of one GPU an hour; a run takes the median. Sources: mist_sim/hardware/prices.csv"
    return captioned(listed(titles, rows, right=range(2, 7)), caption)
