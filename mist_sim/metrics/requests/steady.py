"""The steady part of a run: neither its ramp nor its end, in which no requests come any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mist_sim.metrics.requests.window_rates import Mask
from mist_sim.metrics.stability import FILLING

_RAMP = 0.2  # of the time in which requests arrive, at least
_MOST = 0.5  # of that time, at most


class SteadyPart(NamedTuple):
    """A time of a run, seconds. is_whole: there is no steady part, so it is all measured time."""

    begin: float
    end: float
    is_whole: bool

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


def steady_part(c: Mapping[str, Any], of_users: Mask, warmup: float, duration: float) -> SteadyPart:
    """Return the steady part of a run.

    It begins after a fifth of the time in which requests arrive, or when clients have filled up (3
    request times, waits apart), but at half of it at the latest, and not in the warm-up. It ends
    with the last arrival. Where that is shorter than a request, or all arrive at once, there is no
    steady part.

    c: columns of requests. of_users: which of these users sent. duration: seconds of the measured
    time, after the warm-up.
    """
    whole = SteadyPart(warmup, warmup + duration, is_whole=True)
    arrival = c["arrival_time"][of_users]
    if not len(arrival):
        return whole
    first, last = float(arrival.min()), float(arrival.max())
    done = of_users & (c["status"] == 0)
    time = 0.0
    if done.any():
        took = c["finished_at"][done] - c["sent_at"][done]
        time = float((took - c["queued"][done] - c["front_end"][done]).mean())
    ramp = min(max(_RAMP * (last - first), FILLING * time), _MOST * (last - first))
    begin = max(warmup, first + ramp)
    return whole if last - begin <= time else SteadyPart(begin, last, is_whole=False)
