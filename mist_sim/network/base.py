"""The seam between clients and networks, which carry KV entries from one engine to another."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Granularity = Literal["full", "layerwise"]

Cable = tuple[str, str]
"""The places that a cable connects, in either order."""


class Seat(NamedTuple):
    """An engine: the name of its client, and its number there."""

    client: str
    engine: int = 0


class Store(NamedTuple):
    """Memory that an engine reads from.

    at: place: `host` or `storage`, that of the node of each GPU, or a place of the topology.
    bandwidth: largest bytes/s to all GPUs of the engine together; None: as much as links carry.
    gpu_bandwidth: the same for each GPU.
    """

    at: str = "host"
    bandwidth: float | None = None
    gpu_bandwidth: float | None = None


class Message(NamedTuple):
    """KV entries that go from one engine to another.

    num_bytes: of all layers. num_layers: number of layers, sent in order (>= 1); 1: unknown.
        compute_time: seconds in which the source computed them. num_blocks: their number of blocks.
    """

    source: Seat
    destination: Seat
    num_bytes: float
    num_layers: int = 1
    compute_time: float = 0.0
    num_blocks: int = 1


class Tenant(NamedTuple):
    """A client with engines, and its needs of a network.

    data, pipeline, tensor: number of engines, ranks per engine, and GPUs per rank.
    first: number of its first engine, for a client with engines of two sizes.
    what: name of these engines in messages.
    place: place of its GPUs; None: the first place with room.
    sends, takes: whether it hands KV entries over, and takes over those of other clients.
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
        """Its name in messages."""
        return f"{self.name}, {self.what}" if self.what else self.name

    @property
    def num_gpus(self) -> int:
        """GPUs of all its engines."""
        return self.data * self.pipeline * self.tensor


class Exchange(NamedTuple):
    """Cost of a transfer in which each of some GPUs sends an equal part to each of some others.

    latency: seconds of the longest route. time_per_byte: seconds for each byte of all parts.
    """

    latency: float
    time_per_byte: float


class Reach(NamedTuple):
    """Distance between two engines on an otherwise idle network.

    latency: seconds. seconds_per_byte: of the slowest link for the bytes that cross it.
    """

    latency: float
    seconds_per_byte: float

    def time(self, num_bytes: float) -> float:
        """Return the seconds in which so many bytes come, sent at once."""
        return self.latency + num_bytes * self.seconds_per_byte


def bytes_left(
    message: Message, bandwidth: float, granularity: Granularity, seconds_free: float = math.inf
) -> float:
    """Return the bytes still to be sent when the prompt has been computed.

    bandwidth: bytes/s of the route when idle. seconds_free: how long, up to then, no other prompt's
        entries travelled on it.

    `full` sends all then. With `layerwise` the entries of a layer travel while the next ones are
    computed. With B bytes of L layers that take C seconds to compute, on a way of b bytes/s,

        left = max(B / L, B - b C (L - 1) / L)

    is the larger of the last layer's bytes and the bytes that the route could not carry while
    layers 2 to L were computed, or while it was free.
    """
    whole, layers = message.num_bytes, message.num_layers
    if granularity == "full" or layers == 1:
        return whole
    hidden = bandwidth * min(message.compute_time * (layers - 1) / layers, seconds_free)
    return max(whole / layers, whole - hidden)
