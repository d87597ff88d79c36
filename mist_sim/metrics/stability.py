"""Whether the clients keep up with the arrivals of an open-loop run.

The verdict compares the work that waits when the last request arrives with what chance leaves
there. When arrivals equal capacity, the number of waiting requests is a random walk above zero:
after n arrivals it exceeds z standard deviations, z sqrt(V n), in 2 (1 - Phi(z)) of the runs, and
at lower loads less often. V is the sum of the indices of dispersion of arrivals and completions,
each in units of their number. It is measured in windows longer than a request's time, so that steps
and batches add no noise of their own.
Source: Whitt, Stochastic-Process Limits (2002), chapters 9 and 10: queues in heavy traffic are
    reflected Brownian motions, and V = c_a^2 + c_s^2. Results: docs/background/stability.md.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics import stats
from mist_sim.metrics.latency import Array

Stability = Literal["stable", "unstable", "too short to tell"]

FALSE_ALARM = 2.576
"""Standard deviations that 1 % of the runs exceed that are exactly at the limit: 2 (1 - Phi(z))."""

FILLING = 3.0
"""Request times until clients hold their steady number of requests, but for e^-3 of it."""

_WINDOWS = 20
_FEWEST_WINDOWS = 5  # of which a variance says anything
_MISSED = 1.645  # 5 % of the runs with an overload of 20 % or more: 1 - Phi(z) = 0.05
_OVERLOAD_LEAVES = 1 / 6  # of the arrivals, if these exceed capacity by 20 %
_NARROW = 0.42  # of the standard deviation: a walk at the limit stays below in 0.1 % of the runs


class Stays(NamedTuple):
    """Arrivals of requests at a place and their departures from it, seconds."""

    begin: Array
    end: Array

    def at(self, time: float) -> NDArray[np.bool_]:
        """Return which intervals contain a time; an interval that ends then does not."""
        here: NDArray[np.bool_] = (self.begin <= time) & (self.end > time)
        return here


def stability(in_system: Stays, in_queue: Stays, request_times: Array) -> Stability:
    """Tell whether the clients of an open-loop run keep up with the arrivals.

    in_system: of every request, from its arrival to its end. in_queue: of every visit, until the
    client begins with it. request_times: seconds that each finished request took, without waits.

    "unstable": more requests wait at the last arrival than chance leaves at the limit, except in
    1 % of such runs, and clients take longer to begin with them than a request takes. "stable":
    once clients have filled up, the requests in the system grow no more than chance lets them, and
    either so little that an overload of 20 % would have shown in 95 % of the runs, or they are
    always so few as chance leaves them in 0.1 % of the runs at the limit. "too short to tell":
    neither; more arrivals would tell.
    """
    arrival = in_system.begin
    if len(arrival) < 2 * _WINDOWS or not len(request_times) or arrival.min() == arrival.max():
        return "too short to tell"
    first, last = float(arrival.min()), float(arrival.max())
    mean = float(request_times.mean())
    filled = first + FILLING * mean
    spread = _dispersion(arrival, first, last, _WINDOWS)
    spread += max(relative_variance(request_times), _completions(in_system, filled, last, mean))
    waiting = in_queue.at(last)
    if np.count_nonzero(waiting) > FALSE_ALARM * sqrt(spread * len(arrival)):
        begun = stats.percentiles(in_queue.end[waiting], (90,))[0]
        return "unstable" if begun - last >= mean else "too short to tell"
    is_settled = filled < last and _has_settled(in_system, filled, last, spread)
    return "stable" if is_settled else "too short to tell"


def surely_keeps_up(arrival: Array, in_queue: Stays, request_times: Array) -> bool:
    """Tell whether always so few wait as chance leaves in 0.1 % of the runs at the limit.

    arrival: seconds, in order; more than one. Other parameters: as in `stability`.
    """
    first, last = float(arrival[0]), float(arrival[-1])
    if first == last:
        return False
    spread = _dispersion(arrival, first, last, _WINDOWS) + relative_variance(request_times)
    here = in_queue.begin <= last
    most = stats.max_inside(in_queue.begin[here], in_queue.end[here])
    return most <= _NARROW * sqrt(spread * len(arrival))


def _has_settled(in_system: Stays, filled: float, last: float, spread: float) -> bool:
    """Tell whether the requests in the system stay as many, and an overload would have shown."""
    num_filled, num_last = (int(in_system.at(time).sum()) for time in (filled, last))
    growth = num_last - num_filled
    num_arrived = int((in_system.begin > filled).sum())
    walk = sqrt(spread * num_arrived)
    if growth > _MISSED * walk:
        return False
    if growth + _MISSED * walk < _OVERLOAD_LEAVES * num_arrived:
        return True
    return stats.max_inside(*in_system) <= _NARROW * walk


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
    """Return variance over squared mean; 0 if the mean is 0."""
    mean = float(values.mean())
    return float(values.var()) / mean**2 if mean > 0 else 0.0
