"""A configuration of a space: its settings, what is known without a run, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any, Literal

from mist_sim.core.result_warnings import ResultWarning, of_data
from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.verdicts.trials import Trial
from mist_sim.studies.rates import Rates
from mist_sim.studies.task import Failure

Status = Literal[
    "front", "kept", "undecided", "stopped", "proved", "behind", "excluded", "failed", "not tried"
]
"""front: no other is ahead of it. kept: keeps all constraints, and another one is ahead. undecided:
it attains every rate that was tried, so that it may be ahead of all. stopped: one run showed that
it is not on the front. proved: a bound did. behind: it was not run, since another one that
is ahead in all objectives keeps the limits. excluded: it breaks a constraint. failed: it cannot be,
or a run of it failed. not tried: the method did not come to it."""


@dataclass(eq=False)
class Configuration:
    """A combination of values. number: its place in the space, from 0. values: by key.

    found: its scenario; None if impossible. kind: of its design; "": none.
    known: figures that need no run: "num_gpus", "usd_per_hour", "watts"; NaN if unknown.
    bound: a proved upper bound of its rate (requests per second); infinite: no bound.
    expected_errors, assumed_host: as in `Goodput`. known_warnings: of all results of its runs.
    figures: of the objectives, and others that came by. goodput: where it was searched. trial: the
    run that told without a search. broken: constraints that it breaks, each with the reason.
    failure: why it is impossible, or a run failed. reason: a sentence for the status. guess:
        approximate rate (requests per second), for methods that learn; NaN: unknown.
    """

    number: int
    name: str
    values: Mapping[str, Any]
    found: Scenario | None = None
    kind: str = ""
    place: float = 0.0
    failure: Failure | None = None
    known: dict[str, float] = field(default_factory=dict)
    bound: float = inf
    expected_errors: Mapping[str, Any] = field(default_factory=dict)
    assumed_host: Mapping[str, Any] = field(default_factory=dict)
    known_warnings: tuple[ResultWarning, ...] = ()
    status: Status = "not tried"
    figures: dict[str, float] = field(default_factory=dict)
    goodput: Goodput | None = None
    trial: Trial | None = None
    summary: Mapping[str, Any] | None = None
    broken: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    guess: float = nan

    @property
    def scenario(self) -> Scenario:
        """Its scenario. Raises ScenarioError where it cannot be."""
        if self.found is None:
            raise ScenarioError(f"{self.name} cannot be: {self.failure}")
        return self.found

    @property
    def own_rate(self) -> float:
        """Requests per second of the scenario as it stands."""
        return Rates(self.scenario).own

    @property
    def trials(self) -> list[Trial]:
        """All runs at a rate, in order of the rates."""
        found = [self.trial] if self.trial is not None else []
        if self.goodput is not None:
            found += [trial for search in self.goodput.searches for trial in search.trials]
        return sorted(found, key=lambda trial: trial.rate)

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of its run at its own rate, and of its search; without one, of its trial."""
        found = of_data(self.summary) if self.summary is not None else ()
        if self.goodput is not None:
            return (*found, *self.goodput.warnings)
        return (*found, *(self.trial.warnings if self.trial is not None else ()))

    @property
    def num_runs(self) -> int:
        """How many runs were made of it."""
        return len(self.trials) + (self.summary is not None)

    @property
    def num_requests(self) -> int:
        """Requests that its runs looked at."""
        ended = self.summary or {"completed": 0, "failed": 0}
        own = int(ended["completed"]) + int(ended["failed"])
        return own + sum(trial.num_requests for trial in self.trials)

    @property
    def is_fit(self) -> bool:
        """Whether it keeps all constraints in its runs so far, and has all figures."""
        return self.status in ("front", "kept")
