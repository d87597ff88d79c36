"""Max-min fair rates of many flows, from change to change.

The rate of the fastest flow on a full link is the link's level, and a flow's rate is the lowest
level on its way, that of its bottleneck. With the bottlenecks given, the levels follow from linear
equations: what a full link carries is its capacity. In the order of their levels the equations are
triangular, since those who are faster elsewhere have their bottleneck here. When a few flows come
or go, most keep their bottleneck. Those who find a lower level on their way change it, and the
equations are solved again until nobody does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsv

from mist_sim.network.fair_shares import Path, fill_up

Array = NDArray[np.float64]
Whole = NDArray[np.intp]

_SAME = 1e-12  # relative: levels and loads this close differ by rounding
_MOST_ROUNDS = 30  # then everything is filled up anew; a flow more or less takes one to five


class LinkLevels:
    """The levels of the links that are crossed, and the bottleneck of every path.

    Paths have numbers, which the caller gives and may use again.
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        """Begin without flows. capacities: bytes/s of every link."""
        self._of_links = capacities
        self._rows: dict[int, int] = {}  # by link
        self._capacities = np.full(1, np.inf)  # by row; row 0 fills up short paths
        self._levels = np.full(1, np.inf)  # infinite where no flow has its bottleneck
        # flows across a link (row) whose bottleneck is another one (column)
        self._flows = np.zeros((1, 1))
        self._paths = np.zeros((0, 0), dtype=np.intp)  # rows of the links, by hop and path
        self._bottlenecks = np.zeros(0, dtype=np.intp)  # rows, by path
        self._counts = np.zeros(0)
        self._lowest_changed = np.inf  # the links of lower levels keep theirs

    def set_count(self, number: int, path: Path, count: int) -> None:
        """Say how many flows take a path from now on."""
        if number >= len(self._counts) or len(path) > len(self._paths):
            self._make_room(number, len(path))
        if count and not self._counts[number]:
            rows = np.array([self._row(link) for link in path])
            self._paths[: len(rows), number] = rows
            self._bottlenecks[number] = rows[self._guess(rows)]
        crossed = self._paths[:, number]
        self._flows[crossed, self._bottlenecks[number]] += count - self._counts[number]
        self._counts[number] = count
        self._lowest_changed = min(self._lowest_changed, self._levels[crossed].min())
        if not count:
            crossed[:] = self._bottlenecks[number] = 0

    def rates(self) -> Array:
        """Return the rate of a flow of each path, bytes/s, by number; inf for paths of nobody."""
        for _ in range(_MOST_ROUNDS):
            if self._is_settled():
                break
        else:
            self._fill_up()
        self._lowest_changed = np.inf
        return self._levels[self._bottlenecks]

    def _is_settled(self) -> bool:
        """Solve for the levels; move bottlenecks that are none, and tell whether none was."""
        capacities, flows, levels = self._capacities, self._flows, self._levels
        active = flows.diagonal() > 0
        kept = active & (levels < self._lowest_changed)
        anew = (active & ~kept).nonzero()[0]
        anew = anew[self._order(anew)]
        known = np.where(kept, levels, 0.0)
        right = capacities[anew] - flows[anew] @ known
        if len(anew):
            known[anew] = dtrsv(flows.take(anew, 0).take(anew, 1).T, right, trans=1)
        levels[:] = np.where(active, known, np.inf)
        ranks = self._ranks(active.nonzero()[0])
        on_way = ranks[self._paths]
        wrong = (ranks[self._bottlenecks] > on_way.min(axis=0)).nonzero()[0]
        if len(wrong):
            rows = self._paths[:, wrong]
            self._enter(wrong, rows[on_way[:, wrong].argmin(axis=0), np.arange(len(wrong))])
            return False
        load = flows @ known
        over = (load > capacities * (1 + _SAME)).nonzero()[0]
        rates = levels[self._bottlenecks]
        for row in over:
            self._share_out(row, rates)
        return not len(over) and bool((load[anew] > capacities[anew] * (1 - 1e-9)).all())

    def _order(self, rows: Whole) -> Whole:
        """Return the order of links by level, of equal levels by row."""
        levels = self._levels[rows]
        order = levels.argsort(kind="stable")
        rising = levels[order]
        steps = np.zeros(len(rows), dtype=np.intp)
        steps[1:] = rising[1:] > rising[:-1] * (1 + _SAME)
        return order[np.lexsort((rows[order], steps.cumsum()))]

    def _ranks(self, active: Whole) -> Whole:
        ranks = np.full(len(self._levels), len(self._levels))
        ranks[active[self._order(active)]] = np.arange(len(active))
        return ranks

    def _guess(self, rows: Whole) -> int:
        """Return which link of a path is its bottleneck, judged by the present levels."""
        levels = self._levels[rows]
        if np.isfinite(levels).any():
            return int(levels.argmin())
        crossing = self._flows[rows].sum(axis=1) + 1
        return int((self._capacities[rows] / crossing).argmin())

    def _share_out(self, row: int, rates: Array) -> None:
        """Make an overfull link the bottleneck of those whose rate is above its fair share.

        rates: of all paths, as they overfill it.
        """
        crossing = (self._paths == row).any(axis=0).nonzero()[0]
        crossing = crossing[rates[crossing].argsort(kind="stable")[::-1]]
        falling, counts = rates[crossing], self._counts[crossing]
        others = np.cumsum((falling * counts)[::-1])[::-1] - falling * counts  # of the slower ones
        shares = (self._capacities[row] - others) / np.cumsum(counts)
        above = int((shares < falling).nonzero()[0].max(initial=0)) + 1
        self._enter(crossing[:above], np.full(above, row))

    def _enter(self, paths: Whole, rows: Whole) -> None:
        """Change the bottlenecks of some paths."""
        crossed, counts = self._paths[:, paths], self._counts[paths]
        for changed in (self._bottlenecks[paths], rows):
            self._lowest_changed = min(self._lowest_changed, self._levels[changed].min())
        np.add.at(self._flows, (crossed, self._bottlenecks[paths]), -counts)
        np.add.at(self._flows, (crossed, rows), counts)
        self._bottlenecks[paths] = rows

    def _fill_up(self) -> None:
        """Find the levels and bottlenecks anew, link by link."""
        paths, free = self._paths, self._capacities.copy()
        self._levels.fill(np.inf)
        self._flows.fill(0.0)
        left = self._counts > 0
        while left.any():
            crossed, counts = paths[:, left], self._counts[left]
            load = np.bincount(crossed.ravel(), np.tile(counts, len(paths)), len(free))
            load[0] = 0.0
            share = np.divide(free, load, out=np.full(len(free), np.inf), where=load > 0.5)
            row = int(share.argmin())
            self._levels[row] = share[row]
            now = left & (paths == row).any(axis=0)
            self._bottlenecks[now] = row
            taken = np.tile(self._counts[now], len(paths))
            crossing = np.bincount(paths[:, now].ravel(), taken, len(free))
            self._flows[:, row] = crossing
            free[1:] -= crossing[1:] * share[row]
            left &= ~now

    def _row(self, link: int) -> int:
        """Return the row of a link, a new one for one that nobody crossed yet."""
        row = self._rows.get(link)
        if row is None:
            row = self._rows[link] = len(self._rows) + 1
            if row >= len(self._capacities):
                self._add_rows(2 * row)
            self._capacities[row] = self._of_links[link]
        return row

    def _add_rows(self, size: int) -> None:
        more = size - len(self._capacities)
        self._capacities = np.append(self._capacities, np.full(more, np.inf))
        self._levels = np.append(self._levels, np.full(more, np.inf))
        self._flows = np.pad(self._flows, (0, more))

    def _make_room(self, number: int, hops: int) -> None:
        width = max(number + 1, len(self._counts), 2 * len(self._counts) * (number >= len(self._counts)))
        height = max(hops, len(self._paths))
        paths = np.zeros((height, width), dtype=np.intp)
        paths[: len(self._paths), : len(self._counts)] = self._paths
        more = width - len(self._counts)
        self._paths = paths
        self._bottlenecks = np.append(self._bottlenecks, np.zeros(more, dtype=np.intp))
        self._counts = np.append(self._counts, np.zeros(more))
