"""The load over time: arrivals and departures per second, and requests in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.report.pictures.intervals import edges, middles, number_inside, rates
from mist_sim.report.pictures.marks import Line
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData


def load(run: RunData) -> Picture:
    """Draw arrivals, finished and failed requests a second, and requests in flight."""
    requests = run.table("requests")
    arrived = requests["arrival_time"].to_numpy(float)
    finished = requests["finished_at"].to_numpy(float)
    is_done = (requests["status"] == "finished").to_numpy(bool)
    ends = edges(float(np.nanmax(finished, initial=arrived.max(initial=0.0))))
    at = middles(ends)
    lines = [
        Line(at, rates(arrived, ends), "arrive", COLOURS[0]),
        Line(at, rates(finished[is_done], ends), "finish", COLOURS[2]),
    ]
    if not is_done.all():
        lines.append(Line(at, rates(finished[~is_done], ends), "fail", LIMIT_COLOUR))
    inside = Line(at, number_inside(arrived, finished, ends), "in flight", COLOURS[1])
    panels = [Panel("requests a second", lines), Panel("requests in flight", [inside])]
    return Picture(panels, is_over_time=True)
