"""What binds a deployment at its goodput: the resource whose relaxation by a tenth helps most.

All runs use one rate a little above the goodput, with the same requests and random streams (common
random numbers), so that they differ only by the relaxed resource. A resource moves goodput if
relaxing it lowers the deciding quantile (see `steady_state`). The gain in goodput is read off runs
at lower rates with no resource relaxed: a resource is worth the reduction in load with the same
effect.

A fall counts where it is more than noise. Its error is that of the mean of the differences between
the batches of two runs, in order, around their own line, since where a queue grows the difference
does as well; their correlation is taken into account, and the chance of a wrong word, 5 %, is
shared out among the resources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, log, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics.latency import percentile_of
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.binding.relaxed_runs import relaxed_run
from mist_sim.search.binding.relaxing import RESOURCES, relaxed
from mist_sim.search.binding_result import MOST_TOLD, Binding
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.verdicts.steady_state import inflation
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver, studying
from mist_sim.studies.rates import Rates
from mist_sim.studies.task import Task

_ABOVE = 1.05  # times the goodput: about half of the gain from a tenth more of a binding resource
_LOWER = (1.05, 1.1, 1.3)  # that rate divided by those of the runs without relaxation
_REQUESTS = 3000
_WRONG = 0.05  # chance of naming a resource without effect
_LEAST = 1e-3  # fall of a logarithm that anybody would name


def what_binds(
    scenario: Scenario,
    goodput: Goodput,
    *,
    by: float = 0.1,
    num_requests: int = _REQUESTS,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
    journal: str | Path | None = None,
    resume: bool = False,
) -> Binding:
    """Return the resource that binds a scenario at the goodput that `find_goodput` found.

    by: share by which resources are relaxed. num_requests: per run, if the workload is drawn.
    jobs, progress, journal, resume: as in `find_goodput`.
    Raises ScenarioError if there is no goodput, and all errors of `find_goodput`.
    """
    if not goodput.rate > 0:
        raise ScenarioError(f"what binds is not known without a goodput, got {goodput.status}")
    if not 0 < by <= 1:
        raise ScenarioError(f"by must be in (0, 1], got {by:g}")
    if num_requests < 1000:
        raise ScenarioError(f"num_requests must be >= 1000, got {num_requests}")
    options = {"rate": goodput.rate, "target": goodput.target, "by": by, "requests": num_requests}
    with studying(
        "binding",
        {"0": as_data(scenario)},
        options,
        jobs=jobs,
        progress=progress,
        journal=journal,
        resume=resume,
    ) as driver:
        return search_binding(Built(scenario), goodput, driver, by, num_requests)


def search_binding(
    built: Built,
    goodput: Goodput,
    driver: Driver,
    by: float = 0.1,
    num_requests: int = _REQUESTS,
) -> Binding:
    """Return the binding resource, with the runs as tasks of a study; see `what_binds`."""
    first, slo = goodput.first_limit or "", goodput.target.slo
    if not first and not slo.judges_requests:
        first = next(iter(slo.figures))
    if percentile_of(first) is not None:  # of gaps, which no resource's run is compared by
        return Binding(goodput.rate * _ABOVE, first, None, gains={}, by=by)
    scenario, rates = built.scenario, Rates(built.scenario, built)
    data, seed = as_data(scenario), goodput.searches[0].seed
    rate = goodput.rate * _ABOVE
    is_steady = any(trial.is_steady for search in goodput.searches for trial in search.trials)
    most = num_requests if is_steady else None

    def task(at: float, resource: str | None) -> Task:
        arguments = data, rates.at(at), seed, at, goodput.target, resource, by, most
        return Task(("binding", resource or "", at), relaxed_run, arguments)

    names = [name for name in RESOURCES if relaxed(scenario, name, by) is not None]
    plain = [task(rate, None), *(task(rate / lower, None) for lower in _LOWER)]
    base, *slower = driver.results(plain)
    rows = dict(
        zip(names, driver.run([task(rate, name) for name in names], keep_errors=True), strict=True)
    )
    failed = {name: str(row.failure) for name, row in rows.items() if row.failure}
    runs = {name: row.result for name, row in rows.items() if not row.failure}
    found = _ranked(base, slower, runs, rate)
    return replace(found, failed=failed, by=by, num_requests=most or goodput.num_requests)


def _ranked(
    base: Mapping[str, Any],
    slower: Sequence[Mapping[str, Any]],
    runs: Mapping[str, Mapping[str, Any]],
    rate: float,
) -> Binding:
    """Return the binding resource found by the runs."""
    decides = int(np.argmax(base["quantile"]))
    found = {name: _fall(base, run, decides, len(runs)) for name, run in runs.items()}
    gains = {name: gain for name, (gain, _) in found.items()}
    lower = [_fall(base, run, decides, 1)[0] for run in slower]
    more = {
        name: _worth(gain, lower)
        for name, (gain, error) in found.items()
        if gain > max(error, _LEAST)
    }
    best = max(more, key=lambda name: gains[name], default=None)
    missed, alone = base["missed"], base["alone"]
    return Binding(
        rate,
        limit=max(missed, key=lambda name: (missed[name], alone[name])),
        resource=best,
        gains=gains,
        errors={name: error for name, (_, error) in found.items()},
        more=more,
        rivals=_rivals(best, gains, runs, decides) if best else (),
    )


def _rivals(
    best: str,
    gains: Mapping[str, float],
    runs: Mapping[str, Mapping[str, Any]],
    row: int,
) -> tuple[str, ...]:
    """Return the resources that may be as good as the best: the gap is within noise.

    This includes resources with a gain too small to tell from noise.
    """
    behind = {name: _fall(runs[name], runs[best], row, len(runs)) for name in gains if name != best}
    return tuple(
        name for name, (by, error) in behind.items() if gains[name] > _LEAST and by <= error
    )


def _fall(
    base: Mapping[str, Any], run: Mapping[str, Any], row: int, num_said: int
) -> tuple[float, float]:
    """Return how far the quantile falls in a run with a relaxed resource, with its error.

    num_said: number of such falls that are judged together.
    """
    from scipy.special import stdtrit

    falls = np.array(base["batches"][row]) - np.array(run["batches"][row])
    if len(falls) < 4:
        return float(falls.mean()), nan
    order = np.arange(len(falls)) - (len(falls) - 1) / 2
    slope = float(order @ falls) / float(order @ order)
    rest = falls - slope * order
    free = len(falls) - 2
    variance = float(rest.var()) * len(falls) / free / len(falls) * inflation(rest)
    return float(falls.mean()), float(stdtrit(free, 1 - _WRONG / 2 / num_said)) * sqrt(variance)


def _worth(gain: float, lower: Sequence[float]) -> float:
    """Return the gain in goodput, interpolated between the rates that were tried.

    lower: gains of the rates of `_LOWER`. The last line is extrapolated, up to a limit.
    """
    before = (0.0, 0.0)
    points = [(log(factor), fall) for factor, fall in zip(_LOWER, lower, strict=True)]
    for distance, fall in points:
        if fall >= gain and fall > before[1]:
            share = (gain - before[1]) / (fall - before[1])
            return exp(before[0] + (distance - before[0]) * share) - 1
        before = (distance, max(fall, before[1]))
    distance, fall = points[-1][0], before[1]
    return min(exp(distance * gain / fall) - 1, MOST_TOLD) if fall > 0 else MOST_TOLD
