"""Designs beside the best one of a comparison: do they serve as much, within the tolerance?

Goodputs are found to a tolerance of two percent, and their intervals are wider: that of chunks of
512 tokens overlaps that of 2,048 even where both serve alike. So a design whose interval does not
tell is run with the same requests as the best, at a rate that is higher by the tolerance, and at
one that is lower. If its times are surely longer there than those of the best at the rate between,
it serves at most two percent more; if they are surely shorter, at most two percent less.

Times of so many requests say little of queues that grow slowly, so no design is called equal whose
goodput was found to be lower by more than the tolerance: searches with short runs end at rates that
lie further apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.scenario.loading import as_data
from mist_sim.search.bracketing import rounded
from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.ranking import Beside
from mist_sim.search.verdicts.request_times import Target
from mist_sim.search.verdicts.same_requests import batch_quantiles, surely_less
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver
from mist_sim.studies.rates import Rates
from mist_sim.studies.seeds import seeds_from
from mist_sim.studies.task import Task

_ERROR = 0.05  # chance that any of the answers is wrong


def run_side_by_side(
    best: str,
    rates: Mapping[str, float],
    builts: Mapping[str, Built],
    options: GoodputOptions,
    driver: Driver,
) -> dict[str, Beside]:
    """Return how each rival compares with the best design; rivals that cannot run are left out.

    rates: goodputs of the best and its rivals as they were found, requests per second.
    """
    rate, rivals = rates[best], [name for name in rates if name != best]
    steps = {"same": 1.0, "more": 1 + options.tolerance, "less": 1 / (1 + options.tolerance)}
    asked = [(best, "same"), *((name, step) for name in rivals for step in ("more", "less"))]
    tasks, keys = [], []
    for name, step in asked:
        for task in _tasks(name, step, builts[name], rate * steps[step], options):
            tasks.append(task)
            keys.append((name, step))
    found: dict[tuple[str, str], list[float]] = {}
    missing = set()
    for (name, step), row in zip(keys, driver.run(tasks, keep_errors=True), strict=True):
        if row.failure or row.result is None:
            missing.add(name)
        found.setdefault((name, step), []).extend(row.result or ())
    if best in missing:
        return {}
    own, error = found[best, "same"], _ERROR / (2 * len(rivals))
    return {
        name: Beside(
            best,
            options.tolerance,
            not_more=surely_less(own, found[name, "more"], error),
            not_less=rates[name] >= rate * steps["less"]
            and surely_less(found[name, "less"], own, error),
        )
        for name in rivals
        if name not in missing
    }


def _tasks(name: str, step: str, built: Built, rate: float, options: GoodputOptions) -> list[Task]:
    """Return a run for each seed, another one than those of the searches."""
    scenario = built.scenario
    target: Target = options.target(scenario)
    changes = Rates(scenario, built).at(rounded([rate])[0])
    num = options.most_requests or options.usual_requests
    seeds = seeds_from(scenario.seed, 2 * scenario.replications)[scenario.replications :]
    data = as_data(scenario)
    return [
        Task((name, step, seed), batch_quantiles, (data, changes, seed, target, num))
        for seed in seeds
    ]
