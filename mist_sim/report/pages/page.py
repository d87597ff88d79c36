"""A report as data, and its one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

    from mist_sim.report.pictures.picture import Picture

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
    """A figure that stands at the top. key: of the summary that has it."""

    name: str
    value: str
    unit: str = ""
    key: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table under a title. note: a line below it."""

    title: str
    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Printed:
    """The command's printed output as HTML. place: `wide` or `narrow`, by screen width."""

    html: Markup
    place: str


@dataclass(frozen=True)
class Drawing:
    """A picture of the page. name: its place; title: heads it."""

    name: str
    title: str
    figure: Picture

    @property
    def svg(self) -> Markup:
        """The picture as an element of a page."""
        from markupsafe import Markup

        return Markup(self.figure.svg(self.name))  # noqa: S704 - Matplotlib escapes all texts


@dataclass(frozen=True)
class Detail:
    """Text that opens when a reader asks for it."""

    title: str
    text: str


@dataclass(frozen=True)
class Page:
    """A report: the verdict first, then figures, pictures, and where all of it comes from.

    tables, tables_below: above the pictures, and below them. warnings: set by `warned`.
    """

    title: str
    verdict: Verdict
    subtitle: Sequence[str] = ()
    cards: Sequence[Card] = ()
    warnings: Sequence[str] = ()
    tables: Sequence[PageTable] = ()
    tables_below: Sequence[PageTable] = ()
    printed: Sequence[Printed] = ()
    figures: Sequence[Drawing] = ()
    details: Sequence[Detail] = field(default_factory=tuple)

    def warned(self, summary: Mapping[str, Any]) -> Self:
        """Return it with the warnings of findings. summary: `Findings.summary`."""
        from mist_sim.report.elements.warned import warning_lines

        return replace(self, warnings=(*self.warnings, *warning_lines(summary)))

    def html(self) -> str:
        """Return the page as one file. Raises ScenarioError without Jinja2 or Matplotlib."""
        require_report()
        from markupsafe import Markup

        return _template().render(
            page=self,
            style=Markup(_text("page.css")),  # noqa: S704 - our own file
            version=_version(),
        )


def require_report() -> None:
    """Raise ScenarioError if a package that reports need is not installed."""
    if not can_report():
        raise ScenarioError(MISSING)


def can_report() -> bool:
    """Tell whether Jinja2 and Matplotlib are installed."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("jinja2", "matplotlib"))


def _template() -> Template:
    from jinja2 import Environment

    return Environment(autoescape=True, trim_blocks=True).from_string(_text("page.html.j2"))


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _version() -> str:
    from importlib.metadata import version

    return version("mist-sim")
