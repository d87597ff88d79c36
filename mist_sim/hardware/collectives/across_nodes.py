"""Collectives over ranks on several nodes, on otherwise idle links.

With S bytes, n ranks on m nodes, at most g of them on one; r bytes/s inside a node and b bytes/s
from all ranks of a node to the next one; a and h seconds a hop inside and between:

    ring          base + 2 (n - m) a + 2 (m - 1) h + 2 (n - 1) / n S / min(r, b)
    tree          base + 2 (g - 1) a + 2 log2(m) h + S max(2 / r, c / b), c = 1 on two nodes, or 2
    hierarchical  scatter(S) inside + [base + 2 (m - 1) h + 2 (m - 1) / m S / b] + gather(S) inside

Ring and tree are NCCL's: many at once leave a node over all its NICs. They have the constants of
its tuning model, except that rings between hosts with PCIe have those fitted there, and no tree is
tried. A gather is a half of a ring, or of the hierarchy, which sums slices of a node's ranks in as
many rings.

Source: NCCL, `src/graph/tuning.cc` (2.20 to 2.28): `ncclTopoTuneModel` has the steps inside and
between nodes, hops over the network (`hwLat`, NET), 1.8 times the latency of words with flags
inside, and a tree over two nodes that is as fast as inside. A hop between is what its network hop
takes beyond 2.7 us, the fastest one's, and the latency of the route. Hierarchical: BlueConnect
(Cho et al., SysML 2019, section 3), each dimension's ring one after the other. Bytes of a ring:
Thakur, Rabenseifner, Gropp (2005), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mist_sim.hardware.collectives.spans import Span, Spans
from mist_sim.hardware.collectives.ways import (
    KERNEL_RANKS,
    RING,
    TREE,
    Line,
    Protocol,
    between_hosts,
    ways_over_pcie,
)
from mist_sim.hardware.devices.hosts import bus_rate
from mist_sim.hardware.devices.specs import Interconnect

Seconds = Callable[[float], float]
"""Seconds for so many bytes."""


class Way(NamedTuple):
    """A way around a ring, or up and down a tree.

    base: seconds to start. inside: of a hop inside a node. between: of one between nodes, beyond
    the latency of the route. share: of the bandwidth.
    """

    base: float
    inside: float
    between: float
    share: float


# low latency, low latency with 128-byte words, simple
_RING_BETWEEN = (0.0, 1.3e-6, 11.3e-6)
_TREE_BETWEEN = (2.3e-6, 5.8e-6, 11.3e-6)
_TREE_SHARES = (0.92 / 3.8, 0.92 * 120 / 128, 0.92)  # the second is more than inside one node
_FLAGGED = (1.8, 1.0, 1.0)
"""Factor by which a hop inside a node is longer where there are others."""


def ring_lines(link: Interconnect, span: Span, passes: int) -> tuple[Line, ...]:
    """Return NCCL's ways around a ring. passes: 2 of a sum, 1 of a gather or a scatter."""
    ranks, nodes = sum(span.ranks), span.nodes
    per_byte = passes * (ranks - 1) / ranks / min(inside_rate(link, span.most), span.bandwidth)
    hops = passes * (ranks - nodes), passes * (nodes - 1)
    return _lines(_ring(link), span, hops, per_byte)


def tree_lines(link: Interconnect, span: Span) -> tuple[Line, ...]:
    """Return NCCL's ways up and down a tree of nodes; the ranks of each node form a chain."""
    between = 1 if span.nodes == 2 else 2
    per_byte = max(2 / inside_rate(link, span.most), between / span.bandwidth)
    hops = 2 * (span.most - 1), 2 * math.ceil(math.log2(span.nodes))
    return _lines(_tree(link), span, hops, per_byte)


def hierarchical(link: Interconnect, span: Span, passes: int, gather: Seconds) -> Seconds:
    """Return the seconds of a hierarchy. gather: of a gather, or a scatter, inside a node."""
    nodes = span.nodes
    per_byte = passes * (nodes - 1) / nodes / span.bandwidth
    between = _lines(_ring(link), span, (0, passes * (nodes - 1)), per_byte)

    def seconds(num_bytes: float) -> float:
        fastest = min([a + num_bytes * b for a, b in between])
        return passes * gather(num_bytes) + fastest

    return seconds


def send_lines(link: Interconnect, span: Span) -> tuple[Line, ...]:
    """Return the ways to send a tensor to the next rank of a pipeline, on another node."""
    per_byte = 1 / min(inside_rate(link, span.most), span.bandwidth)
    return _lines(_ring(link), span, (0, 1), per_byte)


def inside_rate(link: Interconnect, ranks: int) -> float:
    """Return the bytes/s of a ring over ranks of one node; inf where there is one alone."""
    if ranks == 1:
        return math.inf
    if link.bus_bandwidth:
        return max(link.bus_bandwidth.values())
    reach = link.bandwidth * link.efficiency
    if goes_by_host(link):
        return bus_rate(link, ranks)
    return 2 * reach / ranks if link.all_reduce == "host_shared" else reach


def goes_by_host(link: Interconnect) -> bool:
    """Whether a node's ranks communicate through the host, and the origin of this fact."""
    return link.kind == "pcie" and link.all_reduce in ("host", "hierarchical")


def _ring(link: Interconnect) -> list[Way]:
    """Return the ways around a ring: NCCL's own, or those fitted on hosts with PCIe."""
    if goes_by_host(link):
        fitted = zip(ways_over_pcie(link), _RING_BETWEEN[::2], strict=True)
        return [Way(way.base, way.hop, between, way.share) for way, between in fitted]
    return _tuned(link, RING, _RING_BETWEEN, [each.share for each in RING])


def _tree(link: Interconnect) -> list[Way]:
    return _tuned(link, TREE, _TREE_BETWEEN, _TREE_SHARES)


def _tuned(
    link: Interconnect,
    protocols: Sequence[Protocol],
    between: Sequence[float],
    shares: Sequence[float],
) -> list[Way]:
    """Return NCCL's ways; over NVLink latencies are those of the GPU's generation."""
    slower = link.nccl_latency if link.kind == "nvlink" else 1.0
    hops = [p.pcie_hop if link.kind == "pcie" else p.nvlink_hop for p in protocols]
    inside = [slower * hop * more for hop, more in zip(hops, _FLAGGED, strict=True)]
    bases = [slower * p.base for p in protocols]
    return [*map(Way, bases, inside, between, shares)]


def _lines(
    ways: Sequence[Way], span: Span, hops: tuple[int, int], per_byte: float
) -> tuple[Line, ...]:
    """Return a line for each way. hops: inside nodes, and between them."""
    inside, between = hops
    return tuple(
        Line(
            way.base + inside * way.inside + between * (way.between + span.latency),
            per_byte / way.share,
        )
        for way in ways
    )


def told(spans: Spans, link: Interconnect | None, *, sums: bool) -> str:
    """Return a text on how a client's collectives over several nodes are timed.

    link: of its GPUs; None: the predictor was passed as an object. sums: whether the predictor uses
        the link for all-reduces, rather than times of its own.
    """
    sum_way = _SUMS.get(link.all_reduce, _FASTER) if link else _WHOLE
    gather_way = "hierarchical" if link and link.all_reduce == "hierarchical" else "ring"
    groups = {
        "sums": (spans.tensor, sum_way if sums or not link else _MEASURED),
        "gathers": (spans.replicas, gather_way if link else _WHOLE),
        "pipeline": (spans.stages, "sends" if link else _WHOLE),
    }
    parts = (f"{name} of {span.text}: {way}" for name, (span, way) in groups.items() if span)
    return f"on several nodes, timed by the topology, on free links: {'; '.join(parts)}"


ON_TRAYS = "on several trays of one NVLink domain"


def told_of_trays(link: Interconnect, ranks: int) -> str:
    """Return a text on how ranks of several hosts sum over NVLink; empty: on one, or as told."""
    if not between_hosts(link, ranks) or link.kind != "nvlink" or link.all_reduce != "auto":
        return ""
    way = "multicast kernels or NCCL" if ranks in KERNEL_RANKS else "NCCL alone"
    *few, most = KERNEL_RANKS
    return (
        f"{ON_TRAYS}, timed over NVLink: sums of {ranks} ranks in trays of {link.tray}: {way}, "
        "since vLLM's "
        f"other kernels sum {', '.join(map(str, few))} or {most} ranks of one host"
    )


_FASTER = "ring or tree, the faster for each message"
_SUMS = {
    "ring": "ring",
    "tree": "tree",
    "hierarchical": "hierarchical",
    "host": "ring",
    "bestserve": "as in one node, by BestServe's formula",
}
_MEASURED = "as in one node, since the measured times have them inside"
_WHOLE = "as in one node, since the predictor was given whole"
