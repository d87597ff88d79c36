"""The report of a folder written by a command; the file in it determines the kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.inputs import object_in, of_a_form
from mist_sim.report import presenters
from mist_sim.report.presenters import Tables

if TYPE_CHECKING:
    from mist_sim.report.pages.page import Page

MOST_BYTES = 512 * 2**20  # a search keeps all that it tried

_KINDS: dict[str, tuple[Tables, dict[str, float]]] = {
    "comparison": (presenters.COMPARISON, {"scenarios.*.*": nan}),
    "search": (presenters.SPACE, {"rows.*.figures.*": nan}),
    "sweep": (presenters.SWEEP, {f"points.*.{name}": nan for name in ("mean", "low", "high")}),
    "goodput": (
        presenters.GOODPUT,
        {"goodput": nan, "goodput_per_gpu": nan, "seeds.*.trials.*.attainment": nan}
        | {"interval.0": 0.0, "interval.1": inf},
    ),
    "plan": (presenters.PLAN, {"tried.*.attainment": nan, "tried.*.estimate": nan}),
    "study": (presenters.STUDY, {"points.*.figures.*": nan}),
}
"""Files of findings, and the numbers for which JSON has null, by place; * is any."""


def folder_page(folder: Path, title: str) -> Page:
    """Return the report of a folder that `run` or a verb of `_KINDS` wrote.

    title: of the page.
    Raises ScenarioError for other folders, and for damaged files.
    """
    for name, (tables, _) in _KINDS.items():
        if (folder / f"{name}.json").is_file():
            return _page(name, tables.page_of, folder, title)
    if not (folder / "summary.json").is_file():
        raise ScenarioError(
            f"{folder}: holds no results; name a folder that mist run, compare, goodput, plan, "
            "search or sweep wrote with --out"
        )
    from mist_sim.metrics.tables import RunFolder
    from mist_sim.report.pages.run_page import run_page

    run = RunFolder(folder)
    with of_a_form(folder, "results that mist run wrote"):
        return run_page(run, title).warned(run.summary)


def _page(name: str, make: Callable[..., Page], folder: Path, title: str) -> Page:
    from mist_sim.report.elements import headline_line

    file = folder / f"{name}.json"
    summary = object_in(file, MOST_BYTES)
    title = headline_line(summary.get("title") or title)
    with of_a_form(file, "results that mist wrote"):
        for place, value in _KINDS[name][1].items():
            _fill(summary, place.split("."), value)
        return make(summary, title).warned(summary)


def _fill(data: Any, place: Sequence[str], value: float) -> None:
    """Put a number in place of null."""
    first, *rest = place
    keys = [*data] if isinstance(data, dict) else [*range(len(data))]
    for key in keys if first == "*" else [first if isinstance(data, dict) else int(first)]:
        if rest:
            _fill(data[key], rest, value)
        elif data[key] is None:
            data[key] = value


def study_pictures(folder: Path, title: str, names: Sequence[str]) -> Page:
    """Return pictures of a study that `run --vary` wrote, as `study_plots_page` does.

    Raises ScenarioError for a number that no run has, and for a damaged file.
    """
    from mist_sim.report.study import study_plots_page

    return _page("study", partial(study_plots_page, names=names), folder, title)
