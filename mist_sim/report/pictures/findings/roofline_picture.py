"""The operators of a step under the roof of their GPU, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mist_sim.report.pictures.printed import verbatim

MISSING = (
    "roofline.png was not drawn, since matplotlib is not installed; pip install 'mist-sim[plot]'"
)
_COLOURS = {"compute": "#bc4749", "memory": "#2a6f97", "latency": "#c9a227"}


def can_draw() -> bool:
    """Tell whether matplotlib is there, without importing it."""
    return find_spec("matplotlib") is not None


def draw(summary: Mapping[str, Any], path: Path) -> None:
    """Write a PNG: each operator's rate over its FLOPs per byte, with areas by its time.

    summary: `StepExplained.summary`, of a client with a known GPU.
    Raises ImportError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [row for row in summary["operators"] if row["flops"] and row["bytes"]]
    rows.sort(key=lambda row: -row["share"])
    figure: Any = Figure(figsize=(8.4, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_roofs(
        axes,
        [row["flops_per_byte"] for row in rows],
        summary["peak_flops"],
        summary["memory_bandwidth"],
    )
    for number, row in enumerate(rows, 1):
        place = (row["flops_per_byte"], row["flops"] / row["seconds"] / 1e12)
        colour = _COLOURS.get(row["bound"], "#577590")
        axes.scatter(*place, s=30 + 1500 * row["share"], color=colour, alpha=0.7)
        axes.annotate(str(number), place, (4, 4), textcoords="offset points", size=8)
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="TFLOP/s on one GPU")
    axes.set_title(
        f"{verbatim(summary['client'])}: {summary['step_ms']:.4g} ms, shares of it as areas"
    )
    handles = [
        Patch(
            facecolor=_COLOURS.get(row["bound"], "#577590"),
            label=f"{number} {row['operator']}, {row['share']:.0%}, {row['bound']}",
        )
        for number, row in enumerate(rows, 1)
    ]
    figure.legend(handles=handles, loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _draw_roofs(
    axes: Any, intensities: list[float], peaks: Mapping[str, float], bandwidth: float
) -> None:
    """Draw the data sheet's limit of each type, over the range of the operators' FLOPs per byte."""
    ridges = {name: flops / bandwidth for name, flops in peaks.items()}
    places = [*intensities, *ridges.values()]
    left, right = min(places) / 2, max(places) * 4
    for name, ridge in ridges.items():
        top = peaks[name] / 1e12
        axes.plot([left, ridge, right], [left * bandwidth / 1e12, top, top], "k-")
        axes.annotate(name, (right, top), (-4, 3), textcoords="offset points", size=8, ha="right")
