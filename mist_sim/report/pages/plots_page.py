"""A page of pictures alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mist_sim.errors import ScenarioError, brief
from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pages.run_page import run_verdict
from mist_sim.report.pictures.catalog import (
    MOST_BESIDE,
    PICTURES,
    draw,
    drawn,
    overlaid,
    side_by_side,
    title_of_picture,
    warnings_of,
)
from mist_sim.report.pictures.style import COLOURS

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
    drawings = [Drawing(name, title_of_picture(name), figure) for name, figure in found]
    page = Page(title=title, verdict=run_verdict(run.summary), figures=drawings)
    return page.warned(run.summary)


def pictures_of(page: Page, names: Sequence[str]) -> Page:
    """Return a report with its pictures alone, all of them or those that are named.

    Raises ScenarioError for a name that none has, and where there is no picture.
    """
    drawings = {each.name: each for each in page.figures}
    for name in names:
        if name not in drawings:
            known = ", ".join(drawings) or "none"
            raise ScenarioError(f"there is no picture {brief(name)} of this. Known: {known}")
    if not drawings:
        raise ScenarioError("there is no picture of this; mist report writes its tables")
    chosen = [drawings[name] for name in dict.fromkeys(names or drawings)]
    return replace(page, figures=chosen, printed=(), details=())


def several_page(
    runs: Mapping[str, RunData], names: Sequence[str], *, in_one: bool = False
) -> Page:
    """Return a page of pictures of several runs, side by side or in the same axes (`in_one`).

    runs: by their titles. Raises ScenarioError as `side_by_side` and `overlaid` do; without names,
    what cannot be drawn of them is left out.
    """
    together, most = (overlaid, len(COLOURS)) if in_one else (side_by_side, MOST_BESIDE)
    drawings = []
    for name in dict.fromkeys(names) or PICTURES:
        try:
            figure = together(runs, name)
        except ScenarioError:
            if names or not 2 <= len(runs) <= most:
                raise
            continue
        drawings.append(Drawing(name, title_of_picture(name), figure))
    how = "in the same axes" if in_one else "side by side"
    verdict = Verdict("plain", f"{len(runs)} runs {how}.", "")
    page = Page(title=" and ".join(runs), verdict=verdict, figures=drawings)
    return page.warned({"warnings": [each.data for each in warnings_of(runs)]})
