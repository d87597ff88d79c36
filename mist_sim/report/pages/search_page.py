"""The reports of a search of a space and of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pictures.findings import front_picture, sweep_picture, sweep_title
from mist_sim.report.space import space_table
from mist_sim.report.sweep import sweep_table


def search_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a search. summary: `SpaceSearch.summary`."""
    is_plane = len(summary["objectives"]) > 1
    figures = [Drawing("front", "The front", front_picture(summary))] if is_plane else []
    found = f"{len(summary['front'])} of {len(summary['rows']):,} configurations on the front."
    return printed_page(
        title,
        Verdict("plain", found, summary["sentence"]),
        space_table(summary),
        figures=figures,
    )


def sweep_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a sweep. summary: `Sweep.summary`."""
    points = f"{len(summary['points'])} points."
    return printed_page(
        title,
        Verdict("plain", points, summary["sentence"] or ""),
        sweep_table(summary),
        figures=[Drawing("curve", sweep_title(summary), sweep_picture(summary))],
    )
