"""A number of a study over a key: a line for each series of points that differ in it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import TYPE_CHECKING, Any

from mist_sim.report.elements.key_labels import labels_of, value_text
from mist_sim.report.pictures.style import COLOURS, band, line, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Values = Mapping[str, Any]
"""What is varied at a point."""

_FEWEST = 3  # values of a key from which on its numbers are a scale, if it is no rate


@dataclass(frozen=True)
class Axis:
    """The key along which lines go. unit: of its values; empty for plain numbers."""

    key: str
    unit: str


def axis_of(points: Sequence[Values]) -> Axis | None:
    """Return the axis of a study: its rates, or else the key with most numbers; None without any.

    points: the values of each.
    """
    found = []
    for key in points[0] if points else ():
        numbers = [_number(each[key]) for each in points]
        units = {unit for _, unit in numbers}
        distinct = {number for number, _ in numbers}
        is_rate = key.rsplit(".", 1)[-1] == "rate"
        if (
            len(units) == 1
            and not any(map(isnan, distinct))
            and len(distinct) >= (2 if is_rate else _FEWEST)
        ):
            found.append((is_rate, len(distinct), Axis(key, units.pop())))
    return max(found, key=lambda each: each[:2])[2] if found else None


def lines_over(axis: Axis, points: Sequence[Mapping[str, Any]], metric: str, title: str) -> Figure:
    """Draw a number over the axis of a study, with bands of its intervals.

    points: those of `Study.summary` that have the number.
    """
    labels = labels_of(list(points[0]["values"]))
    figure = panels([title], shared_time=False)
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in points:
        others = {key: value for key, value in point["values"].items() if key != axis.key}
        name = " ".join(f"{labels[key]}={value_text(value)}" for key, value in others.items())
        mean = point["figures"][metric]
        low, high = point["confidence_intervals"].get(metric) or (nan, nan)
        at = _number(point["values"][axis.key])[0]
        series.setdefault(name, []).append((at, mean, low or nan, high or nan))
    for place, (name, found) in enumerate(series.items()):
        across, means, low, high = zip(*sorted(found), strict=True)
        colour = COLOURS[place % len(COLOURS)]
        if all(map(isfinite, (*low, *high))):
            band(figure, across, low, high, colour)
        line(figure, across, means, name, colour, legend=len(series) > 1)
        figure.data[-1].update(mode="lines+markers")
    unit = f", {axis.unit}" if axis.unit else ""
    figure.update_xaxes(title_text=f"{labels[axis.key]}{unit}")
    figure.update_layout(height=figure.layout.height + 80)
    return figure


def _number(value: Any) -> tuple[float, str]:
    """Return the number and the unit of a value; NaN where it is none."""
    if isinstance(value, bool):
        return nan, ""
    text, _, unit = str(value).partition(" ")
    try:
        return float(text), unit.strip()
    except ValueError:
        return nan, ""
