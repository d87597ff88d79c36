"""Evaluates configurations: what is known without a run, a race for goodput or a rate, figures.

In a race a configuration is run once at the rate that would put it on the front. The run continues
until the verdict is known: hopeless ones end at the first look, after 400 requests, and others
after half as many again each time, so that most of the work goes to those near the best. A
configuration that serves that rate is searched, as in `mist goodput`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.metrics import CostOptions
from mist_sim.metrics.latency import limit_title
from mist_sim.metrics.spending import dollars_an_hour
from mist_sim.scenario.loading import as_data
from mist_sim.search.at_goodput import at_goodput
from mist_sim.search.bracketing import settable
from mist_sim.search.goodput import GoodputOptions, search_goodputs, so_far
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.planning.bounds import Demand, alone, demand_on, engines_of, most
from mist_sim.search.spaces.objectives import Constraints, Objective, Source
from mist_sim.search.spaces.space import Configuration
from mist_sim.search.spaces.space_result import dominates, rate_to_beat
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver
from mist_sim.studies.subjects import run_scenario
from mist_sim.studies.task import Failure, Key, Task
from mist_sim.studies.verdicts.trials import Trial

_ROUNDING = 1e-9
_UNKNOWN = "attains all rates that were tried, up to {:.4g} /s; send more requests to learn more"
_UNDECIDED = Failure(
    "ScenarioError",
    "the goodput is not known, since runs are too short to tell; send more requests",
)
_NO_FIGURE = "has no {}, such as a TPOT of answers of one token; take another objective"


def prepare(
    several: Iterable[Configuration],
    objectives: Sequence[Objective],
    constraints: Constraints,
    goodput: GoodputOptions,
    *,
    judged: bool,
) -> None:
    """Note what is known of configurations without a run; of impossible ones, why they are.

    goodput: how rates are judged. judged: whether they are at all, so that bounds are proved.
    """
    asked = {each.name for each in objectives} | {each.per for each in objectives}
    needs_dollars = "usd_per_hour" in asked or "max_usd_per_hour" in constraints.budgets
    demands: dict[tuple[Any, ...], Demand] = {}  # shared while the workload is the same
    shares: dict[tuple[Any, ...], dict[str, float]] = {}

    def known(built: Built) -> dict[str, float]:
        groups = [group for machine in built.machines if machine for group in machine.groups]
        gpus, dollars = built.num_gpus, nan
        if needs_dollars:
            cost = built.scenario.cost.make() if built.scenario.cost else CostOptions()
            dollars = dollars_an_hour(built.machines, cost)
        return {
            "num_gpus": nan if gpus is None else float(gpus),
            "usd_per_hour": dollars,
            "watts": float(sum(group.gpu.watts * group.num_gpus for group in groups)),
        }

    def prove(each: Configuration, built: Built) -> None:
        """Note a proof: an upper bound of its rate, or that it cannot keep the limits."""
        scenario = built.scenario
        target = goodput.target(scenario)
        lives = scenario.lifecycle is None and scenario.reconfigure is None
        limits = *target.slo.named_limits.items(), target.least_asked
        if (key := (lives, scenario.model, limits)) not in demands:
            demands[key] = demand_on(built, target, built.rates.own, as_is=goodput.as_is)
        demand, engines = demands[key], engines_of(built)
        if engines is None:
            return
        least, numbers = engines
        each.bound = most(least, demand, numbers)
        if (of_one := (least, id(demand))) not in shares:
            shares[of_one] = alone(least, demand)
        missed = [n for n, s in shares[of_one].items() if s < target.least_asked - _ROUNDING]
        if missed:
            each.bound = 0.0
            title = limit_title(missed[0])
            each.broken["slo"] = f"cannot keep {title} even for a request alone"

    for each in several:
        if each.found is None:
            continue
        built = Built(each.found)
        try:
            each.known = known(built)
            each.figures = dict(each.known)
            each.expected_errors = built.expected_errors
            each.assumed_host, each.known_warnings = built.assumed_host, built.warnings
            each.broken = constraints.broken_before(each.known)
            if judged:
                prove(each, built)
        except ScenarioError as error:
            each.failure = Failure.of(error).plain


@dataclass
class Evaluation:
    """Evaluates configurations of a space in a study; they note their outcomes.

    options: how rates are judged and searched. is_race: whether one run may exclude a configuration
        from the front. told: what was evaluated, in its order.
    """

    objectives: Sequence[Objective]
    constraints: Constraints
    options: GoodputOptions
    driver: Driver
    is_race: bool = True
    told: list[Configuration] = field(default_factory=list)
    _rivals: list[Configuration] = field(default_factory=list)
    _lowest_missed: float | None = None
    _names: list[str] = field(default_factory=list)  # of those that are searched now
    _trials: dict[tuple[int, int], list[Trial]] = field(default_factory=dict)

    @property
    def under_way(self) -> str:
        """The present bounds of the goodputs that are searched now; empty if none is."""
        return so_far(self._trials, self._names)

    @property
    def sources(self) -> set[str]:
        """Where the objectives come from."""
        return {each.source for each in self.objectives}

    @property
    def searches(self) -> bool:
        """Whether goodputs are searched."""
        return bool(self.sources & {"rate", "at goodput"})

    @property
    def judges(self) -> bool:
        """Whether rates are judged at all."""
        return self.searches or self.constraints.attainment is not None

    @property
    def races(self) -> bool:
        """Whether one run at a rate is enough: all objectives are goodputs or known."""
        return self.is_race and self.judges and self.sources <= {"rate", "known"}

    def note(self, each: Configuration) -> bool:
        """Note the outcome of one that needs no run; tell whether the evaluation is complete."""
        if each.status != "not tried":
            return True
        if each.failure is None and not each.broken:
            return False
        self.told.append(each)
        if each.failure is not None:
            self._fail(each, each.failure)
        else:
            self._exclude(each, each.broken)
        return True

    def run(self, several: Iterable[Configuration]) -> None:
        """Evaluate some configurations side by side."""
        left = [each for each in several if not self.note(each)]
        self.told += left
        if "at rate" in self.sources or self.constraints.latencies:
            left = self._run_once(left)
        if self.searches:
            left = self._search(self._raced(left) if self.races else left)
            if "at goodput" in self.sources:
                left = self._run_at_goodput(left)
        elif self.judges:
            left = self._judge(left)
        for each in left:
            self._keep(each)

    def value(self, each: Configuration, objective: Objective) -> float:
        """Return an approximate value of an objective for a configuration; NaN: unknown.

        For a stopped configuration, a guess from its run.
        """
        known = each.figures.get(objective.name, nan)
        if objective.source == "rate" and isnan(known):
            return each.guess / objective.scale(each.known)
        return known

    def _keep(self, each: Configuration) -> None:
        """Note that a configuration keeps all limits; one without a figure is not compared."""
        for objective in self.objectives:
            if isnan(each.figures.get(objective.name, nan)):
                self._fail(each, Failure("ScenarioError", _NO_FIGURE.format(objective.name)))
                return
        each.status = "kept"
        self._rivals.append(each)

    def _fail(self, each: Configuration, failure: Failure) -> None:
        each.status, each.failure = "failed", failure.plain
        each.reason = str(failure).splitlines()[0]

    def _exclude(self, each: Configuration, broken: dict[str, str]) -> None:
        each.status, each.broken = "excluded", dict(broken)
        each.reason = "; ".join(broken.values())

    def _run_once(self, several: Sequence[Configuration]) -> list[Configuration]:
        """Run each at its own rate; return those that keep their limits there."""
        by_key: dict[Key, Configuration] = {(e.number, e.name, "at rate"): e for e in several}
        tasks = [
            Task(key, run_scenario, (as_data(each.scenario), each.scenario.seed, None))
            for key, each in by_key.items()
        ]
        for row in self.driver.stream(tasks, keep_errors=True):
            each = by_key[row.key]
            if row.failure is not None:
                self._fail(each, row.failure)
                continue
            each.summary = row.result
            self._take_figures(each, row.result, "at rate")
            if broken := self.constraints.broken_after(row.result):
                self._exclude(each, broken)
        return [each for each in several if each.status == "not tried"]

    def _take_figures(self, each: Configuration, run: Mapping[str, Any], source: Source) -> None:
        """Take down the objectives of a run. run: its summary, or its spending."""
        each.figures.update({o.name: o.of(run) for o in self.objectives if o.source == source})

    def _judge(self, several: Sequence[Configuration]) -> list[Configuration]:
        """Run each at its own rate until it is known whether enough requests are good."""
        left: dict[Configuration, float] = {}
        for each in several:
            is_behind = self.races and any(
                dominates(rival.known, each.known, self.objectives) for rival in self._rivals
            )
            if is_behind:
                each.status = "behind"
                each.reason = "another one, which keeps the limits, is ahead in all objectives"
            else:
                left[each] = each.own_rate
        kept = []
        for each, trial in self._tried(left).items():
            if trial.attained:
                kept.append(each)
                continue
            limit = limit_title(trial.worst_limit)
            share = f"{trial.good if trial.tells else trial.reason} at {trial.rate:.4g} /s"
            verb = "is not known to keep" if trial.attained is None else "misses"
            self._exclude(each, {f"slo, {limit}": f"{verb} {limit}: {share}"})
        return kept

    def _raced(self, several: Sequence[Configuration]) -> list[Configuration]:
        """Return the configurations worth a search."""
        found: list[Configuration] = []
        tried: dict[Configuration, float] = {}
        for each in several:
            rate = rate_to_beat(each.known, self._rivals, self.objectives)
            if each.bound < rate:
                each.status, each.guess = "proved", each.bound
                each.reason = f"serves at most {each.bound:.4g} /s, and needs {rate:.4g} /s"
            elif rate > 0:
                tried[each] = settable(rate * (1 + self.options.tolerance))
            elif self._lowest_missed is not None and not self._rivals:
                tried[each] = self._lowest_missed
            else:
                found.append(each)
        for each, trial in self._tried(tried).items():
            if trial.seems_attained or not trial.tells:
                found.append(each)
                continue
            each.status, each.guess = "stopped", trial.rate * trial.attainment
            verb = "misses" if trial.attained is False else "is not seen to serve"
            each.reason = (
                f"{verb} {trial.rate:.4g} /s, which the front takes: "
                f"{trial.good} after {trial.num_requests:,} requests"
            )
        return found

    def _search(self, several: Sequence[Configuration]) -> list[Configuration]:
        """Search the goodput of each, as `find_goodput` does; return those that have one."""
        builts = [Built(each.scenario) for each in several]
        self._trials.clear()
        self._names[:] = [each.name for each in several]
        goodputs = search_goodputs(
            builts, self.options, self.driver, keep_errors=True, tried=self._trials
        )
        self._trials.clear()
        kept = []
        for each, found in zip(several, goodputs, strict=True):
            if isinstance(found, Failure):
                self._fail(each, found)
            elif self._take(each, found):
                kept.append(each)
        return kept

    def _take(self, each: Configuration, found: Goodput) -> bool:
        """Take down a goodput; tell whether there is one."""
        each.goodput = found
        each.figures["goodput"] = found.rate
        for objective in self.objectives:
            if objective.source == "rate":
                each.figures[objective.name] = found.rate / objective.scale(each.known)
        if not isnan(found.rate):
            return True
        if found.status == "all attained":
            each.guess = max(t.rate for search in found.searches for t in search.trials)
            each.status, each.reason = "undecided", _UNKNOWN.format(each.guess)
            return False
        if found.status == "undecided":
            self._fail(each, _UNDECIDED)
            return False
        lowest = min(trial.rate for search in found.searches for trial in search.trials)
        self._lowest_missed = max(lowest, self._lowest_missed or 0.0)
        limit = limit_title(found.first_limit)
        self._exclude(each, {f"slo, {limit}": f"misses {limit} at {lowest:.4g} /s already"})
        return False

    def _run_at_goodput(self, several: Sequence[Configuration]) -> list[Configuration]:
        """Run each at its goodput, to measure figures there; return those that did not fail."""
        tasks = {}
        for each in several:
            if each.goodput is not None:
                key = each.number, each.name, "at goodput"
                tasks[each] = at_goodput(key, Built(each.scenario), each.goodput)
        found = self._results(tasks)
        for each, spending in found.items():
            self._take_figures(each, spending, "at goodput")
        return [*found]

    def _tried(self, rates: Mapping[Configuration, float]) -> dict[Configuration, Trial]:
        """Run each at a rate until the verdict is known; return those whose run did not fail."""
        tasks = {}
        for each, rate in rates.items():
            built, target = Built(each.scenario), self.options.target(each.scenario)
            key = each.number, each.name, rate
            tasks[each] = self.options.trial(key, built, built.scenario.seed, rate, target)
        found = {each: Trial.of(result) for each, result in self._results(tasks).items()}
        for each, trial in found.items():
            each.trial = trial
        return found

    def _results(self, tasks: Mapping[Configuration, Task]) -> dict[Configuration, Any]:
        """Run a task of each; return the results of those that did not fail."""
        rows = self.driver.finished(tasks)
        for each, row in rows.items():
            if row.failure is not None:
                self._fail(each, row.failure)
        return {each: row.result for each, row in rows.items() if row.failure is None}


def race(
    evaluation: Evaluation, several: Sequence[Configuration], first: int, side_by_side: int
) -> None:
    """Evaluate the first configurations, then the others, so many side by side against the best."""
    evaluation.run(several[:first])
    for begin in range(first, len(several), side_by_side):
        evaluation.run(several[begin : begin + side_by_side])
