"""Max-min fair rates of flows that share links.

Under max-min fairness raising one flow's rate would lower that of a flow with no higher rate: links
fill up one after the other, and flows across a full link keep their rate (Bertsekas and Gallager,
Data Networks, 2nd ed., §6.5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
