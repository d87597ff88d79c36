"""A race of TaiChi's sliders as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.report.elements import columns, count, section
from mist_sim.report.goodput import asked
from mist_sim.report.run import expected_of_each


def sliders_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a race. summary: `SliderSearch.summary`."""
    best = summary["best"]
    searches = [entry["search"] for entry in best.values()]
    limits = f", {asked(searches[0])}" if searches else ""
    runs = f"{count(len(summary['positions']))} positions, {count(summary['num_runs'])} runs"
    return Group(
        *section(f"Best of each design{limits}", _best(best)) if best else (),
        *section(f"Sliders tried ({runs})", _positions(summary["positions"])),
        *section("Verdict", Text(summary["verdict"])) if summary["verdict"] else (),
        *expected_of_each({name: each["search"]["expected_errors"] for name, each in best.items()}),
    )


def _best(best: Mapping[str, Any]) -> RenderableType:
    rows = [[design, entry["name"], _goodput(entry)] for design, entry in best.items()]
    return columns(["", "clients x chunk", "goodput, /s"], rows, right=[2])


def _positions(positions: list[Mapping[str, Any]]) -> RenderableType:
    """A column for watermarks where some were tried."""
    marks = [row["watermark"] for row in positions]
    marked = ["watermark"] if any(mark is not None for mark in marks) else []
    rows = [
        [
            row["design"],
            f"{row['num_p']}:{row['num_d']}",
            "-" if row["s_d"] == 0 else f"{row['s_p']:,}",
            f"{row['s_d']:,}",
            *["-" if mark is None else f"{mark:g}" for _ in marked],
            _goodput(row),
        ]
        for row, mark in zip(positions, marks, strict=True)
    ]
    titles = ["", "P:D", "S_P", "S_D", *marked, "goodput, /s"]
    return columns(titles, rows, right=list(range(1, len(titles))))


def _goodput(row: Mapping[str, Any]) -> str:
    if not isnan(row["goodput"]):
        return f"{row['goodput']:.4g}"
    if not isnan(row["attained"]):
        return f"> {row['attained']:.4g}"
    return "-" if isnan(row["missed_at"]) else f"< {row['missed_at']:.4g}"
