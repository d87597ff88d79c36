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
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from mist_sim.network.fair_shares import Path, Whole, fill_up, fill_up_many, width

Owner = TypeVar("Owner")

_FIRST_ROOM = 64  # classes; grows by doubling
_FEW = 40  # classes; of more, all are looked at, as vectors


_number = itemgetter(0)
_path_and_bytes = itemgetter(0, 1)


class _Columns(NamedTuple):
    """Columns of `Flows`, number by number, as memory views."""

    served: Any
    since: Any
    rate: Any
    end: Any
    target: Any
    count: Any


class Flows(Generic[Owner]):
    """The flows in flight.

    capacities: bytes/s of every link. An owner is whatever the caller wants to have back when a
    flow has ended.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities
        self._with_nowhere = np.array([*capacities, inf])
        self._begun: list[tuple[Path, float, Owner]] = []  # since the last `settle`
        self._changed: dict[int, None] = {}  # rows of classes that flows joined or left since then
        self._emptied: list[int] = []  # rows of classes all of whose flows ended since then
        self._num_begun = 0
        self._rows: dict[Path, int] = {}  # of the classes
        self._free = list(range(_FIRST_ROOM))[::-1]
        self._paths: list[Path] = [()] * _FIRST_ROOM
        self._widths = [0.0] * _FIRST_ROOM  # bytes/s that a path can carry
        # (what `served` is when it ends, number, owner) of each flow of a class
        self._flows: list[list[tuple[float, int, Owner]]] = [[] for _ in range(_FIRST_ROOM)]
        self._on_link: dict[int, dict[int, None]] = {}  # rows
        # by hop and row: links; shorter paths go on with the number behind the last
        self._links = np.full((0, _FIRST_ROOM), len(capacities))
        self._moved_in: dict[int, None] = {}  # rows that have paths which are not in there yet
        # by row: bytes each got until `since`, at `rate` from then on; when the next one ends, and
        # what `served` is then; flows
        self._served = np.zeros(_FIRST_ROOM)
        self._since = np.zeros(_FIRST_ROOM)
        self._rate = np.zeros(_FIRST_ROOM)
        self._end = np.full(_FIRST_ROOM, inf)
        self._target = np.zeros(_FIRST_ROOM)
        self._count = np.zeros(_FIRST_ROOM)
        self._look()

    def _look(self) -> None:
        """Look at the columns as `_at`, through which single numbers are read and written fast."""
        columns: tuple[Any, ...] = (
            self._served,
            self._since,
            self._rate,
            self._end,
            self._target,
            self._count,
        )
        self._at = _Columns(*[memoryview(column) for column in columns])

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
        a = self._at
        for row in (self._end <= now).nonzero()[0].tolist():
            flows, served, since, rate = self._flows[row], a.served[row], a.since[row], a.rate[row]
            while flows and since + max(flows[0][0] - served, 0.0) / rate <= now:
                ended.append(heappop(flows)[1:])
            a.count[row] = len(flows)
            a.end[row] = inf
            if flows:
                a.target[row] = flows[0][0]
            else:
                self._emptied.append(row)
            self._changed[row] = None
        if len(ended) > 1:
            ended.sort(key=_number)
        return [owner for _, owner in ended]

    def settle(self, now: float) -> float:
        """Share the links anew among those who are there; return when the next flow ends."""
        begun = self._begun
        if len(begun) > 1:
            begun.sort(key=_path_and_bytes)
        for path, _, _ in begun:
            if path not in self._rows:
                self._add(path, now)
            self._changed[self._rows[path]] = None
        if len(self._rows) <= _FEW:
            few = self._affected()
            self._serve_few(few, now)
            self._take_in(begun)
            self._share_among_few(few, now)
        else:
            many = np.fromiter(self._rows.values(), np.intp)
            self._serve_many(many, now)
            self._take_in(begun)
            self._share_among_many(many, now)
        for row in self._emptied:
            if not self._flows[row]:
                self._remove(row)
        self._emptied.clear()
        self._changed.clear()
        return float(self._end.min())

    def _take_in(self, begun: list[tuple[Path, float, Owner]]) -> None:
        """Note who begins; how far the classes are is known."""
        a = self._at
        for row in self._emptied:
            a.served[row] = 0.0  # a class begins with its first flow
        for path, num_bytes, owner in begun:
            row = self._rows[path]
            flows = self._flows[row]
            self._num_begun += 1
            heappush(flows, (a.served[row] + num_bytes, self._num_begun, owner))
            a.target[row] = flows[0][0]
            a.count[row] = len(flows)
        begun.clear()

    # --- a few classes, one by one ------------------------------------------------------------

    def _serve_few(self, rows: list[int], now: float) -> None:
        served, since, rate, _, _, _ = self._at
        for row in rows:
            served[row] += rate[row] * (now - since[row])
            since[row] = now

    def _share_among_few(self, rows: list[int], now: float) -> None:
        paths, flows, a = self._paths, self._flows, self._at
        counts = {paths[row]: len(flows[row]) for row in rows if flows[row]}
        for path, rate in fill_up(self._capacities, counts).items():
            row = self._rows[path]
            a.rate[row] = rate
            a.end[row] = now + max(a.target[row] - a.served[row], 0.0) / rate

    # --- many classes, as vectors ---------------------------------------------------------------

    def _serve_many(self, rows: Whole, now: float) -> None:
        self._served[rows] += self._rate[rows] * (now - self._since[rows])
        self._since[rows] = now

    def _share_among_many(self, rows: Whole, now: float) -> None:
        counts = self._count[rows]
        rows, counts = rows[counts > 0], counts[counts > 0]
        self._note_links()
        rates = fill_up_many(self._with_nowhere, self._links[:, rows], counts)
        self._rate[rows] = rates
        left = np.maximum(self._target[rows] - self._served[rows], 0.0)
        self._end[rows] = now + left / rates

    def _note_links(self) -> None:
        nowhere = len(self._capacities)
        for row in self._moved_in:
            path = self._paths[row]
            if len(path) > len(self._links):
                more = ((0, len(path) - len(self._links)), (0, 0))
                self._links = np.pad(self._links, more, constant_values=nowhere)
            self._links[: len(path), row] = path
            self._links[len(path) :, row] = nowhere
        self._moved_in.clear()

    def rates(self) -> dict[Path, float]:
        """Return the bytes/s of a flow of each path, since the last `settle`."""
        return {path: float(self._rate[row]) for path, row in self._rows.items()}

    def _affected(self) -> list[int]:
        """Return the classes that changed, and those who share links with them that may be full.

        Directly or by others. A link that can carry all that its paths can is never full.
        """
        if len(self._rows) == 1:
            return list(self._changed)
        rows, seen = dict(self._changed), set[int]()
        left = list(rows)
        for row in left:
            for link in self._paths[row]:
                if link in seen:
                    continue
                seen.add(link)
                there = self._on_link[link]
                if len(there) > 1:
                    most = sum([self._widths[one] for one in there])
                    if most > self._capacities[link]:
                        left += [one for one in there if one not in rows]
                        rows.update(there)
        return sorted(rows, key=self._paths.__getitem__)

    def _add(self, path: Path, now: float) -> None:
        if not self._free:
            self._make_room()
        row = self._rows[path] = self._free.pop()
        self._paths[row] = path
        self._widths[row] = width(self._capacities, path)
        self._moved_in[row] = None
        self._at.served[row] = self._at.rate[row] = 0.0
        self._at.since[row] = now
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
        self._widths += [0.0] * size
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
        self._look()
