"""KV entries on their way: how much moves, and how long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.report.pictures.intervals import edges, means, middles, percentiles
from mist_sim.report.pictures.style import COLOURS, line, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.report.pictures.run_data import RunData


def transfers(run: RunData) -> Figure:
    """Draw bytes a second by kind of transfer, and the time that the slowest take.

    Raises ScenarioError for a run in which no entries moved.
    """
    if not run.has("transfers"):
        raise ScenarioError("no KV entries went from one place to another, so there is nothing")
    table = run.table("transfers")
    ends = edges(float(table["end"].max()))
    at = middles(ends)
    figure = panels(["moved, GB/s", "time of a transfer, ms, p99 by start"])
    for (kind, mine), colour in zip(table.groupby("kind"), COLOURS, strict=False):
        start, end = mine["start"].to_numpy(float), mine["end"].to_numpy(float)
        moved = np.nan_to_num(mine["num_bytes"].to_numpy(float)) / 1e9
        took = end - start
        speed = np.divide(moved, took, out=np.zeros_like(moved), where=took > 0)
        name = str(kind).replace("_", " ")
        line(figure, at, means(start, end, speed, ends), name, colour)
        slowest = percentiles(start, 1e3 * took, ends, 99.0)
        line(figure, at, slowest, name, colour, row=2, legend=False)
    return figure


def power(run: RunData) -> Figure:
    """Draw the watts of each client and of all.

    Raises ScenarioError for a run without GPUs, or without a saved table over time.
    """
    table = run.table("over_time")
    if "power" not in table:
        raise ScenarioError("no client has GPUs whose power is known, so there are no watts")
    figure = panels(["power, W"])
    watts = table.pivot_table(index="start", columns="client", values="power", sort=False)
    names = list(watts.columns)
    if len(names) <= len(COLOURS):
        for name, colour in zip(names, COLOURS, strict=False):
            line(figure, watts.index, watts[name], str(name), colour, steps=True)
    if len(names) > 1:
        line(figure, watts.index, watts.sum(axis=1), "all", "#555555", steps=True, dash="dot")
    return figure
