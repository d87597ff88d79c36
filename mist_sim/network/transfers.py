"""Transfers of a run: flows over links, with an event when the last byte has arrived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simpy.events import Event

from mist_sim.environment import MOVE, SHARE, Environment
from mist_sim.network.fair_shares import Path, width
from mist_sim.network.flows import Flows


class Flow(NamedTuple):
    """Bytes that take one way.

    path: the links that they cross, each once; none where source and destination are one.
    latency: seconds from when a byte has left until it is there.
    """

    path: Path
    num_bytes: float
    latency: float


class _Transfer:
    """Flows that began together: how many are under way, and when the others are there."""

    __slots__ = ("arrival", "end", "num_left")

    def __init__(self, end: Event, now: float) -> None:
        self.end = end
        self.num_left = 0
        self.arrival = now


class Transfers:
    """What is under way on links. Each flow takes its latency and its bytes over its rate.

    Rates are max-min fair shares of the links, and change when another flow begins or ends.

    capacities: bytes/s of every link (> 0).
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities

    def start(self, env: Environment) -> None:
        """Join a simulation: begin with nothing under way."""
        self._env = env
        self._flows: Flows[tuple[_Transfer, float]] = Flows(self._capacities)
        self._next_end: Event | None = None
        self._is_changed = False

    def send(self, flows: Iterable[Flow]) -> Event:
        """Begin to send; the event happens when the last flow has arrived.

        No bytes take the latency alone, as do so few that the clock does not see their time; where
        source and destination are one, it takes no time.
        """
        env, now = self._env, self._env.now
        transfer = _Transfer(Event(env), now)
        for path, num_bytes, latency in flows:
            if path and now + num_bytes / width(self._capacities, path) > now:
                transfer.num_left += 1
                self._flows.begin(path, num_bytes, (transfer, latency))
            else:
                transfer.arrival = max(transfer.arrival, now + latency)
        if transfer.num_left:
            self._share_later()
        else:
            env.trigger(transfer.end, transfer.arrival, MOVE)
        return transfer.end

    def _share_later(self) -> None:
        """Share the links anew when everything has begun and ended that does so now."""
        if not self._is_changed:
            self._is_changed = True
            self._env.at(self._env.now, SHARE).callbacks.append(self._share)

    def _share(self, _: Event) -> None:
        self._is_changed = False
        if self._next_end is not None:
            self._next_end.callbacks.clear()
            self._next_end = None
        end = self._flows.settle(self._env.now)
        if end < float("inf"):
            self._next_end = self._env.at(end, MOVE)
            self._next_end.callbacks.append(self._end)

    def _end(self, _: Event) -> None:
        self._next_end = None
        env = self._env
        for transfer, latency in self._flows.ended(env.now):
            transfer.num_left -= 1
            transfer.arrival = max(transfer.arrival, env.now + latency)
            if not transfer.num_left:
                env.trigger(transfer.end, transfer.arrival, MOVE)
        self._share_later()
