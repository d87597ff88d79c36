"""Engines over time: queues, batches and memory; a line each, or their range where many are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.report.pictures.intervals import Array, edges, means, middles, number_inside
from mist_sim.report.pictures.marks import Band, Limit, Line, Mark
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData

_MOST_LINES = len(COLOURS)
_ROUNDING = 1e-9  # of sums over a run; an engine with less time in steps had none


def queues(run: RunData) -> Picture:
    """Draw requests that wait and requests in service at each client, means of intervals."""
    stages = run.table("stages")
    if stages.empty:
        raise ScenarioError("no client served a stage, so there are no queues to draw")
    visits = stages[stages["stage"] != "decode"]  # decode shares the queue of its prefill
    visits = stages if visits.empty else visits
    ends = edges(float(stages["finished_at"].max()))
    waiting, served = {}, {}
    for name in dict.fromkeys(stages["client"]):
        mine, all_mine = visits[visits["client"] == name], stages[stages["client"] == name]
        waiting[name] = _inside(mine, "queued_at", "started_at", ends)
        served[name] = _inside(all_mine, "started_at", "finished_at", ends)
    panels = [
        Panel("requests that wait", _lines(ends, waiting)),
        Panel("requests in service", _lines(ends, served)),
    ]
    return Picture(panels, is_over_time=True)


def batches(run: RunData) -> Picture:
    """Draw decodes and prompt tokens a step of each engine, means over the time in steps."""
    steps, ends = _steps(run)
    panels = []
    for column, title in (
        ("num_decodes", "decodes a step"),
        ("num_prefill_tokens", "prompt tokens a step"),
    ):
        found = {}
        for name, mine in steps.groupby("client", sort=False):
            busy = _mean(mine, np.ones(len(mine)), ends)
            values = _mean(mine, mine[column].to_numpy(float), ends)
            found[name] = np.divide(values, busy, out=np.zeros_like(values), where=busy > _ROUNDING)
        panels.append(Panel(title, _lines(ends, found)))
    return Picture(panels, is_over_time=True)


def memory(run: RunData) -> Picture:
    """Draw the KV blocks that requests hold at each engine, and how many there are."""
    steps, ends = _steps(run)
    found = {
        name: _mean(mine, mine["num_used_blocks"].to_numpy(float), ends)
        for name, mine in steps.groupby("client", sort=False)
    }
    clients = run.table("clients")
    there = clients[clients["client"].isin(list(found))]["num_gpu_blocks"]
    limits = [Limit(each, f"{each:,} blocks") for each in sorted(set(there.tolist()) - {0})]
    return Picture([Panel("KV blocks held", [*_lines(ends, found), *limits])], is_over_time=True)


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


def _lines(ends: Array, found: Mapping[Any, Array]) -> list[Mark]:
    """Return a line a client; of many their mean, and the range from the lowest to the highest."""
    at = middles(ends)
    if len(found) <= _MOST_LINES:
        named = zip(found.items(), COLOURS, strict=False)
        return [Line(at, values, str(name), colour) for (name, values), colour in named]
    table = np.stack(list(found.values()))
    title = f"mean of {len(found)} clients, and their range"
    return [Band(at, table.min(axis=0), table.max(axis=0)), Line(at, table.mean(axis=0), title)]
