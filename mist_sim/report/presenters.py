"""The tables, the page and the pictures of each kind of findings, imported when asked for.

Also of folders that a command wrote; the file in one determines the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.inputs import object_in, of_a_form
from mist_sim.metrics.tables import Presenter, RunFolder

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mist_sim.report.pages.page import Page
    from mist_sim.report.pictures.picture import Picture


def named(function: str) -> Callable[..., Any]:
    """Return a function of this package by its module and name, such as "goodput:goodput_table"."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"mist_sim.report.{module}"), name)
    return found


@dataclass(frozen=True)
class Tables(Presenter):
    """Shows findings as tables below their title, as a report and as pictures, with warnings.

    Functions are by name (`named`), so that Rich and Matplotlib are imported when they are used.
    They take the summary of the findings.

    table: returns the tables. page: returns the report, and takes its title, too; tables that are
        printed are put into it; "": a page of only these. draw: returns a picture, and takes its
        name, too; "": one of the report's.
    has_title: whether the tables have a title. whole: functions take the findings, which have more
        than their summary.
    file: name of the JSON file that has the summary in their folder; "": there is none.
    unknown: numbers for which it has null, by place; * is any.
    """

    table: str
    page: str = ""
    draw: str = ""
    has_title: bool = True
    whole: bool = False
    file: str = ""
    unknown: Mapping[str, float] = field(default_factory=dict)

    def show(self, found: Any) -> None:
        """Print the findings as tables."""
        from mist_sim.report.elements import show

        show(self._title(found), self._body(found))

    def as_html(self, found: Any) -> str:
        """Return the tables of the findings as HTML."""
        from mist_sim.report.elements import as_html

        return as_html(self._title(found), self._body(found))

    def report(self, found: Any) -> str:
        """Return the HTML of a report. Raises ScenarioError without Jinja2 or Matplotlib."""
        return self._page(found).html()

    def plot(self, found: Any, name: str) -> Picture:
        """Return a picture. Raises ScenarioError for a name that there is not."""
        return self._picture(found, name).warned(found.warnings)

    def _picture(self, found: Any, name: str) -> Picture:
        if self.draw:
            drawn: Picture = named(self.draw)(self._given(found), name)
            return drawn
        return self._page(found).only([name]).figures[0].figure

    def _given(self, found: Any) -> Any:
        return found if self.whole else found.summary

    def _body(self, found: Any) -> RenderableType:
        from mist_sim.report.elements import with_warnings

        return with_warnings(found.summary, named(self.table)(self._given(found)))

    def page_of(self, given: Any, title: str) -> Page:
        """Return the report of what functions take. Raises ScenarioError without Jinja2."""
        from mist_sim.report.pages.page import Page, Verdict, printed

        if not self.page:
            return printed(Page(title, Verdict("plain", "", "")), named(self.table)(given))
        page: Page = named(self.page)(given, title)
        return page if page.printed else printed(page, named(self.table)(given))

    def _page(self, found: Any) -> Page:
        from mist_sim.report.elements import headline_line

        headline = getattr(found, "title", "") or found.summary.get("title", "")
        title = headline_line(headline) or repr(found)
        return self.page_of(self._given(found), title).warned(found.summary)

    def _title(self, found: Any) -> str:
        return found.title if self.has_title else ""


RUN = Tables(
    "run:results_table",
    page="pages.run_page:page_of_result",
    draw="pictures.catalog:draw",
    whole=True,
)
REPLICATIONS = Tables(
    "replications:replications_table", page="replications:replications_page", whole=True
)
GOODPUT = Tables(
    "goodput:goodput_table",
    page="goodput:goodput_page",
    file="goodput",
    unknown={"goodput": nan, "goodput_per_gpu": nan, "seeds.*.trials.*.attainment": nan}
    | {"interval.0": 0.0, "interval.1": inf},
)
BESTSERVE = Tables("bestserve:bestserve_table")
SLIDERS = Tables("goodput:sliders_table")
COMPARISON = Tables(
    "comparison:comparison_table",
    page="comparison:comparison_page",
    has_title=False,
    file="comparison",
    unknown={"scenarios.*.*": nan},
)
STUDY = Tables(
    "study:study_table",
    page="study:study_page",
    draw="study:metric_picture",
    file="study",
    unknown={"points.*.figures.*": nan},
)
PLAN = Tables(
    "plan:plan_table",
    page="plan:plan_page",
    file="plan",
    unknown={"tried.*.attainment": nan, "tried.*.estimate": nan},
)
RESHARDING = Tables("resharding:resharding_table")
BUNDLES = Tables("bundles:bundles_table", has_title=False, whole=True)
STEP = Tables("step:step_table")
SPACE = Tables(
    "space:space_table",
    page="space:search_page",
    file="search",
    unknown={"rows.*.figures.*": nan},
)
SWEEP = Tables(
    "sweep:sweep_table",
    page="sweep:sweep_page",
    file="sweep",
    unknown={f"points.*.{name}": nan for name in ("mean", "low", "high")},
)

MOST_BYTES = 512 * 2**20  # a search keeps all that it tried


def folder_page(folder: Path, title: str) -> Page:
    """Return the report of a folder that `run` wrote, or a verb whose findings have a `file`.

    title: of the page.
    Raises ScenarioError for other folders, and for damaged files.
    """
    for tables in (COMPARISON, SPACE, SWEEP, GOODPUT, PLAN, STUDY):
        if (folder / f"{tables.file}.json").is_file():
            return _page(tables, tables.page_of, folder, title)
    if not (folder / "summary.json").is_file():
        raise ScenarioError(
            f"{folder}: holds no results; name a folder that mist run, compare, goodput, plan, "
            "search or sweep wrote with --out"
        )
    run = RunFolder(folder)
    with of_a_form(folder, "results that mist run wrote"):
        page: Page = named("pages.run_page:run_page")(run, title)
        return page.warned(run.summary)


def study_pictures(folder: Path, title: str, names: Sequence[str]) -> Page:
    """Return pictures of a study that `run --vary` wrote, as `study_plots_page` does.

    Raises ScenarioError for a number that no run has, and for a damaged file.
    """
    return _page(STUDY, partial(named("study:study_plots_page"), names=names), folder, title)


def _page(tables: Tables, make: Callable[..., Page], folder: Path, title: str) -> Page:
    from mist_sim.report.elements import headline_line

    file = folder / f"{tables.file}.json"
    summary = object_in(file, MOST_BYTES)
    title = headline_line(summary.get("title") or title)
    with of_a_form(file, "results that mist wrote"):
        for place, value in tables.unknown.items():
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
