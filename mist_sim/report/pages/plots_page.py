"""A page of pictures alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mist_sim.errors import ScenarioError
from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pages.run_verdict import run_verdict
from mist_sim.report.pictures.catalog import PICTURES, draw, drawn
from mist_sim.report.pictures.side_by_side import MOST_RUNS, side_by_side

if TYPE_CHECKING:
    from mist_sim.report.pictures.run_data import RunData


def plots_page(run: RunData, title: str, names: Sequence[str]) -> Page:
    """Return a page of some pictures, or of all pictures that the run has data for.

    Raises ScenarioError for unknown names, and for data that were not recorded.
    """
    asked = list(dict.fromkeys(names))
    found = [(name, draw(run, name)) for name in asked] if asked else list(drawn(run))
    if not found:
        raise ScenarioError("the run has no data to draw: no request arrived")
    drawings = [Drawing(name, PICTURES[name].title, figure) for name, figure in found]
    return Page(title=title, verdict=run_verdict(run.summary), figures=drawings)


def beside_page(runs: Mapping[str, RunData], names: Sequence[str]) -> Page:
    """Return a page of pictures of several runs, side by side.

    runs: by their titles. Raises ScenarioError as `side_by_side` does; without names, what some of
    the runs have no data for is left out.
    """
    drawings = []
    for name in dict.fromkeys(names) or PICTURES:
        try:
            figure = side_by_side(runs, name)
        except ScenarioError:
            if names or not 2 <= len(runs) <= MOST_RUNS:
                raise
            continue
        drawings.append(Drawing(name, PICTURES[name].title, figure))
    verdict = Verdict("plain", f"{len(runs)} runs side by side.", "")
    return Page(title=" and ".join(runs), verdict=verdict, figures=drawings)
