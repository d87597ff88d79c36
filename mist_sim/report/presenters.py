"""The tables, the page and the pictures of each kind of findings, imported when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mist_sim.metrics.tables import Presenter

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
    """

    table: str
    page: str = ""
    draw: str = ""
    has_title: bool = True
    whole: bool = False

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
        # pages of runs choose their tables; others show what the terminal does
        return page if page.tables else printed(page, named(self.table)(given))

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
    draw="pictures.catalog:picture_of_result",
    whole=True,
)
REPLICATIONS = Tables(
    "replications:replications_table", page="replications:replications_page", whole=True
)
GOODPUT = Tables("goodput:goodput_table", page="goodput:goodput_page")
BESTSERVE = Tables("bestserve:bestserve_table")
SLIDERS = Tables("goodput:sliders_table")
COMPARISON = Tables(
    "comparison:comparison_table", page="comparison:comparison_page", has_title=False
)
STUDY = Tables("study:study_table", page="study:study_page", draw="study:metric_picture")
PLAN = Tables("plan:plan_table", page="plan:plan_page")
RESHARDING = Tables("resharding:resharding_table")
BUNDLES = Tables("bundles:bundles_table", has_title=False, whole=True)
STEP = Tables("step:step_table")
SPACE = Tables("space:space_table", page="space:search_page")
SWEEP = Tables("sweep:sweep_table", page="sweep:sweep_page")
