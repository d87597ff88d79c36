"""Studies: points, rates and seeds become rows; replications of one scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from mist_sim.errors import ScenarioError, brief, in_words
from mist_sim.metrics.replications import Replications
from mist_sim.report.presenters import REPLICATIONS
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.loading import as_data
from mist_sim.studies.decided_question import plain
from mist_sim.studies.driver import How, studying
from mist_sim.studies.findings import PointRuns, Study
from mist_sim.studies.points import Point, points_of
from mist_sim.studies.subjects import (
    Figures,
    Seeds,
    Subject,
    check_scenarios,
    check_subject,
    subject_at,
    tasks_of,
)
from mist_sim.studies.task import Failure, InTurn, Key, Row, Task
from mist_sim.studies.verdicts.request_times import Target, target_of
from mist_sim.units import plain_number

RATE = "rate"
_NOT_SENT = (
    "the runs were made one after the other, since what makes them cannot be sent to other "
    "processes ({}); a function of a module can"
)


def study(
    subject: Subject,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    rates: Sequence[float] | None = None,
    seeds: Seeds = None,
    figures: Figures | None = None,
    **how: Unpack[How],
) -> Study:
    """Run a subject at all points, rates and seeds; return a row per run.

    subject: a scenario; or a function that returns a new `Simulation` each time. The function is
        called with the varied values by name, and with `seed` if it has such an argument; the
        simulation's random streams always use the seed. vary: values to try for each key, in all
        combinations: dotted paths of a scenario as in `Scenario.load`, or arguments of the
        function. rates: arrival rates of a scenario, requests per second. seeds: a number of seeds,
        drawn from the scenario's own (from 0 for a function), or a list of them; by default the
        scenario's replications.
    figures: returns more figures of a run, from its `Result`. how: see `How`.

    A failed run is a row with its error. Raises ScenarioError for an invalid subject and for the
    journal of another study; if all runs fail, the error of the first.
    """
    plan = plan_study(subject, vary=vary, rates=rates, seeds=seeds, figures=figures)
    return plan.run(**how)


@dataclass(frozen=True)
class Plan:
    """A study that has not begun.

    failed: points that cannot be, by their position. targets: of a scenario's points with limits,
    likewise.
    shown: as in `Study`.
    """

    subject: Subject
    points: Sequence[Point]
    tasks: Sequence[Task]
    failed: Mapping[int, Row]
    options: Mapping[str, Any]
    targets: Mapping[int, Target]
    shown: tuple[str, ...] = ()

    @property
    def num_runs(self) -> int:
        """Number of its runs."""
        return len(self.tasks)

    def run(self, **how: Unpack[How]) -> Study:
        """Run it; see `study`."""
        is_scenario = isinstance(self.subject, Scenario)
        in_turn = how.get("executor") or how.get("jobs") == 1
        note = "" if is_scenario or in_turn else self._cannot_be_sent()
        if note:
            how["executor"] = InTurn()
        data = as_data(self.subject) if isinstance(self.subject, Scenario) else self.subject
        found: dict[Key, Row] = {}
        with studying("study", {"subject": data}, self.options, **how) as driver:
            driver.partial = lambda: self._of(found, note)
            driver.so_far = lambda: in_words(self.num_runs - len(found), "run") + " missing"
            driver.run(self.tasks, keep_errors=True, rows=found)
        rows = [*(found[task.key] for task in self.tasks), *self.failed.values()]
        self._raise_if_all_failed(sorted(rows, key=lambda row: int(row.key[0])))
        return self._of(found, note)

    def _of(self, found: Mapping[Key, Row], note: str) -> Study:
        """Return the study of the runs that finished; points without any are left out."""
        runs: list[list[Row]] = [[] for _ in self.points]
        for task in self.tasks:
            if task.key in found:
                runs[int(task.key[0])].append(found[task.key])
        for position, row in self.failed.items():
            runs[position].append(row)
        return Study(
            points=tuple(
                PointRuns(point, tuple(row.plain for row in rows), self.targets.get(k))
                for k, (point, rows) in enumerate(zip(self.points, runs, strict=True))
                if rows
            ),
            title=self._title,
            scenario=self.subject.resolved() if isinstance(self.subject, Scenario) else None,
            notes=(note,) if note else (),
            shown=self.shown,
            num_missing=self.num_runs - len(found),
            points_missing=sum(not rows for rows in runs),
        )

    @property
    def _title(self) -> str:
        if not isinstance(self.subject, Scenario):
            return ""
        return self.subject.headline_without({key for each in self.points for key in each.values})

    def _cannot_be_sent(self) -> str:
        """Return why tasks cannot go to other processes; "" where they can."""
        from cloudpickle import dumps

        try:
            dumps(self.tasks[0].arguments)
        except Exception as error:  # noqa: BLE001 - a user's class may raise anything
            return _NOT_SENT.format(error)
        return ""

    def _raise_if_all_failed(self, rows: Sequence[Row]) -> None:
        failures = [row.failure for row in rows if row.failure]
        if len(failures) == len(rows):
            first = failures[0].exception
            if len(self.points) == 1:
                raise first
            raise ScenarioError(
                f"all {len(self.points)} points failed; {self.points[0].name}: {first}"
            ) from first


def plan_study(
    subject: Subject,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    rates: Sequence[float] | None = None,
    seeds: Seeds = None,
    figures: Figures | None = None,
) -> Plan:
    """Return a study that has not begun; see `study`."""
    vary = _listed(vary or {})
    check_subject(subject, list(vary), has_rates=rates is not None)
    axes = vary | ({RATE: list(rates)} if rates is not None else {})
    if rates is not None and RATE in vary:
        raise ScenarioError("vary rate: must be left out where rates are given")
    points = points_of(axes)
    tasks: list[Task] = []
    failed: dict[int, Row] = {}
    targets: dict[int, Target] = {}
    if len(points) == 1 and isinstance(subject, Scenario) and not axes:
        build(subject)  # errors in it show here, where the file's name is known
    for position, point in enumerate(points):
        values = dict(point.values)
        rate = values.pop(RATE, None) if rates is not None else None
        try:
            at_point = subject_at(subject, values, rate)
        except ScenarioError as error:
            failed[position] = Row((position,), failure=Failure.of(error))
            continue
        if isinstance(at_point, Scenario) and (slo := at_point.slo.make()).is_set:
            targets[position] = target_of(slo, None)
        mine = tasks_of(at_point, values, seeds, figures)
        tasks += [replace(task, key=(position, point.name, *task.key)) for task in mine]
    options = {"vary": plain(axes), "seeds": seeds, "figures": plain(figures)}
    return Plan(subject, points, tasks, failed, options, targets)


def _listed(vary: Mapping[str, Iterable[Any]]) -> dict[str, Sequence[Any]]:
    """Return the values of each key as lists, those of arrays and generators, too.

    Raises ScenarioError for what is no mapping from keys to several values.
    """
    given: object = vary
    if not isinstance(given, Mapping):
        raise ScenarioError(
            f"vary must be a mapping from keys to lists of values, got {brief(given)}"
        )
    for key, values in given.items():
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise ScenarioError(f"vary {key}: must be a list of values, got {brief(values)}")
    return {key: [plain_number(each) for each in values] for key, values in vary.items()}


def replicate(scenario: Scenario, **how: Unpack[How]) -> Replications:
    """Run a scenario `replications` times, each with its own seed.

    The first run has the scenario's seed and equals the run without replications; the other seeds
    are drawn from it. Inputs without randomness, such as the times and lengths of a trace, are the
    same in every run. how: see `How`.

    Raises ScenarioError for fewer than 2 replications, the journal of another study, and all errors
    of `simulate`.
    """
    check_scenarios([scenario])
    if scenario.replications < 2:
        raise ScenarioError(f"replications must be >= 2, got {scenario.replications}")
    build(scenario)  # errors in it show here, where the file's name is known
    tasks = tasks_of(scenario)
    with studying("replications", {"scenario": as_data(scenario)}, **how) as driver:
        done: dict[Key, Row] = {}

        def finished() -> Replications:
            known = [task.key for task in tasks if task.key in done]
            return Replications(
                seeds=tuple(int(seed) for (seed,) in known),
                summaries=tuple(done[key].value for key in known),
                scenario=scenario.resolved(),
                title=scenario.headline,
                presenter=REPLICATIONS,
            )

        driver.partial = lambda: finished() if done else None
        driver.so_far = lambda: in_words(len(tasks) - len(done), "replication") + " missing"
        driver.run(tasks, rows=done)
    return finished()
