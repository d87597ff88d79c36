"""Replications: independent runs of a scenario, in parallel processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from mist_sim.errors import ScenarioError, in_words
from mist_sim.metrics.replications import Replications
from mist_sim.report.presenters import REPLICATIONS
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.loading import as_data
from mist_sim.studies.driver import How, studying
from mist_sim.studies.subjects import check_scenarios, tasks_of
from mist_sim.studies.task import Key, Row, Task


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
        driver.partial = lambda: _of(scenario, tasks, done) if done else None
        driver.so_far = lambda: in_words(len(tasks) - len(done), "replication") + " missing"
        driver.run(tasks, rows=done)
    return _of(scenario, tasks, done)


def _of(scenario: Scenario, tasks: Sequence[Task], done: Mapping[Key, Row]) -> Replications:
    """Return the replications that finished."""
    known = [task.key for task in tasks if task.key in done]
    return Replications(
        seeds=tuple(int(seed) for (seed,) in known),
        summaries=tuple(done[key].value for key in known),
        scenario=scenario.resolved(),
        title=scenario.headline,
        presenter=REPLICATIONS,
    )
