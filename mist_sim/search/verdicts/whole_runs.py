"""A run of a workload as it stands, to its end, or until it has missed a target for certain."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.core import result_warnings as kinds
from mist_sim.core.request import Request
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.core.visit import Failure, Visit
from mist_sim.metrics import WatchedEnds
from mist_sim.metrics.run_warnings import record_warnings, run_warnings
from mist_sim.search.verdicts.request_times import RequestTimes, Target, none_counts
from mist_sim.simulation import Simulation
from mist_sim.simulation_rules import too_small_warnings

_LOOKS = 50  # at the misses, in a run


class WholeRun(NamedTuple):
    """Figures of a run; as in `Trial`."""

    attained: bool
    attainment: float
    is_whole: bool
    stability: str | None
    worst_limit: tuple[str | None, float]
    warnings: tuple[ResultWarning, ...]


def run_workload(
    simulation: Simulation, target: Target, num_requests: int, rate: float
) -> WholeRun:
    """Run until the end, or until the target is missed for certain.

    num_requests: of the workload. rate: requests per second, for messages.
    Raises ScenarioError where no request counts.
    """
    warmup = simulation.warmup
    recorder = _Judge(target, warmup, num_requests)
    try:
        result = simulation.run(recorder=recorder)
    except _MissedError as missed:
        worst = target.furthest(RequestTimes.of(recorder, warmup))
        shown = (
            *too_small_warnings(recorder, simulation.clients),
            *record_warnings(recorder, warmup),
        )
        return WholeRun(False, _share(missed.num_missed, num_requests), False, None, worst, shown)
    times = RequestTimes.of(recorder, warmup)
    if not len(times):
        raise none_counts(warmup, rate)
    rows = target.misses(times)
    attained = all(
        each.num_requests
        and each.num_missed <= target.most_missed(each.num_requests, each.share.asked)
        for each in rows
    )
    gaps = target.gaps_over(recorder, warmup)
    attained, worst = attained and gaps[0] <= 1, target.furthest(times, gaps)
    stability, shown = (
        None,
        (*too_small_warnings(recorder, simulation.clients), *record_warnings(recorder, warmup)),
    )
    if attained:
        stability = result.data.get("stability")
        shown = tuple(
            each
            for each in run_warnings(result.data, recorder, warmup)
            # `stability` says the first two, and what is known before a run the last
            if each.kind not in (kinds.UNSTABLE, kinds.TOO_SHORT, kinds.DISTANCE)
        )
        shown += tuple(each for each in result.known_warnings if each.kind is kinds.NEVER_CAME)
    least = min(_share(missed, num) if num else 0.0 for missed, num, s in rows if not s.on_top)
    return WholeRun(attained, least, True, stability, worst, shown)


def _share(num_missed: int, num_requests: int) -> float:
    return (num_requests - num_missed) / num_requests


class _MissedError(Exception):
    """More requests have missed than may; num_missed: how many by now."""

    def __init__(self, num_missed: int) -> None:
        super().__init__(num_missed)
        self.num_missed = num_missed


class _Judge(WatchedEnds):
    """Records, and ends the run as soon as too many requests have missed.

    Requests outside the statistics only lower the number that may miss, so more misses than the
    whole workload may have are always too many; the same holds for a class.
    """

    def __init__(self, target: Target, warmup: float, num_requests: int) -> None:
        super().__init__()
        self._target = target
        self._warmup = warmup
        self._num_requests = num_requests
        self._every = max(20, num_requests // _LOOKS)
        self._num_ended = 0

    def ended(
        self, request: Request, visits: list[Visit], time: float, failure: Failure | None
    ) -> None:
        """Look at the misses now and then. Raises _MissedError."""
        self._num_ended += 1
        if self._num_ended % self._every == 0:
            times = RequestTimes.of(self, self._warmup)
            for missed, _, share in self._target.misses(times):
                if missed > self._target.most_missed(self._num_requests, share.asked):
                    raise _MissedError(missed)
