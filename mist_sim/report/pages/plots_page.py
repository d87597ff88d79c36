"""A page of pictures alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mist_sim.errors import ScenarioError
from mist_sim.report.pages.page import Drawing, Page
from mist_sim.report.pages.run_verdict import run_verdict
from mist_sim.report.pictures.catalog import PICTURES, draw, drawn

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
