"""A run that goes on until it is known whether a scenario attains a target in steady state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mist_sim.core.request import Request
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.core.visit import Failure, Visit
from mist_sim.metrics import WatchedEnds
from mist_sim.metrics.clients import timed_gaps
from mist_sim.metrics.keeping import LimitOnShare
from mist_sim.metrics.run_warnings import record_warnings
from mist_sim.metrics.stability import Stays
from mist_sim.metrics.summary import joined_at
from mist_sim.search.verdicts.request_times import (
    RequestTimes,
    Share,
    Target,
    none_counts,
)
from mist_sim.search.verdicts.steady_state import ERROR, Look, OfClass, Seen, SeenGaps, look, looks
from mist_sim.simulation import Simulation
from mist_sim.simulation_rules import too_small_warnings
from mist_sim.traces import AllAtOnce, ArrivalProcess, Workload
from mist_sim.traces.base import RowSampler

_SPARE = 2  # requests that may arrive for each that is looked at: the last look still sees arrivals


def lengthened(simulation: Simulation, target: Target, most: int) -> Workload | None:
    """Return the workload with as many requests as a run of `most` may need; its first ones stay.

    None where that is no question: of a trace or other fixed rows, of requests that arrive at given
    times or all at once, of clients that fail, start or change at given times, and where every
    single request has to be good.
    """
    workload: Any = simulation.workload
    is_drawn = isinstance(workload.source, RowSampler) and hasattr(workload.source, "num_requests")
    is_stream = isinstance(workload.arrivals, ArrivalProcess)
    changes = simulation.lifecycle is not None or simulation.reconfigure is not None
    if not is_drawn or not is_stream or changes or target.most_asked == 1:
        return None
    if isinstance(workload.arrivals, AllAtOnce):
        return None
    source = replace(workload.source, num_requests=most * _SPARE)
    longer: Workload = replace(workload, source=source)
    return longer


def run_until_known(
    simulation: Simulation, target: Target, most: int, rate: float, pause: int | None = None
) -> tuple[Look, str | None, tuple[ResultWarning, ...]]:
    """Run until a look at the run tells, or `most` requests have ended.

    Returns the last look, the limit that is worst, as in `Target.worst_limit`, and the warnings
    that need no whole run (`record_warnings`, `Target.pooled`).
    rate: requests per second, for messages. pause: end undecided after so many requests. A verdict
    before that is the one that the whole run would have. None: go on.
    Raises ScenarioError where no request counts.
    """
    recorder = _Watching(target, simulation.warmup, most, pause)
    try:
        simulation.run(recorder=recorder)
        if not recorder.num_ended:
            raise none_counts(simulation.warmup, rate)
        found = recorder.look()
    except _KnownError as known:
        found = known.look
    warnings = (
        *too_small_warnings(recorder, simulation.clients),
        *record_warnings(recorder, simulation.warmup),
        *target.pooled(recorder, simulation.warmup),
    )
    return found, recorder.worst_limit(), warnings


class _KnownError(Exception):
    """Ends a run that can tell no more. look: the last one at it."""

    def __init__(self, found: Look) -> None:
        super().__init__(found)
        self.look = found


class _Watching(WatchedEnds):
    """Records, looks at the run now and then, and ends it as soon as the verdict is known."""

    def __init__(self, target: Target, warmup: float, most: int, pause: int | None) -> None:
        super().__init__()
        self._target = target
        self._warmup = warmup
        whole = looks(most)
        self._error = ERROR / len(whole)
        self.num_ended = 0
        self._next = iter([n for n in whole if pause is None or n <= max(pause, whole[0])])
        self._look_at = next(self._next)

    def ended(
        self, request: Request, visits: list[Visit], time: float, failure: Failure | None
    ) -> None:
        """Look at the run now and then. Raises _KnownError."""
        if request.parent_id is not None or (request.arrival_time or 0.0) < self._warmup:
            return
        self.num_ended += 1
        if self.num_ended == self._look_at:
            found = self.look()
            self._look_at = next(self._next, 0)
            if found.attained is not None or not self._look_at:
                raise _KnownError(found)

    def look(self) -> Look:
        """Return the run's results so far."""
        return look(self._seen(), self._target.most_asked, self._error)

    def worst_limit(self) -> str | None:
        """Return the limit that is worst so far."""
        gaps = self._target.gaps_over(self, self._warmup)
        return self._target.worst_limit(RequestTimes.of(self, self._warmup), gaps)

    def _seen(self) -> Seen:
        c: Mapping[str, Any] = self.requests.columns()
        rows = np.flatnonzero(
            (c["parent_id"] == c["request_id"]) & (c["arrival_time"] >= self._warmup)
        )
        rows = rows[np.argsort(c["request_id"][rows])]
        c = {name: column[rows] for name, column in c.items()}
        times = RequestTimes.of(self, self._warmup)
        of_users = self.visits.columns()["request_id"] >= 0
        visits = {name: column[of_users] for name, column in self.visits.columns().items()}
        started, left = visits["started_at"], visits["finished_at"]
        waits = visits["queued_at"]
        if c["at_gateway"].any():
            waits = joined_at(visits, c)
        first = int(c["request_id"][0]) if len(rows) else 0
        shares = [share for share, _ in self._target.shares_in(times).values()]
        return Seen(
            c["request_id"] - first,
            np.array([share.ratios(times) for share in shares]),
            Stays(c["arrival_time"], c["finished_at"]),
            c["finished_at"] - c["sent_at"] - c["queued"],
            np.nan_to_num(c["queued"], nan=np.inf),
            Stays(waits, np.where(np.isnan(started), left, started)),
            [self._of_class(share, first) for share in shares],
            [self._gaps(each) for each in self._target.percentiles if each.is_of_gaps],
        )

    def _gaps(self, each: LimitOnShare) -> SeenGaps:
        found = timed_gaps(self, self._warmup)
        limit = each.limit * (1 + self._target.relaxation)
        return SeenGaps(found.ends, found.gaps / limit, found.counts, each.share)

    def _of_class(self, share: Share, first: int) -> OfClass | None:
        """Return which requests from the first one on a share is of; None: all of them."""
        if share.on_top:
            return OfClass(None, share.asked)
        if share.group is None:
            return None
        return OfClass(np.array(self.groups)[first:] == share.group, share.asked)
