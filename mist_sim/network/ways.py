"""Routes through a topology: shortest ones, of ranks and of memory, around an outage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from mist_sim.errors import ScenarioError, brief, did_you_mean, require_known
from mist_sim.hardware.collectives import Span, Spans
from mist_sim.network.base import Cable, Store
from mist_sim.network.flows import Path

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
            require_known(place, self.graph, f"{self.graph.name} has no place", "")
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

    def check(self, cable: Cable) -> None:
        """Raise ScenarioError where a graph has no such cable."""
        graph = self._routes.graph
        for place in cable:
            require_known(place, graph, f"{graph.name} has no place", "")
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


OF_THE_NODE = ("host", "storage")
"""Places that each node has: an engine on several nodes reads from each its own."""


class Supplies:
    """The links over which engines read, each GPU an equal part.

    The graph's links are shared with all traffic. A store's own limit counts as one link, shared by
    the GPUs of one engine. Links are numbered after those of the graph.

    capacities: bytes/s of the graph's links; those of stores are appended.
    """

    def __init__(self, routes: Routes, capacities: list[float]) -> None:
        self._routes = routes
        self._capacities = capacities
        self._paths: dict[tuple[tuple[str, ...], Store, bool], list[Path]] = {}

    def paths(self, gpus: Sequence[str], store: Store, *, back: bool = False) -> list[Path]:
        """Return the links from a store to each GPU of an engine; `back`: from each GPU to it.

        Raises ScenarioError for a place that is not there, or without a route.
        """
        key = tuple(gpus), store, back
        if key not in self._paths:
            routes = [self._route(gpu, store.at, back=back) for gpu in gpus]
            shared = self._own_link(store.bandwidth)
            own = [self._own_link(store.gpu_bandwidth) for _ in gpus]
            parts = zip(own, routes, strict=True)
            self._paths[key] = [(*shared, *each, *route) for each, route in parts]
        return self._paths[key]

    def _route(self, gpu: str, at: str, *, back: bool) -> Path:
        place = f"{gpu.rpartition('/')[0]}/{at}" if at in OF_THE_NODE else at
        graph = self._routes.graph
        if place not in graph:
            key = {"storage": "network.storage", "remote/storage": "network.remote_storage"}.get(at)
            hint = f"; set {key}" if key else did_you_mean(at, [*OF_THE_NODE, *graph])
            raise ScenarioError(f"at must be a place of {graph.name}, got {brief(at)}{hint}")
        try:
            ends = (gpu, place) if back else (place, gpu)
            return self._routes.between(*ends).path
        except ScenarioError as error:
            raise ScenarioError(
                f"at must have a route to {gpu}, got {brief(at)}: {error}"
            ) from None

    def _own_link(self, bandwidth: float | None) -> Path:
        if bandwidth is None:
            return ()
        self._capacities.append(bandwidth)
        return (len(self._capacities) - 1,)
