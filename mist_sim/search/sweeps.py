"""Sweeps: one figure of a scenario over one key or two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import isnan, nan
from typing import Any, Unpack

import numpy as np

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_data, of_points
from mist_sim.errors import ScenarioError
from mist_sim.metrics.keeping import missed_percentiles
from mist_sim.metrics.replications import Estimate
from mist_sim.metrics.result import check_number
from mist_sim.report.elements import labels_of, setting_cells, value_text
from mist_sim.report.pictures.findings import sweep_picture
from mist_sim.report.presenters import SWEEP
from mist_sim.scenario import Scenario
from mist_sim.search.compared_case import FIGURES
from mist_sim.search.ranking import Better
from mist_sim.search.spaces.objectives import constraints_of, objectives_of
from mist_sim.search.spaces.searching import SearchOptions, search_space
from mist_sim.search.spaces.space import QUESTION, Space
from mist_sim.studies.driver import How
from mist_sim.studies.findings import PointRuns
from mist_sim.studies.study import plan_study
from mist_sim.studies.subjects import check_scenarios
from mist_sim.studies.tabled import Content, Tabled
from mist_sim.studies.verdicts.request_times import asked_share, check_attainment

__all__ = ["Sweep", "goodput_sweep", "sweep"]


GOOD = "good_request_fraction"


@dataclass(frozen=True)
class At:
    """The figure at a point: a mean, and the ends of its interval; NaN if unknown.

    error: why there is none.
    """

    values: Mapping[str, Any]
    mean: float
    low: float
    high: float
    error: str = ""


@dataclass(frozen=True, repr=False)
class Sweep(Tabled):
    """A figure over one key or two.

    metric: its name in a run's summary, or "goodput". better: which way it is better, if anybody
    knows. share: of good requests that is asked for. points: in order; the last key changes
    fastest. missed: which points miss limits on percentiles, as a sentence. warnings: of the
    runs. expected_errors, assumed_host: as in a run's summary, by the name of the point.
    """

    presenter = SWEEP
    stem = "sweep"

    keys: tuple[str, ...]
    points: tuple[At, ...]
    metric: str
    better: Better | None
    share: float
    title: str
    warnings: tuple[ResultWarning, ...] = ()
    expected_errors: Mapping[str, Any] = field(default_factory=dict)
    assumed_host: Mapping[str, Any] = field(default_factory=dict)
    missed: str = ""

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row a point: its values, the figure, its interval, its error."""
        for at in self.points:
            figures = {self.metric: at.mean, "low": at.low, "high": at.high, "error": at.error}
            yield setting_cells(at.values) | figures

    @property
    def best(self) -> At | None:
        """The point with the best figure, the first of equals; None: unknown."""
        known = [at for at in self.points if not isnan(at.mean)]
        if not known or self.better is None:
            return None
        return (max if self.better == "more" else min)(known, key=lambda at: at.mean)

    @property
    def enough_from(self) -> At | None:
        """The point of one key from which enough requests are good; None: there is none."""
        found = None
        for at in reversed(self.points):
            if not at.mean >= self.share:
                break
            found = at
        return found

    @property
    def sentence(self) -> str:
        """The sweep's result in a sentence, and which points miss limits on percentiles."""
        return f"{self._of_figure()} {self.missed}".strip()

    def _of_figure(self) -> str:
        if self.metric == GOOD and len(self.keys) == 1:
            return self._how_much()
        if not self._varies_the_question:
            best = self.best
            if best is None:
                return ""
            return f"{self.metric} is best at {self._name(best)}: {best.mean:.4g}.{self._order()}"
        known = [at for at in self.points if not isnan(at.mean)]
        if len(self.keys) > 1 or len(known) < 2:
            return ""
        first, last = (f"{at.mean:.4g} at {self._name(at)}" for at in (known[0], known[-1]))
        return f"{self.metric} goes from {first} to {last}.{self._order()}"

    @property
    def _varies_the_question(self) -> bool:
        """Whether a key changes the load: the smallest load is no design, so never the best."""
        return any(key.partition(".")[0] in QUESTION for key in self.keys)

    def _how_much(self) -> str:
        share = f"{100 * self.share:g} %"
        up_to = [at for at in self.points if at.mean >= self.share]
        if up_to and self._varies_the_question and up_to == list(self.points[: len(up_to)]):
            return f"Up to {self._name(up_to[-1])}, {share} of the requests are good."
        first = self.enough_from
        if first is not None:
            return f"From {self._name(first)} on, {share} of the requests are good."
        best = self.best
        if best is None:
            return "No run worked."
        if best.mean < self.share:
            most = f"{self._name(best)} has most, {100 * best.mean:.1f} %"
            return f"Nowhere are {share} of the requests good; {most}."
        return f"{share} of the requests are good at {', '.join(map(self._name, up_to))}."

    def _order(self) -> str:
        """Return whether the figure only rises or falls along one key."""
        known = [at.mean for at in self.points if not isnan(at.mean)]
        if len(self.keys) > 1 or len(known) < 3:
            return ""
        steps = [after - before for before, after in pairwise(known)]
        if all(step >= 0 for step in steps):
            return " It never falls along the key."
        return " It never rises along the key." if all(step <= 0 for step in steps) else ""

    def _name(self, at: At) -> str:
        labels = labels_of(self.keys)
        return " ".join(f"{labels[key]}={value_text(at.values[key])}" for key in self.keys)

    @property
    def data(self) -> dict[str, Any]:
        """Everything as plain data."""
        labels = labels_of(self.keys)
        return {
            "title": self.title,
            "sentence": self.sentence,
            "metric": self.metric,
            "keys": list(self.keys),
            "labels": [labels[key] for key in self.keys],
            "points": [
                {
                    "values": [value_text(at.values[key]) for key in self.keys],
                    "mean": at.mean,
                    "low": at.low,
                    "high": at.high,
                    "error": at.error,
                }
                for at in self.points
            ],
            "expected_errors": dict(self.expected_errors),
            **({"assumed_host": dict(self.assumed_host)} if self.assumed_host else {}),
        }

    def __repr__(self) -> str:
        return f"<Sweep: {self.metric} at {len(self.points)} points>"

    @property
    def files(self) -> dict[str, Content]:
        """The picture."""
        return {"sweep.png": partial(sweep_picture, self.summary)}


_MOST_KEYS = 2


def _swept(
    scenario: Scenario,
    vary: Mapping[str, Sequence[Any]],
    metric: str,
    share: float,
    points: Iterable[At],
    said: Mapping[str, Mapping[str, Any]],
    **more: Any,
) -> Sweep:
    """Return a sweep. said: what points say of their step times, by name: summaries, or rows."""

    def known(key: str) -> dict[str, Any]:
        return {name: of[key] for name, of in said.items() if of.get(key)}

    return Sweep(
        keys=tuple(vary),
        points=tuple(points),
        metric=metric,
        better=_better(metric),
        share=share,
        title=scenario.headline_without(vary),
        expected_errors=known("expected_errors"),
        assumed_host=known("assumed_host"),
        **more,
    )


def sweep(
    scenario: Scenario,
    vary: Mapping[str, Sequence[Any]],
    *,
    metric: str | None = None,
    attainment: float | None = None,
    **how: Unpack[How],
) -> Sweep:
    """Return a figure of a scenario over one key or two.

    vary: values by dotted key. metric: a number of a run's summary; by default the share of good
    requests, or the p99 TTFT of a scenario without limits. attainment: share that is asked for;
    None: as the scenario's slo says, or 0.9.
    how: see `How`.
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
    said = {each.point.name: each.summaries[0] for each in study.points if each.summaries}
    kept = [each.kept for each in study.points if each.kept is not None]
    missed = " ".join(missed_percentiles(kept))
    points = (_at(each, chosen) for each in study.points)
    more = {"warnings": study.warnings, "missed": missed}
    return _swept(scenario, vary, chosen, share, points, said, **more)


def goodput_sweep(
    scenario: Scenario,
    vary: Mapping[str, Sequence[Any]],
    options: SearchOptions,
    *,
    attainment: float | None = None,
    **how: Unpack[How],
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
    points: list[At] = []
    warnings: dict[str, tuple[ResultWarning, ...]] = {}
    for row in found.rows:
        mean = row["figures"].get("goodput", nan)
        low, high = row["interval"] or (nan, nan)
        error = "" if mean == mean else row["reason"]
        points.append(At(row["values"], mean, low, high, error))
        failed = [ResultWarning(kinds.FAILED_RUNS, f"failed: {error}")] if error else []
        warnings[row["name"]] = (*failed, *of_data(row))
    said = {row["name"]: row for row in found.rows}
    return _swept(scenario, vary, "goodput", share, points, said, warnings=of_points(warnings))


def _check(vary: Mapping[str, Sequence[Any]], attainment: float) -> None:
    check_attainment(attainment)
    if not 1 <= len(vary) <= _MOST_KEYS:
        raise ScenarioError(
            f"a sweep is over one key or two, got {len(vary)}; mist search takes any number"
        )


def _at(each: PointRuns, metric: str) -> At:
    """Return the figure of a point."""
    estimate = each.estimates.get(metric, Estimate(nan, nan))
    low, high = estimate.low, estimate.high
    if metric.endswith("_fraction"):  # Student's interval of a share may leave 0 to 1
        low, high = float(np.maximum(low, 0.0)), float(np.minimum(high, 1.0))  # NaN stays
    error = str(each.failures[0]) if each.failures else ""
    return At(each.point.values, estimate.mean, low, high, error)


def _better(metric: str) -> Better | None:
    """Return whether more or less of a figure is better, if its name implies it."""
    if metric in FIGURES:
        return FIGURES[metric]
    parts = metric.split("_")
    is_latency = (
        len(parts) == 3 and parts[2] == "ms" and parts[1] in ("ttft", "tpot", "itl", "e2el")
    )
    return "less" if is_latency else None
