"""A report as data, and its one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from mist_sim.core.result_warnings import ResultWarning, of_data
from mist_sim.errors import ScenarioError, brief

if TYPE_CHECKING:
    from markupsafe import Markup
    from rich.console import RenderableType

    from mist_sim.report.pictures.picture import Picture

_SHEET_PICTURE = 2.2  # inches of all panels of the picture on a sheet of A4
_SHEET_PANELS = 3
_SHEET_WARNINGS, _SHEET_ASSUMED, _SHEET_BESIDE = 650, 300, 750  # letters of these parts there
_LINE = 100  # letters of a line there
MISSING = "a report needs Jinja2 and Matplotlib: pip install 'mist-sim[report]'"


@dataclass(frozen=True)
class Verdict:
    """The main answer of a page. level: good, unsure, bad, or plain if there is no verdict."""

    level: str
    word: str
    sentence: str


@dataclass(frozen=True)
class Cell:
    """A cell of a table. key: of the summary that has the figure. is_text: words, no number."""

    text: str
    key: str = ""
    is_text: bool = False


@dataclass(frozen=True)
class Card:
    """A figure that stands at the top. key: of the summary that has it. note: below it."""

    name: str
    value: str
    unit: str = ""
    key: str = ""
    note: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table under a title. note: a line below it."""

    title: str
    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """A picture of the page. name: its place; title: heads it."""

    name: str
    title: str
    figure: Picture

    @property
    def on_a_sheet(self) -> Drawing:
        """It with panels so low that a sheet has room for them."""
        panels = self.figure.panels[:_SHEET_PANELS]
        most = _SHEET_PICTURE / max(len(panels), 1)
        lower = [replace(panel, height=min(panel.height, most)) for panel in panels]
        return replace(self, figure=replace(self.figure, panels=lower))

    @property
    def svg(self) -> Markup:
        """The picture as an element of a page."""
        from markupsafe import Markup

        return Markup(self.figure.svg(self.name))  # noqa: S704 - Matplotlib escapes all texts


@dataclass(frozen=True)
class Brief:
    """What a page of one sheet has beside the verdict, the first picture and the warnings.

    question: that the verdict answers. sure: how sure that is. tiles: limits, dollars, room.
    assumed: what the answer rests on and the scenario does not say. answer: of several candidates
        the one whose warnings count; empty: those of all do. figure: in place of the page's first.
    beside: the other answers, a sentence each.
    """

    question: str
    sure: str
    tiles: Sequence[Card]
    assumed: Sequence[str] = ()
    answer: str = ""
    figure: Drawing | None = None
    beside: Sequence[str] = ()

    def concerns(self, warning: ResultWarning) -> bool:
        """Whether a warning is of all that was simulated, or of the answer or its engine."""
        whose = f" {self.answer},"
        return not (self.answer and warning.of) or any(f" {of}," in whose for of in warning.of)


@dataclass(frozen=True)
class Page:
    """A report: the verdict first, then figures, pictures, and where all of it comes from.

    tables, tables_below: above the pictures, and below them. printed: tables as a command prints
    them, HTML by `wide` and `narrow` screens. details: texts by title that open when a reader asks
    for them. warnings: set by `warned`, as told.
    """

    title: str
    verdict: Verdict
    subtitle: Sequence[str] = ()
    cards: Sequence[Card] = ()
    warnings: Sequence[str] = ()
    told: Sequence[ResultWarning] = ()
    tables: Sequence[PageTable] = ()
    tables_below: Sequence[PageTable] = ()
    printed: Mapping[str, Markup] = field(default_factory=dict)
    figures: Sequence[Drawing] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    brief: Brief | None = None

    def warned(self, summary: Mapping[str, Any]) -> Self:
        """Return it with the warnings of findings. summary: `Findings.summary`."""
        from mist_sim.report.elements import warning_lines

        return replace(self, warnings=warning_lines(summary), told=of_data(summary))

    def only(self, names: Sequence[str]) -> Self:
        """Return it with its pictures alone, all of them or those that are named.

        Raises ScenarioError for a name that none has, and where there is no picture.
        """
        drawings = {each.name: each for each in self.figures}
        for name in names:
            if name not in drawings:
                known = ", ".join(drawings) or "none"
                raise ScenarioError(f"there is no picture {brief(name)} of this. Known: {known}")
        if not drawings:
            raise ScenarioError("there is no picture of this; mist report writes its tables")
        chosen = [drawings[name] for name in dict.fromkeys(names or drawings)]
        return replace(self, figures=chosen, printed={}, details={})

    def sheet(self) -> str:
        """Return one sheet of A4: the answer alone, as one file.

        Raises ScenarioError for a page that has none, and without Jinja2 or Matplotlib.
        """
        from mist_sim.report.elements import warning_lines

        if self.brief is None:
            raise ScenarioError(
                "one sheet is of a run, a goodput, a plan, or a comparison or run --vary with "
                "limits; leave out --brief"
            )
        lines = self.warnings
        if others := [each for each in self.told if not self.brief.concerns(each)]:
            mine = [each.data for each in self.told if each not in others]
            lines = warning_lines({"warnings": mine})
        warnings, left = _that_fit(lines, _SHEET_WARNINGS)
        left += len(others)
        assumed, more = _that_fit(self.brief.assumed, _SHEET_ASSUMED)
        beside, rest = _that_fit(self.brief.beside, _SHEET_BESIDE)
        figures = [self.brief.figure] if self.brief.figure else self.figures[:1]
        shown = replace(
            self,
            warnings=[*warnings, *_more(left)],
            brief=replace(
                self.brief,
                assumed=[*assumed, *_more(more)],
                beside=[*beside, *_more(rest)],
            ),
            figures=[each.on_a_sheet for each in figures],
        )
        return _rendered(shown, "brief.html.j2")

    def html(self) -> str:
        """Return the page as one file. Raises ScenarioError without Jinja2 or Matplotlib."""
        return _rendered(self, "page.html.j2")


def require_report() -> None:
    """Raise ScenarioError if a package that reports need is not installed."""
    if not can_report():
        raise ScenarioError(MISSING)


def can_report() -> bool:
    """Tell whether Jinja2 and Matplotlib are installed."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("jinja2", "matplotlib"))


_WIDTHS = {"wide": 110, "narrow": 46}
"""Columns of the tables on a screen and on a phone; they lay themselves out for each."""


def printed(body: RenderableType) -> dict[str, Markup]:
    """Return tables as a command prints them. Raises ScenarioError without Jinja2."""
    require_report()
    from markupsafe import Markup

    from mist_sim.report.elements import as_html

    return {
        place: Markup(as_html("", body, width=width))  # noqa: S704 - Rich escapes
        for place, width in _WIDTHS.items()
    }


def _rendered(page: Page, template: str) -> str:
    require_report()
    from importlib.metadata import version

    from jinja2 import Environment
    from markupsafe import Markup

    style, script = (Markup(_text(name)) for name in ("page.css", "page.js"))  # noqa: S704 - ours
    form = Environment(autoescape=True, trim_blocks=True).from_string(_text(template))
    return form.render(page=page, style=style, script=script, version=version("mist-sim"))


def _that_fit(texts: Sequence[str], letters: int) -> tuple[list[str], int]:
    """Return the first texts that have so many letters at most, and how many are left."""
    found: list[str] = []
    for text in texts:
        letters -= max(len(text), _LINE)
        if letters < 0:
            break
        found.append(text)
    return found, len(texts) - len(found)


def _more(number: int) -> list[str]:
    return [f"... and {number} more: see the long report"] if number else []


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
