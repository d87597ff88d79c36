"""The points of a study: tables, page, and pictures of how figures follow a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.errors import listed as listed_names
from mist_sim.report.elements import (
    Fitting,
    Folded,
    columns,
    labels_of,
    listed,
    metric_cell,
    metric_title,
    section,
    value_text,
)
from mist_sim.report.pages.page import Card, Drawing, Page, Verdict, decision
from mist_sim.report.pictures.findings import axis_of, heat_map, lines_over, plane_of
from mist_sim.report.pictures.picture import Panel, Picture, Points
from mist_sim.report.pictures.style import COLOURS
from mist_sim.report.run import expected_of_each

_TITLES = {
    "steady_request_throughput": ("requests", "/s"),
    "steady_output_throughput": ("output", "tokens/s"),
    "p50_ttft_ms": ("p50 TTFT", "ms"),
    "p99_ttft_ms": ("p99 TTFT", "ms"),
    "p50_tpot_ms": ("p50 TPOT", "ms"),
    "p99_tpot_ms": ("p99 TPOT", "ms"),
    "good_request_fraction": ("good", "requests"),
    "cost_per_million_output_tokens_usd": ("$ a million", "output tokens"),
}
_LEFT_OUT = ("steady_request_throughput", "p50_ttft_ms", "p50_tpot_ms")  # in a narrow terminal


def study_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a study. summary: `Study.summary`."""
    points = summary["points"]
    keys = summary.get("shown") or [
        key for key in _TITLES if any(not isnan(point["figures"].get(key, nan)) for point in points)
    ]
    titles, below, rows = _cells(points, keys)
    right = range(1, 1 + len(keys))
    if summary.get("shown"):
        narrow: RenderableType = Folded(titles, below, rows)
    else:
        fewer = [key for key in keys if key not in _LEFT_OUT]
        narrow_titles, narrow_below, narrow_rows = _cells(points, fewer)
        right_of_fewer = range(1, 1 + len(fewer))
        narrow = listed(narrow_titles, narrow_rows, right=right_of_fewer, below=narrow_below)
    wide = [columns(titles, rows, right=right, below=below, gap=gap) for gap in (2, 1)]
    table = Fitting(*wide, narrow)
    return Group(
        *section(_title(summary), table),
        *(Padding(Text(note, style="dim"), (0, 0, 1, 0)) for note in _legend(summary)),
        *section("Verdict", Text(summary["verdict"])) if summary["verdict"] else (),
        *expected_of_each({point["name"]: point.get("expected_errors", {}) for point in points}),
    )


def _cells(
    points: list[Mapping[str, Any]], keys: list[str]
) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the titles in two lines, and the cells of each point."""
    titles = [_TITLES.get(key) or metric_title(key) for key in keys]
    rows = [[point["name"] or "all", *_figures(point, keys)] for point in points]
    return ["", *(title for title, _ in titles)], ["", *(unit for _, unit in titles)], rows


def _title(summary: Mapping[str, Any]) -> str:
    failed = f", {summary['num_failed']} failed" if summary["num_failed"] else ""
    missing = f", {summary['num_missing']} missing" if summary.get("num_missing") else ""
    return f"{summary['num_points']} points, {summary['num_runs']} runs{failed}{missing}"


def _legend(summary: Mapping[str, Any]) -> Iterator[str]:
    if not summary.get("shown"):
        yield "rates of the steady part of each run, without ramp and end"
    if failed := [each["name"] for each in summary["points"] if each["figures"].get("failed")]:
        yield f"latencies of requests that finished; some failed at {listed_names(failed)}"
    if any(point["confidence_intervals"] for point in summary["points"]):
        yield "mean ± half width of the 95 % confidence interval over the seeds"


def _figures(point: Mapping[str, Any], shown: list[str]) -> Iterator[str]:
    if not point["figures"]:
        yield "failed"
        yield from ["-"] * (len(shown) - 1)
        return
    for key in shown:
        mean = point["figures"].get(key, float("nan"))
        low, high = point["confidence_intervals"].get(key, (mean, mean))
        yield metric_cell(key, mean, (high - low) / 2)


ROW = 0.24  # inches, of a mean
METRICS = {
    "p99_ttft_ms": "p99 TTFT, ms",
    "p99_tpot_ms": "p99 TPOT, ms",
    "p99_e2el_ms": "p99 E2E, ms",
    "steady_request_throughput": "requests a second, steady part",
    "steady_request_goodput": "goodput, requests a second, steady part",
}


def study_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a study: main figures at each point, with their intervals.

    summary: `Study.summary`.
    """
    page = study_plots_page(summary, title)
    cases = {each["name"]: each.get("judged", {}) for each in summary["points"]}
    room = Card("room", "-", note="how many more requests each serves: compare --vary --goodput")
    verdict, sheet = decision(cases, room) or (page.verdict, None)
    return Page(title, verdict, figures=page.figures, brief=sheet)


def study_plots_page(summary: Mapping[str, Any], title: str, names: Sequence[str] = ()) -> Page:
    """Return a page of pictures of a study alone.

    names: numbers of the runs, as of `metric_picture`; by default the main ones.
    """
    failed = f"{summary['num_failed']} of which failed" if summary["num_failed"] else "none failed"
    verdict = Verdict(
        "plain", f"{summary['num_points']} points.", f"{summary['num_runs']} runs, {failed}."
    )
    known = numbers_in(summary)
    usual = [key for key in summary.get("shown", ()) or METRICS if key in known]
    wanted = dict.fromkeys(names or usual)
    drawings = [Drawing(key, metric_name(key), metric_picture(summary, key)) for key in wanted]
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
        return heat_map(cells, metric, [labels[key] for key in plane], metric_name(metric))
    if axis := axis_of([point["values"] for point in points]):
        return lines_over(axis, points, metric, metric_name(metric))
    names = [point["name"] or "all" for point in points]
    means = [point["figures"][metric] for point in points]
    ends = [point["confidence_intervals"].get(metric) or (None, None) for point in points]
    halves = [nan if low is None or high is None else (high - low) / 2 for low, high in ends]
    marks = [means_at(means, halves)]
    return Picture([Panel(metric_name(metric), marks, height=ROW * len(names), rows=names)])


def metric_name(metric: str) -> str:
    """Return the title of a number's picture."""
    name, unit = metric_title(metric)
    return METRICS.get(metric, f"{name}, {unit}" if unit else name)


def means_at(means: Sequence[float], halves: Sequence[float], first: int = 0) -> Points:
    """Return means with the half widths of their intervals, a row each. first: their first row."""
    half = [0.0 if isnan(each) else each for each in halves]
    rows = range(first, first + len(means))
    return Points(means, rows, colour=COLOURS[5], size=6.0, errors=(half, half))
