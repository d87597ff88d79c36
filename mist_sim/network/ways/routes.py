"""Shortest routes through a graph of links, found once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.network.fair_shares import Path

if TYPE_CHECKING:
    from networkx import DiGraph

MESSAGE = 2.0**20
"""Bytes of the message that takes the shortest route: a mebibyte, so that bandwidth counts."""


class Route(NamedTuple):
    """A way through a graph.

    places: nodes of the graph on it, both ends included. path: numbers of its links. latency:
    seconds of all links. bandwidth: bytes/s of the narrowest, inf where source and destination are
    one.
    """

    places: tuple[str, ...]
    path: Path
    latency: float
    bandwidth: float


class Routes:
    """Routes between places of a graph; its links have a bandwidth, a latency and a number.

    The shortest route has the least time for a message of 1 MiB if each link adds its latency and
    forwards it as a whole. No route leads through an accelerator, or over a cable whose ends are in
    `gone`, in either order.
    """

    def __init__(self, graph: DiGraph[str], gone: frozenset[frozenset[str]] = frozenset()) -> None:
        self.graph = graph
        self._gone = gone
        self._routes: dict[tuple[str, str], Route | None] = {}
        self._from: dict[str, Mapping[str, list[str]]] = {}

    def between(self, source: str, destination: str) -> Route:
        """Return the route. Raises ScenarioError if there is none, and for unknown places."""
        route = self.find(source, destination)
        if route is None:
            raise ScenarioError(
                f"{self.graph.name} has no route from {source} to {destination}; connect them, or "
                "place both where they reach one another"
            )
        return route

    def find(self, source: str, destination: str) -> Route | None:
        """Return the route, None if there is none. Raises ScenarioError for unknown places."""
        ends = source, destination
        if ends not in self._routes:
            self._routes[ends] = self._find(*ends)
        return self._routes[ends]

    def without(self, cables: Iterable[tuple[str, str]]) -> Routes:
        """Return the routes that are left when some cables are gone, in both directions."""
        gone = self._gone.union(frozenset(cable) for cable in cables)
        return self if gone == self._gone else Routes(self.graph, gone)

    def surely_connect(self, accelerators: Iterable[str]) -> bool:
        """Tell, without computing a route, whether these accelerators surely reach one another.

        True where all lead into one part of the graph in which every place reaches every other.
        False otherwise, or where they are linked directly: then use `between`.
        """
        parts, graph = self._parts, self.graph
        to = [{parts[place] for place in graph.succ[gpu] if place in parts} for gpu in accelerators]
        of = [{parts[place] for place in graph.pred[gpu] if place in parts} for gpu in accelerators]
        return not self._gone and bool(set.intersection(*to, *of))

    @cached_property
    def _parts(self) -> dict[str, int]:
        """Places but accelerators, and in which strongly connected part each is."""
        from networkx import strongly_connected_components

        kinds = self.graph.nodes
        inner = self.graph.subgraph(
            place for place in self.graph if kinds[place].get("kind") != "gpu"
        )
        parts = enumerate(strongly_connected_components(inner))
        return {place: part for part, places in parts for place in places}

    def _find(self, source: str, destination: str) -> Route | None:
        for place in (source, destination):
            if place not in self.graph:
                hint = did_you_mean(place, self.graph)
                raise ScenarioError(f"{self.graph.name} has no place {brief(place)}{hint}")
        if source not in self._from:
            self._from[source] = self._all_from(source)
        places = self._from[source].get(destination)
        if places is None:
            return None
        links: list[dict[str, Any]] = [self.graph.edges[pair] for pair in pairwise(places)]
        return Route(
            tuple(places),
            tuple(link["number"] for link in links),
            sum(link["latency"] for link in links),
            min((link["bandwidth"] for link in links), default=float("inf")),
        )

    def _all_from(self, source: str) -> Mapping[str, list[str]]:
        from networkx import single_source_dijkstra_path

        kinds, gone = self.graph.nodes, self._gone

        def seconds(one: str, other: str, link: dict[str, float]) -> float | None:
            if one != source and kinds[one].get("kind") == "gpu":
                return None
            if gone and frozenset((one, other)) in gone:
                return None
            return link["latency"] + MESSAGE / link["bandwidth"]

        found: Mapping[str, list[str]] = single_source_dijkstra_path(
            self.graph, source, weight=seconds
        )
        return found
