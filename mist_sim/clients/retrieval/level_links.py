"""How a level's bytes reach a client: on its own link, a shared link, or a topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from simpy.events import Event

from mist_sim.clients.retrieval.levels import StorageLevel
from mist_sim.clients.shared_parts import SharedParts
from mist_sim.environment import ARRIVE, MOVE, Environment
from mist_sim.errors import InvariantError
from mist_sim.network import Network
from mist_sim.network.fair_shares import Path
from mist_sim.network.transfers import Transfers


class LevelLink(Protocol):
    """Brings bytes of one level to one client."""

    def read(self, num_bytes: float, share: float = 1.0) -> Event:
        """Begin a read; the event happens when the last byte is there.

        share: of a read that takes place, where times are expected values (0 to 1).
        """


@dataclass(frozen=True, slots=True)
class OwnLink:
    """A link without other readers. seconds: of a read of so many bytes."""

    env: Environment
    seconds: Callable[[float], float]

    def read(self, num_bytes: float, share: float = 1.0) -> Event:
        """Begin a read that takes the level's own time, however much other clients read."""
        return self.env.at(self.env.now + share * self.seconds(num_bytes), ARRIVE)


class SharedBandwidth:
    """The bandwidth of a shared level, shared by all clients max-min fairly.

    Each client has its own link in front of the level's, so that none gets more than
    `read_bandwidth`.
    """

    def __init__(self, env: Environment, level: StorageLevel) -> None:
        self._env = env
        self._each = level.read_bandwidth
        self._latency = level.latency
        self._capacities = [level.total_bandwidth or 0.0]
        self._paths: dict[str, Path] = {}
        self._transfers: Transfers | None = None

    def join(self, client: str) -> LevelLink:
        """Return the link of a client; all clients join before the first one reads."""
        if client not in self._paths:
            if self._transfers is not None:
                raise InvariantError(f"{client} joins a shared level after its first read")
            path: Path = (0,)
            if self._each is not None:
                path = (0, len(self._capacities))
                self._capacities.append(self._each)
            self._paths[client] = path
        return _SharedLink(self, self._paths[client])

    def send(self, path: Path, num_bytes: float, share: float) -> Event:
        """Begin to send so many bytes, behind the level's latency."""
        if self._transfers is None:
            self._transfers = Transfers(self._capacities)
            self._transfers.start(self._env)
        return self._transfers.send_alike((path,), share * num_bytes, share * self._latency)


@dataclass(frozen=True, slots=True)
class _SharedLink:
    """The part of a client in a shared level."""

    bandwidth: SharedBandwidth
    path: Path

    def read(self, num_bytes: float, share: float = 1.0) -> Event:
        """Begin to send bytes over the shared link; the event happens when they are there."""
        return self.bandwidth.send(self.path, num_bytes, share)


@dataclass(frozen=True, slots=True)
class TopologyLink:
    """Bytes look themselves up at a place, and share the links from there to another place."""

    env: Environment
    network: Network
    level: StorageLevel
    to: str

    def read(self, num_bytes: float, share: float = 1.0) -> Event:
        """Begin a read: first its latency, then its bytes travel."""
        end = Event(self.env)
        found = self.env.at(self.env.now + share * self.level.latency, MOVE)
        found.callbacks.append(partial(self._carry, share * num_bytes, end))
        return end

    def _carry(self, num_bytes: float, end: Event, _: Event) -> None:
        ways = self.network.ways
        if ways is None or self.level.at is None:
            raise InvariantError(f"{self.level.name} is at no place of a topology")
        arrival = ways.carry(self.level.at, (self.to,), num_bytes)
        arrival.callbacks.append(lambda _: self.env.happen(end))


def link_of(
    level: StorageLevel,
    client: str,
    to: str | None,
    env: Environment,
    network: Network | None,
    parts: SharedParts | None,
) -> LevelLink:
    """Return how the bytes of a level come to a client. to: its place in a topology."""
    if level.at is not None and to is not None and network is not None:
        return TopologyLink(env, network, level, to)
    if level.total_bandwidth is not None:
        make = partial(SharedBandwidth, env, level)
        found = (parts or SharedParts()).part("bandwidth of level", level.name, make)
        return found.join(client)
    times = level.times
    return OwnLink(env, level.read_time if times is None else times.seconds)
