"""Replications: independent runs of a scenario, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics.replications import Replications
from mist_sim.scenario.build import build
from mist_sim.scenario.load import as_data
from mist_sim.scenario.plugins import FAMILIES
from mist_sim.scenario.schema import Scenario
from mist_sim.scenario.worker_processes import end_with, starting_quietly

_STREAM = 7  # the children of streams have keys of three numbers (mist_sim.rng)

Plugins = list[tuple[str, str, type[Any]]]
"""Family, name and class of plugins that are not ours."""


def replicate(
    scenario: Scenario,
    *,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Replications:
    """Run a scenario `replications` times, each with a seed of its own.

    The first run has the scenario's seed and equals the run without replications; the other
    seeds are drawn from it. What is not drawn at random, such as the times and lengths of a
    trace, is the same in every run. The result does not depend on `jobs`.

    jobs: processes at a time, by default one a core. progress: called with the runs done.
    Raises ScenarioError for fewer than 2 replications, and what `simulate` raises.
    """
    if scenario.replications < 2:
        raise ScenarioError(f"replications must be >= 2, got {scenario.replications}")
    if jobs is not None and jobs < 1:
        raise ScenarioError(f"jobs must be >= 1, got {jobs}")
    build(scenario)  # what is wrong with it shows here, and not in other processes
    seeds = seeds_from(scenario.seed, scenario.replications)
    found = _summaries(scenario, seeds, jobs, progress)
    return Replications(
        seeds=seeds,
        summaries=tuple(found[number] for number in range(len(seeds))),
        scenario=scenario.resolved(),
        title=scenario.headline,
    )


def _summaries(
    scenario: Scenario,
    seeds: tuple[int, ...],
    jobs: int | None,
    progress: Callable[[int], None] | None,
) -> dict[int, dict[str, Any]]:
    """Return the summary of each run by its number, in the order in which they ended."""
    from joblib import Parallel, cpu_count, delayed

    data, folder, plugins = as_data(scenario), Path.cwd(), _plugins_of_others()
    num_jobs = min(jobs or cpu_count(), len(seeds))  # cores that a container may use
    parallel = Parallel(n_jobs=num_jobs, return_as="generator_unordered")
    tasks = [
        delayed(_run)(number, data, seed, folder, plugins, os.getpid())
        for number, seed in enumerate(seeds)
    ]
    found: dict[int, dict[str, Any]] = {}
    runs = None
    try:
        with starting_quietly():
            runs = parallel(tasks)
        for number, summary in runs:
            found[number] = summary
            if progress is not None:
                progress(len(found))
    except BrokenExecutor as error:
        raise ScenarioError(
            f"replications: one of {num_jobs} processes was ended from outside, perhaps for lack "
            "of memory; lower --jobs (jobs in Python)"
        ) from error
    except BaseException as error:
        if runs is not None:
            runs.throw(error)  # an interruption ends the processes, too: nobody waits for them
        raise
    return found


def seeds_from(seed: int, count: int) -> tuple[int, ...]:
    """Return `count` seeds: the given one, and others drawn from it.

    Other seeds give others, and a longer list begins like a shorter one. They fit into 63 bits.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
    drawn = sequence.generate_state(count - 1, np.uint64)
    return (seed, *(int(value >> np.uint64(1)) for value in drawn))


def _plugins_of_others() -> Plugins:
    return [
        (name, plugin, cls)
        for name, family in FAMILIES.items()
        for plugin, cls in family.registry.items()
        if not cls.__module__.startswith("mist_sim.")
    ]


def _run(
    number: int, data: dict[str, Any], seed: int, folder: Path, plugins: Plugins, parent: int
) -> tuple[int, dict[str, Any]]:
    """Run one replication, maybe in a child of `parent`; return its number and its summary."""
    end_with(parent)
    os.chdir(folder)
    for family, name, cls in plugins:
        if name not in FAMILIES[family].registry:
            FAMILIES[family].registry.register(name)(cls)
    one = {"seed": seed, "replications": 1}
    return number, build(Scenario.from_dict(data, one)).run().summary
