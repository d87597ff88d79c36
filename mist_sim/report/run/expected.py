"""Expected errors of TTFT and TPOT against a real engine, in a line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from mist_sim.report.elements.cells import count, section, who
from mist_sim.report.elements.pairs import Row, pairs

_EVEN = 0.25  # of the width, by which the ends of a range may differ that is shown as ±
_METRICS = ("ttft", "tpot")
_UNKNOWN = "no measurements like it"

Bars = Mapping[str, Mapping[str, Mapping[str, Any] | None]]


TITLE = "Expected error, nine in ten"


def expected_section(expected: Bars, cell: Callable[[str], str]) -> Iterator[RenderableType]:
    """Yield the range of nine in ten measurements; empty if no client times steps.

    expected: the summary's `expected_errors`. cell: returns the text of a key
    of the summary, as in a column of milliseconds.
    """
    rows = [
        (f"{metric.upper()} {mean}{'' if mean.endswith(' s') else ' ms'}", *told)
        for metric, told in _widest(expected)
        if (mean := cell(f"mean_{metric}_ms")) != "-"
    ]
    if rows:
        yield from section(TITLE, pairs(rows))


def expected_rows(expected: Bars) -> Iterator[tuple[str, str, str]]:
    """Yield (metric, range, measurements it rests on); of several clients, the widest range."""
    for metric, (shown, like) in _widest(expected):
        yield metric.upper(), shown, like


def expected_of_each(cases: Mapping[str, Bars]) -> Iterator[RenderableType]:
    """Yield the ranges of scenarios, by name; scenarios with equal ranges share a line."""
    found: dict[tuple[str, tuple[str, str]], list[str]] = {}
    for metric in _METRICS:
        for name, expected in cases.items():
            for other, told in _widest(expected):
                if other == metric:
                    found.setdefault((metric, told), []).append(name)
    rows: list[Row] = [
        (f"{metric.upper()} {who([*filter(None, names)], len(cases))}".strip(), *told)
        for (metric, told), names in found.items()
    ]
    if rows:
        yield from section(TITLE, pairs(rows))


def _widest(expected: Bars) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (metric, (range, its basis)): the widest of the clients' ranges."""
    for metric in _METRICS:
        of_clients = {name: bars[metric] for name, bars in expected.items() if metric in bars}
        if of_clients:
            name, bar = max(of_clients.items(), key=lambda each: _width(each[1]))
            is_only = all(other == bar for other in of_clients.values())
            whose = "" if is_only else f"widest, of {name}: "
            shown, like = told(bar)
            yield metric, (shown, f"{whose}{like}")


def told(bar: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return a range, and its basis."""
    if bar is None:
        return "-", _UNKNOWN
    if bar["low"] is None:
        return "-", str(bar["like"])
    return error_range(bar["low"], bar["high"]), basis(bar)


def basis(bar: Mapping[str, Any]) -> str:
    """Return the measured run nearest to one, and in what it is other."""
    found = bar.get("other", ())  # files of older versions have none
    other = f"; other: {', '.join(found)}" if found else ""
    return f"nearest of {count(bar['num_points'])} measured: {bar['like']}{other}"


def _width(bar: Mapping[str, Any] | None) -> float:
    is_known = bar is not None and bar["low"] is not None
    return float(bar["high"] - bar["low"]) if bar and is_known else float("inf")


def error_range(low: float, high: float) -> str:
    """Return a range of shares in percent: "± 6 %", or "−20 to +5 %" where it leans to a side."""
    if abs(high + low) <= _EVEN * (high - low):
        return f"± {100 * max(high, -low):.0f} %"
    ends = (f"{100 * end:+.0f}".replace("-", "−") for end in (low, high))
    return f"{' to '.join(ends)} %"
