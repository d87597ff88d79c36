"""The reports of replications and of studies: how figures spread, how they follow a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.metrics.replications import Estimate
from mist_sim.report.elements import labels_of, metric_title, value_text
from mist_sim.report.pages.page import Card, Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pages.sheets import decision
from mist_sim.report.pictures.findings import axis_of, heat_map, lines_over, plane_of
from mist_sim.report.pictures.marks import Points
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS
from mist_sim.report.replications import replications_table
from mist_sim.report.study import study_table

if TYPE_CHECKING:
    from mist_sim.metrics import Replications

_METRICS = {
    "p99_ttft_ms": "p99 TTFT, ms",
    "p99_tpot_ms": "p99 TPOT, ms",
    "p99_e2el_ms": "p99 E2E, ms",
    "steady_request_throughput": "requests a second, steady part",
    "steady_request_goodput": "goodput, requests a second, steady part",
}
_ROW = 0.24  # inches


def replications_page(found: Replications, title: str) -> Page:
    """Return the report of replications: each run as a dot, the mean with its interval."""
    runs = found.runs
    metrics = {key: name for key, name in _METRICS.items() if key in runs}
    panels = []
    for key, name in metrics.items():
        values, seeds = runs[key].tolist(), runs["seed"].tolist()
        told = [f"seed {seed}: {value:.4g}" for seed, value in zip(seeds, values, strict=True)]
        marks = [Points(values, [0] * len(values), texts=told), _means([found.estimate(key)], 1)]
        panels.append(Panel(name, marks, height=2 * _ROW, rows=["runs", "mean"]))
    sentence = "Dots are runs; the bar is the 95 % confidence interval of their mean."
    verdict = Verdict("plain", f"{len(found.seeds)} replications.", sentence)
    drawings = [Drawing("spread", "The spread of runs", Picture(panels))]
    return printed_page(title, verdict, replications_table(found), figures=drawings)


def study_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a study: main figures at each point, with their intervals.

    summary: `Study.summary`.
    """
    page = study_plots_page(summary, title)
    cases = {each["name"]: each.get("judged", {}) for each in summary["points"]}
    room = Card("room", "-", note="how many more requests each serves: compare --vary --goodput")
    verdict, brief = decision(cases, room) or (page.verdict, None)
    return printed_page(title, verdict, study_table(summary), figures=page.figures, brief=brief)


def study_plots_page(summary: Mapping[str, Any], title: str, names: Sequence[str] = ()) -> Page:
    """Return a page of pictures of a study alone.

    names: numbers of the runs, as of `metric_picture`; by default the main ones.
    """
    failed = f"{summary['num_failed']} of which failed" if summary["num_failed"] else "none failed"
    verdict = Verdict(
        "plain", f"{summary['num_points']} points.", f"{summary['num_runs']} runs, {failed}."
    )
    known = numbers_in(summary)
    usual = [key for key in summary.get("shown", ()) or _METRICS if key in known]
    wanted = dict.fromkeys(names or usual)
    drawings = [Drawing(key, _title(key), metric_picture(summary, key)) for key in wanted]
    return Page(title=title, verdict=verdict, figures=drawings)


def numbers_in(summary: Mapping[str, Any]) -> list[str]:
    """Return the names of all numbers that some point has."""
    return list(dict.fromkeys(name for point in summary["points"] for name in point["figures"]))


def metric_picture(summary: Mapping[str, Any], metric: str) -> Picture:
    """Draw any number of the runs at each point of a study, with its interval.

    Over two keys of numbers it is a heat map; where rates are varied, or some key with three
    numbers or more, a line for each series over it.
    Raises ScenarioError for a number that no run has.
    """
    known = numbers_in(summary)
    if metric not in known:
        raise ScenarioError(
            f"there is no number {brief(metric)} in the summaries of these runs"
            f"{did_you_mean(metric, known)} docs/reference/metrics.md has all"
        )
    points = [point for point in summary["points"] if metric in point["figures"]]
    if plane := plane_of([point["values"] for point in points]):
        cells = {
            tuple(value_text(point["values"][key]) for key in plane): point["figures"][metric]
            for point in points
        }
        labels = labels_of(list(points[0]["values"]))
        return heat_map(cells, metric, [labels[key] for key in plane], _title(metric))
    if axis := axis_of([point["values"] for point in points]):
        return lines_over(axis, points, metric, _title(metric))
    names = [point["name"] or "all" for point in points]
    means = [point["figures"][metric] for point in points]
    half = [_half(point["confidence_intervals"].get(metric)) for point in points]
    marks = [_means([Estimate(*each) for each in zip(means, half, strict=True)])]
    return Picture([Panel(_title(metric), marks, height=_ROW * len(names), rows=names)])


def _title(metric: str) -> str:
    name, unit = metric_title(metric)
    return _METRICS.get(metric, f"{name}, {unit}" if unit else name)


def _half(interval: Sequence[float | None] | None) -> float:
    low, high = interval or (None, None)
    return nan if low is None or high is None else (high - low) / 2


def _means(found: Sequence[Estimate], first: int = 0) -> Points:
    """Return means with their intervals, a row each. first: their first row."""
    half = [0.0 if isnan(each.half_width) else each.half_width for each in found]
    means = [each.mean for each in found]
    rows = range(first, first + len(found))
    return Points(means, rows, colour=COLOURS[5], size=6.0, errors=(half, half))
