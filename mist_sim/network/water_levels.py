"""Max-min fair rates kept from change to change, for many paths.

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

from collections.abc import Sequence

import numpy as np

from mist_sim.network.fair_shares import Array, Path, Whole, fill_up_many

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
        """Share all links from scratch, and note their levels."""
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
