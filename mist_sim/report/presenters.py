"""The tables of each kind of findings; rich is imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mist_sim.metrics import Replications, Result

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Tables:
    """Shows findings as tables below their title.

    make: returns the tables of what is found. has_title: whether it has one.
    """

    make: Callable[[Any], RenderableType]
    has_title: bool = True

    def show(self, found: Any) -> None:
        from mist_sim.report.elements.shown import show

        show(self._title(found), self.make(found))

    def as_html(self, found: Any) -> str:
        from mist_sim.report.elements.shown import as_html

        return as_html(self._title(found), self.make(found))

    def _title(self, found: Any) -> str:
        return found.title if self.has_title else ""


def _of_run(found: Result) -> RenderableType:
    from mist_sim.report.run.tables import results_table

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


def _of_step(found: Any) -> RenderableType:
    from mist_sim.report.step import step_table

    return step_table(found.summary)


def _of_space(found: Any) -> RenderableType:
    from mist_sim.report.space import space_table

    return space_table(found.summary)


def _of_sweep(found: Any) -> RenderableType:
    from mist_sim.report.sweep import sweep_table

    return sweep_table(found.summary)


RUN = Tables(_of_run)
REPLICATIONS = Tables(_of_replications)
GOODPUT = Tables(_of_goodput)
BESTSERVE = Tables(_of_bestserve)
SLIDERS = Tables(_of_sliders)
COMPARISON = Tables(_of_comparison, has_title=False)
STUDY = Tables(_of_study)
PLAN = Tables(_of_plan)
STEP = Tables(_of_step)
SPACE = Tables(_of_space)
SWEEP = Tables(_of_sweep)
