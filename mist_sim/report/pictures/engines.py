"""Engines over time: queues, batches and memory; a line each, or their range where many are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.report.pictures.intervals import Array, edges, means, middles, number_inside
from mist_sim.report.pictures.style import COLOURS, band, limit_line, line, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.report.pictures.run_data import RunData

_MOST_LINES = len(COLOURS)


def queues(run: RunData) -> Figure:
    """Draw requests that wait and requests in service at each client, means of intervals."""
    stages = run.table("stages")
    if stages.empty:
        raise ScenarioError("no client served a stage, so there are no queues to draw")
    visits = stages[stages["stage"] != "decode"]  # decode shares the queue of its prefill
    visits = stages if visits.empty else visits
    ends = edges(float(stages["finished_at"].max()))
    figure = panels(["requests that wait", "requests in service"])
    waiting, served = {}, {}
    for name in dict.fromkeys(stages["client"]):
        mine, all_mine = visits[visits["client"] == name], stages[stages["client"] == name]
        waiting[name] = _inside(mine, "queued_at", "started_at", ends)
        served[name] = _inside(all_mine, "started_at", "finished_at", ends)
    _lines(figure, ends, waiting, row=1)
    _lines(figure, ends, served, row=2)
    return figure


def batches(run: RunData) -> Figure:
    """Draw decodes and prompt tokens a step of each engine, means over the time in steps."""
    steps, ends = _steps(run)
    figure = panels(["decodes a step", "prompt tokens a step"])
    for row, column in enumerate(("num_decodes", "num_prefill_tokens"), start=1):
        found = {}
        for name, mine in steps.groupby("client", sort=False):
            busy = _mean(mine, np.ones(len(mine)), ends)
            values = _mean(mine, mine[column].to_numpy(float), ends)
            found[name] = np.divide(values, busy, out=np.zeros_like(values), where=busy > 0)
        _lines(figure, ends, found, row=row)
    return figure


def memory(run: RunData) -> Figure:
    """Draw the KV blocks that requests hold at each engine, and how many there are."""
    steps, ends = _steps(run)
    figure = panels(["KV blocks held"])
    found = {
        name: _mean(mine, mine["num_used_blocks"].to_numpy(float), ends)
        for name, mine in steps.groupby("client", sort=False)
    }
    _lines(figure, ends, found, row=1)
    clients = run.table("clients")
    there = clients[clients["client"].isin(list(found))]["num_gpu_blocks"]
    for number in sorted(set(there.tolist()) - {0}):
        limit_line(figure, number, f"{number:,} blocks")
    return figure


def _steps(run: RunData) -> tuple[Any, Array]:
    """Return the table of steps, and intervals. Raises ScenarioError for a run without steps."""
    steps = run.table("steps")
    if steps.empty:
        raise ScenarioError("no engine took a step, so there are no batches to draw")
    return steps, edges(float(steps["end"].max()))


def _mean(rows: Any, values: Array, ends: Array) -> Array:
    return means(rows["start"].to_numpy(float), rows["end"].to_numpy(float), values, ends)


def _inside(rows: Any, entered: str, left: str, ends: Array) -> Array:
    return number_inside(rows[entered].to_numpy(float), rows[left].to_numpy(float), ends)


def _lines(figure: Figure, ends: Array, found: dict[Any, Array], *, row: int) -> None:
    """Add a line a client; of many their mean, and the range from the lowest to the highest."""
    at = middles(ends)
    if len(found) <= _MOST_LINES:
        for (name, values), colour in zip(found.items(), COLOURS, strict=False):
            line(figure, at, values, str(name), colour, row=row, legend=row == 1)
        return
    table = np.stack(list(found.values()))
    band(figure, at, table.min(axis=0), table.max(axis=0), COLOURS[0], row=row)
    title = f"mean of {len(found)} clients, and their range"
    line(figure, at, table.mean(axis=0), title, COLOURS[0], row=row, legend=row == 1)
