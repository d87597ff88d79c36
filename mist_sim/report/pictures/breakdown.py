"""Where the latency of requests goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.errors import ScenarioError
from mist_sim.report.elements import latency, percent
from mist_sim.report.pictures.marks import Bars
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData

_SHOWN = ("mean", "p50", "p90", "p99")
_ROW = 0.19  # inches


def breakdown(run: RunData) -> Picture:
    """Draw the mean and percentiles of each part of the latency, ms.

    Each part has an axis of its own: waits of milliseconds are seen beside answers of seconds.
    Raises ScenarioError where no request finished.
    """
    parts = run.summary.get("latency_breakdown_ms", {})
    panels = []
    for (name, figures), colour in zip(parts.items(), [*COLOURS, *COLOURS], strict=False):
        values = [figures[shown] for shown in _SHOWN]
        if any(values):
            texts = [" ".join(latency(value)) for value in values]
            texts[0] += f" ({percent(figures['share'], digits=1)} of all)"
            bars = Bars(range(len(values)), values, colour=colour, texts=texts)
            height = _ROW * len(_SHOWN)
            panels.append(Panel(f"{name}, ms", [bars], height=height, rows=_SHOWN))
    if not panels:
        raise ScenarioError("no request finished, so there is no latency to divide")
    return Picture(panels)
