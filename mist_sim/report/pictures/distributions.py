"""The distributions of latencies, with their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.report.pictures.marks import Limit, Line, Mark
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.run_data import limits_of
from mist_sim.report.pictures.style import COLOURS

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData

_SHARES = np.unique(np.concatenate([np.linspace(0, 1, 201), 1 - np.geomspace(1e-4, 0.05, 60)]))


def distributions(run: RunData) -> Picture:
    """Draw for TTFT, TPOT and E2E which share of the finished requests is as fast or faster.

    Raises ScenarioError where no request finished.
    """
    requests = run.table("requests")
    finished = requests[requests["status"] == "finished"]
    if finished.empty:
        raise ScenarioError("no request finished, so there are no latencies to draw")
    limits = limits_of(run.summary)
    panels = []
    for (metric, name), colour in zip(SHORT_NAMES.items(), COLOURS, strict=False):
        marks: list[Mark] = []
        values = 1e3 * finished[metric].dropna().to_numpy(float)
        if len(values):
            marks.append(Line(np.quantile(values, _SHARES), 100 * _SHARES, colour=colour))
        if metric in limits:
            limit = 1e3 * limits[metric]
            marks.append(Limit(limit, f"limit {limit:g} ms", is_across=False))
        title = f"{name}: % of the requests that take at most so many ms"
        panels.append(Panel(title, marks))
    return Picture(panels)
