"""The report of a search or a study: its sentence, its pictures, and the tables that it prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mist_sim.report.pages.page import (
    Brief,
    Detail,
    Drawing,
    Page,
    Printed,
    Verdict,
    require_report,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTHS = {"wide": 110, "narrow": 46}
"""Columns of the tables on a screen and on a phone; they lay themselves out for each."""


def printed_page(
    title: str,
    verdict: Verdict,
    body: RenderableType,
    *,
    figures: Sequence[Drawing] = (),
    details: Sequence[Detail] = (),
    brief: Brief | None = None,
) -> Page:
    """Return a page around tables that a command prints. Raises ScenarioError without Jinja2."""
    require_report()
    return Page(
        title=title,
        verdict=verdict,
        printed=list(_printed(body)),
        figures=figures,
        details=details,
        brief=brief,
    )


def _printed(body: RenderableType) -> Iterator[Printed]:
    from markupsafe import Markup

    from mist_sim.report.elements import as_html

    for place, width in _WIDTHS.items():
        html = as_html("", body, width=width)
        yield Printed(Markup(html), place)  # noqa: S704 - Rich escapes what it prints
