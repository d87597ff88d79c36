"""The distributions of latencies, with their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.report.pictures.run_data import limits_of
from mist_sim.report.pictures.style import COLOURS, limit_line, line, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.report.pictures.run_data import RunData

_SHARES = np.unique(np.concatenate([np.linspace(0, 1, 201), 1 - np.geomspace(1e-4, 0.05, 60)]))


def distributions(run: RunData) -> Figure:
    """Draw for TTFT, TPOT and E2E which share of the finished requests is as fast or faster.

    Raises ScenarioError where no request finished.
    """
    requests = run.table("requests")
    finished = requests[requests["status"] == "finished"]
    if finished.empty:
        raise ScenarioError("no request finished, so there are no latencies to draw")
    limits = limits_of(run.summary)
    figure = panels(
        [
            f"{name}: % of the requests that take at most so many ms"
            for name in SHORT_NAMES.values()
        ],
        shared_time=False,
    )
    for row, (metric, name) in enumerate(SHORT_NAMES.items(), start=1):
        values = 1e3 * finished[metric].dropna().to_numpy(float)
        if len(values):
            found = np.quantile(values, _SHARES)
            line(figure, found, 100 * _SHARES, name, COLOURS[row - 1], row=row, legend=False)
        if metric in limits:
            limit = 1e3 * limits[metric]
            limit_line(figure, limit, f"{limit:g} ms", row=row, across=False)
    figure.update_layout(hovermode="closest")
    return figure
