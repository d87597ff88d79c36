"""Single requests: a row each, with its waits and stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.report.pictures.marks import Bars
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS, WAIT_COLOUR

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData

NUM_SHOWN = 60
_ROW = 0.1  # inches
_ORDER = (COLOURS[5], COLOURS[0], *COLOURS[1:5], *COLOURS[6:])
"""Of stages: prompts as in other pictures, then all others."""


def requests(run: RunData, start: float = 0.0, number: int = NUM_SHOWN) -> Picture:
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
    waits = stages[stages["started_at"] > stages["queued_at"]]
    marks = [*_bars(waits, rows, "queued_at", "started_at", "waits", WAIT_COLOUR)]
    for kind, colour in zip(dict.fromkeys(stages["stage"]), _ORDER, strict=False):
        mine = stages[stages["stage"] == kind]
        marks += _bars(mine, rows, "started_at", "finished_at", kind, colour)
    height = 0.6 + _ROW * len(rows)
    title = "requests in order of arrival"
    panel = Panel(
        title, marks, up="request", height=height, range=(-1, len(rows)), is_reversed=True
    )
    return Picture([panel], is_over_time=True)


def _bars(
    spans: Any, rows: dict[int, int], start: str, end: str, name: str, colour: str
) -> Iterator[Bars]:
    """Yield spans of time, each in the row of its request."""
    spans = spans[spans[end] > spans[start]]
    if not spans.empty:
        begin = spans[start].to_numpy(float)
        width = spans[end].to_numpy(float) - begin
        yield Bars([rows[each] for each in spans["request_id"]], width, name, colour, begin)
