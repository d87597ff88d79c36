"""The plainest network: one link that all clients share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from simpy.events import Event

from mist_sim.checks import NotNegative, Positive, check_fields
from mist_sim.environment import Environment
from mist_sim.network.base import Granularity, Message, Reach, Seat, Tenant, bytes_left
from mist_sim.network.connectors import PLAIN, Connector
from mist_sim.network.fabric import HiddenTransfers
from mist_sim.network.transfers import Transfers
from mist_sim.units import BytesPerSecond, Seconds


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
