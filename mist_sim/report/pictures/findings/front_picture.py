"""Configurations over two objectives as a picture, with their front, where matplotlib is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mist_sim.report.pictures.findings.plane_picture import can_draw

__all__ = ["MISSING", "can_draw", "draw"]

MISSING = "front.png was not drawn, since matplotlib is not installed; pip install 'mist-sim[plot]'"
_FRONT, _KEPT = "#2a6f97", "#b8b8b8"
_WIDE = 30  # the largest value over the smallest, from which on an axis is logarithmic
_MOST_NUMBERS = 12  # of rows on the picture


def draw(summary: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of the first two objectives: all that keep their limits, and the front by rows.

    summary: `SpaceSearch.summary`. Raises ImportError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x, y = summary["objectives"][:2]
    figure: Any = Figure(figsize=(6.4, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    kept = _points(summary, "kept", x, y)
    front = sorted(_points(summary, "front", x, y))
    axes.scatter([p[0] for p in kept], [p[1] for p in kept], s=18, color=_KEPT, label="kept")
    axes.plot(
        [p[0] for p in front], [p[1] for p in front], "o-", color=_FRONT, label="front", lw=1.2
    )
    for across, up, row in front if len(front) <= _MOST_NUMBERS else ():
        axes.annotate(row, (across, up), xytext=(5, 4), textcoords="offset points", fontsize=8)
    if unknown := summary["statuses"].get("undecided", 0):
        axes.set_title(f"not drawn: {unknown} that attain all rates tried", fontsize=8)
    for axis, place in (("x", 0), ("y", 1)):
        values = [float(point[place]) for point in (*kept, *front)]
        if min(values) > 0 and max(values) > _WIDE * min(values):
            getattr(axes, f"set_{axis}scale")("log")
    axes.set(xlabel=_words(x), ylabel=_words(y))
    axes.margins(0.12)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _points(summary: Mapping[str, Any], status: str, x: str, y: str) -> list[tuple[Any, Any, str]]:
    rows = [row for row in summary["rows"] if row["status"] == status]
    known = [row for row in rows if x in row["figures"] and y in row["figures"]]
    return [(row["figures"][x], row["figures"][y], f"row {row['number']}") for row in known]


def _words(name: str) -> str:
    return name.replace("_", " ")
