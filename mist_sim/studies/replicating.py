"""Replications: independent runs of a scenario, in parallel processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from mist_sim.errors import ScenarioError, in_words
from mist_sim.metrics.replications import Replications
from mist_sim.report.presenters import REPLICATIONS
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.loading import as_data
from mist_sim.studies.driver import How, studying
from mist_sim.studies.seeds import seeds_from
from mist_sim.studies.subjects import check_scenarios
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
    seeds = seeds_from(scenario.seed, scenario.replications)
    data = as_data(scenario)
    with studying("replications", {"scenario": data}, **how) as driver:
        done: dict[Key, Row] = {}
        driver.partial = lambda: _of(scenario, seeds, done) if done else None
        driver.so_far = lambda: in_words(len(seeds) - len(done), "replication") + " missing"
        driver.run([Task((seed,), run_with_seed, (data, seed)) for seed in seeds], rows=done)
    return _of(scenario, seeds, done)


def _of(scenario: Scenario, seeds: Sequence[int], done: Mapping[Key, Row]) -> Replications:
    """Return the replications that finished."""
    summaries = {seed: done[seed,].value for seed in seeds if (seed,) in done}
    return Replications(
        seeds=tuple(summaries),
        summaries=tuple(summaries.values()),
        scenario=scenario.resolved(),
        title=scenario.headline,
        presenter=REPLICATIONS,
    )


def run_with_seed(data: dict[str, Any], seed: int) -> Mapping[str, Any]:
    """Run a scenario, given as plain mappings, once with a seed; return the summary."""
    one = {"seed": seed, "replications": 1}
    return build(Scenario.from_dict(data, one)).run().summary
