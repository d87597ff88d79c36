"""One run of a scenario at one rate: does it attain the target?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log
from typing import Any, Self

from mist_sim.core import result_warnings as kinds
from mist_sim.core.request import Request
from mist_sim.core.result_warnings import ResultWarning, of_data
from mist_sim.core.visit import Failure, Visit
from mist_sim.metrics import WatchedEnds
from mist_sim.metrics.run_warnings import record_warnings, run_warnings
from mist_sim.scenario import build
from mist_sim.search.verdicts.request_times import RequestTimes, Target, none_counts
from mist_sim.search.verdicts.steady_runs import lengthened, run_until_known
from mist_sim.search.verdicts.steady_state import OF_QUEUES
from mist_sim.simulation import Simulation
from mist_sim.simulation_rules import too_small_warnings
from mist_sim.studies.subjects import one_run

_LOOKS = 50  # at the misses, in a run
# `Trial.stability` says the first three, and what is known before a run the last
_SAID = (kinds.UNSTABLE, kinds.OVERLOADED_AT_END, kinds.TOO_SHORT, kinds.DISTANCE)


def _share(num_missed: int, num_requests: int) -> float:
    return (num_requests - num_missed) / num_requests


class _MissedError(Exception):
    """More requests have missed than may; num_missed: how many are not good by now."""

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
                    # more than may miss a percentile are no fewer good ones
                    own = self._target.num_missed(times) if share.on_top else missed
                    raise _MissedError(own)


@dataclass(frozen=True)
class Trial:
    """Figures of a run at one rate.

    rate: requests per second. attained: None if the longest run was undecided. attainment: share of
        good requests, as the target counts them; an upper bound if a run of the workload as it
        stands ended early because it could no longer attain. is_whole: it did not end early.
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


def run_workload(
    simulation: Simulation, target: Target, num_requests: int, rate: float, seed: int
) -> Trial:
    """Run until the end, or until the target is missed for certain; as `try_rate`."""
    warmup = simulation.warmup
    recorder = _Judge(target, warmup, num_requests)

    def shown() -> tuple[ResultWarning, ...]:
        small = too_small_warnings(recorder, simulation.clients)
        return (*small, *record_warnings(recorder, warmup))

    def trial(attained: bool, share: float, worst: tuple[str | None, float], **more: Any) -> Trial:
        more |= {"num_requests": num_requests, "worst_limit": worst[0], "over": worst[1]}
        return Trial(rate, seed, attained, share, **more)

    try:
        result = simulation.run(recorder=recorder)
    except _MissedError as missed:
        worst = target.furthest(RequestTimes.of(recorder, warmup))
        share = _share(missed.num_missed, num_requests)
        return trial(False, share, worst, is_whole=False, warnings=shown())
    times = RequestTimes.of(recorder, warmup)
    if not len(times):
        raise none_counts(warmup, rate)
    rows = target.misses(times)
    gaps = target.gaps_over(recorder, warmup)
    worst = target.furthest(times, gaps)
    least = min(_share(missed, num) if num else 0.0 for missed, num, s in rows if not s.on_top)
    attained = gaps[0] <= 1 and all(
        each.num_requests
        and each.num_missed <= target.most_missed(each.num_requests, each.share.asked)
        for each in rows
    )
    if not attained:
        return trial(False, least, worst, is_whole=True, warnings=shown())
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
