"""The seam between clients and networks, which carry KV entries from one engine to another.

Connectors: the cost of a transfer beyond its bytes over the bandwidth. An engine's connector posts
a descriptor for each piece of memory that is contiguous on both sides, and may have to rearrange
what came. A transfer of B bytes with d descriptors over a way of b bytes/s takes

    latency + start + d · per_descriptor + B / (efficiency · b), and then d · post_processing

of which the last part concerns only the destination: the source's blocks are free before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mist_sim.checks import Checked, NotNegative, Share
from mist_sim.registry import Registry
from mist_sim.units import Seconds

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


class Reach(NamedTuple):
    """Distance between engines on an otherwise idle network.

    latency: seconds, of the longest route. seconds_per_byte: of all bytes together, as long as
        those take that cross the slowest link.
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


CONNECTORS = Registry("connectors")

Descriptors = Literal["block_and_layer", "block", "layer"]


@CONNECTORS.register("plain")
@dataclass(frozen=True, kw_only=True)
class Connector(Checked):
    """Bytes over the bandwidth, plus the costs that are set.

    start: seconds per transfer (>= 0).
    per_descriptor: seconds to post a descriptor (>= 0), one after the other on each pair of ranks.
    descriptors: which pieces have one each: `block_and_layer`, a block of a layer; `block`, where
        the layers of a block lie together; `layer`, where the blocks of a layer are merged.
    post_processing: seconds per descriptor at the destination, after all bytes have arrived (>= 0).
    efficiency: share of the links' bandwidth that transfers reach (> 0, <= 1).
    Raises ValueError for values outside these ranges.
    """

    start: NotNegative[Seconds] = 0.0
    per_descriptor: NotNegative[Seconds] = 0.0
    descriptors: Descriptors = "block_and_layer"
    post_processing: NotNegative[Seconds] = 0.0
    efficiency: Share = 1.0

    def before(self, num_blocks: int, num_layers: float) -> float:
        """Return the seconds that a transfer takes in addition to its bytes."""
        if not self.per_descriptor:
            return self.start
        return self.start + self.per_descriptor * self.num_descriptors(num_blocks, num_layers)

    def after(self, num_blocks: int, num_layers: float) -> float:
        """Return the seconds from then on until the entries can be used."""
        if not self.post_processing:
            return 0.0
        return self.post_processing * self.num_descriptors(num_blocks, num_layers)

    def num_descriptors(self, num_blocks: int, num_layers: float) -> float:
        """Return how many a rank posts for so many blocks of so many layers."""
        if not num_blocks:
            return 0
        if self.descriptors == "block":
            return num_blocks
        return num_layers if self.descriptors == "layer" else num_blocks * num_layers


PLAIN = Connector()


@CONNECTORS.register("mooncake")
@dataclass(frozen=True, kw_only=True)
class MooncakeConnector(Connector):
    """Mooncake's transfer engine over RDMA, as engines' connectors use it: layer by layer.

    Source: nine transfers each that Mooncake measured between two nodes of eight GPUs, TP 8. By
    vLLM ("vllm-v1-pd-performance.md", Qwen3-8B, H800s): 0.57 ms and 154 GB/s of 200; 36 layers.
    By SGLang (Qwen3-235B, H20s): 1.73 ms and 168 GB/s of 200; 94 layers. Both starts are 17 us a
    layer, within 8 %. The efficiency is vLLM's. Its "MB" and "GB" are powers of two: they are the
    prompt's blocks and one more.
    """

    per_descriptor: NotNegative[Seconds] = 17e-6
    descriptors: Descriptors = "layer"
    efficiency: Share = 0.772


@CONNECTORS.register("nixl")
@dataclass(frozen=True, kw_only=True)
class NixlConnector(Connector):
    """NIXL, as vLLM's `NixlConnector` uses it: descriptors cost most where blocks are small.

    Source: a transfer between two A100s over NVLink that a vLLM log shows, 200 MB with 12,700
    descriptors in 45 ms, of which the bytes at 300 GB/s would take 0.7. 38 of these are its "post
    time", in which descriptors are posted: 3 us each. vllm#34054, on one host too, has 129 ms for
    40,064, 3.2 us each.
    """

    per_descriptor: NotNegative[Seconds] = 3.5e-6
