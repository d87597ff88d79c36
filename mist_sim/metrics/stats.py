"""Statistics of samples, plain and weighted, and of queues over time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.latency import Array

PERCENTILES = (50, 90, 95, 99)


def describe(values: Array) -> dict[str, float]:
    """Return mean, median, std and the percentiles of a sample; NaN when it is empty."""
    if not len(values):
        names = ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES))
        return dict.fromkeys(names, float("nan"))
    quantiles = np.percentile(values, PERCENTILES)
    return {
        "mean": float(np.mean(values)),
        "median": float(quantiles[0]),
        "std": float(np.std(values)),
        **{f"p{p}": float(q) for p, q in zip(PERCENTILES, quantiles, strict=True)},
    }


def describe_weighted(values: Array, counts: NDArray[np.integer]) -> dict[str, float]:
    """Return what `describe` returns for `np.repeat(values, counts)`, without repeating.

    values: not negative. counts: how often each value occurs.
    """
    groups = _sorted_groups(values, counts)
    total = sum(count * len(group) for count, group in groups)
    if not total:
        return describe(np.empty(0))
    mean = sum(count * float(group.sum()) for count, group in groups) / total
    squares = sum(count * float(np.square(group - mean).sum()) for count, group in groups)
    ranks = np.array(PERCENTILES) / 100 * (total - 1)
    below = np.floor(ranks)
    above = np.minimum(below + 1, total - 1)
    found = _order_statistics(groups, np.concatenate((below, above)))
    low, high = found[: len(ranks)], found[len(ranks) :]
    quantiles = low + (ranks - below) * (high - low)  # linear interpolation, as numpy's
    return {
        "mean": mean,
        "median": float(quantiles[0]),
        "std": (squares / total) ** 0.5,
        **{f"p{p}": float(q) for p, q in zip(PERCENTILES, quantiles, strict=True)},
    }


Groups = list[tuple[int, Array]]


def _sorted_groups(values: Array, counts: NDArray[np.integer]) -> Groups:
    """Return (count, sorted values) for each count above 0.

    To sort the values of each count is several times faster than to sort all positions.
    """
    small = counts.astype(np.uint16) if not len(counts) or counts.max() < 2**16 else counts
    grouped = values[np.argsort(small, kind="stable")]  # 16-bit integers: radix sort
    groups = []
    end = 0
    for count, size in enumerate(np.bincount(small)):
        begin, end = end, end + int(size)
        if count and size:
            groups.append((count, np.sort(grouped[begin:end])))
    return groups


def _order_statistics(groups: Groups, ranks: Array) -> Array:
    """Return the values at ranks (from 0) of all groups together, each value counted, exactly.

    Bisects all ranks at once over the bit patterns of floats, whose order is that of the
    numbers as long as none is negative.
    """
    low = np.full(len(ranks), min(group[0] for _, group in groups)).view(np.int64)
    high = np.full(len(ranks), max(group[-1] for _, group in groups)).view(np.int64)
    while (low < high).any():
        middle = low + (high - low) // 2
        numbers = middle.view(np.float64)
        num_up_to = sum(count * group.searchsorted(numbers, side="right") for count, group in groups)
        enough = num_up_to > ranks
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle + 1)
    return low.view(np.float64)


def count_over_time(times: Array, entered: Array, left: Array) -> NDArray[np.int64]:
    """Return how many are inside at each time, given when each entered and left."""
    inside = np.searchsorted(np.sort(entered), times, side="right")
    return np.asarray(inside - np.searchsorted(np.sort(left), times, side="right"))


def max_inside(entered: Array, left: Array) -> int:
    """Return the largest number inside at once; who leaves at a time makes room at that time."""
    if not len(entered):
        return 0
    return int(count_over_time(np.sort(entered), entered, left).max())


_WINDOWS = 10
_RISING = 0.8  # rank correlation that 10 exchangeable windows exceed with p = 0.004
_GROWTH = 1.5  # linear growth from an empty queue gives 1.86


def queue_grows(arrival: Array, started: Array, num_clients: int) -> bool:
    """Tell whether an open-loop run's queue grows over the last half of its arrivals.

    arrival, started: when each request entered a queue and left it for its first work, seconds
    (NaN: never). The last half of the arrival period is cut into 10 windows. The queue grows
    when its mean length rises from window to window (Spearman's rank correlation above 0.8, by
    chance 0.4 % of the time for windows without a trend), grows by half from the first two
    windows to the last two, and ends above one waiting request per client: short of that, no
    user would call it a backlog. On M/M/1 queues of 2,000 requests this calls 2 % of those at
    load 0.8 unstable and 83 % of those at 1.2; of 10,000 requests, under 1 % and over 99 %.
    """
    if len(arrival) < 2 * _WINDOWS:
        return False
    first, last = float(np.min(arrival)), float(np.max(arrival))
    edges = np.linspace((first + last) / 2, last, _WINDOWS + 1)
    if edges[0] == edges[-1]:
        return False
    left = np.where(np.isnan(started), np.inf, started)
    waiting = np.array([_mean_inside(arrival, left, a, b) for a, b in pairwise(edges)])
    ranks = np.argsort(np.argsort(waiting, kind="stable"), kind="stable")
    rising = np.corrcoef(ranks, np.arange(_WINDOWS))[0, 1]
    start, end = waiting[:2].mean(), waiting[-2:].mean()
    return bool(rising > _RISING and end >= _GROWTH * start and end > num_clients)


def _mean_inside(entered: Array, left: Array, begin: float, end: float) -> float:
    """Return the mean number inside during a period, exactly."""
    stay = np.minimum(left, end) - np.maximum(entered, begin)
    return float(np.maximum(stay, 0.0).sum() / (end - begin))
