"""More about a candidate: its figures, its goodput, and a run with one client less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.metrics.expected_errors import expected_ranges, is_far
from mist_sim.metrics.latency import limit_of, metric_of
from mist_sim.metrics.requests.by_group import OTHERS
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.at_goodput import at_goodput, summary_at
from mist_sim.search.goodput import GoodputOptions, search_goodputs
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.planning.hunt import Tried
from mist_sim.search.planning.plan_result import Confidence
from mist_sim.search.planning.question import Question
from mist_sim.search.planning.space import Candidate, scenario_of
from mist_sim.search.verdicts.trials import Trial
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver
from mist_sim.studies.task import Row, Task
from mist_sim.units import DURATION

_LONG_RUN = 3000  # requests of a run with reported figures, so that its ramp counts for little
_TOLERANCE = 0.05  # of the goodput, by which headroom is told
_GOODPUT_RUN = 10_000  # requests of the longest run of that search


@dataclass(frozen=True)
class Refining:
    """Runs of single scenarios. is_steady: whether the workload may be longer than it stands."""

    question: Question
    driver: Driver
    is_steady: bool

    def figures(self, cases: Mapping[str, Scenario]) -> dict[str, dict[str, Any]]:
        """Return the summaries of runs by name; limits are of the share that has to be good.

        Dollars and joules a token are of the rate that is asked for, without ramp and end.
        """
        tasks = []
        target = self.question.target
        shares = {share.group or 0: 100 * share.asked for share in target.shares.values()}
        percentiles: dict[str, Any] = {"slo.percentiles": [100 * target.attainment]}
        if target.slo.itl is not None:  # of gaps, no share of requests: it keeps its percentiles
            at = {name: DURATION.format(limit) for name, limit in target.slo.figures.items()}
            percentiles |= {"slo.itl": None, "slo.at": at}
        for place, name in enumerate(target.slo.classes, start=1):
            percentiles[f"slo.classes.{name}.percentiles"] = [shares[place]]
        for name, scenario in cases.items():
            changes: dict[str, Any] = dict(percentiles)
            if self.is_steady:
                number = max(self.question.num_requests, _LONG_RUN)
                changes["workload.lengths.num_requests"] = number
            data = as_data(Scenario.from_dict(as_data(scenario), changes))
            tasks.append(
                Task((name, "figures"), summary_at, (data, scenario.seed, self.question.rate))
            )
        rows = self.driver.run(tasks, keep_errors=True)
        return {str(row.key[0]): _asked(row.result) for row in rows if row.failure is None}

    def goodput(self, scenario: Scenario) -> Goodput:
        """Return the goodput of a scenario, near enough for its headroom."""
        options = self.question.options
        most = max(_GOODPUT_RUN, self.question.target.least_requests)
        how = GoodputOptions(
            attainment=options.attainment,
            tolerance=_TOLERANCE,
            most_requests=options.most_requests and min(options.most_requests, most),
            usual_requests=_GOODPUT_RUN,
            as_is=options.as_is,
        )
        (found,) = search_goodputs([Built(scenario)], how, self.driver)
        if isinstance(found, Row):
            raise ScenarioError(str(found.failure))
        return found

    def at_goodput(self, scenario: Scenario, goodput: Goodput) -> dict[str, Any] | None:
        """Return the spending of a run at the goodput (`spending_at`); None without goodput."""
        if isnan(goodput.rate):
            return None
        task = at_goodput(("at goodput", "figures"), Built(scenario), goodput)
        (row,) = self.driver.run([task], keep_errors=True)
        return row.result if row.failure is None else None

    def one_less(
        self, fewer: Mapping[str, Candidate | None], tried: Mapping[Candidate, Tried]
    ) -> dict[str, dict[str, Any]]:
        """Return the effect of losing one engine of a candidate, by kind of engine.

        fewer: `Candidate.without_one`. tried: the runs of these.
        `good`: the share of good requests in a run until the verdict is known, 0 if no engine is
        left. `attains`: whether that is enough; only an estimate if `undecided`. `slo`: as
        in a summary.
        """
        trials: dict[str, Trial] = {}
        cases: dict[str, Scenario] = {}
        found: dict[str, dict[str, Any]] = {}
        for name, left in fewer.items():
            trial = tried[left].trial if left is not None else None
            if left is None or trial is None:
                found[name] = {"good": 0.0, "slo": {}, "nobody": True, "attains": False}
            else:
                trials[name], cases[name] = trial, scenario_of(left, self.question)
        for name, summary in self.figures(cases).items():
            trial = trials[name]
            good = trial.attainment if trial.is_steady else nan
            found[name] = {
                "good": summary["good_request_fraction"] if isnan(good) else good,
                "slo": summary["slo"],
                "nobody": False,
                "unstable": bool(summary["unstable"]),
                "attains": trial.seems_attained,
                "undecided": trial.attained is None or bool(doubt_of(trial)),
            }
        return found


def doubt_of(trial: Trial) -> str:
    """Return why limits kept in a run of the workload as it stands may not last; "" if they do."""
    if trial.stability == "too short to tell":
        return (
            "Too short to tell whether the engines keep up with the arrivals: the workload has too "
            "few requests, or they take too large a part of it. More requests would tell."
        )
    if trial.stability == "unstable":
        return "Unstable: more work arrives than the engines can do; a longer workload would wait."
    return ""


def _asked(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary without the limits that no request has, since all are of classes."""
    classes = summary.get("classes")
    if not classes or OTHERS in classes:
        return summary
    slo = {name: each for name, each in summary["slo"].items() if "." in limit_of(name)[0]}
    return {**summary, "slo": slo}


def confidence_of(summary: Mapping[str, Any], *, kept: bool = True) -> Confidence:
    """Return how certain the verdict on the limits is, given the error of the step times.

    summary: of a run with `slo`. Ranges are those of means, as in `verdict_of`.
    """
    ranges = expected_ranges(summary)
    limits = summary.get("slo", {})
    if not limits or any(ranges.get(metric_of(name)) is None for name in limits):
        return "unsure"
    verdicts = {found["verdict"] for found in limits.values()}
    if not kept:
        return "sure" if "miss" in verdicts and not is_far(summary) else "likely"
    if "miss" in verdicts:
        return "unsure"
    return "likely" if "within error" in verdicts or is_far(summary) else "sure"
