"""Collectives of a group's accelerators: their ways, and the seconds of the fastest.

A collective takes a start-up time, a time for each of its successive hops, and its bytes over the
bandwidth. There are several ways to do it: one that sends a flag with every word starts fast and
wastes bandwidth, another waits for a barrier and fills the link. The fastest is taken for each
message, so the bandwidth rises with the size of the message.

There are two kinds of constants. NCCL's own tuning model (`baseLat`, `hwLat` and the bandwidth
corrections in `src/graph/tuning.cc`, 2.20 to 2.28) has them for each algorithm and protocol.
Constants of real machines were fitted to the collectives measured in aiconfigurator-core 0.12.0,
with NCCL 2.27 to 2.29 and vLLM 0.14 to 0.24, on A100, H100, H200, B200, B300, GB200 and GB300 over
NVLink and on L40S and RTX PRO 6000 over PCIe: `python -m benchmarks.collectives --fit`.

Over several nodes, on otherwise idle links, with S bytes, n ranks on m nodes, at most g of them on
one; r bytes/s inside a node and b bytes/s from all ranks of a node to the next one; a and h seconds
a hop inside and between:

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
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from mist_sim.hardware.devices import Interconnect, bus_rate, default_host
from mist_sim.units import SIZE


@dataclass(frozen=True, slots=True)
class Span:
    """A group of ranks spread over several nodes.

    ranks: number of its ranks on each node, in the order of the nodes.
    bandwidth: bytes/s from the ranks of one node to those of the next, together, on otherwise idle
        links. latency: seconds of the route between two of them.
    """

    ranks: tuple[int, ...]
    bandwidth: float
    latency: float

    @property
    def nodes(self) -> int:
        """Nodes that have a part of the group (>= 2)."""
        return len(self.ranks)

    @property
    def fewest(self) -> int:
        """Ranks of the node that has the fewest."""
        return min(self.ranks)

    @property
    def most(self) -> int:
        """Ranks of the node that has the most."""
        return max(self.ranks)

    @property
    def text(self) -> str:
        """The span in words: "16 ranks on 2 nodes (8 + 8), 400 GB/s between them"."""
        shares = " + ".join(map(str, self.ranks))
        rate = f"{self.bandwidth / 1e9:.4g} GB/s between them"
        return f"{sum(self.ranks)} ranks on {self.nodes} nodes ({shares}), {rate}"


@dataclass(frozen=True, slots=True)
class Spans:
    """The groups of a client that lie on several nodes; None: all groups of that kind are on one.

    tensor: ranks that share layers. replicas: ranks with the same slice in every replica, which
        exchange tokens for experts. stages: successive ranks of a pipeline.
    """

    tensor: Span | None = None
    replicas: Span | None = None
    stages: Span | None = None

    def __bool__(self) -> bool:
        return any((self.tensor, self.replicas, self.stages))


ONE_NODE = Spans()
"""Every group is in one node."""


class Line(NamedTuple):
    """One way to do it: fixed seconds, and seconds per byte of the tensor."""

    latency: float
    per_byte: float


class Protocol(NamedTuple):
    """NCCL's constants: seconds to start and a hop by kind of link, share of the bandwidth."""

    base: float
    nvlink_hop: float
    pcie_hop: float
    share: float


# low latency, low latency with 128-byte words, simple
RING = (
    Protocol(6.6e-6, 0.6e-6, 1.0e-6, 0.5),
    Protocol(14.0e-6, 1.9e-6, 2.5e-6, 0.92),
    Protocol(8.4e-6, 3.4e-6, 5.7e-6, 1.0),
)
TREE = (
    Protocol(6.8e-6, 0.6e-6, 1.0e-6, 0.92 / 3.8),
    Protocol(14.0e-6, 1.25e-6, 1.9e-6, 0.92 * 7 / 9),
    Protocol(8.4e-6, 4.0e-6, 4.0e-6, 0.92),
)


class Way(NamedTuple):
    """A fitted way: start-up seconds, seconds per hop, and share of the link's bandwidth.

    flat: the bytes take as long over few ranks as over many (a switch keeps all links busy), which
    makes the share that of endless ranks, and more than 1 possible.
    """

    base: float
    hop: float
    share: float
    flat: bool = False


# H100 and 2 (n - 1) hops; latencies of others are `Interconnect.nccl_latency` times these
SUM_OVER_NVLINK = (
    Way(4.9e-6, 0.81e-6, 0.58, flat=True),
    Way(15.8e-6, 0.90e-6, 0.79),
    Way(7.7e-6, 4.1e-6, 1.27, flat=True),
)
# n - 1 hops
GATHER_OVER_NVLINK = (
    Way(4.9e-6, 0.82e-6, 0.45, flat=True),
    Way(6.3e-6, 5.5e-6, 1.16, flat=True),
    Way(25.7e-6, 0.48e-6, 1.05, flat=True),
)


class Kernels(NamedTuple):
    """vLLM's own all-reduce: every rank reads all tensors, or sums a slice and reads the others'.

    peer_rate: bytes/s at which a rank reads one other rank, independent of the link's speed.
    """

    one_shot: Way
    two_shots: Way
    peer_rate: float


KERNEL_RANKS = (2, 4, 6, 8)
"""Ranks that vLLM's kernels sum: `_SUPPORTED_WORLD_SIZES` of `CustomAllreduce`."""
VLLM_KERNELS = Kernels(Way(4.4e-6, 0.0, 0.60), Way(9.4e-6, 0.0, 0.98, flat=True), 218e9)

# With peer access, as NCCL; shares of the host's bus rate
OVER_PEERS = (Way(3.3e-6, 1.5e-6, 0.5), Way(8.0e-6, 3.5e-6, 1.0))
# Without: 20 us between two RTX PRO 6000 (vLLM 0.19), 40 us between eight RTX 4090
# (NVIDIA/nccl#1530); bandwidth as above
OVER_HOST = (Way(16.7e-6, 1.67e-6, 0.5), Way(16.0e-6, 3.5e-6, 1.0))
PAIR_OVER_PCIE = Way(4.5e-6, 0.0, 1.0)
"""vLLM's own all-reduce between two ranks with peer access; it takes no more over PCIe."""


def tuned_lines(
    link: Interconnect, protocols: tuple[Protocol, ...], hops: int, per_byte: float
) -> tuple[Line, ...]:
    """Return the ways of an algorithm with NCCL's constants. per_byte: seconds without losses."""
    nvlink = link.kind != "pcie"  # other GPUs publish no such figures and count as NVLink
    return tuple(
        Line(p.base + hops * (p.nvlink_hop if nvlink else p.pcie_hop), per_byte / p.share)
        for p in protocols
    )


def _over_nvlink(link: Interconnect, ranks: int, rounds: int) -> tuple[Line, ...]:
    """Return the ways around NVLink, of two rounds NCCL's and those of vLLM's own kernels.

    Between hosts the kernels that read others' memory do not start (`in_the_same_node_as`). Those
    that sum by multicast do (`SymmMemCommunicator`), and take as long as two shots.
    """
    ways = SUM_OVER_NVLINK if rounds == 2 else GATHER_OVER_NVLINK
    nccl = lines_of(ways, rounds, ranks, link.reach, link.nccl_latency)
    if rounds == 1 or ranks not in KERNEL_RANKS:
        return nccl
    kernels = kernel_lines(VLLM_KERNELS, ranks, link.reach, link.kernel_latency)
    return (*(kernels[1:] if between_hosts(link, ranks) else kernels), *nccl)


def between_hosts(link: Interconnect, ranks: int) -> bool:
    """Whether NVLink joins the ranks of several hosts, and the group is one of these."""
    return link.tray is not None and ranks > link.tray


def _over_pcie(link: Interconnect, ranks: int, rounds: int) -> tuple[Line, ...]:
    """Return the ways around PCIe on a host."""
    lines = lines_of(_ways_over_pcie(link), rounds, ranks, bus_rate(link, ranks), 1.0)
    if rounds == ranks == 2 and _has_peer_access(link):
        lines += lines_of((PAIR_OVER_PCIE,), 2, 2, bus_rate(link, 2), 1.0)
    return lines


def _ways_over_pcie(link: Interconnect) -> tuple[Way, ...]:
    """Return the ways of a collective over PCIe on a host; shares refer to its bus rate."""
    return OVER_PEERS if _has_peer_access(link) else OVER_HOST


def _has_peer_access(link: Interconnect) -> bool:
    return (link.host or default_host(link)).peer_access


def kernel_lines(kernels: Kernels, ranks: int, reach: float, latency: float) -> tuple[Line, ...]:
    """Return the ways of vLLM's own all-reduce. latency: over that of the constants."""
    one, two, peer_rate = kernels
    return (
        Line(latency * one.base, max((ranks - 1) / reach / one.share, 1 / peer_rate)),
        Line(latency * two.base, 2 / reach / two.share),
    )


def lines_of(
    ways: tuple[Way, ...], rounds: int, ranks: int, rate: float, latency: float
) -> tuple[Line, ...]:
    """Return ways that go `rounds` times around a ring. latency: over that of the constants."""
    hops = rounds * (ranks - 1)
    return tuple(
        Line(
            latency * (way.base + hops * way.hop),
            (rounds if way.flat else hops / ranks) / rate / way.share,
        )
        for way in ways
    )


Seconds = Callable[[float], float]
"""Seconds for so many bytes."""


class WayAcross(NamedTuple):
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


def _ring_across(link: Interconnect, span: Span, passes: int) -> tuple[Line, ...]:
    """Return NCCL's ways around a ring. passes: 2 of a sum, 1 of a gather or a scatter."""
    ranks, nodes = sum(span.ranks), span.nodes
    per_byte = passes * (ranks - 1) / ranks / min(inside_rate(link, span.most), span.bandwidth)
    return _across(_ring(link), span, passes * (ranks - nodes), passes * (nodes - 1), per_byte)


def _tree_across(link: Interconnect, span: Span) -> tuple[Line, ...]:
    """Return NCCL's ways up and down a tree of nodes; the ranks of each node form a chain."""
    between = 1 if span.nodes == 2 else 2
    per_byte = max(2 / inside_rate(link, span.most), between / span.bandwidth)
    ways = _tuned(link, TREE, _TREE_BETWEEN, _TREE_SHARES)
    hops = 2 * math.ceil(math.log2(span.nodes))
    return _across(ways, span, 2 * (span.most - 1), hops, per_byte)


def _hierarchical(link: Interconnect, span: Span, passes: int) -> Seconds:
    """Return the seconds of a hierarchy. passes: as those of a ring."""
    gather = all_gather(link, span.most)
    per_byte = passes * (span.nodes - 1) / span.nodes / span.bandwidth
    between = _fastest(_across(_ring(link), span, 0, passes * (span.nodes - 1), per_byte))
    return partial(_one_after_the_other, passes, gather, between)


def _one_after_the_other(passes: int, gather: Seconds, between: Seconds, num_bytes: float) -> float:
    return passes * gather(num_bytes) + between(num_bytes)


def inside_rate(link: Interconnect, ranks: int) -> float:
    """Return the bytes/s of a ring over ranks of one node; inf where there is one alone."""
    if ranks == 1:
        return math.inf
    if link.bus_bandwidth:
        return max(link.bus_bandwidth.values())
    if goes_by_host(link):
        return bus_rate(link, ranks)
    return 2 * link.reach / ranks if link.all_reduce == "host_shared" else link.reach


def goes_by_host(link: Interconnect) -> bool:
    """Whether a node's ranks communicate through the host, and the origin of this fact."""
    return link.kind == "pcie" and link.all_reduce in ("host", "hierarchical")


def _ring(link: Interconnect) -> list[WayAcross]:
    """Return the ways around a ring: NCCL's own, or those fitted on hosts with PCIe."""
    if goes_by_host(link):
        fitted = zip(_ways_over_pcie(link), _RING_BETWEEN[::2], strict=True)
        return [WayAcross(way.base, way.hop, between, way.share) for way, between in fitted]
    return _tuned(link, RING, _RING_BETWEEN, [each.share for each in RING])


def _tuned(
    link: Interconnect,
    protocols: Sequence[Protocol],
    between: Sequence[float],
    shares: Sequence[float],
) -> list[WayAcross]:
    """Return NCCL's ways; over NVLink latencies are those of the GPU's generation."""
    slower = link.nccl_latency if link.kind == "nvlink" else 1.0
    hops = [p.pcie_hop if link.kind == "pcie" else p.nvlink_hop for p in protocols]
    inside = [slower * hop * more for hop, more in zip(hops, _FLAGGED, strict=True)]
    bases = [slower * p.base for p in protocols]
    return [*map(WayAcross, bases, inside, between, shares)]


def _across(
    ways: Sequence[WayAcross], span: Span, inside: int, between: int, per_byte: float
) -> tuple[Line, ...]:
    """Return a line for each way. inside, between: hops in nodes, and from one to another."""
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
    slower = ""
    if link and link.kind == "nvlink" and link.nccl_latency != 1:
        slower = f"; a hop inside a node takes {link.nccl_latency:g} times an H100's, as measured"
    return f"on several nodes, timed by the topology, on free links: {'; '.join(parts)}{slower}"


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


def _fastest(lines: Sequence[Line] = ()) -> Seconds:
    """Return the seconds of the fastest of several ways; no way at all takes no time."""
    return partial(_least, tuple(lines)) if lines else _none


def _least(lines: Sequence[Line], num_bytes: float) -> float:
    return min([a + num_bytes * b for a, b in lines])


def _none(num_bytes: float) -> float:
    return 0.0


def _measured(link: Interconnect, passes: float) -> Seconds:
    """Return the seconds that bus bandwidths mean, as nccl-tests prints them.

    They are linear between measured sizes, with the last bandwidth beyond; a smaller message takes
    as long as the smallest.
    """
    rows = sorted((SIZE.parse(size), rate) for size, rate in link.bus_bandwidth.items())
    return partial(_between_points, [(size, size * passes / rate) for size, rate in rows])


def _between_points(points: Sequence[tuple[float, float]], num_bytes: float) -> float:
    place = bisect_left(points, (num_bytes, 0.0))
    if place == 0:
        return points[0][1] if num_bytes else 0.0
    if place == len(points):
        size, longest = points[-1]
        return longest * num_bytes / size
    (low, before), (high, after) = points[place - 1 : place + 1]
    return before + (after - before) * (num_bytes - low) / (high - low)


def all_reduce(link: Interconnect, ranks: int, span: Span | None = None) -> Seconds:
    """Return a function for the seconds to sum a tensor of given bytes over `ranks`.

    span: the nodes of the ranks; None: one node.

    With `reach` = link bandwidth x efficiency x the protocol's share and `n` ranks:
    auto         over NVLink what vLLM takes: kernels of its own for small messages, or NCCL.
                 Elsewhere the faster of ring and tree for each message.
    host         over PCIe, as the host lets the cards (`Interconnect.host`).
    ring         2 (n - 1) hops; each rank sends and receives 2 (n - 1) / n of the tensor.
    tree         2 log2(n) hops up and down a binary tree; twice the tensor over the link.
    host_shared  as a ring, but all through the host bridge: (n - 1) times the tensor.
    bestserve    no latency; as much time as one n-th of the elements, counted as one byte each,
                 takes over one link, so two bytes an element.
    hierarchical  on several nodes: scattered inside, summed between, gathered inside; in one, auto.
    A measured `bus_bandwidth` takes the place of all but the last two. On several nodes those that
    are no ring, tree or hierarchy are the faster of ring and tree; bestserve knows no nodes.

    Source of bytes: Seesaw eq. 1, B_ar (ring, host_shared); BestServe eq. 8 (bestserve). NCCL
    chains the ranks of one node in its tree; here it has branches, as between nodes.
    """
    way = link.all_reduce
    if ranks == 1:
        return _fastest()
    if way == "bestserve":
        return _fastest((Line(0.0, 1 / (2 * ranks * link.reach)),))
    if span is not None:
        if way == "hierarchical":
            return _hierarchical(link, span, 2)
        ring = () if way == "tree" else _ring_across(link, span, 2)
        return _fastest(ring if way in ("ring", "host") else ring + _tree_across(link, span))
    if (known := _known(link, ranks, 2)) is not None:
        return known
    hops = 2 * (ranks - 1)
    if way == "host_shared":
        return _fastest(tuned_lines(link, RING, hops, (ranks - 1) / link.reach))
    ring = () if way == "tree" else tuned_lines(link, RING, hops, hops / ranks / link.reach)
    if way == "ring":
        return _fastest(ring)
    depth = math.ceil(math.log2(ranks))
    return _fastest(ring + tuned_lines(link, TREE, 2 * depth, 2 / link.reach))


def all_gather(link: Interconnect, ranks: int, span: Span | None = None) -> Seconds:
    """Return a function for the seconds to gather a tensor of given bytes on every rank.

    Also for a reduce-scatter. Without a fit, each is one half of an all-reduce over a ring, with
    half of its hops and bytes. span: the nodes of the ranks; None: one node.
    """
    if ranks == 1:
        return _fastest()
    if span is not None and link.all_reduce == "hierarchical":
        return _hierarchical(link, span, 1)
    if span is not None:
        return _fastest(_ring_across(link, span, 1))
    if (known := _known(link, ranks, 1)) is not None:
        return known
    passes = (ranks - 1) / 2 if link.all_reduce == "host_shared" else (ranks - 1) / ranks
    return _fastest(tuned_lines(link, RING, ranks - 1, passes / link.reach))


def send(link: Interconnect, span: Span | None = None) -> Seconds:
    """Return a function for the seconds to send a tensor of given bytes to one other rank.

    One hop of a ring, with the protocols of one. span: the nodes of the ranks; None: one node.
    """
    if span is not None:
        rate = min(inside_rate(link, span.most), span.bandwidth)
        return _fastest(_across(_ring(link), span, 0, 1, 1 / rate))
    if link.bus_bandwidth:
        return _measured(link, 1.0)
    if goes_by_host(link):
        per_byte, ways = 1 / bus_rate(link, 2), _ways_over_pcie(link)
        return _fastest([Line(way.base + way.hop, per_byte / way.share) for way in ways])
    return _fastest(tuned_lines(link, RING, 1, 1 / link.reach))


def _known(link: Interconnect, ranks: int, rounds: int) -> Seconds | None:
    if link.bus_bandwidth:
        return _measured(link, rounds * (ranks - 1) / ranks)
    if goes_by_host(link):
        return _fastest(_over_pcie(link, ranks, rounds))
    if link.kind == "nvlink" and link.all_reduce in ("auto", "hierarchical"):
        return _fastest(_over_nvlink(link, ranks, rounds))
    return None
