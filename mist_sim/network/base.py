"""What clients ask of a network: to carry the KV entries of one engine to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from simpy.events import Event

from mist_sim.environment import Environment

Granularity = Literal["full", "layerwise"]


class Seat(NamedTuple):
    """An engine: the name of its client, and its number there."""

    client: str
    engine: int = 0


class Store(NamedTuple):
    """Memory that an engine reads from.

    at: `host` or `storage`, that of the node of each GPU, or a place of the topology.
    bandwidth: bytes/s at most to all GPUs of the engine together; None: what links carry.
    gpu_bandwidth: the same to each GPU.
    """

    at: str = "host"
    bandwidth: float | None = None
    gpu_bandwidth: float | None = None


class Message(NamedTuple):
    """KV entries that go from one engine to another.

    num_bytes: of all layers. num_layers: that follow one another (>= 1); 1: nothing is known of
    them. compute_time: seconds in which the source computed them. num_blocks: that they lie in.
    """

    source: Seat
    destination: Seat
    num_bytes: float
    num_layers: int = 1
    compute_time: float = 0.0
    num_blocks: int = 1


class Tenant(NamedTuple):
    """A client that runs engines, and what it needs of a network.

    data, pipeline, tensor: its engines, the ranks of each, and the GPUs of each rank.
    first: number of its first engine, where a client has engines of two sizes.
    what: which engines of the client they are, for messages.
    place: where its GPUs are; None: wherever there is room.
    sends, takes: whether it hands KV entries over, and takes over those of others.
    stores: memory that it reads from, by name.
    """

    name: str
    data: int
    pipeline: int
    tensor: int
    place: str | None = None
    sends: bool = False
    takes: bool = False
    first: int = 0
    what: str = ""
    stores: tuple[tuple[str, Store], ...] = ()

    @property
    def seats(self) -> list[Seat]:
        """Its engines."""
        return [Seat(self.name, self.first + engine) for engine in range(self.data)]

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{self.name}, {self.what}" if self.what else self.name

    @property
    def num_gpus(self) -> int:
        """GPUs of all its engines."""
        return self.data * self.pipeline * self.tensor


class Reach(NamedTuple):
    """How far an engine is from another on a network that nobody else uses.

    latency: seconds. seconds_per_byte: of the link that takes longest for what goes over it.
    """

    latency: float
    seconds_per_byte: float

    def time(self, num_bytes: float) -> float:
        """Return the seconds in which so many bytes come, sent at once."""
        return self.latency + num_bytes * self.seconds_per_byte


class Network(Protocol):
    """Carries what engines hand over to one another.

    destination_missing: whether blocks that the destination has cached stay where they are.
    """

    destination_missing: bool

    def admit(self, tenants: Sequence[Tenant]) -> None:
        """Find places for clients. Raises ScenarioError where there is no place, or no route."""

    def node_of(self, client: str) -> str | None:
        """Return the node of a client, nodes where it has several; None where there are none."""

    def start(self, env: Environment) -> None:
        """Join a simulation: begin with nothing under way."""

    def send(self, message: Message) -> Event:
        """Begin to send; the event happens when the last byte is there."""

    def post_processing(self, message: Message) -> float:
        """Return the seconds from then on until the destination can use the entries."""

    def reach(self, source: Seat, destination: Seat) -> Reach:
        """Return how far an engine is from another."""


def bytes_left(
    message: Message, bandwidth: float, granularity: Granularity, seconds_free: float = math.inf
) -> float:
    """Return how many bytes are still to be sent when the prompt has been computed.

    bandwidth: bytes/s of the way, with nobody else on it. seconds_free: for how long, up to then,
    no other prompt's entries travelled on it.

    `full` sends all then. With `layerwise` the entries of a layer travel while the next ones are
    computed. With B bytes of L layers that take C seconds to compute, on a way of b bytes/s,

        left = max(B / L, B - b C (L - 1) / L)

    is what those of the last layer are, or what the way could not carry while layers 2 to L were
    computed, or for as long as it was free.
    """
    whole, layers = message.num_bytes, message.num_layers
    if granularity == "full" or layers == 1:
        return whole
    hidden = bandwidth * min(message.compute_time * (layers - 1) / layers, seconds_free)
    return max(whole / layers, whole - hidden)
