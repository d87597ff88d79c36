"""Counts, while a run goes on, which requests keep the limits of the slo."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import numpy as np

from mist_sim.core.request import Request
from mist_sim.core.visit import Failure, Visit
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.records.recorder import WatchedEnds


class SloWatch(WatchedEnds):
    """A recorder that knows how many requests have ended and how many of them kept all limits."""

    def __init__(self, slo: Slo) -> None:
        super().__init__()
        self._slo = slo
        self._num_ended = self._num_kept = 0

    def ended(
        self, request: Request, visits: list[Visit], time: float, failure: Failure | None
    ) -> None:
        """Count whether a user's request kept the limits."""
        if request.parent_id is None:
            self._num_ended += 1
            self._num_kept += failure is None and self._is_kept(request, visits, time)

    def _is_kept(self, request: Request, visits: list[Visit], time: float) -> bool:
        arrival = nan if request.arrival_time is None else request.arrival_time
        num_output_tokens = sum([visit.num_output_tokens for visit in visits])
        seconds, num_gaps = self.decode_time(visits, num_output_tokens, None)
        ttft, e2el = min(self.first_token_at(visits), time) - arrival, time - arrival
        tpot = seconds / num_gaps if num_gaps else nan
        times = [np.array([seconds]) for seconds in (ttft, tpot, e2el)]
        gaps, group = np.array([num_gaps]), np.array([self._slo.group_of(request)])
        return bool(self._slo.kept(times[0], times[1], times[2], gaps, group)[0])

    def reader(self) -> Callable[[], float]:
        """Return a function: the share of requests within the limits since its last call.

        NaN if none has ended.
        """
        seen = [0, 0]

        def share() -> float:
            num_ended, num_kept = self._num_ended - seen[0], self._num_kept - seen[1]
            seen[:] = self._num_ended, self._num_kept
            return num_kept / num_ended if num_ended else nan

        return share
