"""The points of a study as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from mist_sim.errors import listed as listed_names
from mist_sim.report.elements import (
    Fitting,
    Folded,
    columns,
    listed,
    metric_cell,
    metric_title,
    section,
)
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
    most = summary.get("shown") or [
        key
        for key in _TITLES
        if any(not isnan(point["figures"].get(key, float("nan"))) for point in points)
    ]
    fewer = summary.get("shown") or [key for key in most if key not in _LEFT_OUT]
    narrow = _folded(points, most) if summary.get("shown") else _narrow(points, fewer)
    table = Fitting(_table(points, most, 2), _table(points, most, 1), narrow)
    return Group(
        *section(_title(summary), table),
        *(Padding(Text(note, style="dim"), (0, 0, 1, 0)) for note in _legend(summary)),
        *section("Verdict", Text(summary["verdict"])) if summary["verdict"] else (),
        *expected_of_each({point["name"]: point.get("expected_errors", {}) for point in points}),
    )


def _table(points: list[Mapping[str, Any]], keys: list[str], gap: int) -> RenderableType:
    return columns(
        *_cells(points, keys), right=range(1, 1 + len(keys)), below=_below(keys), gap=gap
    )


def _narrow(points: list[Mapping[str, Any]], keys: list[str]) -> RenderableType:
    return listed(*_cells(points, keys), right=range(1, 1 + len(keys)), below=_below(keys))


def _folded(points: list[Mapping[str, Any]], keys: list[str]) -> RenderableType:
    """Return tables below one another with all numbers that were asked for."""
    titles, cells = _cells(points, keys)
    return Folded(titles, _below(keys), cells)


def _below(keys: list[str]) -> list[str]:
    return ["", *(_titles(key)[1] for key in keys)]


def _titles(key: str) -> tuple[str, str]:
    return _TITLES.get(key) or metric_title(key)


def _cells(points: list[Mapping[str, Any]], keys: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return the titles, and the cells of each point."""
    titles = ["", *(_titles(key)[0] for key in keys)]
    return titles, [[point["name"] or "all", *_figures(point, keys)] for point in points]


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
