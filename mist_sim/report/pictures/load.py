"""The load over time: arrivals and departures per second, and requests in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.report.pictures.intervals import edges, middles, number_inside, rates
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, line, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.report.pictures.run_data import RunData


def load(run: RunData) -> Figure:
    """Draw arrivals, finished and failed requests a second, and requests in flight."""
    requests = run.table("requests")
    arrived = requests["arrival_time"].to_numpy(float)
    finished = requests["finished_at"].to_numpy(float)
    is_done = (requests["status"] == "finished").to_numpy(bool)
    ends = edges(float(np.nanmax(finished, initial=arrived.max(initial=0.0))))
    at = middles(ends)
    figure = panels(["requests a second", "requests in flight"])
    line(figure, at, rates(arrived, ends), "arrive", COLOURS[0])
    line(figure, at, rates(finished[is_done], ends), "finish", COLOURS[2])
    if not is_done.all():
        line(figure, at, rates(finished[~is_done], ends), "fail", LIMIT_COLOUR)
    line(figure, at, number_inside(arrived, finished, ends), "in flight", COLOURS[1], row=2)
    return figure
