"""Equal intervals of a run, and counts, means and percentiles in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_INTERVALS = 120
_REQUESTS_AN_INTERVAL = 20  # at least, on average, for percentiles by arrival


def edges(end: float, number: int = MOST_INTERVALS) -> Array:
    """Return where equal intervals begin, and where the last one ends, in seconds."""
    return np.linspace(0.0, end if end > 0 else 1.0, max(number, 1) + 1)


def middles(ends: Array) -> Array:
    """Return the middle of each interval."""
    return (ends[:-1] + ends[1:]) / 2


def edges_for(arrivals: Array) -> Array:
    """Return intervals in which some tens of requests arrive on average."""
    number = min(MOST_INTERVALS // 2, len(arrivals) // _REQUESTS_AN_INTERVAL)
    return edges(float(arrivals.max(initial=0.0)) * (1 + 1e-9), max(number, 1))


def rates(times: Array, ends: Array) -> Array:
    """Return the events per second in each interval."""
    counts, _ = np.histogram(times[~np.isnan(times)], ends)
    return counts / np.diff(ends)


def percentiles(times: Array, values: Array, ends: Array, asked: float) -> Array:
    """Return a percentile of the values whose times fall into each interval; NaN without any."""
    found = np.full(len(ends) - 1, np.nan)
    for place, mine in _groups(times, values, ends):
        found[place] = np.percentile(mine, asked)
    return found


def shares(times: Array, is_true: NDArray[np.bool_], ends: Array) -> Array:
    """Return the share of true values in each interval; NaN for an empty one."""
    found = np.full(len(ends) - 1, np.nan)
    for place, mine in _groups(times, is_true.astype(float), ends):
        found[place] = mine.mean()
    return found


def _groups(times: Array, values: Array, ends: Array) -> Any:
    """Yield (interval, its values), without unknown values."""
    known = ~np.isnan(values) & ~np.isnan(times)
    places = np.clip(np.searchsorted(ends, times[known], side="right") - 1, 0, len(ends) - 2)
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[known][order]
    first = np.flatnonzero(np.diff(places, prepend=-1))
    yield from zip(places[first], np.split(values, first[1:]), strict=True) if len(first) else ()


def means(start: Array, end: Array, values: Array, ends: Array) -> Array:
    """Return the mean over time of a value that holds in periods, and is 0 outside of them.

    start, end: of the periods, which may overlap: their values add up.
    """
    found = _areas(start, values, ends) - _areas(end, values, ends)
    return np.diff(found) / np.diff(ends)


def _areas(times: Array, values: Array, ends: Array) -> Array:
    """Return up to each edge the time since `times`, each weighted with its value."""
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    number = np.searchsorted(times, ends, side="right")
    weights = np.concatenate([[0.0], np.cumsum(values)])
    moments = np.concatenate([[0.0], np.cumsum(values * times)])
    return np.asarray(weights[number] * ends - moments[number])


def number_inside(entered: Array, left: Array, ends: Array) -> Array:
    """Return the mean number inside in each interval; items without an end stay."""
    left = np.where(np.isnan(left), ends[-1], left)
    known = ~np.isnan(entered)
    return means(entered[known], left[known], np.ones(int(known.sum())), ends)
