"""Single requests: a row each, with its waits and stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.report.pictures.style import COLOURS, WAIT_COLOUR, panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from mist_sim.report.pictures.run_data import RunData

NUM_SHOWN = 60
_ROW_HEIGHT = 11  # pixels


def requests(run: RunData, start: float = 0.0, number: int = NUM_SHOWN) -> Figure:
    """Draw the first requests that arrive after a start time.

    start: seconds of the run. number: of requests.
    Raises ScenarioError if none arrives.
    """
    table = run.table("requests")
    shown = table[table["arrival_time"] >= start].nsmallest(number, "arrival_time")
    if shown.empty:
        raise ScenarioError(f"no request arrives after {start:g} s, so there is none to draw")
    rows = {request: row for row, request in enumerate(shown["request_id"].tolist())}
    stages = run.table("stages")
    stages = stages[stages["request_id"].isin(list(rows))]
    figure = panels(["requests in order of arrival"])
    waits = stages[stages["started_at"] > stages["queued_at"]]
    _bars(figure, waits, rows, "queued_at", "started_at", "waits", WAIT_COLOUR)
    for kind, colour in zip(dict.fromkeys(stages["stage"]), _colours(), strict=False):
        mine = stages[stages["stage"] == kind]
        _bars(figure, mine, rows, "started_at", "finished_at", kind, colour)
    figure.update_yaxes(autorange="reversed", title_text="request", rangemode="normal")
    figure.update_layout(
        height=150 + _ROW_HEIGHT * len(rows), barmode="overlay", bargap=0.25, hovermode="closest"
    )
    return figure


def _colours() -> list[str]:
    """Return colours of stages: prompts as in other pictures, then all others."""
    return [COLOURS[5], COLOURS[0], *COLOURS[1:5], *COLOURS[6:]]


def _bars(
    figure: Figure, spans: Any, rows: dict[int, int], start: str, end: str, name: str, colour: str
) -> None:
    """Add spans of time, each in the row of its request."""
    spans = spans[spans[end] > spans[start]]
    if spans.empty:
        return
    begin = spans[start].to_numpy(float)
    figure.add_bar(
        base=begin,
        x=spans[end].to_numpy(float) - begin,
        y=[rows[request] for request in spans["request_id"].tolist()],
        orientation="h",
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        customdata=np.stack([spans["request_id"], spans["client"]], axis=1),
        hovertemplate=f"request %{{customdata[0]}}: {name} at %{{customdata[1]}}"
        "<br>from %{base:.3f} s, %{x:.3f} s<extra></extra>",
    )
