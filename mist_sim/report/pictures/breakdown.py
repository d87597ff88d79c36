"""Where the latency of requests goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.errors import ScenarioError
from mist_sim.report.pictures.style import COLOURS, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.report.pictures.run_data import RunData

_SHOWN = ("mean", "p50", "p90", "p99")


def breakdown(run: RunData) -> Figure:
    """Draw the mean and percentiles of each part of the latency, ms.

    Raises ScenarioError where no request finished.
    """
    parts = run.summary.get("latency_breakdown_ms", {})
    if not parts:
        raise ScenarioError("no request finished, so there is no latency to divide")
    figure = panels(["parts of a request's latency, ms"], shared_time=False)
    for figure_name, colour in zip(_SHOWN, COLOURS, strict=False):
        figure.add_bar(
            x=[part[figure_name] for part in parts.values()],
            y=list(parts),
            orientation="h",
            name=figure_name,
            marker={"color": colour},
        )
    figure.update_layout(barmode="group", height=130 + 62 * len(parts), hovermode="y unified")
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    return figure
