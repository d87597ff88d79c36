"""Statistics of samples, plain and weighted, and of queues over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import nan
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.latency import Array

PERCENTILES = (50, 90, 95, 99)


class Milliseconds(TypedDict):
    """Figures of latencies, as `milliseconds` returns them."""

    mean: float
    p50: float
    p90: float
    p99: float


def known(values: Array) -> Array:
    """Return the values that are not NaN."""
    return values[~np.isnan(values)]


def describe(values: Array) -> dict[str, float]:
    """Return mean, median, std and the percentiles of a sample; NaN when it is empty."""
    if not len(values):
        names = ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES))
        return dict.fromkeys(names, float("nan"))
    quantiles = percentiles(values, PERCENTILES)
    return {
        "mean": float(np.mean(values)),
        "median": quantiles[0],
        "std": float(np.std(values)),
        **{f"p{p}": q for p, q in zip(PERCENTILES, quantiles, strict=True)},
    }


def milliseconds(
    seconds: Array, figures: Sequence[str] = ("mean", "p50", "p90", "p99")
) -> dict[str, float]:
    """Return some of the figures that `describe` has, times 1,000."""
    found = describe(seconds)
    return {name: found[name] * 1e3 for name in figures}


def percentiles(values: Array, asked: Sequence[float]) -> list[float]:
    """Return `np.percentile`, to the bit, without importing the modules that it needs.

    values: one at least.
    """
    last = len(values) - 1
    ranks = [percentile / 100 * last for percentile in asked]
    places = [min(int(rank) + more, last) for rank in ranks for more in (0, 1)]
    ordered = np.partition(values, [*places, last])
    if np.isnan(ordered[last]):
        return [float("nan")] * len(ranks)
    found = ordered[places].tolist()
    return [
        _between(low, high, rank - int(rank))
        for low, high, rank in zip(found[::2], found[1::2], ranks, strict=True)
    ]


def _between(low: float, high: float, share: float) -> float:
    """Return the linear interpolation between two values, rounded as numpy does."""
    if share < 0.5:
        return low + (high - low) * share
    return high - (high - low) * (1 - share)


class Weighted(NamedTuple):
    """Values, not negative, and how often each occurs.

    cuts: where parts begin that are summed apart, and where the last one ends; None: one part.
    """

    values: Array
    counts: NDArray[np.integer]
    cuts: Sequence[int] | None = None


# Values are put into bins by the leading bits of their float pattern: 4,096 a factor of two.
_SHIFT = 40
_FIRST_BIN = np.float64(1e-9).view(np.int64) >> _SHIFT


def describe_weighted(
    parts: Callable[[], Iterable[Weighted]], percentiles: Sequence[float] = PERCENTILES
) -> dict[str, float]:
    """Return exactly what `describe` returns for all values, each repeated by its count.

    percentiles: the first is the median. parts: called twice and read one part at a time, so that
    only one is in memory.
    """
    counts_by_bin: Array = np.zeros(1)
    total, weighted_sum = 0, 0.0
    for values, counts, cuts in parts():
        counts_by_bin = accumulate_bins(counts_by_bin, _bins(values), counts)
        total += int(counts.sum())
        weighted_sum = _add_weighted(weighted_sum, values, counts, cuts)
    if not total:
        return {"mean": nan, "median": nan, "std": nan, **{f"p{p:g}": nan for p in percentiles}}
    mean = weighted_sum / total
    ranks = np.array(percentiles) / 100 * (total - 1)
    below = np.floor(ranks)
    wanted = np.concatenate((below, np.minimum(below + 1, total - 1)))
    up_to = np.cumsum(counts_by_bin)
    bins = np.searchsorted(up_to, wanted, side="right")
    is_wanted = np.zeros(len(up_to), dtype=bool)
    is_wanted[bins] = True
    squares, chosen = 0.0, []
    for values, counts, cuts in parts():
        squares = _add_weighted(squares, np.square(values - mean), counts, cuts)
        inside = is_wanted[_bins(values)]
        chosen.append((values[inside], counts[inside]))
    values, counts = (np.concatenate(arrays) for arrays in zip(*chosen, strict=True))
    at_ranks = _order_statistics(values, counts, wanted, bins, up_to)
    low, high = at_ranks[: len(ranks)], at_ranks[len(ranks) :]
    quantiles = low + (ranks - below) * (high - low)  # linear interpolation, as numpy's
    return {
        "mean": mean,
        "median": float(quantiles[0]),
        "std": (squares / total) ** 0.5,
        **{f"p{p:g}": float(q) for p, q in zip(percentiles, quantiles, strict=True)},
    }


def _add_weighted(
    total: float, values: Array, counts: NDArray[np.integer], cuts: Sequence[int] | None
) -> float:
    """Add values that occur so often; unlike `np.dot`, the same on any number of threads.

    Part by part, so that the sum is the same however many parts are put together.
    """
    weighted = values * counts
    for first, last in pairwise(cuts or (0, len(weighted))):
        total += float(weighted[first:last].sum())
    return total


def accumulate_bins(total: Array, bins: NDArray[np.int64], counts: NDArray[np.integer]) -> Array:
    """Return `total` with the counts added in their bins, longer where a bin is new.

    It may be changed in place. Many clients give many short parts, and there are more bins.
    """
    if 0 < 8 * len(bins) < len(total) and bins.max() < len(total):
        np.add.at(total, bins, counts)
        return total
    found: Array = np.bincount(bins, counts, minlength=len(total)).astype(np.float64)
    found[: len(total)] += total
    return found


def _bins(values: Array) -> NDArray[np.int64]:
    """Return the bin of each value; bins are in the order of the values."""
    bits = np.ascontiguousarray(values).view(np.int64) >> _SHIFT
    shifted: NDArray[np.int64] = np.maximum(bits - _FIRST_BIN, 0)
    return shifted


def _order_statistics(
    values: Array,
    counts: NDArray[np.integer],
    ranks: Array,
    bins: NDArray[np.int64],
    up_to: Array,
) -> Array:
    """Return the values at ranks, given all values of the bins that contain them.

    up_to: number of values in each bin and the bins before it.
    """
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    value_bins = _bins(values)
    found = []
    for rank, place in zip(ranks, bins, strict=True):
        mine = value_bins == place
        before = up_to[place - 1] if place else 0.0
        position = np.searchsorted(np.cumsum(counts[mine]), rank - before, side="right")
        found.append(values[mine][position])
    return np.array(found)


def count_over_time(times: Array, entered: Array, left: Array) -> NDArray[np.int64]:
    """Return how many are inside at each time, given when each entered and left."""
    inside = np.searchsorted(np.sort(entered), times, side="right")
    return np.asarray(inside - np.searchsorted(np.sort(left), times, side="right"))


def max_inside(entered: Array, left: Array) -> int:
    """Return the largest number inside at once; departures at an instant come before arrivals."""
    if not len(entered):
        return 0
    return int(count_over_time(np.sort(entered), entered, left).max())


def intervals(begin: float, end: float, number: int) -> Array | None:
    """Return the edges of so many equal intervals; None where floats lie too far apart for them."""
    edges = np.linspace(begin, end, number + 1)
    return edges if (np.diff(edges) > 0).all() else None


def areas(times: Array, edges: Array, values: Array | float = 1.0) -> Array:
    """Return up to each edge the seconds since each time before it, added up.

    values: by which each time is weighted.
    """
    order = np.argsort(times, kind="stable")
    times, values = times[order], np.broadcast_to(values, times.shape)[order]
    number = np.searchsorted(times, edges, side="right")
    weights, moments = (
        np.concatenate([[0.0], np.cumsum(each)]) for each in (values, values * times)
    )
    return np.asarray(weights[number] * edges - moments[number])


def share(part: float, whole: float) -> float:
    """Return part / whole, NaN if the whole is 0."""
    return float(part / whole) if whole else float("nan")
