"""Overloads of clients in an open-loop run, even if the queue drained in the end.

`stability` looks only at the last arrival. An earlier burst leaves no trace there: requests wait
for minutes, the queue drains, and the run is stable. This module looks at requests that wait longer
than a request takes to serve. A backlog lasts while there are any. It is an overload if their
number grows by more than chance allows for that many arrivals when arrivals equal capacity
(`stability`). Growth counts from the number of requests that begin within one service time: a
shorter queue makes no request wait that long.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np

from mist_sim.metrics.latency import Array
from mist_sim.metrics.stability import FALSE_ALARM, Stays, relative_variance

_WINDOWS = 20
_FEWEST = 2 * _WINDOWS  # arrivals of which a variance says anything
_LEAST = 0.01  # of the time in which requests arrive; less is not worth a sentence


class Overload(NamedTuple):
    """A time in which more work arrived than clients could do, and until it was done.

    begin, end: seconds; no later than the last arrival. most_waiting: at a time, of the requests
    that waited longer than a request takes. longest_wait: of these, seconds.
    """

    begin: float
    end: float
    most_waiting: int
    longest_wait: float


def overloads(arrival: Array, in_queue: Stays, request_times: Array) -> list[Overload]:
    """Return the overloads of a run, in order; empty if they last under 1 % of its arrivals.

    arrival: of every request, seconds. in_queue: of every visit, until the client begins with it.
    request_times: seconds that each finished request took, without waits.
    """
    if len(arrival) < _FEWEST or not len(request_times):
        return []
    arrival, mean = np.sort(arrival), float(request_times.mean())
    first, last = float(arrival[0]), float(arrival[-1])
    waits = in_queue.end - in_queue.begin
    is_long = (waits > mean) & (in_queue.begin <= last)
    if not is_long.any():
        return []
    begin, end, waits = in_queue.begin[is_long], in_queue.end[is_long], waits[is_long]
    spread = relative_variance(request_times)
    found = []
    for start, stop in _backlogs(begin, end, mean):
        inside = (begin >= start) & (begin < stop)
        most = _most(begin[inside], end[inside])
        at_hand = mean * inside.sum() / (stop - start)  # that begin while a request takes its time
        if _is_overload(arrival, start, min(stop, last), most - at_hand, spread):
            longest = float(waits[inside].max())
            found.append(Overload(start, min(stop, last), most, longest))
    seconds = sum(each.end - each.begin for each in found)
    return found if seconds >= _LEAST * (last - first) else []


def _backlogs(begin: Array, end: Array, gap: float) -> list[tuple[float, float]]:
    """Return the periods in which requests wait, merged across gaps of at most `gap` seconds."""
    order = np.argsort(begin, kind="stable")
    begin, latest = begin[order], np.maximum.accumulate(end[order])
    cuts = np.flatnonzero(begin[1:] > latest[:-1] + gap) + 1
    starts, stops = begin[np.append(0, cuts)], latest[np.append(cuts, len(latest)) - 1]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _most(begin: Array, end: Array) -> int:
    """Return the largest number waiting at once; departures at an instant come first."""
    times = np.concatenate([end, begin])
    change = np.repeat([-1, 1], [len(end), len(begin)])
    order = np.argsort(times, kind="stable")  # departures come first
    return int(np.cumsum(change[order]).max())


def _is_overload(arrival: Array, start: float, stop: float, growth: float, spread: float) -> bool:
    """Tell whether a queue grew by more than chance lets it in a time, at the limit.

    growth: from waits as long as a request takes on.
    """
    inside = arrival[(arrival >= start) & (arrival <= stop)]
    if len(inside) < _FEWEST or start >= stop:
        return False
    counts, _ = np.histogram(inside, _WINDOWS, (start, stop))
    variance = float(np.mean(np.diff(counts) ** 2)) / 2  # a rate that changes is no noise
    walk = sqrt((variance / float(counts.mean()) + spread) * len(inside))
    return growth > FALSE_ALARM * walk
