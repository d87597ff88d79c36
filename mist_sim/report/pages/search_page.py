"""The reports of a search of a space and of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pictures.catalog import require_plotly
from mist_sim.report.pictures.style import COLOURS, WAIT_COLOUR, band, line, panels
from mist_sim.report.space import space_table
from mist_sim.report.sweep import sweep_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def search_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a search. summary: `SpaceSearch.summary`."""
    require_plotly()
    found = f"{len(summary['front'])} of {len(summary['rows']):,} configurations on the front."
    return printed_page(
        title,
        Verdict("plain", found, summary["sentence"]),
        space_table(summary),
        figures=list(_front(summary)),
    )


def sweep_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a sweep. summary: `Sweep.summary`."""
    require_plotly()
    points = f"{len(summary['points'])} points."
    return printed_page(
        title,
        Verdict("plain", points, summary["sentence"] or ""),
        sweep_table(summary),
        figures=list(_curve(summary)),
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


def _front(summary: Mapping[str, Any]) -> Iterator[Drawing]:
    """Yield the first two objectives of all that keep their limits; one alone is no picture."""
    if len(summary["objectives"]) < 2:
        return
    x, y = summary["objectives"][:2]
    unknown = summary["statuses"].get("undecided", 0)
    note = f"; not drawn: {unknown} without an upper end" if unknown else ""
    figure = panels([f"{_words(y)} over {_words(x)}{note}"], shared_time=False)
    for status, colour, mode in (("kept", WAIT_COLOUR, "markers"), ("front", COLOURS[0], "both")):
        rows = sorted(
            (row for row in summary["rows"] if row["status"] == status and _known(row, x, y)),
            key=lambda row: float(row["figures"][x]),
        )
        figure.add_scatter(
            x=[row["figures"][x] for row in rows],
            y=[row["figures"][y] for row in rows],
            text=[row["name"] for row in rows],
            name={"kept": "keep all limits", "front": "the front"}[status],
            mode="lines+markers" if mode == "both" else mode,
            marker={"color": colour, "size": 9},
            hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        )
    figure.update_layout(height=460, hovermode="closest")
    figure.update_xaxes(title_text=_words(x), rangemode="normal")
    figure.update_yaxes(title_text=_words(y), rangemode="normal")
    yield Drawing("front", "The front", figure)


def _known(row: Mapping[str, Any], *keys: str) -> bool:
    return all(not isnan(row["figures"].get(key, nan)) for key in keys)


def _curve(summary: Mapping[str, Any]) -> Iterator[Drawing]:
    """Yield the figure over the one key that was swept, with its intervals."""
    if len(summary["keys"]) != 1:
        return
    title = f"{_words(summary['metric'])} over {summary['labels'][0]}"
    points = [point for point in summary["points"] if not isnan(point["mean"])]
    x = [_number(point["values"][0]) for point in points]
    figure: Figure = panels([title], shared_time=False)
    if points and not any(isnan(point["low"]) or isnan(point["high"]) for point in points):
        low, high = ([point[name] for point in points] for name in ("low", "high"))
        band(figure, x, low, high, COLOURS[0])
    line(figure, x, [point["mean"] for point in points], "mean", COLOURS[0], legend=False)
    figure.data[-1].update(mode="lines+markers")
    figure.update_xaxes(title_text=summary["labels"][0])
    figure.update_layout(height=360)
    yield Drawing("curve", title, figure)


def _number(text: str) -> float | str:
    """Return a swept value as a number, or as text if it is not one."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return text


def _words(name: str) -> str:
    return name.replace("_", " ")
