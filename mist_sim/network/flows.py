"""Bytes under way on links that flows share max-min fairly, exact at every start and end.

Flows of one path have one rate, so that they are one class in virtual time: `served` is how many
bytes each of them has got since the class began, and one that joins with b bytes to go ends when
`served` reaches the `served` of now plus b. Nothing is done a flow between its start and its end.

A start or an end changes the rates of those who share a link with it, directly or by others. All
starts and ends of an instant are one change; the order in which they were told plays no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

import numpy as np

from mist_sim.network.fair_shares import Path, fill_up

Owner = TypeVar("Owner")

_FIRST_ROOM = 64  # classes; grows by doubling


class Flows(Generic[Owner]):
    """The flows in flight.

    capacities: bytes/s of every link. An owner is whatever the caller wants to have back when a
    flow has ended.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities
        self._begun: list[tuple[Path, float, Owner]] = []  # since the last `settle`
        self._changed: dict[int, None] = {}  # links on which flows began or ended since then
        self._num_begun = 0
        self._rows: dict[Path, int] = {}  # of the classes
        self._free = list(range(_FIRST_ROOM))[::-1]
        self._paths: list[Path] = [()] * _FIRST_ROOM
        # (what `served` is when it ends, number, owner) of each flow of a class
        self._flows: list[list[tuple[float, int, Owner]]] = [[] for _ in range(_FIRST_ROOM)]
        self._on_link: dict[int, dict[int, None]] = {}  # rows
        # by row: bytes each got until `since`, at `rate` from then on; when the next one ends
        self._served = np.zeros(_FIRST_ROOM)
        self._since = np.zeros(_FIRST_ROOM)
        self._rate = np.zeros(_FIRST_ROOM)
        self._end = np.full(_FIRST_ROOM, inf)

    def __len__(self) -> int:
        return sum(map(len, self._flows)) + len(self._begun)

    def begin(self, path: Path, num_bytes: float, owner: Owner) -> None:
        """Let a flow of some bytes (> 0) begin, at the time of the next `settle`."""
        self._begun.append((path, num_bytes, owner))

    def ended(self, now: float) -> list[Owner]:
        """Take out the flows that end now, and return their owners in the order of beginning.

        now: what `settle` returned last, or earlier. `settle` has to follow.
        """
        ended: list[tuple[int, Owner]] = []
        for row in (self._end <= now).nonzero()[0].tolist():
            flows, served, since = self._flows[row], self._served[row], self._since[row]
            while flows and since + max(flows[0][0] - served, 0.0) / self._rate[row] <= now:
                ended.append(heappop(flows)[1:])
            self._end[row] = inf
            self._changed.update(dict.fromkeys(self._paths[row]))
        ended.sort(key=lambda flow: flow[0])
        return [owner for _, owner in ended]

    def settle(self, now: float) -> float:
        """Share the links anew among those who are there; return when the next flow ends."""
        begun = sorted(self._begun, key=lambda flow: flow[:2])
        self._begun.clear()
        for path, _, _ in begun:
            if path not in self._rows:
                self._add(path, now)
            self._changed.update(dict.fromkeys(path))
        rows = self._affected()
        for row in rows:
            self._served[row] += self._rate[row] * (now - self._since[row])
            self._since[row] = now
            if not self._flows[row]:  # a class begins with its first flow
                self._served[row] = 0.0
        for path, num_bytes, owner in begun:
            row = self._rows[path]
            self._num_begun += 1
            target = float(self._served[row]) + num_bytes
            heappush(self._flows[row], (target, self._num_begun, owner))
        counts = {}
        for row in rows:
            if number := len(self._flows[row]):
                counts[self._paths[row]] = number
            else:
                self._remove(row)
        for path, rate in fill_up(self._capacities, counts).items():
            row = self._rows[path]
            self._rate[row] = rate
            self._end[row] = now + max(self._flows[row][0][0] - self._served[row], 0.0) / rate
        self._changed.clear()
        return float(self._end.min())

    def rates(self) -> dict[Path, float]:
        """Return the bytes/s of a flow of each path, since the last `settle`."""
        return {path: float(self._rate[row]) for path, row in self._rows.items()}

    def _affected(self) -> list[int]:
        """Return the classes that share a link with a change, directly or by others."""
        links, seen = list(self._changed), set(self._changed)
        rows: dict[int, None] = {}
        for link in links:
            for row in self._on_link.get(link, ()):
                if row not in rows:
                    rows[row] = None
                    more = [other for other in self._paths[row] if other not in seen]
                    seen.update(more)
                    links += more
        return sorted(rows, key=self._paths.__getitem__)

    def _add(self, path: Path, now: float) -> None:
        if not self._free:
            self._make_room()
        row = self._rows[path] = self._free.pop()
        self._paths[row] = path
        self._served[row] = self._rate[row] = 0.0
        self._since[row] = now
        for link in path:
            self._on_link.setdefault(link, {})[row] = None

    def _remove(self, row: int) -> None:
        path = self._paths[row]
        del self._rows[path]
        for link in path:
            del self._on_link[link][row]
        self._free.append(row)

    def _make_room(self) -> None:
        size = len(self._paths)
        self._free = list(range(size, 2 * size))[::-1]
        self._paths += [()] * size
        self._flows += [[] for _ in range(size)]
        self._served = np.pad(self._served, (0, size))
        self._since = np.pad(self._since, (0, size))
        self._rate = np.pad(self._rate, (0, size))
        self._end = np.pad(self._end, (0, size), constant_values=inf)
