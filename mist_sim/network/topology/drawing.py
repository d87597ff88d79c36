"""A topology as a tree of text, with equal parts drawn once."""

from __future__ import annotations

from collections.abc import Iterator

from mist_sim.network.topology.graph import Topology

_Tree = tuple[str, tuple["_Tree", ...]]


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
