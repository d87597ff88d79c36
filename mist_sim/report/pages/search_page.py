"""The reports of a search of a space and of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
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


def restored_search(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a `search.json`: figures that are null there are NaN."""
    rows = [{**row, "figures": _with_nan(row["figures"])} for row in summary["rows"]]
    return {**summary, "rows": rows}


def restored_sweep(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a `sweep.json`: figures that are null there are NaN."""
    numbers = ("mean", "low", "high")
    points = [
        {**point, **_with_nan({name: point[name] for name in numbers})}
        for point in summary["points"]
    ]
    return {**summary, "points": points}


def _with_nan(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: nan if value is None else value for name, value in figures.items()}
