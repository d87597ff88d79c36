"""Replications: independent runs of a scenario, in parallel processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics.replications import Replications
from mist_sim.scenario.build import build
from mist_sim.scenario.load import as_data
from mist_sim.scenario.parallel.runs import each_in_parallel
from mist_sim.scenario.schema import Scenario

_STREAM = 7  # the children of streams have keys of three numbers (mist_sim.rng)


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
    build(scenario)  # what is wrong with it shows here, and not in other processes
    seeds = seeds_from(scenario.seed, scenario.replications)
    data = as_data(scenario)
    found = each_in_parallel(
        run_with_seed,
        [(data, seed) for seed in seeds],
        what="replications",
        jobs=jobs,
        progress=progress,
    )
    return Replications(
        seeds=seeds,
        summaries=tuple(found),
        scenario=scenario.resolved(),
        title=scenario.headline,
    )


def seeds_from(seed: int, count: int) -> tuple[int, ...]:
    """Return `count` seeds: the given one, and others drawn from it.

    Other seeds give others, and a longer list begins like a shorter one. They fit into 63 bits.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
    drawn = sequence.generate_state(count - 1, np.uint64)
    return (seed, *(int(value >> np.uint64(1)) for value in drawn))


def run_with_seed(data: dict[str, Any], seed: int) -> dict[str, Any]:
    """Run a scenario, given as plain mappings, once with a seed; return the summary."""
    one = {"seed": seed, "replications": 1}
    return build(Scenario.from_dict(data, one)).run().summary
