"""A picture: panels below one another, which Matplotlib draws as PNG, SVG or PDF."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mist_sim.errors import ScenarioError, brief
from mist_sim.output import output_file
from mist_sim.report.pictures.marks import Bars, Cells, Limit, Line, Mark, Span, text_of
from mist_sim.report.pictures.style import (
    COLOURS,
    INK,
    LIMIT_COLOUR,
    can_draw,
    look,
    require_matplotlib,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FORMS = ("png", "svg", "pdf")

_WIDTH = 8.6  # inches, at 96 pixels of a page
_HEIGHT, _FRAME = 1.65, 0.75  # of a panel, and of what stands around all
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None},
}
_DASHES = ("-", ":", "--")


@dataclass(frozen=True)
class Panel:
    """Marks in one pair of axes.

    title: over it. across, up: titles of the axes. height: inches. range: of the vertical axis; by
    default from 0, `None, None`: as the data need. is_log: of the two axes. is_reversed: rows are
    counted downwards.
    """

    title: str
    marks: Sequence[Mark]
    across: str = ""
    up: str = ""
    height: float = _HEIGHT
    range: tuple[float | None, float | None] = (0.0, None)
    is_log: tuple[bool, bool] = (False, False)
    is_reversed: bool = False

    @property
    def lines(self) -> list[Line]:
        """Its lines."""
        return [mark for mark in self.marks if isinstance(mark, Line)]

    def draw(self, axes: Axes) -> None:
        """Draw everything; what limits are stands beside the title, where no line is."""
        for mark in self.marks:
            mark.draw(axes)
        axes.set_title(self.title, loc="left")
        if limits := dict.fromkeys(mark.text for mark in self.marks if isinstance(mark, Limit)):
            text = f"- - {', '.join(limits)}"
            axes.set_title(text, loc="right", color=LIMIT_COLOUR, fontsize=8.5)
        axes.set(xlabel=self.across, ylabel=self.up)
        if not any(self.is_log):
            low, high = self.range
            axes.set_ylim(bottom=low, top=high)
        for way, is_log in zip("xy", self.is_log, strict=True):
            if is_log:
                _logarithmic(axes, way)
        if self.is_reversed and not axes.yaxis_inverted():
            axes.invert_yaxis()


@dataclass(frozen=True)
class Picture:
    """Panels, which a notebook draws.

    is_over_time: all panels have one horizontal axis. num_columns: panels beside one another, in
    order of reading. heads: titles of columns, which have the same axes then.
    """

    panels: Sequence[Panel]
    is_over_time: bool = False
    num_columns: int = 1
    heads: Sequence[str] = ()

    @property
    def height(self) -> float:
        """Inches."""
        return _FRAME + sum(panel.height + 0.3 for panel in self.panels[:: self.num_columns])

    def panel(self, wanted: str) -> Picture:
        """Return a picture of one panel. wanted: the begin of its title, or part of it.

        Raises ScenarioError where no title has it.
        """
        words = wanted.replace("_", " ").casefold()
        ranked = sorted(self.panels, key=lambda each: not each.title.casefold().startswith(words))
        found = next((each for each in ranked if words in each.title.casefold()), None)
        if found is None:
            known = "; ".join(panel.title for panel in self.panels)
            raise ScenarioError(
                f"there is no panel {brief(wanted)}; those of this picture are: {known}"
            )
        return replace(self, panels=[found])

    def with_spans(self, spans: Iterable[Span]) -> Picture:
        """Return it with shaded times, if it is over time."""
        if not self.is_over_time or not (shaded := list(spans)):
            return self
        return replace(self, panels=[replace(p, marks=[*shaded, *p.marks]) for p in self.panels])

    # ------------------------------------------------------------- as a file

    def figure(self) -> Figure:
        """Return it as a figure of Matplotlib. Raises ScenarioError without Matplotlib."""
        return _figure([("", self)])

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write it as PNG, SVG or PDF, as the suffix of the file says; return its path.

        replace: whether to overwrite an existing file.
        Raises ScenarioError for another suffix, a file that is there, and without Matplotlib.
        """
        form = Path(path).suffix.removeprefix(".")
        if form not in FORMS:
            raise ScenarioError(f"a picture is a .png, .svg or .pdf file, got {path}")
        with output_file(path, replace=replace) as file:
            file.write(self.as_bytes(form))
        return Path(path)

    def as_bytes(self, form: str) -> bytes:
        """Return it as a file of one of `FORMS`. Raises ScenarioError without Matplotlib."""
        return bytes_of([("", self)], form)

    def svg(self, name: str = "picture") -> str:
        """Return it as an element of a page, with the page's ink. name: for ids in it."""
        with look():
            figure, file = self.figure(), BytesIO()
            figure.savefig(file, format="svg", transparent=True, metadata=_METADATA["svg"])
        text = file.getvalue().decode()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
        text = text.replace(INK, "currentColor")
        text = re.sub(r'<g id="([^"]*)">', _titled, text)
        return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", text)

    def _repr_svg_(self) -> str:
        return self.as_bytes("svg").decode()

    def draw(self, canvas: Figure | SubFigure, title: str) -> None:
        """Draw the panels into a figure."""
        rows = self.panels[:: self.num_columns]
        shared: Literal["row", "none"] = "row" if self.heads else "none"
        grid = canvas.subplots(
            len(rows),
            self.num_columns,
            squeeze=False,
            sharex="all" if self.is_over_time else shared,
            sharey=shared,
            height_ratios=[panel.height for panel in rows],
        ).ravel()
        for place, (panel, axes) in enumerate(zip(self.panels, grid, strict=True)):
            is_first = place % self.num_columns == 0 or not self.heads
            (panel if is_first else replace(panel, title="", up="")).draw(axes)
            if place < len(self.heads):
                axes.annotate(
                    self.heads[place], (0.5, 1), (0, 22), "axes fraction",
                    textcoords="offset points", ha="center", weight="bold", fontsize=10,
                )  # fmt: skip
        if self.is_over_time:
            for axes in grid[-self.num_columns :]:
                axes.set_xlabel(self.panels[-1].across or "time, s")
        if title:
            canvas.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
        if found := _legend(grid):
            canvas.legend(
                list(found.values()), list(found), loc="outside lower left",
                ncols=min(len(found), 5), fontsize=8.5,
            )  # fmt: skip


def bytes_of(pictures: Sequence[tuple[str, Picture]], form: str) -> bytes:
    """Return a file of pictures, each with its title: below one another, in a PDF a page each.

    form: one of `FORMS`. Raises ScenarioError without Matplotlib.
    """
    require_matplotlib()
    file = BytesIO()
    with look():
        if form == "pdf":
            from matplotlib.backends.backend_pdf import PdfPages

            with PdfPages(file, metadata=_METADATA[form]) as pages:
                for each in pictures:
                    pages.savefig(_figure([each]))
        else:
            _figure(pictures).savefig(file, format=form, dpi=150, metadata=_METADATA[form])
    return file.getvalue()


def write_png(make: Callable[[], Picture], path: Path) -> None:
    """Write a PNG of what is made; nothing without Matplotlib."""
    if can_draw():
        path.write_bytes(make().as_bytes("png"))


def beside(pictures: Mapping[str, Picture]) -> Picture:
    """Return the same picture of several runs, a column each, with the same axes."""
    first = next(iter(pictures.values()))
    panels = [panel for row in _rows(pictures.values()) for panel in row]
    return replace(first, panels=panels, num_columns=len(pictures), heads=list(pictures))


def over(pictures: Mapping[str, Picture]) -> Picture:
    """Return one picture of several runs in the same axes: a colour each, its lines and limits."""
    first = next(iter(pictures.values()))
    panels = []
    for row in _rows(pictures.values()):
        marks: list[Mark] = []
        for title, colour, panel in zip(pictures, COLOURS, row, strict=False):
            marks += [each for each in panel.marks if isinstance(each, Limit | Span)]
            lines = panel.lines
            for style, line in zip(cycle(_DASHES), lines, strict=False):
                name = title if len(lines) == 1 else f"{title}: {line.name}"
                marks.append(replace(line, name=name, colour=colour, style=style))
        panels.append(replace(row[0], marks=marks))
    return replace(first, panels=panels)


def _rows(pictures: Iterable[Picture]) -> Iterator[list[Panel]]:
    """Yield the panels of one title, of each picture; an empty one where it has none."""
    by_title = [{panel.title: panel for panel in each.panels} for each in pictures]
    first = {title: panel for mine in reversed(by_title) for title, panel in mine.items()}
    for title in dict.fromkeys(title for mine in by_title for title in mine):
        empty = replace(first[title], marks=())
        yield [mine.get(title, empty) for mine in by_title]


def hides(picture: Picture) -> bool:
    """Tell whether pictures like it would hide one another in the same axes."""
    return any(isinstance(mark, Bars | Cells) for panel in picture.panels for mark in panel.marks)


def _figure(pictures: Sequence[tuple[str, Picture]]) -> Figure:
    require_matplotlib()
    from matplotlib.figure import Figure

    heights = [each.height + (0.35 if title else 0.0) for title, each in pictures]
    with look():
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
        if len(pictures) == 1:
            pictures[0][1].draw(figure, pictures[0][0])
        else:
            parts = figure.subfigures(len(pictures), 1, height_ratios=heights, squeeze=False)
            for part, (title, each) in zip(parts.ravel(), pictures, strict=True):
                each.draw(part, title)
    return figure


def _logarithmic(axes: Axes, way: str) -> None:
    """Make an axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogFormatter, NullFormatter

    getattr(axes, f"set_{way}scale")("log")
    axis = getattr(axes, f"{way}axis")
    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(NullFormatter())


def _legend(grid: Iterable[Axes]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def _titled(found: re.Match[str]) -> str:
    """Return the group of a mark with its text as a title, which browsers show."""
    text = text_of(unescape(found[1]))
    return found[0] if text is None else f"<g><title>{escape(text, quote=False)}</title>"
