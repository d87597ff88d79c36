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

from mist_sim.network.fair_shares import Array, Path, Whole, fill_up, fill_up_many

Owner = TypeVar("Owner")

_FIRST_ROOM = 64  # classes; grows by doubling
_FEW = 40  # classes; of more, all are looked at, as vectors


class Flows(Generic[Owner]):
    """The flows in flight.

    capacities: bytes/s of every link. An owner is whatever the caller wants to have back when a
    flow has ended.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities
        self._with_nowhere = np.array([*capacities, inf])
        self._begun: list[tuple[Path, float, Owner]] = []  # since the last `settle`
        self._changed: dict[int, None] = {}  # links on which flows began or ended since then
        self._emptied: list[int] = []  # rows of classes all of whose flows ended since then
        self._num_begun = 0
        self._rows: dict[Path, int] = {}  # of the classes
        self._free = list(range(_FIRST_ROOM))[::-1]
        self._paths: list[Path] = [()] * _FIRST_ROOM
        # (what `served` is when it ends, number, owner) of each flow of a class
        self._flows: list[list[tuple[float, int, Owner]]] = [[] for _ in range(_FIRST_ROOM)]
        self._on_link: dict[int, dict[int, None]] = {}  # rows
        # by hop and row: links; shorter paths go on with the number behind the last
        self._links = np.full((0, _FIRST_ROOM), len(capacities))
        self._count = np.zeros(_FIRST_ROOM)
        # by row: bytes each got until `since`, at `rate` from then on; when the next one ends, and
        # what `served` is then
        self._served = np.zeros(_FIRST_ROOM)
        self._since = np.zeros(_FIRST_ROOM)
        self._rate = np.zeros(_FIRST_ROOM)
        self._end = np.full(_FIRST_ROOM, inf)
        self._target = np.zeros(_FIRST_ROOM)

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
                self._count[row] -= 1
            self._end[row] = inf
            if flows:
                self._target[row] = flows[0][0]
            else:
                self._emptied.append(row)
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
        rows = self._affected() if len(self._rows) <= _FEW else np.array([*self._rows.values()])
        self._served[rows] += self._rate[rows] * (now - self._since[rows])
        self._since[rows] = now
        self._served[self._emptied] = 0.0  # a class begins with its first flow
        for path, num_bytes, owner in begun:
            row = self._rows[path]
            self._num_begun += 1
            target = float(self._served[row]) + num_bytes
            heappush(self._flows[row], (target, self._num_begun, owner))
            self._target[row] = self._flows[row][0][0]
            self._count[row] += 1
        rows = rows[self._count[rows] > 0]
        for row in self._emptied:
            if not self._flows[row]:
                self._remove(row)
        self._emptied.clear()
        self._changed.clear()
        if len(rows):
            self._rate[rows] = self._shares(rows)
            left = np.maximum(self._target[rows] - self._served[rows], 0.0)
            self._end[rows] = now + left / self._rate[rows]
        return float(self._end.min())

    def _shares(self, rows: Whole) -> Array:
        """Return the rates of classes that share links with no others."""
        if len(self._rows) > _FEW:
            return fill_up_many(self._with_nowhere, self._links[:, rows], self._count[rows])
        counts = {self._paths[row]: len(self._flows[row]) for row in rows.tolist()}
        rates = fill_up(self._capacities, counts)
        return np.array([rates[path] for path in counts])

    def rates(self) -> dict[Path, float]:
        """Return the bytes/s of a flow of each path, since the last `settle`."""
        return {path: float(self._rate[row]) for path, row in self._rows.items()}

    def _affected(self) -> Whole:
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
        return np.array(sorted(rows, key=self._paths.__getitem__), dtype=np.intp)

    def _add(self, path: Path, now: float) -> None:
        if not self._free:
            self._make_room()
        row = self._rows[path] = self._free.pop()
        self._paths[row] = path
        if len(path) > len(self._links):
            more = ((0, len(path) - len(self._links)), (0, 0))
            self._links = np.pad(self._links, more, constant_values=len(self._capacities))
        self._links[: len(path), row] = path
        self._served[row] = self._rate[row] = 0.0
        self._since[row] = now
        for link in path:
            self._on_link.setdefault(link, {})[row] = None

    def _remove(self, row: int) -> None:
        path = self._paths[row]
        del self._rows[path]
        for link in path:
            del self._on_link[link][row]
        self._links[:, row] = len(self._capacities)
        self._free.append(row)

    def _make_room(self) -> None:
        size = len(self._paths)
        self._free = list(range(size, 2 * size))[::-1]
        self._paths += [()] * size
        self._flows += [[] for _ in range(size)]
        self._links = np.pad(
            self._links, ((0, 0), (0, size)), constant_values=len(self._capacities)
        )
        self._count = np.pad(self._count, (0, size))
        self._target = np.pad(self._target, (0, size))
        self._served = np.pad(self._served, (0, size))
        self._since = np.pad(self._since, (0, size))
        self._rate = np.pad(self._rate, (0, size))
        self._end = np.pad(self._end, (0, size), constant_values=inf)
