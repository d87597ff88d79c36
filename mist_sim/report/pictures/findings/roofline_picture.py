"""The operators of a step under the roof of their GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any

from mist_sim.report.pictures.marks import Line, Mark, Points
from mist_sim.report.pictures.picture import Panel, Picture

_COLOURS = {"compute": "#bc4749", "memory": "#2a6f97", "latency": "#c9a227"}
_ROOFS = ("-", "--", "-.", ":")


def roofline_picture(summary: Mapping[str, Any]) -> Picture:
    """Return each operator's rate over its FLOPs per byte, with areas by its time.

    summary: `StepExplained.summary`, of a client with a known GPU.
    """
    rows = [row for row in summary["operators"] if row["flops"] and row["bytes"]]
    rows.sort(key=lambda row: -row["share"])
    marks = [*_roofs([row["flops_per_byte"] for row in rows], summary)]
    for number, row in enumerate(rows, 1):
        name = f"{number} {row['operator']}, {row['share']:.0%}, {row['bound']}"
        at = [row["flops_per_byte"]], [row["flops"] / row["seconds"] / 1e12]
        colour, size = _COLOURS.get(row["bound"], "#577590"), sqrt(30 + 1500 * row["share"])
        marks.append(Points(*at, name, colour, texts=[name], labels=[str(number)], size=size))
    title = f"{summary['client']}: {summary['step_ms']:.4g} ms, shares of it as areas"
    axes = ("FLOP a byte", "TFLOP/s on one GPU")
    return Picture([Panel(title, marks, *axes, 4.0, (None, None), (True, True))])


def _roofs(intensities: list[float], summary: Mapping[str, Any]) -> Iterator[Mark]:
    """Yield the data sheet's limit of each type, over the range of the operators."""
    peaks, bandwidth = summary["peak_flops"], summary["memory_bandwidth"]
    ridges = {name: flops / bandwidth for name, flops in peaks.items()}
    places = [*intensities, *ridges.values()]
    left, right = min(places) / 2, max(places) * 4
    for (name, ridge), style in zip(ridges.items(), 2 * _ROOFS, strict=False):
        top = peaks[name] / 1e12
        heights = [left * bandwidth / 1e12, top, top]
        yield Line([left, ridge, right], heights, f"roof of {name}", "#222222", style)
