"""Transfers of a run: flows over links, with an event when the last byte has arrived.

Most transfers are alone on their links. If all flows of such a transfer end at once, it needs one
event; a transfer that begins before that end treats it as having shared from its beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from simpy.events import Event

from mist_sim.environment import ARRIVE, SHARE, Environment
from mist_sim.network.flows import Flows, Path, fill_up
from mist_sim.network.ways import Way


class Flow(NamedTuple):
    """Bytes on one route.

    path: the links that they cross, each once; empty if source and destination are the same.
    latency: seconds from a byte's departure to its arrival.
    """

    path: Path
    num_bytes: float
    latency: float


class _Transfer:
    """Flows that began together: the number under way, and the arrival of the others.

    phase: phase of the arrival event, by the order of sending.
    """

    __slots__ = ("arrival", "end", "num_left", "phase")

    def __init__(self, end: Event, now: float, num_flows: int, phase: int) -> None:
        self.end = end
        self.num_left = num_flows
        self.arrival = now
        self.phase = phase


class _Part(NamedTuple):
    """A flow of a transfer. route: the path that it was sent on. latency: of that one."""

    transfer: _Transfer
    route: Path
    latency: float


class _Alone(NamedTuple):
    """The latest transfer that began alone: equal bytes on each of several paths.

    begun, end: when the first bytes left, and when the last ones leave if no other transfer begins.
    arrival: when it arrives then.
    """

    transfer: _Transfer
    paths: tuple[Path, ...]
    num_bytes: float
    latency: float
    begun: float
    end: float
    arrival: Event


class Transfers:
    """Transfers under way on links. Each flow takes its latency and its bytes over its rate.

    Rates are max-min fair shares of the links, and change when another flow begins or ends.

    capacities: bytes/s of every link (> 0). way: returns how flows of a path go now, and None while
    they have to wait; by default all take the path that they are sent on.
    """

    def __init__(
        self, capacities: Sequence[float], way: Callable[[Path], Way | None] | None = None
    ) -> None:
        self._capacities = capacities
        self._way = way

    def start(self, env: Environment) -> None:
        """Join a simulation with no transfers under way."""
        self._env = env
        self._flows: Flows[tuple[_Part, float]] = Flows(self._capacities)
        self._alone: _Alone | None = None  # its bytes are not in `_flows`
        self._rates_alone: dict[tuple[Path, ...], float] = {}
        self._waiting: list[tuple[_Part, float]] = []  # and the bytes that are left
        self._routes: dict[Path, Path] = {}  # of each way, when no link is down
        self._next_end: Event | None = None
        self._is_changed = False
        self._phase = ARRIVE  # of the latest transfer

    def send(self, flows: Sequence[Flow]) -> Event:
        """Begin to send; the event happens when the last flow has arrived.

        No bytes take the latency alone, as do so few that the clock does not see their time; where
        source and destination are one, it takes no time.
        """
        env = self._env
        self._end_solitude()
        self._phase += 1
        transfer = _Transfer(Event(env), env.now, len(flows), self._phase)
        if not flows:
            env.trigger(transfer.end, env.now, self._phase)
        for path, num_bytes, latency in flows:
            self._begin(_Part(transfer, path, latency), num_bytes)
        return transfer.end

    def send_alike(self, paths: tuple[Path, ...], num_bytes: float, latency: float) -> Event:
        """Send equally many bytes on each of some paths; as `send`."""
        env, now, alone = self._env, self._env.now, self._alone
        end = now
        if not self._flows and (alone is None or alone.end <= now):
            end += num_bytes / self._rate_alone(paths)
        if end <= now:
            return self.send([Flow(path, num_bytes, latency) for path in paths])
        self._phase += 1
        transfer = _Transfer(Event(env), now, len(paths), self._phase)
        arrival = env.at(end + latency, self._phase)
        arrival.callbacks.append(lambda _: env.happen(transfer.end))
        self._alone = _Alone(transfer, paths, num_bytes, latency, now, end, arrival)
        return transfer.end

    def _rate_alone(self, paths: tuple[Path, ...]) -> float:
        """Return the bytes/s of each of several flows on otherwise idle links.

        inf if their rates differ, or if not all of them can take their paths.
        """
        rate = self._rates_alone.get(paths)
        if rate is None:
            goes = all(paths) and (
                self._way is None or all(self._way(path) == Way(path, 0.0) for path in paths)
            )
            rates = {*fill_up(self._capacities, Counter(paths)).values()} if goes else {inf}
            rate = self._rates_alone[paths] = rates.pop() if len(rates) == 1 else inf
        return rate

    def _end_solitude(self) -> None:
        """Let a transfer that was alone share the links from now on, if bytes of it are left."""
        now, alone, self._alone = self._env.now, self._alone, None
        if alone is None or alone.end <= now:
            return
        alone.arrival.callbacks.clear()
        for path in alone.paths:
            self._routes[path] = path
            part = _Part(alone.transfer, path, alone.latency)
            self._flows.begin(path, alone.num_bytes, (part, alone.latency))
        if alone.begun < now:
            self._flows.settle(alone.begun)
        self._share_later()

    def _begin(self, part: _Part, num_bytes: float) -> None:
        """Send the bytes of a flow that are left the way that they go now, or let them wait."""
        path, latency, now = part.route, part.latency, self._env.now
        if self._way is not None and path:
            way = self._way(path)
            if way is None:
                self._waiting.append((part, num_bytes))
                return
            self._routes[way.path] = path
            path, latency = way.path, latency + way.more_latency
        if path and now + num_bytes / self._flows.width(path) > now:
            self._flows.begin(path, num_bytes, (part, latency))
            self._share_later()
        else:
            self._has_left(part, latency)

    def _has_left(self, part: _Part, latency: float) -> None:
        transfer, now = part.transfer, self._env.now
        transfer.num_left -= 1
        transfer.arrival = max(transfer.arrival, now + latency)
        if not transfer.num_left:
            self._env.trigger(transfer.end, transfer.arrival, transfer.phase)

    def change_ways(self) -> None:
        """Move transfers under way and waiting ones to the routes available from now on.

        Bytes that have left arrive, even the last of a flow at this instant; the rest of a flow
        takes its new route, or waits.
        """
        now, ways = self._env.now, self._way
        if ways is None:
            return
        self._end_solitude()
        self._rates_alone.clear()
        self._let_leave()
        self._flows.settle(now)
        begin, self._waiting = self._waiting, []
        for path in self._flows.paths:
            way = ways(self._routes[path])
            if way is not None and way.path == path:
                continue
            begin += [(part, left) for left, (part, _) in self._flows.withdraw(path, now)]
        for part, left in begin:
            self._begin(part, left)
        self._share_later()

    def _share_later(self) -> None:
        """Share the links after all starts and ends of the present instant."""
        if not self._is_changed:
            self._is_changed = True
            self._env.at(self._env.now, SHARE).callbacks.append(self._share)

    def _share(self, _: Event) -> None:
        self._is_changed = False
        if self._next_end is not None:
            self._next_end.callbacks.clear()
            self._next_end = None
        end = self._flows.settle(self._env.now)
        if end < inf:
            self._next_end = self._env.at(end, ARRIVE)
            self._next_end.callbacks.append(self._end)

    def _end(self, _: Event) -> None:
        self._next_end = None
        self._let_leave()
        if self._flows:
            self._share_later()

    def _let_leave(self) -> None:
        for part, latency in self._flows.ended(self._env.now):
            self._has_left(part, latency)
