"""One run of a scenario at one rate: does it attain the target?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite, log
from typing import Any, Self

from mist_sim.core.result_warnings import ResultWarning, of_data
from mist_sim.scenario import Scenario, build
from mist_sim.search.verdicts.request_times import Target
from mist_sim.search.verdicts.steady_runs import lengthened, run_until_known
from mist_sim.search.verdicts.whole_runs import run_workload


@dataclass(frozen=True)
class Trial:
    """Figures of a run at one rate.

    rate: requests per second. attained: None if the longest run was undecided. attainment: share of
        good requests, as the target counts them; an upper bound if a run of the workload as it
        stands ended early because it could no longer attain. is_whole: it did not end early.
    stability: whether the clients kept up ("stable", "unstable", "too short to tell"), known of
    runs of the workload as it stands that attained.
    num_requests: requests looked at. is_steady: in steady state; else the workload as it stands.
    margins: of a run in steady state, as a look has them (`steady_state.Look`). reason: why nothing
    is known. needs: requests that would tell, about. worst_limit: whose quantile is furthest above
    it, or nearest to it: "ttft", "tpot" or "e2el". over: that quantile over its limit, of the
    workload as it stands. warnings: those that the run led to.
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
    simulation = build(Scenario.from_dict(data, {**changes, "seed": seed, "replications": 1}))
    longer = None if most is None else lengthened(simulation, target, most)
    if most is not None and longer is not None:
        simulation.workload = longer
        seen, worst, warnings = run_until_known(simulation, target, most, rate, pause)
        return Trial(
            rate,
            seed,
            seen.attained,
            seen.attainment,
            is_whole=True,
            num_requests=seen.num_requests,
            is_steady=True,
            margins=seen.margins,
            reason=seen.reason,
            needs=seen.needs,
            worst_limit=worst,
            warnings=warnings,
        )
    found = run_workload(simulation, target, num_requests, rate)
    return Trial(
        rate,
        seed,
        found.attained,
        found.attainment,
        found.is_whole,
        found.stability,
        num_requests,
        worst_limit=found.worst_limit[0],
        over=found.worst_limit[1],
        warnings=found.warnings,
    )
