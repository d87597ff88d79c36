"""A number of a study over a key: a line for each series of points that differ in it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any

from mist_sim.report.elements.key_labels import labels_of, value_text
from mist_sim.report.pictures.marks import Band, Line, Mark
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS

Values = Mapping[str, Any]
"""The varied keys of a point, with their values."""

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


def plane_of(points: Sequence[Values]) -> tuple[str, str] | None:
    """Return the two keys of a study that varies just two, of numbers; None for others.

    points: the values of each. A rate is no side of a plane: load is read along lines.
    """
    keys = [key for key in (points[0] if points else ()) if len({str(p[key]) for p in points}) > 1]
    scales = [key for key in keys if axis_of([{key: point[key]} for point in points])]
    if len(keys) != 2 or scales != keys or any(key.endswith("rate") for key in keys):
        return None
    return keys[0], keys[1]


def lines_over(axis: Axis, points: Sequence[Mapping[str, Any]], metric: str, title: str) -> Picture:
    """Draw a number over the axis of a study, with bands of its intervals.

    points: those of `Study.summary` that have the number.
    """
    labels = labels_of(list(points[0]["values"]))
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in points:
        others = {key: value for key, value in point["values"].items() if key != axis.key}
        name = " ".join(f"{labels[key]}={value_text(value)}" for key, value in others.items())
        mean = point["figures"][metric]
        low, high = point["confidence_intervals"].get(metric) or (nan, nan)
        at = _number(point["values"][axis.key])[0]
        series.setdefault(name, []).append((at, mean, low or nan, high or nan))
    marks: list[Mark] = []
    for place, (name, found) in enumerate(series.items()):
        across, means, low, high = zip(*sorted(found), strict=True)
        colour = COLOURS[place % len(COLOURS)]
        if all(map(isfinite, (*low, *high))):
            marks.append(Band(across, low, high, colour))
        marks.append(Line(across, means, name, colour, has_points=True))
    unit = f", {axis.unit}" if axis.unit else ""
    return Picture([Panel(title, marks, across=f"{labels[axis.key]}{unit}", height=3.0)])


def _number(value: Any) -> tuple[float, str]:
    """Return the number and the unit of a value; NaN where it is none."""
    if isinstance(value, bool):
        return nan, ""
    text, _, unit = str(value).partition(" ")
    try:
        return float(text), unit.strip()
    except ValueError:
        return nan, ""
