"""One run of a scenario at one rate: does it attain the target?

A run in steady state goes on until that is known. A workload that is a certain one, such as a
trace, runs as it stands, to its end or until the target is missed for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import exp, inf, isfinite, log
from typing import Any, Generic, Self, TypeVar

import numpy as np

from mist_sim.core import result_warnings as kinds
from mist_sim.core.recorder import End, Recorder
from mist_sim.core.request import Request
from mist_sim.core.result_warnings import ResultWarning, of_data
from mist_sim.metrics import Result
from mist_sim.metrics.clients import timed_gaps
from mist_sim.metrics.run_warnings import record_warnings, run_warnings
from mist_sim.metrics.stability import Stays
from mist_sim.metrics.summary import joined_at
from mist_sim.scenario import build
from mist_sim.simulation import Simulation
from mist_sim.simulation_rules import too_small_warnings
from mist_sim.studies.subjects import one_run
from mist_sim.studies.verdicts.request_times import (
    RequestTimes,
    Share,
    Target,
    counted,
    none_counts,
)
from mist_sim.studies.verdicts.steady_state import (
    ERROR,
    OF_QUEUES,
    Look,
    OfClass,
    Seen,
    SeenGaps,
    look,
    looks,
)
from mist_sim.traces import AllAtOnce, ArrivalProcess, ClosedLoop, Workload
from mist_sim.traces.base import RowSampler

_LOOKS = 50  # at the misses, in a run
# `Trial.stability` says the first three, and what is known before a run the last
_SAID = (kinds.UNSTABLE, kinds.OVERLOADED_AT_END, kinds.TOO_SHORT, kinds.DISTANCE)
_SPARE = 2  # requests that may arrive for each that is looked at: the last look still sees arrivals

_T = TypeVar("_T")


class _ToldError(Exception):
    """Ends a run that was watched."""


class Watch(Recorder, Generic[_T]):
    """Records a run, and ends it as soon as a look at it tells something.

    tells: called with each request that ends. found: what it told; None: the run came to its end.
    """

    def __init__(self, tells: Callable[[Request], _T | None]) -> None:
        super().__init__()
        self._tells = tells
        self.found: _T | None = None

    def run(self, simulation: Simulation) -> Result | None:
        """Run a simulation; return its result, or None if it was ended."""
        try:
            return simulation.run(recorder=self)
        except _ToldError:
            return None

    def record_end(self, end: End) -> None:
        """Note the end of a request, and end the run where it tells."""
        super().record_end(end)
        self.found = self._tells(end.request)
        if self.found is not None:
            raise _ToldError


@dataclass(frozen=True)
class Trial:
    """Figures of a run at one rate.

    rate: requests per second, or the users of a closed loop (an int). attained: None if the longest
        run was undecided. attainment: share of good requests, as the target counts them; an upper
        bound if a run of the workload as it stands ended early because it could no longer attain.
        is_whole: it did not end early.
    stability: whether the clients kept up (`metrics.stability.Stability`), known of runs of the
    workload as it stands that attained.
    num_requests: requests looked at. is_steady: in steady state; else the workload as it stands.
    margins, lasts: of a run in steady state, as a look has them (`steady_state.Look`). reason: why
    nothing is known. needs: requests that would tell, about; of a run that is too short to tell its
    stability, of that. worst_limit: whose quantile is furthest above
    it, or nearest to it: "ttft", "tpot" or "e2el". over: that quantile over its limit; None where
    the run does not tell. warnings: those that the run led to.
    """

    rate: float
    seed: int
    attained: bool | None
    attainment: float
    is_whole: bool
    stability: str | None = None
    num_requests: int = 0
    is_steady: bool = False
    margins: tuple[float, float] | None = None
    reason: str = ""
    needs: int | None = None
    worst_limit: str | None = None
    over: float | None = None
    lasts: bool = False
    warnings: tuple[ResultWarning, ...] = ()

    @property
    def verdict(self) -> str:
        """Return "attained", "missed" or "undecided"."""
        return {True: "attained", False: "missed", None: "undecided"}[self.attained]

    @property
    def tells(self) -> bool:
        """Whether the run says anything of the rate."""
        if self.attained is None:
            return self.margins is not None and isfinite(sum(self.margins))
        return True

    @property
    def good(self) -> str:
        """The share of good requests in words, such as "at most 92.5 % good" of a stopped run."""
        return f"{'' if self.is_whole else 'at most '}{100 * self.attainment:.1f} % good"

    @property
    def is_too_short(self) -> bool:
        """Whether the run is too short to tell: only more requests help, no lower rate."""
        return not self.tells and self.needs is not None

    @property
    def seems_attained(self) -> bool:
        """Whether the run seems to attain the target; False if too short to tell (`tells`)."""
        if self.attained is None:
            return self.margins is not None and self.tells and sum(self.margins) <= 0
        return self.attained

    @property
    def keeps_in_overload(self) -> bool:
        """Whether the limits seem kept, though more may arrive than the clients do."""
        return self.seems_attained and self.reason in OF_QUEUES

    @property
    def margin(self) -> float | None:
        """The logarithm of the worst limit's quantile over it: negative if kept; None: unknown."""
        if self.margins is not None:
            return sum(self.margins) / 2 if self.tells else None
        if not self.over or not isfinite(self.over):
            return None
        return log(self.over if self.is_whole else max(self.over, 1.0))

    @property
    def figures(self) -> dict[str, Any]:
        """Everything but the warnings."""
        return {name: value for name, value in vars(self).items() if name != "warnings"}

    def data(self) -> dict[str, Any]:
        """Return the trial as plain data, from which `of` restores it."""
        return self.figures | {"warnings": [each.data for each in self.warnings]}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the trial that plain data says."""
        return cls(**{**data, "warnings": of_data(data)})


def told(trials: Iterable[Trial]) -> dict[float, bool]:
    """Return whether rates are attained, as far as their runs tell.

    A run that is too short to tell counts as missed above a missed rate; else it is left out.
    """
    known = {trial.rate: trial.seems_attained for trial in trials if trial.tells}
    missed = min((rate for rate, attained in known.items() if not attained), default=inf)
    return known | {
        trial.rate: False for trial in trials if trial.rate > missed and not trial.tells
    }


def trial_data(*arguments: Any) -> dict[str, Any]:
    """Do `try_rate`, as a task of a study; return the trial as plain data."""
    return try_rate(*arguments).data()


def try_rate(
    data: dict[str, Any],
    changes: dict[str, Any],
    seed: int,
    rate: float,
    target: Target,
    num_requests: int,
    most: int | None = None,
    pause: int | None = None,
) -> Trial:
    """Run a scenario until it is known whether it attains the target.

    data: the scenario as plain mappings. changes: overrides that make its rate `rate`.
    num_requests: of the workload as it stands, which is judged where it is a certain one, such as a
    trace. most: requests of the longest run in steady state, where the workload may be longer;
    None: it stays as it stands. pause: as in `run_until_known`.
    Raises ScenarioError where no request counts.
    """
    simulation = build(one_run(data, seed, changes))
    longer = None if most is None else lengthened(simulation, target, most)
    if most is not None and longer is not None:
        simulation.workload = longer
        seen, worst, warnings = run_until_known(simulation, target, most, rate, pause)
        figures = vars(seen) | {"worst_limit": worst, "warnings": warnings}
        trial = Trial(rate, seed, **figures, is_whole=True, is_steady=True)
        return trial if trial.margin is None else replace(trial, over=exp(trial.margin))
    return run_workload(simulation, target, num_requests, rate, seed)


def lengthened(
    simulation: Simulation, target: Target, most: int, spare: int = _SPARE
) -> Workload | None:
    """Return the workload with as many requests as a run of `most` may need; its first ones stay.

    spare: requests that may arrive for each of these.
    None where that is no question: of a trace or other fixed rows, of users who go through
    sessions, of requests that arrive at given times or all at once, of clients that fail, start or
    change at given times, and where every single request has to be good.
    """
    workload: Any = simulation.workload
    is_drawn = isinstance(workload.source, RowSampler) and hasattr(workload.source, "num_requests")
    arrivals = workload.arrivals
    is_loop = isinstance(arrivals, ClosedLoop) and not arrivals.sessions
    is_stream = is_loop or isinstance(arrivals, ArrivalProcess)
    changes = simulation.lifecycle is not None or simulation.reconfigure is not None
    if not is_drawn or not is_stream or changes or target.most_asked == 1:
        return None
    if isinstance(workload.arrivals, AllAtOnce):
        return None
    source = replace(workload.source, num_requests=most * spare)
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
    warmup, whole, arrivals = simulation.warmup, looks(most), simulation.workload.arrivals
    users = arrivals.concurrency if isinstance(arrivals, ClosedLoop) else None
    numbers = iter([n for n in whole if pause is None or n <= max(pause, whole[0])])
    num_ended, next_look = 0, next(numbers)

    def so_far() -> Look:
        seen = _seen(recorder, target, warmup)._replace(users=users)
        return look(seen, target.most_asked, ERROR / len(whole))

    def tells(request: Request) -> Look | None:
        nonlocal num_ended, next_look
        if request.parent_id is not None or (request.arrival_time or 0.0) < warmup:
            return None
        num_ended += 1
        if num_ended != next_look:
            return None
        found, next_look = so_far(), next(numbers, 0)
        return found if found.attained is not None or not next_look else None

    recorder = Watch(tells)
    recorder.run(simulation)
    if not num_ended:
        raise none_counts(warmup, rate)
    found = recorder.found or so_far()
    warnings = (*_warnings(recorder, simulation), *target.pooled(recorder, warmup))
    gaps = target.gaps_over(recorder, warmup)
    return found, target.worst_limit(RequestTimes.of(recorder, warmup), gaps), warnings


def _warnings(recorder: Recorder, simulation: Simulation) -> tuple[ResultWarning, ...]:
    """Return the warnings of a run that may have ended early."""
    small = too_small_warnings(recorder, simulation.clients)
    return (*small, *record_warnings(recorder, simulation.warmup))


def _seen(recorder: Recorder, target: Target, warmup: float) -> Seen:
    """Return what a look at a run sees."""
    c = counted(recorder.requests.columns(), warmup)
    times = RequestTimes.of(recorder, warmup)
    of_users = recorder.visits.columns()["request_id"] >= 0
    visits = {name: column[of_users] for name, column in recorder.visits.columns().items()}
    started, left = visits["started_at"], visits["finished_at"]
    waits = joined_at(visits, c) if c["at_gateway"].any() else visits["queued_at"]
    first = int(c["request_id"][0]) if len(times) else 0
    shares = [share for share, _ in target.shares_in(times).values()]

    def of_class(share: Share) -> OfClass | None:
        if share.on_top:
            return OfClass(None, share.asked)
        if share.group is None:
            return None
        return OfClass(np.array(recorder.groups)[first:] == share.group, share.asked)

    gaps = []
    for each in target.percentiles:
        if each.is_of_gaps:
            timed, limit = timed_gaps(recorder, warmup), each.limit * (1 + target.relaxation)
            gaps.append(SeenGaps(timed.ends, timed.gaps / limit, timed.counts, each.share))
    return Seen(
        c["request_id"] - first,
        np.array([share.ratios(times) for share in shares]),
        Stays(c["arrival_time"], c["finished_at"]),
        c["finished_at"] - c["sent_at"] - c["queued"],
        np.nan_to_num(c["queued"], nan=np.inf),
        Stays(waits, np.where(np.isnan(started), left, started)),
        [of_class(share) for share in shares],
        gaps,
    )


def run_workload(
    simulation: Simulation, target: Target, num_requests: int, rate: float, seed: int
) -> Trial:
    """Run until the end, or until the target is missed for certain; as `try_rate`.

    Requests outside the statistics only lower the number that may miss, so more misses than the
    whole workload may have are always too many; the same holds for a class.
    """
    warmup, every, ended = simulation.warmup, max(20, num_requests // _LOOKS), count(1)

    def too_many(_: Request) -> int | None:
        """Return how many are not good by now, if those are too many."""
        if next(ended) % every:
            return None
        times = RequestTimes.of(recorder, warmup)
        for each in target.misses(times):
            if each.num_missed > target.most_missed(num_requests, each.share.asked):
                # more than may miss a percentile are no fewer good ones
                return target.num_missed(times) if each.share.on_top else each.num_missed
        return None

    def trial(attained: bool, share: float, worst: tuple[str | None, float], **more: Any) -> Trial:
        more |= {"num_requests": num_requests, "worst_limit": worst[0], "over": worst[1]}
        return Trial(rate, seed, attained, share, **more)

    recorder = Watch(too_many)
    result = recorder.run(simulation)
    times = RequestTimes.of(recorder, warmup)
    if result is None:
        share = (num_requests - (recorder.found or 0)) / num_requests
        shown = _warnings(recorder, simulation)
        return trial(False, share, target.furthest(times), is_whole=False, warnings=shown)
    if not len(times):
        raise none_counts(warmup, rate)
    rows = target.misses(times)
    gaps = target.gaps_over(recorder, warmup)
    worst = target.furthest(times, gaps)
    least = min((num - missed) / num if num else 0.0 for missed, num, s in rows if not s.on_top)
    attained = gaps[0] <= 1 and all(
        each.num_requests
        and each.num_missed <= target.most_missed(each.num_requests, each.share.asked)
        for each in rows
    )
    if not attained:
        shown = _warnings(recorder, simulation)
        return trial(False, least, worst, is_whole=True, warnings=shown)
    told = tuple(
        each for each in run_warnings(result.data, recorder, warmup) if each.kind not in _SAID
    )
    told += target.pooled(recorder, warmup)
    told += tuple(each for each in result.known_warnings if each.kind is kinds.NEVER_CAME)
    stable = {
        "stability": result.data.get("stability"),
        "needs": result.data.get("stability_needs"),
    }
    return trial(True, least, worst, is_whole=True, **stable, warnings=told)
