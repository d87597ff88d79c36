"""One run of a scenario with more of a resource, at one rate, to the end of its requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics import ColumnRecorder
from mist_sim.scenario import Scenario, build
from mist_sim.search.relaxing import relaxed
from mist_sim.search.request_times import RequestTimes, Target, none_counts
from mist_sim.search.steady_runs import lengthened
from mist_sim.search.steady_state import log_ratios, quantile

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
    """Return what a run shows of the quantile that decides, as a task of a study.

    data, changes: as `try_rate` has them. resource, by: what is relaxed, as `relaxed` has it; None:
    nothing. num_requests: of a workload that may be longer or shorter; another one stays, and None
    lets every one stay.

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
    ramp = int(_RAMP * len(times))
    rows = log_ratios(target.ratios(times))[:, ramp:]
    by_limit = log_ratios(replace(target, each=True).ratios(times))[:, ramp:]
    share, names = target.attainment, list(target.slo.limits)
    return {
        "quantile": [quantile(row, share) for row in rows],
        "batches": [
            [quantile(part, share) for part in np.array_split(row, min(BATCHES, len(row)))]
            for row in rows
        ],
        "missed": dict(zip(names, (by_limit > 0).mean(axis=1).tolist(), strict=True)),
        "alone": {name: quantile(row, share) for name, row in zip(names, by_limit, strict=True)},
    }
