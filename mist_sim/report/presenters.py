"""The tables of each kind of findings; rich is imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mist_sim.metrics import Replications, Result

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mist_sim.report.pages.page import Page
    from mist_sim.report.pictures.picture import Picture


@dataclass(frozen=True)
class Tables:
    """Shows findings as tables below their title, as a report and as pictures, with warnings.

    make: returns the tables of the findings. has_title: whether there is a title. page: returns the
        report, under a title; None: a page of only the tables. draw: returns a picture by its name;
    None: one of the report's pictures.
    """

    make: Callable[[Any], RenderableType]
    has_title: bool = True
    page: Callable[[Any, str], Page] | None = None
    draw: Callable[[Any, str], Picture] | None = None

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
        from mist_sim.report.pages.plots_page import pictures_of

        if self.draw is not None:
            return self.draw(found, name)
        return pictures_of(self._page(found), [name]).figures[0].figure

    def _body(self, found: Any) -> RenderableType:
        from mist_sim.report.elements import with_warnings

        return with_warnings(found.summary, self.make(found))

    def _page(self, found: Any) -> Page:
        from mist_sim.report.elements import headline_line
        from mist_sim.report.pages.page import Verdict
        from mist_sim.report.pages.printed_page import printed_page

        headline = getattr(found, "title", "") or found.summary.get("title", "")
        title = headline_line(headline) or repr(found)
        if self.page is not None:
            page = self.page(found, title)
        else:
            page = printed_page(title, Verdict("plain", "", ""), self.make(found))
        return page.warned(found.summary)

    def _title(self, found: Any) -> str:
        return found.title if self.has_title else ""


def _of_run(found: Result) -> RenderableType:
    from mist_sim.report.run import results_table

    return results_table(found)


def _of_replications(found: Replications) -> RenderableType:
    from mist_sim.report.replications import replications_table

    return replications_table(found)


def _of_goodput(found: Any) -> RenderableType:
    from mist_sim.report.goodput import goodput_table

    return goodput_table(found.summary)


def _of_sliders(found: Any) -> RenderableType:
    from mist_sim.report.sliders import sliders_table

    return sliders_table(found.summary)


def _of_bestserve(found: Any) -> RenderableType:
    from mist_sim.report.bestserve import bestserve_table

    return bestserve_table(found.summary)


def _of_comparison(found: Any) -> RenderableType:
    from mist_sim.report.comparison import comparison_table

    return comparison_table(found.summary)


def _of_study(found: Any) -> RenderableType:
    from mist_sim.report.study import study_table

    return study_table(found.summary)


def _of_plan(found: Any) -> RenderableType:
    from mist_sim.report.plan import plan_table

    return plan_table(found.summary)


def _of_resharding(found: Any) -> RenderableType:
    from mist_sim.report.resharding import resharding_table

    return resharding_table(found.summary)


def _of_step(found: Any) -> RenderableType:
    from mist_sim.report.step import step_table

    return step_table(found.summary)


def _of_space(found: Any) -> RenderableType:
    from mist_sim.report.space import space_table

    return space_table(found.summary)


def _of_sweep(found: Any) -> RenderableType:
    from mist_sim.report.sweep import sweep_table

    return sweep_table(found.summary)


def _run_page(found: Result, title: str) -> Page:
    from mist_sim.report.pages.run_page import run_page
    from mist_sim.report.pictures.run_data import OfResult

    return run_page(OfResult(found), title, found.title.splitlines()[1:])


def _draw_run(found: Result, name: str) -> Picture:
    from mist_sim.report.pictures.catalog import draw
    from mist_sim.report.pictures.run_data import OfResult

    return draw(OfResult(found), name)


def _replications_page(found: Replications, title: str) -> Page:
    from mist_sim.report.pages.study_page import replications_page

    return replications_page(found, title)


def _study_page(found: Any, title: str) -> Page:
    from mist_sim.report.pages.study_page import study_page

    return study_page(found.summary, title)


def _draw_study(found: Any, name: str) -> Picture:
    from mist_sim.report.pages.study_page import metric_picture

    return metric_picture(found.summary, name)


def _goodput_page(found: Any, title: str) -> Page:
    from mist_sim.report.pages.goodput_page import goodput_page

    return goodput_page(found.summary, title)


def _plan_page(found: Any, title: str) -> Page:
    from mist_sim.report.pages.plan_page import plan_page

    return plan_page(found.summary, title)


def _comparison_page(found: Any, title: str) -> Page:
    from mist_sim.report.pages.comparison_page import comparison_page

    return comparison_page(found.summary, title)


def _space_page(found: Any, title: str) -> Page:
    from mist_sim.report.pages.search_page import search_page

    return search_page(found.summary, title)


def _sweep_page(found: Any, title: str) -> Page:
    from mist_sim.report.pages.search_page import sweep_page

    return sweep_page(found.summary, title)


RUN = Tables(_of_run, page=_run_page, draw=_draw_run)
REPLICATIONS = Tables(_of_replications, page=_replications_page)
GOODPUT = Tables(_of_goodput, page=_goodput_page)
BESTSERVE = Tables(_of_bestserve)
SLIDERS = Tables(_of_sliders)
COMPARISON = Tables(_of_comparison, has_title=False, page=_comparison_page)
STUDY = Tables(_of_study, page=_study_page, draw=_draw_study)
PLAN = Tables(_of_plan, page=_plan_page)
RESHARDING = Tables(_of_resharding)
STEP = Tables(_of_step)
SPACE = Tables(_of_space, page=_space_page)
SWEEP = Tables(_of_sweep, page=_sweep_page)
