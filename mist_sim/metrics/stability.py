"""Whether the clients keep up with the arrivals of an open-loop run.

The verdict compares the work that waits when the last request arrives with what chance leaves
there. When arrivals equal capacity, the number of waiting requests is a random walk above zero:
after n arrivals it exceeds z standard deviations, z sqrt(V n), in 2 (1 - Phi(z)) of the runs, and
at lower loads less often. V is the sum of the indices of dispersion of arrivals and completions,
each in units of their number. It is measured in windows longer than a request's time, so that steps
and batches add no noise of their own.
Source: Whitt, Stochastic-Process Limits (2002), chapters 9 and 10: queues in heavy traffic are
    reflected Brownian motions, and V = c_a^2 + c_s^2. Results: docs/background/verdicts.md.

Whether clients keep up shows long before that noise is averaged out, if the number of requests in
the system comes back to its mean: a random walk does not, and one that an overload drives even
less. That is the test of Dickey and Fuller for a unit root.
Source: Fuller, Introduction to Statistical Time Series (1976), table 8.5.2: with a constant and 100
    values, 5 % of the random walks have a statistic below -2.89.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics import stats
from mist_sim.metrics.latency import Array

Stability = Literal["stable", "unstable", "too short to tell", "overloaded at the end"]

AT_END: Stability = "overloaded at the end"
"""Of a load that varies: more and more requests waited from some time on until the last arrival."""

FALSE_ALARM = 2.576
"""Standard deviations that 1 % of the runs exceed that are exactly at the limit: 2 (1 - Phi(z))."""

FILLING = 3.0
"""Request times until clients hold their steady number of requests, but for e^-3 of it."""

_WINDOWS = 20
_FEWEST_WINDOWS = 5  # of which a variance says anything
_MISSED = 1.645  # 5 % of the runs with the overload that is ruled out: 1 - Phi(z) = 0.05
_OVERLOAD_LEAVES = 0.07 / 1.07  # of the arrivals, if these exceed capacity by 7 %
_LOOKS = 100  # at the number of requests in the system, of which it tells whether they return
_RETURNS = -2.89  # their statistic, of 5 % of the random walks
_NARROW = 0.42  # of the standard deviation: a walk at the limit stays below in 0.1 % of the runs


class Stays(NamedTuple):
    """Arrivals of requests at a place and their departures from it, seconds."""

    begin: Array
    end: Array

    def at(self, time: float) -> NDArray[np.bool_]:
        """Return which intervals contain a time; an interval that ends then does not."""
        here: NDArray[np.bool_] = (self.begin <= time) & (self.end > time)
        return here


class Judged(NamedTuple):
    """Whether clients keep up.

    needs: of a run that is too short to tell, requests of one that would rule out an overload of
    7 %, about, and no fewer than twice its own; None: no request finished. in_system: requests in
    the system when clients had filled up, and at the last arrival, where these grew by more than
    chance explains.
    """

    verdict: Stability
    needs: int | None = None
    in_system: tuple[int, int] | None = None


def grows(summary: Mapping[str, Any]) -> bool:
    """Whether more and more requests waited until the last arrival of a run."""
    return bool(summary.get("unstable")) or summary.get("stability") in ("unstable", AT_END)


def stability(in_system: Stays, in_queue: Stays, request_times: Array) -> Stability:
    """Return the verdict of `judged`."""
    return judged(in_system, in_queue, request_times).verdict


def at_once(arrivals: Array) -> bool:
    """Whether requests come at one time: nothing times them closer than a nanosecond."""
    return bool(np.ptp(arrivals) <= 1e-9)


def judged(in_system: Stays, in_queue: Stays, request_times: Array) -> Judged:
    """Tell whether the clients of an open-loop run keep up with the arrivals.

    in_system: of every request, from its arrival to its end. in_queue: of every visit, until the
    client begins with it. request_times: seconds that each finished request took, without waits.

    "unstable": more requests wait at the last arrival than chance leaves at the limit, except in
    1 % of such runs, and clients take longer to begin with them than a request takes. "stable":
    once clients have filled up, the requests in the system grow no more than chance lets them, and
    they are always so few as chance leaves them in 0.1 % of the runs at the limit; or, in as long a
    time as the filling took, they return to their mean as in 5 % of the runs at the limit, or grow
    so little that an overload of 7 % would have shown in 95 % of the runs. "too short to tell":
    neither; more arrivals would tell.
    """
    arrival = in_system.begin
    if not len(request_times) or at_once(arrival):
        return Judged("too short to tell")
    first, last = float(arrival.min()), float(arrival.max())
    mean = float(request_times.mean())
    filled = first + FILLING * mean
    spread = _dispersion(arrival, first, last, _WINDOWS)
    spread += max(relative_variance(request_times), _completions(in_system, filled, last, mean))
    num_filling = len(arrival) * (filled - first) / (last - first)
    needs = num_filling + _arrivals_that_tell(spread, int(in_system.at(last).sum()))
    unknown = Judged("too short to tell", max(ceil(needs), 2 * len(arrival)))
    if len(arrival) < 2 * _WINDOWS:
        return unknown
    waiting = in_queue.at(last)
    if np.count_nonzero(waiting) > FALSE_ALARM * sqrt(spread * len(arrival)):
        begun = stats.percentiles(in_queue.end[waiting], (90,))[0]
        return Judged("unstable") if begun - last >= mean else unknown
    if filled >= last:
        return unknown
    num_filled, num_last = (int(in_system.at(time).sum()) for time in (filled, last))
    num_arrived = int((arrival > filled).sum())
    walk = sqrt(spread * num_arrived)
    growth = num_last - num_filled
    if growth > _MISSED * walk:
        return unknown._replace(in_system=(num_filled, num_last))
    is_long = last - filled > filled - first
    is_stable = (
        (is_long and growth + _MISSED * walk < _OVERLOAD_LEAVES * num_arrived)
        or (is_long and _returns(in_system, filled, last) < _RETURNS)
        or stats.max_inside(*in_system) <= _NARROW * walk
    )
    return Judged("stable") if is_stable else unknown


def most_waiting(arrival: Array, in_queue: Stays, request_times: Array) -> tuple[int, float]:
    """Return the most requests that wait at a time, and how many chance seldom leaves.

    At the limit always at most so many wait in 0.1 % of the runs, so that such clients surely keep
    up. arrival: seconds, in order; more than one. Other parameters: as in `stability`. Arrivals at
    one time tell nothing: then it is -1, which no number of waiting requests is below.
    """
    first, last = float(arrival[0]), float(arrival[-1])
    if first == last:
        return 0, -1.0
    spread = _dispersion(arrival, first, last, _WINDOWS) + relative_variance(request_times)
    here = in_queue.begin <= last
    most = stats.max_inside(in_queue.begin[here], in_queue.end[here])
    return most, _NARROW * sqrt(spread * len(arrival))


def _returns(in_system: Stays, begin: float, end: float) -> float:
    """Return the statistic of Dickey and Fuller of the requests in the system, with a constant.

    The change from one of 100 times to the next, by the number at the first: far below 0 where
    large numbers fall and small ones rise. 0: no number changes by it.
    """
    times = np.linspace(begin, end, _LOOKS + 1)
    come, gone = (np.searchsorted(np.sort(each), times, "right") for each in in_system)
    number = (come - gone).astype(np.float64)
    changes, before = np.diff(number), number[:-1] - number[:-1].mean()
    square = float(before @ before)
    if square == 0:
        return 0.0
    slope = float(before @ changes) / square
    rest = changes - changes.mean() - slope * before
    error = sqrt(float(rest @ rest) / (_LOOKS - 2) / square)
    return slope / error if error > 0 else 0.0


def _arrivals_that_tell(spread: float, number: int) -> float:
    """Return the arrivals n that rule an overload out in 95 % of the runs of clients that keep up.

    The overload leaves a share s of them, chance z sqrt(V n) of theirs, and z sqrt(2 N) where the N
    requests in the system vary as those of a Poisson process: s n = z sqrt(V n) + z sqrt(2 N).
    """
    share, walk, stays = _OVERLOAD_LEAVES, _MISSED * sqrt(spread), _MISSED * sqrt(2 * number)
    return ((walk + sqrt(walk**2 + 4 * share * stays)) / (2 * share)) ** 2


def _completions(in_system: Stays, begin: float, end: float, request_time: float) -> float:
    """Return the dispersion of ends in windows longer than a request's time; 0 for too few."""
    num_windows = _WINDOWS
    if request_time > 0:
        num_windows = int(min(_WINDOWS, (end - begin) / request_time))
    if num_windows < _FEWEST_WINDOWS:
        return 0.0
    return _dispersion(in_system.end, begin, end, num_windows)


def _dispersion(times: Array, begin: float, end: float, num_windows: int) -> float:
    """Return variance over mean of the events in equal windows; 1 for a Poisson process."""
    inside = times[(times >= begin) & (times <= end)]
    window = ((inside - begin) * (num_windows / (end - begin))).astype(np.int64)
    counts = np.bincount(np.minimum(window, num_windows - 1), minlength=num_windows)
    return float(counts.var(ddof=1) / counts.mean()) if len(inside) else 0.0


def relative_variance(values: Array) -> float:
    """Return variance over squared mean; 0 if that is 0. values: >= 0."""
    squared = float(values.mean()) ** 2
    return float(values.var()) / squared if squared > 0 else 0.0
