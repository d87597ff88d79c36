"""Routes between the ranks of two engines, and the part of the KV entries on each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mist_sim.network.fair_shares import Path
from mist_sim.network.ways.routes import Route, Routes

Ranks = Sequence[Sequence[str]]
"""The GPUs of an engine, by pipeline and tensor rank."""


class RankWay(NamedTuple):
    """Part of a transfer between engines: its share of layers and of bytes, and its route.

    bandwidth: bytes/s when all parts go at once on otherwise idle links; each link is divided in
        proportion to the bytes of the parts on it.
    """

    of_layers: float
    share: float
    route: Route
    bandwidth: float


class Between(NamedTuple):
    """All ways from one engine to another.

    paths: of the ways, where all have the same shares and latency; else None.
    of_layers: the largest share of layers on one of them.
    """

    ways: list[RankWay]
    paths: tuple[Path, ...] | None
    of_layers: float


def between(
    sources: Ranks, destinations: Ranks, routes: Routes, capacities: Sequence[float]
) -> Between:
    """Return the ways from one engine's ranks to another's. capacities: of the links, bytes/s."""
    parts = [*_parts(sources, destinations, routes)]
    shares = [0.0] * len(capacities)  # of all bytes, that go over each link
    for _, share, route in parts:
        for link in route.path:
            shares[link] += share
    ways = []
    for of_layers, share, route in parts:
        rates = (capacities[link] * (share / shares[link]) for link in route.path)
        ways.append(RankWay(of_layers, share, route, min(rates, default=math.inf)))
    is_alike = len({(way.of_layers, way.share, way.route.latency) for way in ways}) == 1
    paths = tuple(way.route.path for way in ways) if is_alike else None
    return Between(ways, paths, max(way.of_layers for way in ways))


def _parts(
    sources: Ranks, destinations: Ranks, routes: Routes
) -> Iterator[tuple[float, float, Route]]:
    """Yield which part of the entries goes from which GPU to which: of layers, of bytes, how.

    Pipeline ranks have equal parts of the layers, tensor ranks of the heads.
    """
    for layers, row in enumerate(sources):
        for layers_there, row_there in enumerate(destinations):
            of_layers = _common(layers, len(sources), layers_there, len(destinations))
            for heads, gpu in enumerate(row):
                for heads_there, gpu_there in enumerate(row_there):
                    of_heads = _common(heads, len(row), heads_there, len(row_there))
                    if share := of_layers * of_heads:
                        yield of_layers, share, routes.between(gpu, gpu_there)


def _common(one: int, parts: int, other: int, other_parts: int) -> float:
    """Return the share of a whole that is in one of its `parts` and in one of `other_parts`."""
    begin = max(one * other_parts, other * parts)
    end = min((one + 1) * other_parts, (other + 1) * parts)
    return max(0, end - begin) / (parts * other_parts)
