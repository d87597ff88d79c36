"""Any number of a summary as a cell of a table, and its title."""

from __future__ import annotations

from math import isnan

from mist_sim.report.elements.cells import number, percent

_SHARES = ("fraction", "hit_rate", "hit_rate_unbounded", "utilisation", "room")
_UNITS = {"ms": "ms", "s": "s", "j": "J", "w": "W", "usd": "$", "throughput": "/s", "goodput": "/s"}
_IN_CAPITALS = ("ttft", "tpot", "itl", "kv")


def metric_cell(name: str, value: float) -> str:
    """Return a value; shares in percent. name: of the number in the summary."""
    if name.endswith(_SHARES) and not isnan(value):
        return percent(value, 1)
    return number(value)


def metric_title(name: str) -> tuple[str, str]:
    """Return the title of a number of the summary in two lines: what it is, and its unit."""
    words = name.split("_")
    unit = _UNITS.get(words[-1], "")
    if unit and words[-1] not in ("throughput", "goodput"):
        words = words[:-1]
    shown = [w.upper() if w in _IN_CAPITALS else "E2E" if w == "e2el" else w for w in words]
    return " ".join(shown), unit
