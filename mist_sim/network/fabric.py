"""Networks: with a topology, in which transfers take routes, or one link that all clients share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from math import inf
from typing import TYPE_CHECKING, ClassVar, Protocol

from simpy.events import Event

from mist_sim.checks import NotNegative, Positive, check_fields
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.collectives import Spans
from mist_sim.network.base import (
    PLAIN,
    Cable,
    Connector,
    Granularity,
    Message,
    Reach,
    Seat,
    Store,
    Tenant,
    bytes_left,
)
from mist_sim.network.flows import Path
from mist_sim.network.topology.graph import Topology, load_topology
from mist_sim.network.transfers import Flow, Transfers
from mist_sim.network.ways import Between, Crossings, Outages, RankWay, Routes, Supplies, between
from mist_sim.units import BytesPerSecond, Seconds

if TYPE_CHECKING:
    from networkx import DiGraph


class HiddenTransfers:
    """Times until which entries sent layer by layer occupy each link.

    These flows are not simulated: when a prompt is done, the free time of its route's links during
    its computation is known, and the bytes carried then take no time from other prompts. Of prompts
    that share a link the first to finish gets the earlier part.
    """

    def __init__(self) -> None:
        self._taken_until: dict[int, float] = {}

    def seconds_free(self, path: Path, now: float, seconds: float) -> float:
        """Return for how long, up to now, all links of a way were free; at most `seconds`."""
        free_from = max([self._taken_until.get(link, -inf) for link in path], default=-inf)
        return min(seconds, max(now - free_from, 0.0))

    def take(self, path: Path, until: float) -> None:
        """Note that the links of a way are taken until then."""
        for link in path:
            self._taken_until[link] = max(self._taken_until.get(link, -inf), until)


def find_places(
    graph: DiGraph[str], tenants: Sequence[Tenant], *, spans_nodes: bool = False
) -> list[list[str]]:
    """Return the GPUs of every client, in their order.

    Clients that name a place come first. The others, in order, get the first free GPUs of the
    first node that has enough. spans_nodes: whether a client may have GPUs of several nodes.
    Raises ScenarioError for a place that is not there or taken, and where there is no room.
    """
    rooms = _Rooms(graph, spans_nodes)
    gpus_of: dict[int, list[str]] = {}
    for k, tenant in sorted(enumerate(tenants), key=lambda item: item[1].place is None):
        gpus_of[k] = rooms.admit(tenant)
    return [gpus_of[k] for k in range(len(tenants))]


class _Rooms:
    """The GPUs of a graph, node by node, with their owners."""

    def __init__(self, graph: DiGraph[str], spans_nodes: bool) -> None:
        self._name = graph.name
        self._spans_nodes = spans_nodes
        self._nodes: dict[str, list[str]] = {}
        for place, kind in graph.nodes(data="kind"):
            if kind == "gpu":
                self._nodes.setdefault(place.rpartition("/")[0], []).append(place)
        self._taken: dict[str, str] = {}

    def admit(self, tenant: Tenant) -> list[str]:
        """Give a client its GPUs, and return them."""
        largest = max(map(len, self._nodes.values()))
        if tenant.num_gpus > largest and not self._spans_nodes:
            raise ScenarioError(
                f"{tenant.title}: needs {tenant.num_gpus} GPUs and a node of {self._name} has "
                f"{largest}; network.spans_nodes: true lets a client have GPUs of several nodes"
            )
        gpus = self._at(tenant, tenant.place) if tenant.place else self._packed(tenant)
        self._taken.update(dict.fromkeys(gpus, tenant.title))
        return gpus

    def _packed(self, tenant: Tenant) -> list[str]:
        free = {node: self._free(gpus) for node, gpus in self._nodes.items()}
        for gpus in free.values():
            if len(gpus) >= tenant.num_gpus:
                return gpus[: tenant.num_gpus]
        everywhere = [gpu for gpus in free.values() for gpu in gpus]
        if self._spans_nodes and len(everywhere) >= tenant.num_gpus:
            return everywhere[: tenant.num_gpus]
        raise ScenarioError(
            f"{tenant.title}: needs {tenant.num_gpus} GPUs, and no node of {self._name} has as "
            f"many left ({len(everywhere)} in all); set network.nodes, or `place`"
        )

    def _at(self, tenant: Tenant, place: str) -> list[str]:
        """Return the GPUs from a place on: a node's first free ones, or those from a GPU on."""
        names = list(self._nodes)
        node, _, gpu = place.partition("/")
        if node not in self._nodes or (gpu and place not in self._nodes[node]):
            known = [*self._nodes, *(gpu for gpus in self._nodes.values() for gpu in gpus)]
            raise ScenarioError(
                f"{tenant.title}: {self._name} has no place {brief(place)}"
                f"{did_you_mean(place, known)} Nodes: {names[0]} to {names[-1]}, "
                f"GPUs: such as {known[-1]}"
            )
        own = self._nodes[node]
        later = [gpu for name in names[names.index(node) + 1 :] for gpu in self._nodes[name]]
        row = own[own.index(place) :] if gpu else self._free(own)
        if self._spans_nodes:
            row = row + (later if gpu else self._free(later))
        if len(row) < tenant.num_gpus:
            raise ScenarioError(
                f"{tenant.title}: place {place} must have {tenant.num_gpus} GPUs"
                f"{' from there on' if gpu else ' left'}, got {len(row)}"
            )
        gpus = row[: tenant.num_gpus]
        for one in gpus:
            if one in self._taken:
                raise ScenarioError(
                    f"{tenant.title}: place {place} must not be taken, and {self._taken[one]} "
                    f"has {one}"
                )
        return gpus

    def _free(self, gpus: Iterable[str]) -> list[str]:
        return [gpu for gpu in gpus if gpu not in self._taken]


_OF_THE_TOPOLOGY = (
    "nodes",
    "nodes_per_rack",
    "oversubscription",
    "uplink",
    "gpus",
    "nvlink",
    "pcie",
    "nics",
    "nic",
    "storage",
    "remote_storage",
)


@dataclass(kw_only=True)
class Fabric:
    """Nodes of GPUs, switches and NICs, whose links transfers share max-min fairly.

    topology: the name of a preset (`mist list topologies`), or the path of a .toml spec.
    nodes: total number. By default, like the ten keys below, the topology's.
    nodes_per_rack: nodes below one leaf switch.
    oversubscription: bandwidth of a rack's NICs divided by its leaf switch's uplink bandwidth.
    uplink: of a leaf switch to the spine, one direction; overrides the oversubscription.
    gpus: GPUs per node.
    nvlink: of a GPU to the node's NVSwitch, one direction.
    pcie: of a GPU, one direction.
    nics: network cards per node.
    nic: of each card, one direction.
    storage: of the drives of each node, one direction.
    remote_storage: of a store at the spine, or at the leaf without a spine.
    spans_nodes: whether a client may have GPUs on several nodes, with collectives between them.
    granularity: when entries are sent: `full`, all when the prompt has been computed, or
        `layerwise`, each layer's while the next one is computed.
    destination_missing: whether only blocks that the destination lacks are sent.
    connector: cost of a transfer beyond latency and bytes.
    Raises ScenarioError for an unknown or impossible topology.
    """

    has_topology: ClassVar[bool] = True

    topology: str | Topology
    nodes: int | None = None
    nodes_per_rack: int | None = None
    oversubscription: float | None = None
    uplink: BytesPerSecond | None = None
    gpus: int | None = None
    nvlink: BytesPerSecond | None = None
    pcie: BytesPerSecond | None = None
    nics: int | None = None
    nic: BytesPerSecond | None = None
    storage: BytesPerSecond | None = None
    remote_storage: BytesPerSecond | None = None
    spans_nodes: bool = False
    granularity: Granularity = "full"
    destination_missing: bool = True
    connector: Connector = PLAIN

    def __post_init__(self) -> None:
        base = load_topology(self.topology) if isinstance(self.topology, str) else self.topology
        said = {name: getattr(self, name) for name in _OF_THE_TOPOLOGY}
        said = {name: value for name, value in said.items() if value is not None}
        self.resolved = replace(base, **said)
        """The topology with what was said."""

    @property
    def ways(self) -> Fabric:
        """Its links, for all transfers but hand-overs."""
        return self

    @cached_property
    def routes(self) -> Routes:
        """The shortest routes through the topology, which are the same for all runs."""
        return Routes(self.resolved.graph())

    def admit(self, tenants: Sequence[Tenant]) -> None:
        """Find places for clients. Raises ScenarioError where there is no place, or no route."""
        gpus_of = find_places(self.routes.graph, tenants, spans_nodes=self.spans_nodes)
        self._node_of: dict[str, str] = {}  # of a bundle it is that of its attention workers
        self._ranks: dict[Seat, list[list[str]]] = {}  # GPUs by pipeline and tensor rank
        # engines of each client by number and ranks, those of its first layout before others
        self._layouts: dict[str, dict[tuple[int, int], list[Seat]]] = {}
        for tenant, own in zip(tenants, gpus_of, strict=True):
            gpus, nodes = iter(own), dict.fromkeys(gpu.rpartition("/")[0] for gpu in own)
            self._node_of.setdefault(tenant.name, ", ".join(nodes))
            for seat in tenant.seats:
                ranks = [[next(gpus) for _ in range(tenant.tensor)] for _ in range(tenant.pipeline)]
                self._ranks[seat] = ranks
            if not tenant.first:
                self._layouts[tenant.name] = {(tenant.data, tenant.pipeline): tenant.seats}
        self._ways: dict[tuple[Seat, Seat], Between] = {}
        self._reaches: dict[tuple[Seat, Seat], Reach] = {}
        links = sorted(self.routes.graph.edges.values(), key=lambda link: link["number"])
        self._capacities = [link["bandwidth"] for link in links]
        self._outages = Outages(self.routes)
        self._supplies = Supplies(self.routes, self._capacities)
        self._check_routes(tenants)
        self._check_stores(tenants)

    def node_of(self, client: str) -> str | None:
        """Return the node of a client, nodes where it has several; None where it has no GPUs."""
        return self._node_of.get(client)

    def start(self, env: Environment) -> None:
        """Join a simulation with no transfers under way."""
        share = self.connector.efficiency
        capacities = [capacity * share for capacity in self._capacities]
        self._outages.start()
        self._env, self._hidden = env, HiddenTransfers()
        self._transfers = Transfers(capacities, self._outages.way)
        self._transfers.start(env)

    def send(self, message: Message) -> Event:
        """Start to send from every rank its common layers and heads with each destination rank."""
        flows, before = [], self.connector.before
        ways, paths, most = self._between(message.source, message.destination)
        left = [message.num_bytes * way.share for way in ways]
        if self.granularity == "layerwise":
            left = self._left(message, ways)
        if paths is not None and left.count(left[0]) == len(left):
            delay = before(message.num_blocks, message.num_layers * most)
            return self._transfers.send_alike(paths, left[0], ways[0].route.latency + delay)
        for num_bytes, (of_layers, _, route, _) in zip(left, ways, strict=True):
            delay = before(message.num_blocks, message.num_layers * of_layers)
            flows.append(Flow(route.path, num_bytes, route.latency + delay))
        return self._transfers.send(flows)

    def _left(self, message: Message, ways: Sequence[RankWay]) -> list[float]:
        """Return the bytes that were not sent on each way while the prompt was computed."""
        now, hidden, taken = self._env.now, self._hidden, []
        left = []
        for way in ways:
            path, bandwidth = way.route.path, way.bandwidth * self.connector.efficiency
            free = hidden.seconds_free(path, now, message.compute_time)
            part = message._replace(num_bytes=message.num_bytes * way.share)
            left.append(bytes_left(part, bandwidth, "layerwise", free))
            taken.append((path, now - free + (part.num_bytes - left[-1]) / bandwidth))
        for path, until in taken:  # all ranks send at once
            hidden.take(path, until)
        return left

    def post_processing(self, message: Message) -> float:
        """Return the seconds from then on until every rank can use its entries."""
        most = self._between(message.source, message.destination).of_layers
        return self.connector.after(message.num_blocks, message.num_layers * most)

    def lay_out(self, client: str, num_engines: int, num_ranks: int) -> tuple[int, Spans]:
        """Let a client have other engines on its GPUs, each of so many pipeline ranks.

        Its GPUs are divided in their order. Returns the number of the first engine, and the groups
        of ranks that lie on several nodes. The engines that it had before stay known; equal ones
        have equal numbers. Raises ScenarioError where its GPUs cannot be divided so.
        """
        layouts, shape = self._layouts[client], (num_engines, num_ranks)
        if shape not in layouts:
            gpus = [*self._gpus(next(iter(layouts.values())))]
            size, rest = divmod(len(gpus), num_engines * num_ranks)
            if rest:
                raise ScenarioError(
                    f"{client}: {len(gpus)} GPUs cannot be {num_engines} engines of {num_ranks} "
                    "equal ranks"
                )
            first = sum(map(len, layouts.values()))
            layouts[shape] = seats = [Seat(client, first + n) for n in range(num_engines)]
            left = iter(gpus)
            for seat in seats:
                self._ranks[seat] = [[*islice(left, size)] for _ in range(num_ranks)]
        seats = layouts[shape]
        return seats[0].engine, self._spans([self._ranks[seat] for seat in seats])

    def _spans(self, engines: Sequence[list[list[str]]]) -> Spans:
        return Crossings(self.routes, self._capacities).spans(engines)

    def spans(self, client: str) -> Spans:
        """Return the groups of a client's ranks that lie on several nodes."""
        engines = [ranks for seat, ranks in self._ranks.items() if seat.client == client]
        return self._spans(engines)

    def check_stores(self, seats: Sequence[Seat], store: Store) -> None:
        """Raise ScenarioError where engines read from a place that is not there, or unreachable.

        Every store has to be named before the run.
        """
        self._reads(seats, store)

    def check_route(self, source: str, destination: str) -> None:
        """Raise ScenarioError where a place is not there, or there is no route to it."""
        self.routes.between(source, destination)

    def _reads(self, seats: Sequence[Seat], store: Store) -> list[Path]:
        """Return the links over which the GPUs of engines read, each engine for itself."""
        return [
            path for seat in seats for path in self._supplies.paths([*self._gpus([seat])], store)
        ]

    def read(self, seats: Sequence[Seat], store: Store, num_bytes: float, latency: float) -> Event:
        """Begin to bring bytes to the GPUs of some engines; the event happens when all are there.

        num_bytes: of all engines together; each GPU gets an equal part. latency: from a byte's
        leaving to its coming, routes included. A connector plays no part in it.
        """
        paths = self._reads(seats, store)
        share = num_bytes / len(paths) * self.connector.efficiency
        return self._transfers.send_alike(tuple(paths), share, latency)

    def write(self, seats: Sequence[Seat], store: Store, num_bytes: float, latency: float) -> Event:
        """Begin to bring bytes from the GPUs of some engines to a store, as `read` does back."""
        paths = [
            path
            for seat in seats
            for path in self._supplies.paths([*self._gpus([seat])], store, back=True)
        ]
        share = num_bytes / len(paths) * self.connector.efficiency
        return self._transfers.send_alike(tuple(paths), share, latency)

    def carry(self, source: str, destinations: Sequence[str], num_bytes: float) -> Event:
        """Begin to send bytes from a place to others; the event happens when all are everywhere.

        They cross each link once, however many places lie behind it (multicast), at the rate of the
        slowest. A connector plays no part in it. Raises ScenarioError where there is no route.
        """
        routes = [self.routes.between(source, destination) for destination in destinations]
        tree = tuple(dict.fromkeys(link for route in routes for link in route.path))
        latency = max(route.latency for route in routes)
        return self._transfers.send_alike((tree,), num_bytes * self.connector.efficiency, latency)

    def exchange(self, sources: Sequence[Seat], destinations: Sequence[Seat]) -> Reach:
        """Return how far it is where all GPUs of some engines send to all GPUs of others at once.

        All parts are equal and begin together, on otherwise idle links. With max-min fair rates the
        slowest are those on the link with the most bytes, which share it from beginning to end: the
        last byte leaves when that link has carried all its bytes.
        """
        pairs = list(product(self._gpus(sources), self._gpus(destinations)))
        routes = [self.routes.between(*pair) for pair in pairs]
        parts = Counter(link for route in routes for link in route.path)
        most = max((number / self._capacities[link] for link, number in parts.items()), default=0.0)
        return Reach(max(route.latency for route in routes), most / len(pairs))

    def _gpus(self, seats: Sequence[Seat]) -> Iterator[str]:
        for seat in seats:
            for rank in self._ranks_of(seat):
                yield from rank

    def _ranks_of(self, seat: Seat) -> list[list[str]]:
        if seat not in self._ranks:
            raise ScenarioError(f"{seat.client} has no GPUs in {self.resolved.name}")
        return self._ranks[seat]

    def reach(self, source: Seat, destination: Seat) -> Reach:
        """Return the distance between two engines, all ranks sending at once."""
        found = self._reaches.get((source, destination))
        if found is None:
            found = self._reaches[source, destination] = self._reach(source, destination)
        return found

    def _reach(self, source: Seat, destination: Seat) -> Reach:
        ways = self._between(source, destination).ways
        latency = max(way.route.latency for way in ways) + self.connector.start
        slowest = max(way.share / way.bandwidth for way in ways)
        return Reach(latency, slowest / self.connector.efficiency)

    def clients_on(self, node: str) -> list[str]:
        """Return the names of the clients that have GPUs on a node, in their order."""
        found = {
            seat.client: None
            for seat, ranks in self._ranks.items()
            for gpus in ranks
            for gpu in gpus
            if gpu.rpartition("/")[0] == node
        }
        return list(found)

    def fail_link(self, cable: Cable) -> None:
        """Take a cable down: transfers over it take another route, or wait for its repair."""
        self._outages.fail(cable)
        self._transfers.change_ways()

    def repair_link(self, cable: Cable) -> None:
        """Repair one failure of a cable; transfers under way take the shortest route again."""
        self._outages.repair(cable)
        self._transfers.change_ways()

    def check_link(self, cable: Cable) -> None:
        """Raise ScenarioError where the topology has no such cable."""
        self._outages.check(cable)

    def cut_off(self, gone: Iterable[Cable]) -> Cable | None:
        """Return two GPUs between which KV entries go and could not without some cables."""
        for pair in self._pairs:
            self._between(*pair)
        ways = [way for between in self._ways.values() for way in between.ways]
        routes = [way.route for way in ways if way.route.path]
        return self._outages.cut_off(gone, routes)

    def _between(self, source: Seat, destination: Seat) -> Between:
        found = self._ways.get((source, destination))
        if found is None:
            ranks = self._ranks_of(source), self._ranks_of(destination)
            found = self._ways[source, destination] = between(*ranks, self.routes, self._capacities)
        return found

    def _check_stores(self, tenants: Sequence[Tenant]) -> None:
        """Raise ScenarioError for memory without a place, or without a route to its readers."""
        for tenant in tenants:
            for name, store in tenant.stores:
                try:
                    self._reads(tenant.seats, store)
                except ScenarioError as error:
                    raise ScenarioError(f"{tenant.title}: tier {name}: {error}") from None

    def _check_routes(self, tenants: Sequence[Tenant]) -> None:
        """Raise ScenarioError where one client could hand over to another without a route."""
        sending = [seat for tenant in tenants if tenant.sends for seat in tenant.seats]
        taking = [seat for tenant in tenants if tenant.takes for seat in tenant.seats]
        self._pairs = [*product(sending, taking)]
        gpus = {gpu for seat in (*sending, *taking) for row in self._ranks_of(seat) for gpu in row}
        if self._pairs and not self.routes.surely_connect(gpus):
            for pair in self._pairs:
                self._between(*pair)


class Network(Protocol):
    """Carries hand-overs between engines.

    has_topology: whether its clients have places, and other traffic shares its links.
    destination_missing: whether only blocks that the destination lacks are sent.
    """

    has_topology: ClassVar[bool]
    destination_missing: bool

    @property
    def ways(self) -> Fabric | None:
        """The links of its topology; None for a network without one."""

    def admit(self, tenants: Sequence[Tenant]) -> None:
        """Find places for clients. Raises ScenarioError where there is no place, or no route."""

    def node_of(self, client: str) -> str | None:
        """Return the node of a client, or its nodes if it spans several; None without nodes."""

    def start(self, env: Environment) -> None:
        """Join a simulation with no transfers under way."""

    def send(self, message: Message) -> Event:
        """Begin to send; the event happens when the last byte is there."""

    def post_processing(self, message: Message) -> float:
        """Return the seconds from then on until the destination can use the entries."""

    def reach(self, source: Seat, destination: Seat) -> Reach:
        """Return the distance between two engines."""


@dataclass(kw_only=True)
class Link:
    """One link between all clients, shared by transfers in equal parts.

    bandwidth: bytes per second (> 0). latency: seconds between leaving and arriving (>= 0).
    granularity: when entries are sent: `full`, all when the prompt has been computed, or
        `layerwise`, each layer's while the next one is computed.
    destination_missing: whether only blocks that the destination lacks are sent.
    connector: cost of a transfer beyond these.
    Raises ValueError for values outside these ranges.
    """

    has_topology: ClassVar[bool] = False

    bandwidth: Positive[BytesPerSecond]
    latency: NotNegative[Seconds] = 0.0
    granularity: Granularity = "full"
    destination_missing: bool = True
    connector: Connector = PLAIN

    def __post_init__(self) -> None:
        check_fields(self)
        self._bandwidth = self.bandwidth * self.connector.efficiency
        self._transfers = Transfers([self._bandwidth])

    @property
    def ways(self) -> None:
        """Always None: only hand-overs use the link."""

    def admit(self, tenants: Sequence[Tenant]) -> None:
        """Everybody is at the link."""

    def node_of(self, client: str) -> None:
        """Return None: there are no nodes."""

    def start(self, env: Environment) -> None:
        """Join a simulation with no transfers under way."""
        self._env, self._hidden = env, HiddenTransfers()
        self._transfers.start(env)

    def send(self, message: Message) -> Event:
        """Begin to send; the event happens when the last byte is there."""
        num_bytes = message.num_bytes
        if self.granularity == "layerwise":
            now, path = self._env.now, (0,)
            free = self._hidden.seconds_free(path, now, message.compute_time)
            num_bytes = bytes_left(message, self._bandwidth, "layerwise", free)
            sent = message.num_bytes - num_bytes
            self._hidden.take(path, now - free + sent / self._bandwidth)
        delay = self.connector.before(message.num_blocks, message.num_layers)
        return self._transfers.send_alike(((0,),), num_bytes, self.latency + delay)

    def post_processing(self, message: Message) -> float:
        """Return the seconds from then on until the destination can use the entries."""
        return self.connector.after(message.num_blocks, message.num_layers)

    def reach(self, source: Seat, destination: Seat) -> Reach:
        """Return the distance between two engines, which is equal for all."""
        return Reach(self.latency + self.connector.start, 1 / self._bandwidth)
