"""Parts of the page of one sheet that findings of several kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.metrics.spending.cost import HOURS_A_MONTH
from mist_sim.report.elements.cells import number
from mist_sim.report.pages.page import Card
from mist_sim.report.run.expected import expected_rows


def how_sure(how: str, summary: Mapping[str, Any]) -> str:
    """Return a sentence on how sure an answer is, with the expected error of its step times.

    how: in words; empty if there is nothing to be sure of. summary: has `expected_errors`.
    """
    bars = [
        f"{metric} {shown} ({like})"
        for metric, shown, like in expected_rows(summary.get("expected_errors", {}))
    ]
    told = f"nine of ten measurements would lie within {'; '.join(bars)}" if bars else ""
    words = "; ".join(filter(None, (how, told)))
    return f"How sure: {words}." if words else ""


def monthly(summary: Mapping[str, Any]) -> Card:
    """Return the tile of dollars a month, of all GPUs if all are rented.

    summary: has `usd_per_hour` and `price_origins`, if they are known.
    """
    if (hourly := summary.get("usd_per_hour")) is None:
        return Card("cost", "-", note="not known: a GPU has no price; give gpu_price")
    origins = "; ".join(summary.get("price_origins", ()))
    note = f"{hourly:.2f} $/h; a GPU {origins}" if origins else f"{hourly:.2f} $/h"
    return Card("cost", f"{HOURS_A_MONTH * hourly:,.0f}", "$ a month", note=note)


def cheapest_token(dollars: Mapping[str, float]) -> Card:
    """Return the tile of dollars a million output tokens: the lowest of those by name."""
    known = {name: value for name, value in dollars.items() if value == value}
    if not known:
        return Card("cost", "-", note="not known: give cost in the scenario, and every gpu_price")
    best = min(known, key=lambda name: known[name])
    unit = "$ a million output tokens"
    return Card("cost", number(known[best]), unit, note=f"the least, of {best}")
