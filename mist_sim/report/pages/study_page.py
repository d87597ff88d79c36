"""The reports of replications and of studies: how figures spread, how they follow a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.metrics.replications import Estimate
from mist_sim.report.elements.metric_cells import metric_title
from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pictures.catalog import require_plotly
from mist_sim.report.pictures.findings.study_lines import axis_of, lines_over
from mist_sim.report.pictures.style import COLOURS, panels
from mist_sim.report.replications import replications_table
from mist_sim.report.study import study_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.metrics import Replications

_METRICS = {
    "p99_ttft_ms": "p99 TTFT, ms",
    "p99_tpot_ms": "p99 TPOT, ms",
    "p99_e2el_ms": "p99 E2E, ms",
    "steady_request_throughput": "requests a second, steady part",
    "steady_request_goodput": "goodput, requests a second, steady part",
}
_PANEL_HEIGHT = 150  # pixels


def replications_page(found: Replications, title: str) -> Page:
    """Return the report of replications: each run as a dot, the mean with its interval."""
    require_plotly()
    runs = found.runs
    metrics = {key: name for key, name in _METRICS.items() if key in runs}
    figure = panels(list(metrics.values()), shared_time=False)
    for row, key in enumerate(metrics, start=1):
        values, seeds = runs[key].tolist(), runs["seed"].tolist()
        figure.add_scatter(
            x=values,
            y=["runs"] * len(values),
            text=[f"seed {seed}" for seed in seeds],
            mode="markers",
            marker={"color": COLOURS[0], "size": 8, "opacity": 0.6},
            hovertemplate="%{text}: %{x:.4g}<extra></extra>",
            showlegend=False,
            row=row,
            col=1,
        )
        _means(figure, ["mean"], [found.estimate(key)], row)
    figure.update_layout(height=110 + _PANEL_HEIGHT * len(metrics), hovermode="closest")
    figure.update_xaxes(rangemode="normal")
    sentence = "Dots are runs; the bar is the 95 % confidence interval of their mean."
    verdict = Verdict("plain", f"{len(found.seeds)} replications.", sentence)
    drawings = [Drawing("spread", "The spread of runs", figure)]
    return printed_page(title, verdict, replications_table(found), figures=drawings)


def study_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a study: main figures at each point, with their intervals.

    summary: `Study.summary`.
    """
    page = study_plots_page(summary, title)
    return printed_page(title, page.verdict, study_table(summary), figures=page.figures)


def study_plots_page(summary: Mapping[str, Any], title: str, names: Sequence[str] = ()) -> Page:
    """Return a page of pictures of a study alone.

    names: numbers of the runs, as of `metric_picture`; by default the main ones.
    """
    require_plotly()
    failed = f"{summary['num_failed']} of which failed" if summary["num_failed"] else "none failed"
    verdict = Verdict(
        "plain", f"{summary['num_points']} points.", f"{summary['num_runs']} runs, {failed}."
    )
    known = numbers_in(summary)
    usual = [key for key in summary.get("shown", ()) or _METRICS if key in known]
    wanted = dict.fromkeys(names or usual)
    drawings = [Drawing(key, _title(key), metric_picture(summary, key)) for key in wanted]
    return Page(title=title, verdict=verdict, figures=drawings)


def restored_study(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a `study.json`: figures that are null there are NaN."""
    points = []
    for point in summary["points"]:
        figures = {key: nan if v is None else v for key, v in point["figures"].items()}
        points.append({**point, "figures": figures})
    return {**summary, "points": points}


def numbers_in(summary: Mapping[str, Any]) -> list[str]:
    """Return the names of all numbers that some point has."""
    return list(dict.fromkeys(name for point in summary["points"] for name in point["figures"]))


def metric_picture(summary: Mapping[str, Any], metric: str) -> Figure:
    """Draw any number of the runs at each point of a study, with its interval.

    Where rates are varied, or some key with three numbers or more, a line for each series over it.
    Raises ScenarioError for a number that no run has.
    """
    known = numbers_in(summary)
    if metric not in known:
        raise ScenarioError(
            f"there is no number {brief(metric)} in the summaries of these runs"
            f"{did_you_mean(metric, known)} A study draws any of them"
        )
    require_plotly()
    points = [point for point in summary["points"] if metric in point["figures"]]
    if axis := axis_of([point["values"] for point in points]):
        return lines_over(axis, points, metric, _title(metric))
    names = [point["name"] or "all" for point in points]
    means = [point["figures"][metric] for point in points]
    half = [_half(point["confidence_intervals"].get(metric)) for point in points]
    figure = panels([_title(metric)], shared_time=False)
    _means(figure, names, [Estimate(*each) for each in zip(means, half, strict=True)], 1)
    figure.update_layout(height=110 + 28 * len(names), hovermode="closest")
    return figure


def _title(metric: str) -> str:
    name, unit = metric_title(metric)
    return _METRICS.get(metric, f"{name}, {unit}" if unit else name)


def _half(interval: Sequence[float | None] | None) -> float:
    low, high = interval or (None, None)
    return nan if low is None or high is None else (high - low) / 2


def _means(figure: Figure, names: Sequence[str], found: Sequence[Estimate], row: int) -> None:
    """Add means with their intervals to a panel."""
    half = [0.0 if isnan(each.half_width) else each.half_width for each in found]
    figure.add_scatter(
        x=[each.mean for each in found],
        y=list(names),
        error_x={"type": "data", "array": half, "width": 4},
        mode="markers",
        marker={"color": COLOURS[5], "size": 9},
        showlegend=False,
        row=row,
        col=1,
    )
    figure.update_yaxes(
        type="category", autorange="reversed", rangemode="normal", automargin=True, row=row, col=1
    )
