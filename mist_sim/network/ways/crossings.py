"""The nodes that a client's ranks lie on, and the load of the links between these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from mist_sim.hardware.collectives.spans import Span, Spans
from mist_sim.network.ways.routes import Routes

Pair = tuple[str, str]

Ranks = Sequence[Sequence[str]]
"""The GPUs of an engine, by pipeline and tensor rank."""


class Crossings:
    """Finds the groups of ranks that are spread over several nodes.

    All flows of a collective are sent at once, on otherwise idle links. The rate is that of the
    slowest link, in equal parts.
    """

    def __init__(self, routes: Routes, capacities: Sequence[float]) -> None:
        self._routes = routes
        self._capacities = capacities

    def spans(self, engines: Sequence[Ranks]) -> Spans:
        """Return the groups of a client, of each kind the one with the slowest links."""
        rows = [row for ranks in engines for row in ranks]
        replicas = [[*zip(*rows_of, strict=True)] for rows_of in zip(*engines, strict=True)]
        stages = [pair for ranks in engines for pair in pairwise(ranks)]
        return Spans(
            _slowest(self._span([row]) for row in rows),
            _slowest(self._span(groups) for groups in replicas),
            _slowest(self._stage(*pair) for pair in stages),
        )

    def _span(self, groups: Sequence[Sequence[str]]) -> Span | None:
        """Return how the first of groups lies that all exchange at once, node to node in a ring."""
        by_node = [_by_node(group) for group in groups]
        nodes = by_node[0]
        if len(nodes) == 1:
            return None
        rate, latency = self._rate(pair for each in by_node for pair in _around(each))
        ranks = tuple(map(len, nodes))
        return Span(ranks, rate * min(ranks), latency)

    def _stage(self, row: Sequence[str], following: Sequence[str]) -> Span | None:
        """Return how a rank of a pipeline and the next one lie; each GPU sends to its like."""
        pairs = [*zip(row, following, strict=True)]
        crossing = [pair for pair in pairs if node_of(pair[0]) != node_of(pair[1])]
        if not crossing:
            return None
        rate, latency = self._rate(pairs)
        return Span((len(row), len(row)), rate * len(row), latency)

    def _rate(self, pairs: Iterable[Pair]) -> tuple[float, float]:
        """Return the bytes/s of each pair when all send at once, and the longest latency."""
        routes = [self._routes.between(*pair) for pair in pairs]
        loads = Counter(link for route in routes for link in route.path)
        rate = min(self._capacities[link] / number for link, number in loads.items())
        return rate, max(route.latency for route in routes)


def node_of(gpu: str) -> str:
    """Return the node of a GPU."""
    return gpu.rpartition("/")[0]


def _by_node(gpus: Sequence[str]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        found.setdefault(node_of(gpu), []).append(gpu)
    return list(found.values())


def _around(nodes: Sequence[Sequence[str]]) -> Iterable[Pair]:
    """Yield (sender, receiver) from each node to the next, as many as both have."""
    for here, there in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        yield from zip(here, there, strict=False)


def _slowest(spans: Iterable[Span | None]) -> Span | None:
    found = [span for span in spans if span is not None]
    return min(found, key=lambda span: span.bandwidth, default=None)
