"""Transfers in flight on links shared max-min fairly, exact at every start and end.

Flows of one path have one rate, so they form one class in virtual time: `served` is the number of
bytes that each of them has received since the class began, and a flow that joins with b bytes to go
ends when `served` reaches its present value plus b. Between its start and its end a flow costs
nothing.

A start or an end changes the rates of flows that share a link with it, directly or through others.
All starts and ends of an instant are one change; their order does not matter.

Max-min fair rates of flows that share links.

Under max-min fairness raising one flow's rate would lower that of a flow with no higher rate: links
fill up one after the other, and flows across a full link keep their rate (Bertsekas and Gallager,
Data Networks, 2nd ed., §6.5.2).

Max-min fair rates kept from change to change, for many paths.

The level of a link is the highest rate across it if it is full, and inf otherwise: a flow has the
lowest level on its path. Rates are max-min fair if and only if every link with a level is full and
no other is overloaded (Bertsekas and Gallager, Data Networks, 2nd ed., §6.5.2: every flow has a
bottleneck). When a flow begins or ends, almost all full links stay full. So levels are corrected by
Newton's method: a link's surplus or deficit is shared by the flows whose bottleneck it is, until
every link with a level is full to one part in 10^12. A change fades within ten to fifteen steps,
since few flows across a link have another bottleneck. After many changes at once the steps may not
converge, and all links are shared from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Path = tuple[int, ...]
"""The links that a flow crosses, each once."""

Array = NDArray[np.float64]
Whole = NDArray[np.intp]


def fill_up(capacities: Sequence[float], counts: Mapping[Path, int]) -> dict[Path, float]:
    """Return the rate of a flow of each path, bytes/s, where there are a few paths.

    capacities: bytes/s of every link. counts: flows of each path (>= 1).
    """
    widths = {path: width(capacities, path) for path in counts}
    load = _scarce(capacities, widths, counts)
    free = {link: capacities[link] for link in load}
    rates: dict[Path, float] = {}
    by_own_share = sorted(counts, key=lambda path: widths[path] / counts[path], reverse=True)
    while by_own_share:
        path = by_own_share[-1]
        if path in rates:
            by_own_share.pop()
            continue
        level, full = widths[path] / counts[path], -1
        if load:
            level, full = min((level, full), *[(free[k] / load[k], k) for k in load])
        done = [path] if full < 0 else [one for one in counts if full in one and one not in rates]
        for one in done:
            rates[one] = level
            number = counts[one]
            for link in one:
                if link in load:
                    free[link] -= level * number
                    load[link] -= number
                    if not load[link]:
                        del load[link]
    return rates


def width(capacities: Sequence[float], path: Path) -> float:
    """Return the bytes/s that a path can carry."""
    return min([capacities[link] for link in path])


def _scarce(
    capacities: Sequence[float], widths: Mapping[Path, float], counts: Mapping[Path, int]
) -> dict[int, int]:
    """Return how many flows cross each link that could fill up before its paths do."""
    most: dict[int, float] = {}
    for path, bandwidth in widths.items():
        for link in path:
            most[link] = most.get(link, 0.0) + bandwidth
    load = {link: 0 for link, bandwidth in most.items() if bandwidth > capacities[link]}
    if load:
        for path, number in counts.items():
            for link in path:
                if link in load:
                    load[link] += number
    return load


def fill_up_many(capacities: Array, paths: Whole, counts: Array) -> Array:
    """Return the rate of a flow of each path, bytes/s, efficiently for many paths.

    capacities: bytes/s of every link, and inf behind them. paths: the links of each path, shape
    (hops, paths); shorter ones go on with the link behind the last. counts: flows of each path.

    A link's share is its remaining bandwidth per rising flow. Shares only grow. So a link fills up
    as soon as none of its flows has a smaller share on another link; all such links fill up at
    once.
    """
    num_links, nowhere = len(capacities), len(capacities) - 1
    rates = np.empty(paths.shape[1])
    free, rising = capacities.copy(), np.arange(paths.shape[1])
    load = _sums(paths, counts, num_links)
    share = np.full(num_links, np.inf)
    while len(rising):
        crossed = load > 0.5
        crossed[nowhere] = False
        share.fill(np.inf)
        np.divide(free, load, out=share, where=crossed)
        shares = share.take(paths)
        lowest = shares.min(axis=0)
        is_full = crossed
        is_full[paths[shares > lowest]] = False
        done = is_full.take(paths).any(axis=0)
        rates[rising[done]] = lowest[done]
        gone, number = paths[:, done], counts[done]
        free -= _sums(gone, number * lowest[done], num_links)
        load -= _sums(gone, number, num_links)
        stay = ~done
        rising, paths, counts = rising[stay], paths[:, stay], counts[stay]
    return rates


def _sums(paths: Whole, weights: Array, num_links: int) -> Array:
    """Return the sum of the weights of the paths across each link."""
    weighted = np.bincount(paths.ravel(), np.tile(weights, len(paths)), num_links)
    return weighted.astype(np.float64, copy=False)


_MOST_STEPS = 60  # Newton steps; after that all links are shared from scratch
_SLOW = 0.3  # flows rising with a link are counted again after a step that left more than this part
_TOLERANCE = 1e-12  # of a link's bandwidth; sums over thousands of flows round by up to 1e-13


class Levels:
    """The levels of links that flows cross, and the rates that follow from them.

    capacities: bytes/s of every link. Columns of paths are numbered from 0, without gaps when
    `rates` is asked for.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._nowhere = len(capacities)
        self._capacities = np.array(capacities)
        self._most = self._capacities * (1 + _TOLERANCE)
        self._levels = np.full(len(capacities) + 1, np.inf)
        # by hop and column; paths go on with the number behind the last link
        self._links = np.full((0, 0), self._nowhere)
        # links that have had a level lately are among the first hops of every path
        self._is_in_front = np.zeros(len(capacities) + 1, np.bool_)
        self._num_in_front = 0
        self._full = np.zeros(0, np.intp)  # links that have a level

    def put(self, column: int, path: Path) -> None:
        """Say which path a column is of."""
        hops, columns = self._links.shape
        if len(path) > hops or column >= columns:
            more_hops = max(len(path) - hops, 0)
            more_columns = column + 64 if column >= columns else 0
            padding = ((0, more_hops), (0, more_columns))
            self._links = np.pad(self._links, padding, constant_values=self._nowhere)
        in_front = [link for link in path if self._is_in_front[link]]
        behind = [link for link in path if not self._is_in_front[link]]
        self._links[: len(path), column] = in_front + behind
        self._links[len(path) :, column] = self._nowhere
        self._num_in_front = max(self._num_in_front, len(in_front))

    def rates(self, counts: Array) -> Array:
        """Return the rate of a flow of each column, bytes/s. counts: flows of each (>= 1)."""
        links = self._links[:, : len(counts)]
        error = 0.0
        for _ in range(_MOST_STEPS if len(self._full) else 0):
            in_front = links[: self._num_in_front]
            levels = self._levels.take(in_front, mode="clip")  # faster than without a mode
            rates: Array = levels.min(axis=0, initial=np.inf)
            left = self._capacities - self._used(in_front, rates * counts)
            share_left = left[self._full] / self._capacities[self._full]
            before, error = error, float(np.abs(share_left).max(initial=0.0))
            if error <= _TOLERANCE:
                if not self._fill_another(links, rates, counts):
                    return rates
                error = 0.0
                continue
            if error > _SLOW * before:
                rising = self._count_rising(in_front, (levels == rates) * counts)
            self._levels[self._full] += left[self._full] / rising[self._full]
            if self._levels[self._full].min(initial=np.inf) <= 0:
                break
        return self._begin_anew(links, counts)

    def _count_rising(self, links: Whole, counts: Array) -> Array:
        """Return the number of flows whose bottleneck each link is; a link with none is not full.

        counts: flows with this bottleneck, by hop and column.
        """
        rising = self._sums(links, counts)
        is_full = rising[self._full] > 0
        self._levels[self._full[~is_full]] = np.inf
        self._full = self._full[is_full]
        return rising

    def _used(self, links: Whole, bandwidths: Array) -> Array:
        """Return the load of each link by the flows of all columns. bandwidths: by column."""
        return self._sums(links, np.concatenate([bandwidths] * len(links)))

    def _sums(self, links: Whole, weights: Array) -> Array:
        """Return the sum of weights, by hop and column, for each link."""
        sums = np.bincount(links.ravel(), weights.ravel(), self._nowhere + 1)[:-1]
        return sums.astype(np.float64, copy=False)

    def _fill_another(self, links: Whole, rates: Array, counts: Array) -> bool:
        """Give a level to a link that carries more than it can; return whether there was one.

        Of several it is the one with the least for each of its flows.
        """
        is_beyond = self._used(links, rates * counts) > self._most
        is_beyond[self._full] = False
        beyond = np.flatnonzero(is_beyond)
        if not len(beyond):
            return False
        crossing = self._used(links, counts)[beyond]
        link = int(beyond[np.argmin(self._capacities[beyond] / crossing)])
        self._levels[link] = self._level(link, links, rates, counts)
        self._full = np.append(self._full, link)
        self._bring_forward(link, links)
        return True

    def _level(self, link: int, links: Whole, rates: Array, counts: Array) -> float:
        """Return the level at which a link is full, where others keep its flows at some rates."""
        crossing = (links == link).any(axis=0)
        order = np.argsort(rates[crossing])
        rates, counts = rates[crossing][order], counts[crossing][order]
        slower = np.concatenate([[0.0], np.cumsum(rates * counts)[:-1]])
        levels = (self._capacities[link] - slower) / np.cumsum(counts[::-1])[::-1]
        return float(levels[np.argmax(levels <= rates)])

    def _bring_forward(self, link: int, links: Whole) -> None:
        """Let a link be among the first of every path that crosses it."""
        if self._is_in_front[link]:
            return
        hop, column = np.nonzero(links == link)
        place = self._is_in_front[links[:, column]].sum(axis=0)
        if place.max() >= self._num_in_front:
            self._order(links)
            return
        links[hop, column] = links[place, column]
        links[place, column] = link
        self._is_in_front[link] = True

    def _order(self, links: Whole) -> None:
        """Put the links with a level, and only these, first on each path."""
        self._is_in_front = np.isfinite(self._levels)
        is_in_front = self._is_in_front[links]
        self._num_in_front = int(is_in_front.sum(axis=0).max())
        order = np.argsort(~is_in_front, axis=0, kind="stable")
        links[:] = np.take_along_axis(links, order, axis=0)

    def _begin_anew(self, links: Whole, counts: Array) -> Array:
        rates = fill_up_many(np.append(self._capacities, np.inf), links, counts)
        highest = np.zeros(len(self._levels))
        for hop in links:
            np.maximum.at(highest, hop, rates)
        used = self._used(links, rates * counts)
        is_full = used >= self._capacities * (1 - _TOLERANCE)
        self._full = np.flatnonzero(is_full)
        self._levels = np.full(len(highest), np.inf)
        self._levels[self._full] = highest[self._full]
        self._order(links)
        return rates


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
