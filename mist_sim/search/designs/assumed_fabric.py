"""The network assumed between GPUs if a scenario has none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mist_sim.hardware import GpuSpec, device_of, load_gpu

_NODES = {
    "a100-80gb-sxm": "hgx-a100",
    "b200": "hgx-b200",
    "gb200": "nvl72-gb200",
    "gb300": "nvl72-gb300",
    "h100-sxm": "hgx-h100",
    "h200": "hgx-h200",
    "a10": "pcie-a10",
    "a10g": "pcie-a10",
    "l4": "pcie-l4",
    "l40s": "pcie-l40s",
}
"""The nodes in which GPUs of the catalog are sold, among the topologies that come along."""

_SWITCHED, _PLAIN = "hgx-h100", "pcie-l40s"  # the topology assumed for nodes of other GPUs
_SLOTS = 8  # GPUs of a node of these, and of any whose links join none
_GB = 1e9


def assumed_network(clients: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Return the network of the nodes that these clients fill, as in a scenario file.

    clients: the GPU of each, and how many of it. It is the node in which the GPU is sold, and else
    one with the GPU's own links: an NVSwitch of eight or more where they join as many, and PCIe
    where not. Of several kinds of GPUs, the slowest link counts. A client that is wider than a node
    has GPUs of several.
    """
    asked = [(load_gpu(name), number) for name, number in clients]
    slowest = _slowest(gpu for gpu, _ in asked)
    widths = [number for _, number in asked]
    network, room = _node(slowest, sum(widths))
    if max(widths) > room:
        return network | {"nodes": -(-sum(widths) // room), "spans_nodes": True}
    nodes = _num_nodes(widths, room)
    return network | ({"nodes": nodes} if nodes > 1 else {})


def whose_nodes(clients: Iterable[tuple[str, int]]) -> str:
    """Return of which GPUs the assumed nodes are, and for which others they are assumed."""
    gpus = {gpu.name: gpu for name, _ in clients for gpu in [load_gpu(name)]}
    slowest = _slowest(gpus.values())
    node = _node(slowest, 0)
    others = [name for name, gpu in gpus.items() if _node(gpu, 0) != node]
    if not others:
        return "the GPUs' own nodes"
    return (
        f"the nodes of {slowest.name}, which has the slowest links, also for {' and '.join(others)}"
    )


def _slowest(gpus: Iterable[GpuSpec]) -> GpuSpec:
    return min(gpus, key=lambda gpu: gpu.interconnect.bandwidth)


def _node(gpu: GpuSpec, num_gpus: int) -> tuple[dict[str, Any], int]:
    """Return a node, and how many GPUs it has. num_gpus: that there are in all."""
    device = device_of(gpu)
    if device.name in _NODES and device.interconnect == gpu.interconnect:
        return {"topology": _NODES[device.name]}, device.interconnect.domain or _SLOTS
    link, host = gpu.interconnect, _rate(gpu.from_host)
    if link.domain is None or link.domain < _SLOTS:
        pcie = _rate(link.bandwidth) if link.kind == "pcie" else host
        return {"topology": _PLAIN, "pcie": pcie}, _SLOTS
    room = min(link.domain, max(_SLOTS, num_gpus))
    node = {"topology": _SWITCHED, "nvlink": _rate(link.bandwidth), "pcie": host}
    return node | ({"gpus": room} if room > _SLOTS else {}), room


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / _GB!r} GB/s"


def _num_nodes(widths: Sequence[int], room: int) -> int:
    """Return the nodes that clients fill, each in the first one with room."""
    left: list[int] = []
    for width in widths:
        place = next((k for k, free in enumerate(left) if free >= width), None)
        if place is None:
            left.append(room - width)
        else:
            left[place] -= width
    return len(left)
