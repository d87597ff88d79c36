"""One picture of several runs in the same axes: a colour each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.metrics import Result
from mist_sim.report.pictures.catalog import draw
from mist_sim.report.pictures.run_data import OfResult, RunData
from mist_sim.report.pictures.style import COLOURS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_DASHES = ("solid", "dot", "dash")
_NOT_LINES = ("stages", "requests")  # bars that would hide one another


def overlaid(runs: Mapping[str, Result | RunData], name: str = "latency") -> Figure:
    """Return one picture of several runs as a Plotly figure: a colour each, in the same axes.

    runs: by their names, two to as many as there are colours: results, or folders that `mist run`
        wrote (`RunFolder`). name: as of `Result.plot`, of a picture of lines.
    Raises ScenarioError for another number of runs, for pictures of bars, and as `Result.plot`.
    """
    if not 2 <= len(runs) <= len(COLOURS):
        raise ScenarioError(f"runs must be 2 to {len(COLOURS)} in the same axes, got {len(runs)}")
    if name in _NOT_LINES:
        raise ScenarioError(f"{name} has bars, which would hide one another; draw it side by side")
    each = {
        title: draw(OfResult(run) if isinstance(run, Result) else run, name)
        for title, run in runs.items()
    }
    whole = next(iter(each.values()))
    lines = {title: _lines(figure) for title, figure in each.items()}
    shapes = {str(shape): shape for figure in each.values() for shape in figure.layout.shapes}
    whole.data = ()
    named: set[str] = set()
    for colour, (title, of_panels) in zip(COLOURS, lines.items(), strict=False):
        for traces in of_panels.values():
            for dash, trace in zip(cycle(_DASHES), traces, strict=False):
                name = title if len(traces) == 1 else f"{title}: {trace.name}"
                trace.update(name=name, legendgroup=name, showlegend=name not in named)
                trace.line.update(color=colour, dash=dash)
                named.add(name)
                whole.add_trace(trace)
    whole.update_layout(shapes=list(shapes.values()))
    return whole


def _lines(figure: Figure) -> dict[str, list[Any]]:
    """Return the lines of each panel; bands of several runs would hide one another."""
    found: dict[str, list[Any]] = {}
    for trace in figure.data:
        if not trace.fill and trace.line.width:
            found.setdefault(trace.yaxis or "y", []).append(trace)
    return found
