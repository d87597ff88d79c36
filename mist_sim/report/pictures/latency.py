"""Latencies over time, by when requests arrived, and the share of them that keep their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.report.pictures.intervals import edges_for, middles, percentiles, shares
from mist_sim.report.pictures.run_data import limits_of
from mist_sim.report.pictures.style import COLOURS, limit_line, line, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.report.pictures.run_data import RunData

_SHOWN = ((50.0, "p50"), (99.0, "p99"))


def latency(run: RunData) -> Figure:
    """Draw p50 and p99 of TTFT, TPOT and E2E by arrival, with the limits that there are."""
    finished = _finished(run)
    arrived = finished["arrival_time"].to_numpy(float)
    ends, limits = edges_for(arrived), limits_of(run.summary)
    figure = panels([f"{name}, ms, by arrival" for name in SHORT_NAMES.values()])
    for row, (metric, name) in enumerate(SHORT_NAMES.items(), start=1):
        values = 1e3 * finished[metric].to_numpy(float)
        for (asked, label), colour in zip(_SHOWN, COLOURS, strict=False):
            found = percentiles(arrived, values, ends, asked)
            line(figure, middles(ends), found, label, colour, row=row, legend=row == 1)
        if metric in limits:
            limit_line(figure, 1e3 * limits[metric], f"limit on {name}", row=row)
    return figure


def attainment(run: RunData) -> Figure:
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
    good = are_good(requests, limits)
    ends = edges_for(arrived)
    figure = panels(["requests that keep their limits, %, by arrival"])
    line(figure, middles(ends), 100 * shares(arrived, good, ends), "all limits", COLOURS[0])
    for (metric, limit), colour in zip(limits.items(), COLOURS[1:], strict=False):
        kept = are_good(requests, {metric: limit})
        name = f"{SHORT_NAMES[metric]} <= {1e3 * limit:g} ms"
        line(figure, middles(ends), 100 * shares(arrived, kept, ends), name, colour, dash="dot")
    figure.update_yaxes(range=[_lowest(figure), 101])
    return figure


def _lowest(figure: Figure) -> float:
    """Return where the axis of shares begins: at a multiple of ten below all lines."""
    values = np.concatenate([np.asarray(each.y, dtype=float) for each in figure.data])
    lowest = float(np.nanmin(values, initial=100.0))
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
