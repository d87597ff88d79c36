"""A sweep as a picture, where matplotlib is installed: a line over one key, cells over two."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim.report.pictures.findings.plane_picture import can_draw
from mist_sim.report.pictures.printed import verbatim

__all__ = ["MISSING", "can_draw", "draw"]

MISSING = "sweep.png was not drawn, since matplotlib is not installed; pip install 'mist-sim[plot]'"
_LINE = "#2a6f97"


def draw(summary: Mapping[str, Any], path: Path) -> None:
    """Write a PNG. summary: `Sweep.summary`. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if len(summary["keys"]) == 1:
        _line(axes, summary)
    else:
        _cells(figure, axes, summary)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _line(axes: Any, summary: Mapping[str, Any]) -> None:
    points = summary["points"]
    texts = [point["values"][0] for point in points]
    numbers = [_number(text) for text in texts]
    is_scale = all(number is not None for number in numbers)
    across = numbers if is_scale else list(range(len(texts)))
    means = np.array([point["mean"] for point in points])
    ends = [[point[end] for point in points] for end in ("low", "high")]
    if all(isfinite(value) for side in ends for value in side):
        axes.fill_between(across, *ends, color=_LINE, alpha=0.15, linewidth=0)
    axes.plot(across, means, "o-", color=_LINE, lw=1.4)
    axes.set_xticks(across, [*map(verbatim, texts)])
    axes.set(xlabel=summary["labels"][0], ylabel=summary["metric"].replace("_", " "))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)


def _cells(figure: Any, axes: Any, summary: Mapping[str, Any]) -> None:
    down = list(dict.fromkeys(point["values"][0] for point in summary["points"]))
    across = list(dict.fromkeys(point["values"][1] for point in summary["points"]))
    means = np.array([point["mean"] for point in summary["points"]])
    shown = axes.pcolormesh(means.reshape(len(down), len(across)), cmap="viridis")
    axes.set_xticks(np.arange(len(across)) + 0.5, [*map(verbatim, across)])
    axes.set_yticks(np.arange(len(down)) + 0.5, [*map(verbatim, down)])
    axes.set(xlabel=summary["labels"][1], ylabel=summary["labels"][0])
    figure.colorbar(shown, label=summary["metric"].replace("_", " "))


def _number(text: str) -> float | None:
    """Return a value as a position on a scale, without its unit; None if it is not a number."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None
