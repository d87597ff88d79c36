"""Configurations before any run: known figures, and reasons to exclude them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.metrics import CostOptions
from mist_sim.metrics.latency import limit_title
from mist_sim.metrics.spending import dollars_an_hour
from mist_sim.scenario.loading import as_data
from mist_sim.search.at_goodput import at_goodput
from mist_sim.search.goodput import GoodputOptions, search_goodputs, so_far
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.planning.demand import Demand, demand_on
from mist_sim.search.planning.hunt import engines_of
from mist_sim.search.planning.upper_bounds import alone, most
from mist_sim.search.spaces.configuration import Configuration
from mist_sim.search.spaces.constraints import Constraints
from mist_sim.search.spaces.objectives import Objective
from mist_sim.search.verdicts.request_times import Target
from mist_sim.search.verdicts.trials import Trial
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver
from mist_sim.studies.rates import Rates
from mist_sim.studies.subjects import run_scenario
from mist_sim.studies.task import Failure, Key, Task

_ROUNDING = 1e-9


class Preparation:
    """Builds configurations, and computes their known figures.

    objectives, constraints: decide whether prices are needed. goodput: how rates are judged.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        constraints: Constraints,
        goodput: GoodputOptions,
        *,
        judged: bool,
    ) -> None:
        asked = {each.name for each in objectives} | {each.per for each in objectives}
        self._objectives = objectives
        self._constraints = constraints
        self._goodput = goodput
        self._judged = judged
        self._needs_dollars = "usd_per_hour" in asked or "max_usd_per_hour" in constraints.budgets
        self._demands: dict[tuple[Any, ...], Demand] = {}
        self._shares: dict[tuple[Any, ...], dict[str, float]] = {}

    def all(self, configurations: Sequence[Configuration]) -> Sequence[Configuration]:
        """Note the facts of all that need no run; return them."""
        for each in configurations:
            if each.found is not None:
                self._prepare(each, Built(each.scenario))
        return configurations

    def _prepare(self, found: Configuration, built: Built) -> None:
        """Note the facts of one; if it is impossible, why."""
        try:
            found.known = self._known(built)
            found.figures = dict(found.known)
            found.expected_errors = built.expected_errors
            found.assumed_host, found.known_warnings = built.assumed_host, built.warnings
            found.broken = self._constraints.broken_before(found.known)
            if self._judged:
                self._prove(found, built)
        except ScenarioError as error:
            found.failure = Failure.of(error).plain

    def _known(self, built: Built) -> dict[str, float]:
        machines = [client.traits.machine for client in built.simulation.clients]
        groups = [group for machine in machines if machine for group in machine.groups]
        gpus = built.num_gpus
        dollars = nan
        if self._needs_dollars:
            options = built.scenario.cost.make() if built.scenario.cost else CostOptions()
            dollars = dollars_an_hour(machines, options)
        return {
            "num_gpus": nan if gpus is None else float(gpus),
            "usd_per_hour": dollars,
            "watts": float(sum(group.gpu.watts * group.num_gpus for group in groups)),
        }

    def _prove(self, found: Configuration, built: Built) -> None:
        """Note a proof: an upper bound of its rate, or that it cannot keep the limits."""
        target = self._goodput.target(built.scenario)
        demand = self._demand(built, target)
        engines = engines_of(built)
        if engines is None:
            return
        least, numbers = engines
        found.bound = most(least, demand, numbers)
        key = least, id(demand)
        if key not in self._shares:
            self._shares[key] = alone(least, demand)
        missed = [
            limit_title(name)
            for name, share in self._shares[key].items()
            if share < target.least_asked - _ROUNDING
        ]
        if missed:
            found.bound = 0.0
            found.broken["slo"] = f"cannot keep {missed[0]} even for a request alone"

    def _demand(self, built: Built, target: Target) -> Demand:
        """Return the demand of the workload, shared while the workload is the same."""
        scenario = built.scenario
        lives = scenario.lifecycle is None and scenario.reconfigure is None
        key = lives, scenario.model, target_key(target)
        if key not in self._demands:
            rate = Rates(scenario, built).own
            self._demands[key] = demand_on(built, target, rate, as_is=self._goodput.as_is)
        return self._demands[key]


def target_key(target: Target) -> tuple[object, ...]:
    """Return a key of the target."""
    return *target.slo.named_limits.items(), target.least_asked


Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Runs:
    """Runs of a study.

    options: how rates are judged and searched. tried: of the goodputs that are searched now, the
    trials so far, by position in `names` and seed.
    """

    options: GoodputOptions
    driver: Driver
    names: list[str] = field(default_factory=list)
    tried: dict[tuple[int, int], list[Trial]] = field(default_factory=dict)

    @property
    def so_far(self) -> str:
        """The present bounds of the goodputs that are searched; empty if nothing is."""
        return so_far(self.tried, self.names)

    def at_own_rate(
        self, several: Sequence[Configuration]
    ) -> Iterator[tuple[Configuration, Summary | Failure]]:
        """Yield each with the summary of a run of it as it stands, as the runs finish."""
        by_key: dict[Key, Configuration] = {(*_key(each), "at rate"): each for each in several}
        tasks = [
            Task(key, run_scenario, (as_data(each.scenario), each.scenario.seed, None))
            for key, each in by_key.items()
        ]
        for row in self.driver.stream(tasks, keep_errors=True):
            yield by_key[row.key], row.failure or row.result

    def at_goodput(
        self, several: Sequence[tuple[Configuration, Goodput]]
    ) -> list[Summary | Failure]:
        """Return the spending of a run of each at its goodput."""
        tasks = [
            at_goodput((*_key(each), "at goodput"), Built(each.scenario), goodput)
            for each, goodput in several
        ]
        return self._results(tasks)

    def trials(self, several: Sequence[tuple[Configuration, float]]) -> list[Trial | Failure]:
        """Run each at a rate (requests per second) until the verdict is known."""
        tasks = []
        for each, rate in several:
            built = Built(each.scenario)
            rates, target = Rates(each.scenario, built), self.options.target(each.scenario)
            tasks.append(
                self.options.trial(
                    (*_key(each), rate), built, rates, each.scenario.seed, rate, target
                )
            )
        found = self._results(tasks)
        return [each if isinstance(each, Failure) else Trial.of(each) for each in found]

    def goodputs(self, several: Sequence[Configuration]) -> list[Goodput | Failure]:
        """Search the goodput of each, as `find_goodput` does."""
        builts = [Built(each.scenario) for each in several]
        self.tried.clear()
        self.names[:] = [each.name for each in several]
        found = search_goodputs(
            builts, self.options, self.driver, keep_errors=True, tried=self.tried
        )
        self.tried.clear()
        return found

    def _results(self, tasks: Sequence[Task]) -> list[Any]:
        rows = self.driver.run(tasks, keep_errors=True)
        return [row.failure or row.result for row in rows]


def _key(each: Configuration) -> tuple[int, str]:
    return each.number, each.name
