"""The report of a folder written by a command; the file in it determines the kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.inputs import object_in, of_a_form

if TYPE_CHECKING:
    from mist_sim.report.pages.page import Page

MOST_BYTES = 512 * 2**20  # a search keeps all that it tried


@dataclass(frozen=True)
class Kind:
    """A kind of folder. restore: rebuilds values that JSON cannot hold. make: returns the page."""

    restore: Callable[[Mapping[str, Any]], dict[str, Any]]
    make: Callable[[Mapping[str, Any], str], Page]


def _comparison() -> Kind:
    from mist_sim.report.pages.comparison_page import comparison_page, restored

    return Kind(restored, comparison_page)


def _search() -> Kind:
    from mist_sim.report.pages.search_page import restored_search, search_page

    return Kind(restored_search, search_page)


def _sweep() -> Kind:
    from mist_sim.report.pages.search_page import restored_sweep, sweep_page

    return Kind(restored_sweep, sweep_page)


def _goodput() -> Kind:
    from mist_sim.report.pages.goodput_page import goodput_page, restored_goodput

    return Kind(restored_goodput, goodput_page)


def _plan() -> Kind:
    from mist_sim.report.pages.plan_page import plan_page, restored_plan

    return Kind(restored_plan, plan_page)


def _study() -> Kind:
    from mist_sim.report.pages.study_page import restored_study, study_page

    return Kind(restored_study, study_page)


_KINDS = {
    "comparison": _comparison,
    "search": _search,
    "sweep": _sweep,
    "goodput": _goodput,
    "plan": _plan,
    "study": _study,
}


def folder_page(folder: Path, title: str) -> Page:
    """Return the report of a folder that `run` or a verb of `_KINDS` wrote.

    title: of the page.
    Raises ScenarioError for other folders, and for damaged files.
    """
    for name, kind in _KINDS.items():
        if (folder / f"{name}.json").is_file():
            return _page(kind(), folder / f"{name}.json", title)
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


def _page(kind: Kind, file: Path, title: str) -> Page:
    from mist_sim.report.elements import headline_line

    summary = object_in(file, MOST_BYTES)
    title = headline_line(summary.get("title") or title)
    with of_a_form(file, "results that mist wrote"):
        return kind.make(kind.restore(summary), title).warned(summary)


def study_pictures(folder: Path, title: str, names: Sequence[str]) -> Page:
    """Return pictures of a study that `run --vary` wrote, as `study_plots_page` does.

    Raises ScenarioError for a number that no run has, and for a damaged file.
    """
    from mist_sim.report.pages.study_page import restored_study, study_plots_page

    kind = Kind(restored_study, lambda summary, title: study_plots_page(summary, title, names))
    return _page(kind, folder / "study.json", title)
