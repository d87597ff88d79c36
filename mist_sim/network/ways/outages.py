"""Cables that are down, and the ways round them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.network.base import Cable
from mist_sim.network.fair_shares import Path
from mist_sim.network.ways.routes import Route, Routes


class Way(NamedTuple):
    """The present way of bytes of a known route. more_latency: seconds beyond that of the route."""

    path: Path
    more_latency: float


class Outages:
    """The cables of a graph that are down, in both directions.

    Transfers over a cable that is down take the shortest route without such cables, and wait if
    there is none. Multicasts wait in any case.
    """

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        links = sorted(routes.graph.edges(data="number"), key=lambda link: link[2])
        self._ends = [(source, destination) for source, destination, _ in links]
        self.start()

    def start(self) -> None:
        """Begin with no cable down."""
        self._faults: Counter[Cable] = Counter()
        self._ways: dict[Path, Way | None] = {}
        self._around = self._routes

    def fail(self, cable: Cable) -> None:
        """Let a cable be down until it has been repaired as often as it failed."""
        self._faults[cable] += 1
        self._find_anew()

    def repair(self, cable: Cable) -> None:
        """Undo one failure of a cable."""
        self._faults[cable] -= 1
        self._find_anew()

    def _find_anew(self) -> None:
        self._ways = {}
        self._around = self._routes.without(+self._faults)

    def way(self, path: Path) -> Way | None:
        """Return the present replacement of a route `path`; None: there is none."""
        if path not in self._ways:
            self._ways[path] = self._find(path)
        return self._ways[path]

    def _find(self, path: Path) -> Way | None:
        if self._around is self._routes:
            return Way(path, 0.0)
        own = tuple(link for link in path if link >= len(self._ends))  # of a store, which stays
        in_graph = path[len(own) :]
        if not in_graph:
            return Way(path, 0.0)
        links = [self._ends[link] for link in in_graph]
        if any(one[1] != other[0] for one, other in pairwise(links)):  # to several places
            is_down = any({link, link[::-1]} & (+self._faults).keys() for link in links)
            return None if is_down else Way(path, 0.0)
        ends = links[0][0], links[-1][1]
        route = self._around.find(*ends)
        if route is None:
            return None
        return Way((*own, *route.path), route.latency - self._routes.between(*ends).latency)

    # --- checks before a run
    # ------------------------------------------------------------------------

    def check(self, cable: Cable) -> None:
        """Raise ScenarioError where a graph has no such cable."""
        graph = self._routes.graph
        for place in cable:
            if place not in graph:
                raise ScenarioError(
                    f"{graph.name} has no place {brief(place)}{did_you_mean(place, graph)}"
                )
        one, other = cable
        if not graph.has_edge(one, other):
            raise ScenarioError(
                f"{graph.name} has no link between {one} and {other}; {one} is linked to "
                f"{', '.join(graph.successors(one))}"
            )

    def cut_off(self, gone: Iterable[Cable], needed: Iterable[Route]) -> Cable | None:
        """Return the ends of a route that is cut off without some cables; None: none."""
        around = self._routes.without(gone)
        for route in needed:
            ends = route.places[0], route.places[-1]
            if around.find(*ends) is None:
                return ends
        return None
