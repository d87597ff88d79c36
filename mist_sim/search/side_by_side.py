"""Designs beside the best one of a comparison: do they serve as much, within the tolerance?

Goodputs are found to a tolerance of two percent, and their intervals are wider: that of chunks of
512 tokens overlaps that of 2,048 even where both serve alike. So a design whose interval does not
tell is run with the same requests as the best, at a rate that is higher by the tolerance, and at
one that is lower. If its times are surely longer there than those of the best at the rate between,
it serves at most two percent more; if they are surely shorter, at most two percent less.

Times of so many requests say little of queues that grow slowly, so no design is called equal whose
goodput was found to be lower by more than the tolerance: searches with short runs end at rates that
lie further apart.

They are compared batch by batch. An interval of a goodput is some percent wide, since requests of
one moment share their luck: long prompts, bursts. Designs that serve the same requests share most
of it, so that the difference of their times is known far better than the times (common random
numbers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from mist_sim.core.request import Request
from mist_sim.scenario import build
from mist_sim.search.bracketing import rounded
from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.ranking import Beside
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver
from mist_sim.studies.subjects import one_run, seeds_from
from mist_sim.studies.task import Task
from mist_sim.studies.verdicts.request_times import RequestTimes, Target
from mist_sim.studies.verdicts.steady_state import inflation, log_ratios, quantile
from mist_sim.studies.verdicts.trials import Watch, lengthened

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
    target = options.target(scenario)
    changes = built.rates.at(rounded([rate])[0])
    num = options.most_requests or options.usual_requests
    seeds = seeds_from(scenario.seed, 2 * scenario.replications)[scenario.replications :]
    return [
        Task((name, step, seed), batch_quantiles, (built.data, changes, seed, target, num))
        for seed in seeds
    ]


_BATCHES = 32
_RAMP = 0.2  # of the requests, left out, as in `steady_state`


def batch_quantiles(
    data: Mapping[str, Any], changes: Mapping[str, Any], seed: int, target: Target, num: int
) -> list[float] | None:
    """Run the first `num` requests to their end; return a quantile of each of 32 batches of them.

    The quantile is that of time over limit, as a logarithm, that has to be negative for the target;
    batches have the same requests in every design. More requests arrive until the run ends.
    data: the scenario. changes: overrides that make its rate.
    None where a workload is a certain one, such as a trace, or the target has several parts.
    """
    if target.has_parts:
        return None
    simulation = build(one_run(data, seed, changes))
    longer = lengthened(simulation, target, num)
    if longer is None or simulation.warmup:
        return None
    simulation.workload = longer
    num_left = num

    def all_ended(request: Request) -> bool | None:
        nonlocal num_left
        if request.parent_id is None and request.request_id < num:
            num_left -= 1
        return None if num_left else True

    recorder = Watch(all_ended)
    recorder.run(simulation)
    columns = recorder.requests.columns()
    ids = np.sort(columns["request_id"][columns["parent_id"] == columns["request_id"]])
    found = target.ratios(RequestTimes.of(recorder, simulation.warmup))[0]
    ratios = np.full(num, np.inf)  # of one that never ended
    ratios[ids[ids < num]] = found[ids < num]
    parts = np.array_split(log_ratios(ratios[int(_RAMP * num) :]), _BATCHES)
    return [quantile(part, target.attainment) for part in parts]


def surely_less(one: Sequence[float], other: Sequence[float], error: float) -> bool:
    """Tell whether the first quantiles are smaller on average, compared batch by batch.

    error: chance of a wrong yes where they are equal.
    """
    from scipy.special import stdtrit

    found = np.array(one) - np.array(other)
    deviation = sqrt(float(found.var(ddof=1)) / len(found) * inflation(found))
    return float(found.mean() + stdtrit(len(found) - 1, 1 - error) * deviation) < 0
