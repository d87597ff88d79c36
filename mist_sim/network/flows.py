"""Transfers in flight on links shared max-min fairly, exact at every start and end.

Flows of one path have one rate, so they form one class in virtual time: `served` is the number of
bytes that each of them has received since the class began, and a flow that joins with b bytes to go
ends when `served` reaches its present value plus b. Between its start and its end a flow costs
nothing.

A start or an end changes the rates of flows that share a link with it, directly or through others.
All starts and ends of an instant are one change; their order does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from mist_sim.network.fair_shares import Path, fill_up, width
from mist_sim.network.water_levels import Levels

Owner = TypeVar("Owner")

_FIRST_ROOM = 64  # classes; grows by doubling
_FEW = 40  # classes; of more, all are looked at, as vectors
_REMEMBERED = 1024  # answers of `fill_up`: the same transfers are mostly alone on their links

_Counts = tuple[tuple[Path, int], ...]  # flows of each path


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

    capacities: bytes/s of every link. An owner is any object of the caller's; the caller gets it
    back when the flow ends.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities
        self._levels = Levels(capacities)
        self._fill_up = _remembering(capacities)
        self._widths: dict[Path, float] = {}  # of every path asked for so far
        self._begun: list[tuple[Path, float, Owner]] = []  # since the last `settle`
        self._changed: dict[int, None] = {}  # rows of classes that flows joined or left since then
        self._emptied: list[int] = []  # rows of classes without flows since then
        self._num_begun = 0
        self._rows: dict[Path, int] = {}  # of the classes
        self._paths: list[Path] = []
        # (`served` at its end, number, owner) of each flow of a class
        self._flows: list[list[tuple[float, int, Owner]]] = []
        self._moved_in: dict[int, None] = {}  # rows whose paths are not in `_levels` yet
        # by row: bytes per flow until `since`, and the `rate` from then on; the next end, and
        # `served` then; flows
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

    def width(self, path: Path) -> float:
        """Return the bytes/s that a path can carry."""
        found = self._widths.get(path)
        if found is None:
            found = self._widths[path] = width(self._capacities, path)
        return found

    def begin(self, path: Path, num_bytes: float, owner: Owner) -> None:
        """Let a flow of some bytes (> 0) begin, at the time of the next `settle`."""
        self._begun.append((path, num_bytes, owner))

    def ended(self, now: float) -> list[Owner]:
        """Remove the flows that end now, and return their owners in the order of beginning.

        now: the latest result of `settle`, or earlier. `settle` must follow if flows are left.
        """
        ended: list[tuple[int, Owner]] = []
        a = self._at
        for row in (self._end[: len(self._paths)] <= now).nonzero()[0].tolist():
            flows = self._flows[row]
            ended.append(heappop(flows)[1:])
            if flows:
                served, since, rate = a.served[row], a.since[row], a.rate[row]
                while flows and since + max(flows[0][0] - served, 0.0) / rate <= now:
                    ended.append(heappop(flows)[1:])
            if flows:
                a.target[row] = flows[0][0]
            else:
                self._emptied.append(row)
            a.count[row] = len(flows)
            a.end[row] = inf
            self._changed[row] = None
        if not any(self._flows):  # mostly, where a transfer was alone
            self._forget_all()
        if len(ended) > 1:
            ended.sort(key=_number)
        return [owner for _, owner in ended]

    @property
    def paths(self) -> list[Path]:
        """Paths of the flows in flight at the last `settle`."""
        return list(self._paths)

    def withdraw(self, path: Path, now: float) -> list[tuple[float, Owner]]:
        """Remove the flows of a path; return the remaining bytes and the owner of each.

        now: at most the latest result of `settle`. `settle` must follow.
        """
        row, a = self._rows[path], self._at
        served = a.served[row] + a.rate[row] * (now - a.since[row])
        flows = sorted(self._flows[row], key=itemgetter(0, 1))
        self._flows[row].clear()
        a.count[row], a.end[row] = 0, inf
        self._emptied.append(row)
        self._changed[row] = None
        return [(max(target - served, 0.0), owner) for target, _, owner in flows]

    def settle(self, now: float) -> float:
        """Share the links among the flows present; return when the next flow ends."""
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
            self._remove_empty()
        else:
            self._serve_all(now)
            self._take_in(begun)
            self._remove_empty()
            self._share_among_all(now)
        self._changed.clear()
        return float(self._end[: len(self._paths)].min(initial=inf))

    def _take_in(self, begun: list[tuple[Path, float, Owner]]) -> None:
        """Add new flows; the progress of the classes is up to date."""
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
        counts = tuple([(paths[row], len(flows[row])) for row in rows if flows[row]])
        for path, rate in self._fill_up(counts).items():
            row = self._rows[path]
            a.rate[row] = rate
            a.end[row] = now + max(a.target[row] - a.served[row], 0.0) / rate

    # --- many classes, as vectors ---------------------------------------------------------------

    def _serve_all(self, now: float) -> None:
        num = len(self._paths)
        self._served[:num] += self._rate[:num] * (now - self._since[:num])
        self._since[:num] = now

    def _share_among_all(self, now: float) -> None:
        num = len(self._paths)
        for row in self._moved_in:
            if row < num:
                self._levels.put(row, self._paths[row])
        self._moved_in.clear()
        rates = self._rate[:num] = self._levels.rates(self._count[:num])
        left = np.maximum(self._target[:num] - self._served[:num], 0.0)
        self._end[:num] = now + left / rates

    def rates(self) -> dict[Path, float]:
        """Return the bytes/s of a flow of each path, since the last `settle`."""
        return {path: float(self._rate[row]) for path, row in self._rows.items()}

    def _affected(self) -> list[int]:
        """Return the classes that changed, and those that share possibly full links with them.

        Directly or through others. A link that can carry the sum of its paths' limits is never
        full.
        """
        if len(self._changed) == len(self._rows):
            return sorted(self._changed, key=self._paths.__getitem__)
        on_link = self._on_links()
        rows, seen = dict(self._changed), set[int]()
        left = list(rows)
        for row in left:
            for link in self._paths[row]:
                if link in seen:
                    continue
                seen.add(link)
                there = on_link[link]
                if len(there) > 1:
                    most = sum([self.width(self._paths[one]) for one in there])
                    if most > self._capacities[link]:
                        left += [one for one in there if one not in rows]
                        rows.update(dict.fromkeys(there))
        return sorted(rows, key=self._paths.__getitem__)

    def _on_links(self) -> dict[int, list[int]]:
        """Return the classes that cross each link."""
        found: dict[int, list[int]] = {}
        for row, path in enumerate(self._paths):
            for link in path:
                found.setdefault(link, []).append(row)
        return found

    def _add(self, path: Path, now: float) -> None:
        row = self._rows[path] = len(self._paths)
        if row == len(self._served):
            self._make_room()
        self._paths.append(path)
        self._flows.append([])
        self._moved_in[row] = None
        a = self._at
        a.served[row] = a.rate[row] = 0.0
        a.since[row] = now
        a.end[row] = inf

    def _remove_empty(self) -> None:
        """Remove the classes without flows; the last rows move to their places."""
        for row in sorted(set(self._emptied), reverse=True):
            if self._flows[row]:
                continue
            del self._rows[self._paths[row]]
            last = len(self._paths) - 1
            if row < last:
                self._move(last, row)
            self._paths.pop()
            self._flows.pop()
        self._emptied.clear()

    def _forget_all(self) -> None:
        """Remove all classes, since no flow is left."""
        for kept in (self._rows, self._paths, self._flows, self._changed, self._emptied):
            kept.clear()

    def _move(self, row: int, to: int) -> None:
        path = self._paths[to] = self._paths[row]
        self._rows[path] = to
        self._flows[to] = self._flows[row]
        for column in self._at:
            column[to] = column[row]
        self._moved_in[to] = None

    def _make_room(self) -> None:
        size = len(self._served)
        self._count = np.pad(self._count, (0, size))
        self._target = np.pad(self._target, (0, size))
        self._served = np.pad(self._served, (0, size))
        self._since = np.pad(self._since, (0, size))
        self._rate = np.pad(self._rate, (0, size))
        self._end = np.pad(self._end, (0, size), constant_values=inf)
        self._look()


def _remembering(capacities: Sequence[float]) -> Callable[[_Counts], dict[Path, float]]:
    """Return `fill_up` for these links, which remembers its latest answers."""

    @lru_cache(_REMEMBERED)
    def rates(counts: _Counts) -> dict[Path, float]:
        return fill_up(capacities, dict(counts))

    return rates
