"""Any number of a summary as a cell of a table, and its title."""

from __future__ import annotations

from mist_sim.report.elements.cells import LONG_MS, number, percent

_SHARES = ("fraction", "hit_rate", "hit_rate_unbounded", "utilisation", "room")
_UNITS = {"ms": "ms", "s": "s", "j": "J", "w": "W", "usd": "$", "throughput": "/s", "goodput": "/s"}
_IN_CAPITALS = ("ttft", "tpot", "itl", "kv")


def metric_cell(name: str, value: float, half_width: float = 0.0) -> str:
    """Return a value; shares in percent, long latencies in seconds.

    name: of the number in the summary. half_width: of its interval; 0: without one.
    """
    if name.endswith("_ms") and value >= LONG_MS:
        return f"{metric_cell('', value / 1e3, half_width / 1e3)} s"
    parts = (value, half_width) if half_width > 0 else (value,)
    is_share = name.endswith(_SHARES)
    return " ± ".join(percent(part, 1) if is_share else number(part) for part in parts)


def metric_title(name: str) -> tuple[str, str]:
    """Return the title of a number of the summary in two lines: what it is, and its unit."""
    words = name.split("_")
    unit = _UNITS.get(words[-1], "")
    if unit and words[-1] not in ("throughput", "goodput"):
        words = words[:-1]
    shown = [w.upper() if w in _IN_CAPITALS else "E2E" if w == "e2el" else w for w in words]
    return " ".join(shown), unit
