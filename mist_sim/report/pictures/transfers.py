"""KV entries on their way: how much moves, and how long it takes; and power over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.report.pictures.intervals import edges, means, middles, percentiles
from mist_sim.report.pictures.marks import Line
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData


def transfers(run: RunData) -> Picture:
    """Draw bytes a second by kind of transfer, and the time that the slowest take.

    Raises ScenarioError for a run in which no entries moved.
    """
    if not run.has("transfers"):
        raise ScenarioError("no KV entries went from one place to another, so there is nothing")
    table = run.table("transfers")
    ends = edges(float(table["end"].max()))
    at = middles(ends)
    moves, times = [], []
    for (kind, mine), colour in zip(table.groupby("kind"), COLOURS, strict=False):
        start, end = mine["start"].to_numpy(float), mine["end"].to_numpy(float)
        moved = np.nan_to_num(mine["num_bytes"].to_numpy(float)) / 1e9
        took = end - start
        speed = np.divide(moved, took, out=np.zeros_like(moved), where=took > 0)
        name = str(kind).replace("_", " ")
        moves.append(Line(at, means(start, end, speed, ends), name, colour))
        times.append(Line(at, percentiles(start, 1e3 * took, ends, 99.0), name, colour))
    panels = [Panel("moved, GB/s", moves), Panel("time of a transfer, ms, p99 by start", times)]
    return Picture(panels, is_over_time=True)


def power(run: RunData) -> Picture:
    """Draw the watts of each client and of all.

    Raises ScenarioError for a run without GPUs, or without a saved table over time.
    """
    table = run.table("over_time")
    if "power" not in table:
        raise ScenarioError("no client has GPUs whose power is known, so there are no watts")
    watts = table.pivot_table(index="start", columns="client", values="power", sort=False)
    names, at = list(watts.columns), watts.index.to_numpy(float)
    lines = []
    if len(names) <= len(COLOURS):
        for name, colour in zip(names, COLOURS, strict=False):
            lines.append(Line(at, watts[name].to_numpy(), str(name), colour, is_stepped=True))
    if len(names) > 1:
        of_all = watts.sum(axis=1).to_numpy()
        lines.append(Line(at, of_all, "all", "#555555", ":", is_stepped=True))
    return Picture([Panel("power, W", lines)], is_over_time=True)
