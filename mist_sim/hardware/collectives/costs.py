"""Costs of all-reduces, gathers and scatters over the accelerators of a group.

A collective takes a start-up time, a time for each of its successive hops, and its bytes over the
bandwidth. There are several ways to do it: one that sends a flag with every word starts fast and
wastes bandwidth, another waits for a barrier and fills the link. The fastest is taken for each
message, so the bandwidth rises with the size of the message.

Over NVLink and PCIe the ways were fitted to measured collectives (`ways.py`); single NCCL
algorithms have the constants of NCCL's tuning model.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from mist_sim.hardware.collectives import across_nodes
from mist_sim.hardware.collectives.spans import Span
from mist_sim.hardware.collectives.ways import (
    RING,
    TREE,
    Line,
    gathers_over_nvlink,
    gathers_over_pcie,
    sends_over_pcie,
    sums_over_nvlink,
    sums_over_pcie,
    tuned_lines,
)
from mist_sim.hardware.devices.specs import Interconnect
from mist_sim.units import SIZE


@dataclass(frozen=True, slots=True)
class Collective:
    """The fastest of several ways, for a tensor of any size; no way at all takes no time."""

    lines: tuple[Line, ...] = ()

    def time(self, num_bytes: float) -> float:
        """Return the seconds for a tensor of `num_bytes`."""
        return min([a + num_bytes * b for a, b in self.lines]) if self.lines else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured collective: seconds by size, linear in between, the last bandwidth beyond.

    points: (bytes, seconds), sorted; a smaller message takes as long as the smallest.
    """

    points: tuple[tuple[float, float], ...]

    def time(self, num_bytes: float) -> float:
        """Return the seconds for a tensor of `num_bytes`."""
        points = self.points
        place = bisect_left(points, (num_bytes, 0.0))
        if place == 0:
            return points[0][1] if num_bytes else 0.0
        if place == len(points):
            size, seconds = points[-1]
            return seconds * num_bytes / size
        (low, before), (high, after) = points[place - 1 : place + 1]
        return before + (after - before) * (num_bytes - low) / (high - low)


def all_reduce(
    link: Interconnect, ranks: int, span: Span | None = None
) -> Callable[[float], float]:
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
    if ranks == 1:
        return Collective().time
    reach = link.bandwidth * link.efficiency
    if link.all_reduce == "bestserve":
        return Collective((Line(0.0, 1 / (2 * ranks * reach)),)).time
    if span is not None:
        return _sum_across(link, span)
    if link.bus_bandwidth:
        return _measured(link, 2 * (ranks - 1) / ranks).time
    if across_nodes.goes_by_host(link):
        return Collective(sums_over_pcie(link, ranks)).time
    if _is_fitted(link):
        return Collective(sums_over_nvlink(link, ranks)).time
    hops = 2 * (ranks - 1)
    if link.all_reduce == "host_shared":
        return Collective(tuned_lines(link, RING, hops, (ranks - 1) / reach)).time
    lines: tuple[Line, ...] = ()
    if link.all_reduce != "tree":
        lines += tuned_lines(link, RING, hops, hops / ranks / reach)
    if link.all_reduce != "ring":
        lines += tuned_lines(link, TREE, 2 * math.ceil(math.log2(ranks)), 2 / reach)
    return Collective(lines).time


def _sum_across(link: Interconnect, span: Span) -> Callable[[float], float]:
    """Return the seconds of a sum over several nodes."""
    if link.all_reduce == "hierarchical":
        return across_nodes.hierarchical(link, span, 2, all_gather(link, span.most))
    lines: tuple[Line, ...] = ()
    if link.all_reduce != "tree":
        lines += across_nodes.ring_lines(link, span, 2)
    if link.all_reduce not in ("ring", "host"):
        lines += across_nodes.tree_lines(link, span)
    return Collective(lines).time


def all_gather(
    link: Interconnect, ranks: int, span: Span | None = None
) -> Callable[[float], float]:
    """Return a function for the seconds to gather a tensor of given bytes on every rank.

    Also for a reduce-scatter. Without a fit, each is one half of an all-reduce over a ring, with
    half of its hops and bytes. span: the nodes of the ranks; None: one node.
    """
    if ranks == 1:
        return Collective().time
    if span is not None and link.all_reduce == "hierarchical":
        return across_nodes.hierarchical(link, span, 1, all_gather(link, span.most))
    if span is not None:
        return Collective(across_nodes.ring_lines(link, span, 1)).time
    if link.bus_bandwidth:
        return _measured(link, (ranks - 1) / ranks).time
    if across_nodes.goes_by_host(link):
        return Collective(gathers_over_pcie(link, ranks)).time
    if _is_fitted(link):
        return Collective(gathers_over_nvlink(link, ranks)).time
    reach = link.bandwidth * link.efficiency
    passes = (ranks - 1) / 2 if link.all_reduce == "host_shared" else (ranks - 1) / ranks
    return Collective(tuned_lines(link, RING, ranks - 1, passes / reach)).time


def send(link: Interconnect, span: Span | None = None) -> Callable[[float], float]:
    """Return a function for the seconds to send a tensor of given bytes to one other rank.

    One hop of a ring, with the protocols of one. span: the nodes of the ranks; None: one node.
    """
    if span is not None:
        return Collective(across_nodes.send_lines(link, span)).time
    if link.bus_bandwidth:
        return _measured(link, 1.0).time
    if across_nodes.goes_by_host(link):
        return Collective(sends_over_pcie(link)).time
    reach = link.bandwidth * link.efficiency
    return Collective(tuned_lines(link, RING, 1, 1 / reach)).time


def _is_fitted(link: Interconnect) -> bool:
    return link.kind == "nvlink" and link.all_reduce in ("auto", "hierarchical")


def _measured(link: Interconnect, passes: float) -> Measured:
    """Turn bus bandwidths, as nccl-tests prints them, into seconds."""
    rows = sorted((SIZE.parse(size), rate) for size, rate in link.bus_bandwidth.items())
    return Measured(tuple((size, size * passes / rate) for size, rate in rows))
