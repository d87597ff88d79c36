"""Sentences about load: times in which a run was overloaded, and what left no room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.report.elements.cells import percent

LEAST_AT_LIMIT = 0.01  # share of the time from which on a limit is named
_UNITS = ((10800.0, 3600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def overload_line(summary: Mapping[str, Any]) -> str:
    """Return for how long, when, and how many waited; empty for a run that never was overloaded."""
    periods = summary.get("overloads")
    if not periods:
        return ""
    all_seconds = summary["arrivals_s"]
    unit, name = next((unit, name) for least, unit, name in _UNITS if all_seconds >= least)
    share = f"{summary['overloaded_s'] / unit:.3g} of {all_seconds / unit:.3g} {name}"
    first, longest = periods[0], max(period["longest_wait"] for period in periods)
    when = f"from {first['begin'] / unit:.3g} to {first['end'] / unit:.3g}"
    if len(periods) > 1:
        when = f"{len(periods)} times, the first {when}"
    most = max(period["most_waiting"] for period in periods)
    drained = "" if summary["unstable"] else ", though the queue drained in the end"
    return (
        f"Overloaded for {share} ({when}){drained}: up to {most:,} requests waited, for up to "
        f"{longest:.3g} s. Percentiles of the whole run mix these times with the others."
    )


def room_line(summary: Mapping[str, Any]) -> str:
    """Return which limit left no room for more, and for how long; empty where there was room."""
    taken = 1 - summary.get("room", 1.0)
    if not taken >= LEAST_AT_LIMIT or "room_limit" not in summary:
        return ""
    return f"no room in {percent(taken)} of the time, mostly for {summary['room_limit']}"
