"""One run of a scenario with more of a resource, at one rate, to the end of its requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics import ColumnRecorder
from mist_sim.scenario import Scenario, build
from mist_sim.search.binding.relaxing import relaxed
from mist_sim.search.verdicts.request_times import Array, RequestTimes, Target, none_counts
from mist_sim.search.verdicts.steady_runs import lengthened
from mist_sim.search.verdicts.steady_state import log_ratios, quantile

BATCHES = 20
_RAMP = 0.2  # of the requests, as in a run whose verdict is looked for


def relaxed_run(
    data: dict[str, Any],
    changes: dict[str, Any],
    seed: int,
    rate: float,
    target: Target,
    resource: str | None,
    by: float,
    num_requests: int | None,
) -> dict[str, Any]:
    """Return a run's deciding quantile, as a task of a study.

    data, changes: as in `try_rate`. resource, by: the resource to relax, as in `relaxed`; None:
        none. num_requests: for a workload that can be longer or shorter; others, and all with None,
        keep their length.

    Of each row of `Target.ratios`, after the ramp: `quantile` of the logarithms of time over limit,
    and `batches`, those of 20 equal parts of the requests. By limit: `missed`, the share of the
    requests that do not keep it, and `alone`, the quantile of that limit alone.
    Raises ScenarioError where the resource cannot be relaxed, and where no request counts.
    """
    scenario = Scenario.from_dict(data, {**changes, "seed": seed, "replications": 1})
    if resource is not None:
        found = relaxed(scenario, resource, by)
        if found is None:
            raise ScenarioError(f"the scenario has no {resource} that can be relaxed")
        scenario = found
    simulation = build(scenario)
    longer = lengthened(simulation, target, num_requests) if num_requests else None
    if longer is not None:
        source: Any = replace(longer.source, num_requests=num_requests)  # type: ignore[type-var]
        simulation.workload = replace(longer, source=source)
    recorder = ColumnRecorder()
    simulation.run(recorder=recorder)
    times = RequestTimes.of(recorder, simulation.warmup)
    if not len(times):
        raise none_counts(simulation.warmup, rate)
    rows = _rows(target, times)
    by_limit = _rows(replace(target, each=True, percentiles=()), times)
    return {
        "quantile": [quantile(row, share) for row, share in rows.values()],
        "batches": [
            [quantile(part, share) for part in np.array_split(row, min(BATCHES, len(row)))]
            for row, share in rows.values()
        ],
        "missed": {name: float((row > 0).mean()) for name, (row, _) in by_limit.items()},
        "alone": {name: quantile(row, share) for name, (row, share) in by_limit.items()},
    }


def _rows(target: Target, times: RequestTimes) -> dict[str, tuple[Array, float]]:
    """Return (logarithms of time over limit after the ramp, share asked for), by name."""
    ramp = int(_RAMP * len(times))
    found = {}
    for name, (share, mine) in target.shares_in(times).items():
        row = log_ratios(share.ratios(times))[ramp:][mine[ramp:]]
        if len(row):
            found[name] = row, share.asked
    return found
