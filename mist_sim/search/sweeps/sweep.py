"""Sweeps over one key or two: how many GPUs, which chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_data, of_points
from mist_sim.errors import ScenarioError
from mist_sim.metrics.keeping import missed_percentiles
from mist_sim.metrics.replications import Estimate
from mist_sim.metrics.summary_types import check_number
from mist_sim.scenario import Scenario
from mist_sim.search.compared_case import FIGURES
from mist_sim.search.ranking import Better
from mist_sim.search.spaces.constraints import constraints_of
from mist_sim.search.spaces.objectives import objectives_of
from mist_sim.search.spaces.searching import SearchOptions, search_space
from mist_sim.search.spaces.space import Space
from mist_sim.search.sweeps.sweep_result import GOOD, At, Sweep
from mist_sim.search.verdicts.request_times import asked_share, check_attainment
from mist_sim.studies.findings import Study
from mist_sim.studies.study import plan_study
from mist_sim.studies.subjects import check_scenarios

_MOST_KEYS = 2
_OF_STEP_TIMES = ("expected_errors", "assumed_host")
"""What summaries say of their step times."""


def sweep(
    scenario: Scenario,
    vary: Mapping[str, Sequence[Any]],
    *,
    metric: str | None = None,
    attainment: float | None = None,
    **how: Any,
) -> Sweep:
    """Return a figure of a scenario over one key or two.

    vary: values by dotted key. metric: a number of a run's summary; by default the share of good
    requests, or the p99 TTFT of a scenario without limits. attainment: share that is asked for;
    None: as the scenario's slo says, or 0.9.
    how: jobs, progress, journal, resume, executor, as in `study`.
    Raises ScenarioError for more keys, a figure that no run has, and what `study` raises.
    """
    check_scenarios([scenario])
    share = asked_share(scenario.slo.make(), attainment)
    _check(vary, share)
    if metric is not None:
        check_number("metric", metric)
    chosen = metric or (GOOD if scenario.slo.make().judges_requests else "p99_ttft_ms")
    study = replace(plan_study(scenario, vary=vary), shown=(chosen,)).run(**how)
    study.estimate(chosen)  # raises for a figure that no run has
    return Sweep(
        keys=tuple(vary),
        points=tuple(_points(study, chosen)),
        metric=chosen,
        better=_better(chosen),
        share=share,
        title=scenario.headline_without(vary),
        warnings=study.warnings,
        missed=" ".join(missed_percentiles([p.kept for p in study.points if p.kept is not None])),
        expected_errors=_of_points(study, "expected_errors"),
        assumed_host=_of_points(study, "assumed_host"),
    )


def goodput_sweep(
    scenario: Scenario,
    vary: Mapping[str, Sequence[Any]],
    options: SearchOptions,
    *,
    attainment: float | None = None,
    **how: Any,
) -> Sweep:
    """Return the goodput of a scenario over one key or two, requests per second; see `sweep`.

    options: how goodputs are searched. Keys of the workload and limits cannot vary here.
    """
    check_scenarios([scenario])
    share = asked_share(scenario.slo.make(), attainment)
    _check(vary, share)
    space = Space(
        scenario=scenario,
        vary=vary,
        constraints=constraints_of({"attainment": share}),
        objectives=objectives_of("goodput"),
    )
    found = search_space(space, options, **how)
    points = []
    for row in found.rows:
        mean = row["figures"].get("goodput", nan)
        low, high = row["interval"] or (nan, nan)
        error = "" if mean == mean else row["reason"]
        points.append(At(row["values"], mean, low, high, error))
    failed = {
        row["name"]: [ResultWarning(kinds.FAILED_RUNS, f"failed: {at.error}")] if at.error else []
        for row, at in zip(found.rows, points, strict=True)
    }
    told = of_points({row["name"]: (*failed[row["name"]], *of_data(row)) for row in found.rows})
    origins = {
        key: {row["name"]: row[key] for row in found.rows if row[key]} for key in _OF_STEP_TIMES
    }
    title = scenario.headline_without(vary)
    keys, errors, hosts = tuple(vary), *(origins[name] for name in _OF_STEP_TIMES)
    return Sweep(keys, tuple(points), "goodput", "more", share, title, told, errors, hosts)


def _of_points(study: Study, key: str) -> dict[str, Any]:
    """Return what the first summary of each point holds under a key, where it has that."""
    return {
        each.point.name: found
        for each in study.points
        if each.summaries and (found := each.summaries[0].get(key))
    }


def _check(vary: Mapping[str, Sequence[Any]], attainment: float) -> None:
    check_attainment(attainment)
    if not 1 <= len(vary) <= _MOST_KEYS:
        raise ScenarioError(
            f"a sweep is over one key or two, got {len(vary)}; mist search takes any number"
        )


def _points(study: Study, metric: str) -> list[At]:
    found = []
    for each in study.points:
        estimate = each.estimates.get(metric, Estimate(nan, nan))
        error = str(each.failures[0]) if each.failures else ""
        values = each.point.values
        low, high = estimate.low, estimate.high
        if metric.endswith("_fraction"):  # Student's interval of a share may leave 0 to 1
            low, high = float(np.maximum(low, 0.0)), float(np.minimum(high, 1.0))  # NaN stays
        found.append(At(values, estimate.mean, low, high, error))
    return found


def _better(metric: str) -> Better | None:
    """Return whether more or less of a figure is better, if its name implies it."""
    if metric in FIGURES:
        return FIGURES[metric]
    parts = metric.split("_")
    is_latency = (
        len(parts) == 3 and parts[2] == "ms" and parts[1] in ("ttft", "tpot", "itl", "e2el")
    )
    return "less" if is_latency else None
