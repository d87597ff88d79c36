"""Configurations over two objectives, with their front."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan, nan
from typing import Any

from mist_sim.report.pictures.marks import Line, Mark, Points
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS, WAIT_COLOUR

_WIDE = 30  # the largest value over the smallest, from which on an axis is logarithmic
_MOST_NUMBERS = 12  # of rows on the picture


def front_picture(summary: Mapping[str, Any]) -> Picture:
    """Return the first two objectives: all that keep their limits, and the front.

    summary: `SpaceSearch.summary`.
    """
    x, y = summary["objectives"][:2]
    unknown = summary["statuses"].get("undecided", 0)
    note = f"; not drawn: {unknown} without an upper end" if unknown else ""
    rows = sorted(
        (row for row in summary["rows"] if _known(row, x, y)), key=lambda row: row["figures"][x]
    )
    marks: list[Mark] = []
    for status, name, colour in (
        ("kept", "keep all limits", WAIT_COLOUR),
        ("front", "the front", COLOURS[0]),
    ):
        mine = [row for row in rows if row["status"] == status]
        across, up = ([float(row["figures"][key]) for row in mine] for key in (x, y))
        if status == "front":
            marks.append(Line(across, up, colour=colour))
        if mine:
            texts = [f"row {row['number']}: {row['name']}" for row in mine]
            is_few = status == "front" and len(mine) <= _MOST_NUMBERS
            labels = [f"row {row['number']}" for row in mine] if is_few else ()
            marks.append(Points(across, up, name, colour, texts=texts, labels=labels))
    shown = [row["figures"] for row in rows if row["status"] in ("kept", "front")]
    is_log = tuple(_is_wide([float(figures[key]) for figures in shown]) for key in (x, y))
    title = f"{_words(y)} over {_words(x)}{note}"
    whole, is_both = (None, None), (is_log[0], is_log[1])
    return Picture([Panel(title, marks, _words(x), _words(y), 4.0, whole, is_both)])


def _is_wide(values: list[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) > _WIDE * min(values)


def _known(row: Mapping[str, Any], *keys: str) -> bool:
    return all(not isnan(row["figures"].get(key, nan)) for key in keys)


def _words(name: str) -> str:
    return name.replace("_", " ")
