"""The reports of replications and of studies: how figures spread, how they follow a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pictures.catalog import require_plotly
from mist_sim.report.pictures.style import COLOURS, panels
from mist_sim.report.replications import replications_table
from mist_sim.report.study import study_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.metrics import Replications
    from mist_sim.metrics.replications import Estimate

_METRICS = {
    "p99_ttft_ms": "p99 TTFT, ms",
    "p99_tpot_ms": "p99 TPOT, ms",
    "p99_e2el_ms": "p99 E2E, ms",
    "request_throughput": "requests a second",
    "request_goodput": "goodput, requests a second",
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


def study_page(found: Any, title: str) -> Page:
    """Return the report of a `studies.Study`: main figures at each point, with their intervals."""
    require_plotly()
    sentence = f"{len(found.rows)} runs, {found.num_failed} of which failed."
    verdict = Verdict("plain", f"{len(found.points)} points.", sentence)
    return printed_page(title, verdict, study_table(found.summary), figures=list(_figures(found)))


def _figures(found: Any) -> Iterator[Drawing]:
    known = {name for each in found.points for name in each.estimates}
    for key, title in _METRICS.items():
        if key in known:
            names = [each.point.name for each in found.points if key in each.estimates]
            estimates = [each.estimates[key] for each in found.points if key in each.estimates]
            figure = panels([title], shared_time=False)
            _means(figure, names, estimates, 1)
            figure.update_layout(height=110 + 28 * len(names), hovermode="closest")
            yield Drawing(key, title, figure)


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
