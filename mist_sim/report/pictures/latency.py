"""Latencies over time, by when requests arrived, and the share of them that keep their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.report.pictures.intervals import edges_for, middles, percentiles, shares
from mist_sim.report.pictures.marks import Limit, Line, Mark
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.run_data import limits_of
from mist_sim.report.pictures.style import COLOURS

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData

_SHOWN = ((50.0, "p50"), (99.0, "p99"))


def latency(run: RunData) -> Picture:
    """Draw p50 and p99 of TTFT, TPOT and E2E by arrival, with the limits that there are."""
    finished = _finished(run)
    arrived = finished["arrival_time"].to_numpy(float)
    ends, limits = edges_for(arrived), limits_of(run.summary)
    panels = []
    for metric, name in SHORT_NAMES.items():
        values = 1e3 * finished[metric].to_numpy(float)
        marks: list[Mark] = [
            Line(middles(ends), percentiles(arrived, values, ends, asked), label, colour)
            for (asked, label), colour in zip(_SHOWN, COLOURS, strict=False)
        ]
        if metric in limits:
            limit = 1e3 * limits[metric]
            marks.append(Limit(limit, f"limit {limit:g} ms"))
        panels.append(Panel(f"{name}, ms, by arrival", marks))
    return Picture(panels, is_over_time=True)


def attainment(run: RunData) -> Picture:
    """Draw the share of requests that keep all limits, by arrival.

    Raises ScenarioError for a run without limits.
    """
    limits = limits_of(run.summary)
    if not limits:
        raise ScenarioError(
            "attainment: the run has no limits to keep; say them, such as "
            "slo: {ttft: 500 ms, tpot: 40 ms}, and run it again"
        )
    requests = run.table("requests")
    arrived = requests["arrival_time"].to_numpy(float)
    ends = edges_for(arrived)
    asked = {"all limits": limits} | {
        f"{SHORT_NAMES[metric]} <= {1e3 * limit:g} ms": {metric: limit}
        for metric, limit in limits.items()
    }
    lines = []
    for (name, some), colour in zip(asked.items(), COLOURS, strict=False):
        kept = 100 * shares(arrived, are_good(requests, some), ends)
        lines.append(Line(middles(ends), kept, name, colour, "-" if some is limits else ":"))
    title = "requests that keep their limits, %, by arrival"
    return Picture([Panel(title, lines, range=(_lowest(lines), 101.0))], is_over_time=True)


def _lowest(lines: list[Line]) -> float:
    """Return where the axis of shares begins: at a multiple of ten below all lines."""
    lowest = float(np.nanmin(np.concatenate([each.y for each in lines]), initial=100.0))
    return max(10.0 * (lowest // 10) - 2, -2.0)


def are_good(requests: Any, limits: dict[str, float]) -> Any:
    """Return which requests finished and keep the limits, seconds by metric."""
    ttft, tpot, e2el = (requests[name].to_numpy(float) for name in SHORT_NAMES)
    slo = Slo(ttft=limits.get("ttft"), tpot=limits.get("tpot"), e2el=limits.get("e2el"))
    gaps = np.maximum(requests["num_output_tokens"].to_numpy(np.int64) - 1, 0)
    finished = (requests["status"] == "finished").to_numpy(bool)
    return finished & slo.kept(ttft, tpot, e2el, gaps)


def _finished(run: RunData) -> Any:
    """Return the finished requests. Raises ScenarioError if none finished."""
    requests = run.table("requests")
    finished = requests[requests["status"] == "finished"]
    if finished.empty:
        raise ScenarioError("no request finished, so there are no latencies to draw")
    return finished
