"""A sweep: a figure and a bar at each point, or a grid over two keys; tables, page and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf, isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.report.elements import columns, metric_cell, section
from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pictures.findings import sweep_picture, sweep_title
from mist_sim.report.run import expected_of_each

_LONGEST = 30  # cells of a bar


def sweep_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a sweep. summary: `Sweep.summary`."""
    body = _bars(summary) if len(summary["keys"]) == 1 else _grid(summary)
    over = " and ".join(summary["labels"])
    parts = [body, *([Text(summary["sentence"])] if summary["sentence"] else [])]
    return Group(
        *section(f"{summary['metric'].replace('_', ' ')} over {over}", Group(*parts)),
        *expected_of_each(summary["expected_errors"]),
    )


def _bars(summary: Mapping[str, Any]) -> RenderableType:
    points, metric = summary["points"], summary["metric"]
    known = [point["mean"] for point in points if not isnan(point["mean"])]
    most = max([*known, 0.0]) or 1.0
    rows = [
        [
            point["values"][0],
            _value(metric, point["mean"]) if not isnan(point["mean"]) else "failed",
            _interval(metric, point),
            "█" * round(_LONGEST * point["mean"] / most) if point["mean"] > 0 else "",
        ]
        for point in points
    ]
    has_ends = any(row[2] for row in rows)
    titles = [summary["labels"][0], "", *(["95 %"] if has_ends else []), ""]
    kept = [row if has_ends else [row[0], row[1], row[3]] for row in rows]
    return columns(titles, kept, right=[0, 1])


def _grid(summary: Mapping[str, Any]) -> RenderableType:
    down = list(dict.fromkeys(point["values"][0] for point in summary["points"]))
    across = list(dict.fromkeys(point["values"][1] for point in summary["points"]))
    means = {tuple(point["values"]): point["mean"] for point in summary["points"]}
    rows = [
        [first, *(_value(summary["metric"], means[first, second]) for second in across)]
        for first in down
    ]
    first, second = summary["labels"]
    titles: Sequence[str] = [f"{first} \\ {second}", *across]
    return columns(titles, rows, right=range(len(titles)))


def _interval(metric: str, point: Mapping[str, Any]) -> str:
    low, high = point["low"], point["high"]
    if isnan(low) or isnan(high) or low == high:
        return ""
    return f"{_value(metric, low)} to {'-' if isinf(high) else _value(metric, high)}"


def _value(metric: str, value: float) -> str:
    if isnan(value):
        return "-"
    return metric_cell(metric, value)


def sweep_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a sweep. summary: `Sweep.summary`."""
    verdict = Verdict("plain", f"{len(summary['points'])} points.", summary["sentence"] or "")
    figures = [Drawing("curve", sweep_title(summary), sweep_picture(summary))]
    return Page(title, verdict, figures=figures)
