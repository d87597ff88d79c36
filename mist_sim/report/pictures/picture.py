"""A picture: panels of marks below one another, which Matplotlib draws as PNG, SVG or PDF."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from io import BytesIO
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError, brief
from mist_sim.output import output_file
from mist_sim.report.elements import who
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
COLUMN = 3.33
"""Inches of a column. Source: acmart's sigconf has columns of 241 points, IEEEtran of 252."""
_NARROWEST, _WIDEST = 2.5, 20.0
_HEIGHT = 1.65  # of a panel
_RIGHT = 0.15
_LETTER = 0.075  # a wide one
_DIGITS = 6
_CAPTION = 120  # letters of a line of the caption
_MOST_LETTERS = 48
_MOST_TICKS = 20  # beside one another, at values that were tried
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None},
}
_DASHES = ("-", ":", "--")
_DARK = 0.55  # of a colour's brightness, below which white text is read


class Mark(ABC):
    """A part of a panel. name: of it in the legend, if it stands there."""

    name: str = ""

    @abstractmethod
    def draw(self, axes: Axes) -> None:
        """Draw it, with its name as its label."""


@dataclass(frozen=True, eq=False)
class Line(Mark):
    """A line.

    style: as of Matplotlib, such as "-" or ":". is_stepped: a value holds until the next one.
    has_points: each point has a dot.
    """

    x: Any
    y: Any
    name: str = ""
    colour: str = COLOURS[0]
    style: str = "-"
    is_stepped: bool = False
    has_points: bool = False

    def draw(self, axes: Axes) -> None:
        """Draw the line."""
        axes.plot(
            np.asarray(self.x),
            np.asarray(self.y, dtype=float),
            color=self.colour,
            ls=self.style,
            lw=1.3,
            drawstyle="steps-post" if self.is_stepped else "default",
            marker="o" if self.has_points else "",
            ms=4,
            label=self.name,
        )


@dataclass(frozen=True, eq=False)
class Band(Mark):
    """The space between two lines."""

    x: Any
    low: Any
    high: Any
    colour: str = COLOURS[0]

    def draw(self, axes: Axes) -> None:
        """Fill the space."""
        axes.fill_between(self.x, self.low, self.high, color=self.colour, alpha=0.2, lw=0)


@dataclass(frozen=True, eq=False)
class Points(Mark):
    """Points, which a page names under the pointer.

    texts: of each point, under a pointer. labels: beside each. symbol, size: as of Matplotlib.
    errors: (below, above) of each x.
    """

    x: Sequence[Any]
    y: Sequence[Any]
    name: str = ""
    colour: str = COLOURS[0]
    symbol: str = "o"
    texts: Sequence[str] = ()
    labels: Sequence[str] = ()
    size: float = 6.0
    errors: tuple[Sequence[float], Sequence[float]] | None = None

    def draw(self, axes: Axes) -> None:
        """Draw the points, their errors and labels, and their texts for `Picture.svg`."""
        style: dict[str, Any] = {"color": self.colour, "marker": self.symbol, "ms": self.size}
        style["clip_on"] = False  # points at 0 are whole
        if self.texts:
            names = [self.name, *[""] * (len(self.x) - 1)]
            for x, y, text, name in zip(self.x, self.y, self.texts, names, strict=True):
                axes.plot([x], [y], ls="", alpha=0.8, label=name, gid=f"{_TOLD}{text}", **style)
        else:
            axes.errorbar(
                self.x, self.y, xerr=self.errors, ls="", capsize=3, label=self.name, **style
            )
        for x, y, label in zip(self.x, self.y, self.labels, strict=False):
            axes.annotate(label, (x, y), (5, 4), textcoords="offset points", fontsize=8)


@dataclass(frozen=True)
class Note(Mark):
    """A text in the middle of a panel that has nothing to show."""

    text: str

    def draw(self, axes: Axes) -> None:
        """Write it, without axes."""
        place: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, self.text, color="gray", **place)
        axes.set(xticks=[], yticks=[])


@dataclass(frozen=True, eq=False)
class Bars(Mark):
    """Horizontal bars. y: their rows. left: where each begins; 0 by default.

    texts: at the end of each. errors: (below, above) of each.
    """

    y: Sequence[int]
    x: Any
    name: str = ""
    colour: str = COLOURS[0]
    left: Any = 0.0
    texts: Sequence[str] = ()
    errors: tuple[Sequence[float], Sequence[float]] | None = None

    def draw(self, axes: Axes) -> None:
        """Draw the bars."""
        drawn = axes.barh(
            self.y, self.x, 0.75, left=self.left, color=self.colour, label=self.name,
            xerr=self.errors, ecolor=INK, capsize=2,
        )  # fmt: skip
        if self.texts:  # which need no scale, and lie on no lines
            axes.bar_label(drawn, self.texts, padding=3, fontsize=8)
            axes.grid(visible=False)
            axes.tick_params(bottom=False, labelbottom=False)
            axes.spines["bottom"].set_visible(False)
            axes.margins(x=0.2)


@dataclass(frozen=True)
class Limit(Mark):
    """A limit, of values or, where not `is_across`, of the horizontal axis; the title tells it."""

    value: float
    text: str
    is_across: bool = True

    def draw(self, axes: Axes) -> None:
        """Draw a dashed line."""
        line = axes.axhline if self.is_across else axes.axvline
        line(self.value, color=LIMIT_COLOUR, lw=1.1, ls="--")


@dataclass(frozen=True)
class Span(Mark):
    """A shaded time, or range of the horizontal axis."""

    begin: float
    end: float
    name: str = ""
    colour: str = LIMIT_COLOUR

    def draw(self, axes: Axes) -> None:
        """Shade what the axis shows of it."""
        from matplotlib.patches import Rectangle

        shade = Rectangle(
            (self.begin, 0), self.end - self.begin, 1, transform=axes.get_xaxis_transform(),
            color=self.colour, alpha=0.13, lw=0, label=self.name,
        )  # fmt: skip
        axes.add_artist(shade)


@dataclass(frozen=True, eq=False)
class Cells(Mark):
    """Values over two keys. values: by row and column; NaN where there is none. texts: the same."""

    values: Any
    texts: Sequence[Sequence[str]]

    def draw(self, axes: Axes) -> None:
        """Draw a cell each, with its text in ink that can be read on it."""
        rows, columns = self.values.shape
        values, ends = (
            np.ma.masked_invalid(self.values),
            (np.arange(columns + 1), np.arange(rows + 1)),
        )
        shown = axes.pcolormesh(
            *(end - 0.5 for end in ends), values, cmap="viridis", edgecolors="w"
        )
        for row, texts in enumerate(self.texts):
            for column, text in enumerate(texts):
                value = self.values[row][column]
                rgb = shown.cmap(shown.norm(value))[:3] if np.isfinite(value) else (1, 1, 1)
                colour = "white" if sum(rgb) / 3 < _DARK else "black"
                axes.text(column, row, text, ha="center", va="center", color=colour)
        axes.grid(visible=False)


_TOLD = "told: "  # before the text of a mark under the pointer, in its id


@dataclass(frozen=True)
class Panel:
    """Marks in one pair of axes.

    title: over it. across, up: titles of the axes. height: inches, at least. range: of the
    vertical axis; by default from 0, `None, None`: as the data need. is_log: of the two axes.
    is_reversed: rows are counted downwards, as they always are where they have names. rows,
    columns: names at 0, 1, ... of the axes.
    """

    title: str
    marks: Sequence[Mark]
    across: str = ""
    up: str = ""
    height: float = _HEIGHT
    range: tuple[float | None, float | None] = (0.0, None)
    is_log: tuple[bool, bool] = (False, False)
    is_reversed: bool = False
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()

    @property
    def left(self) -> float:
        """Inches that the names of its rows take, or numbers."""
        return _LETTER * max((len(_short(row)) for row in self.rows), default=_DIGITS)

    @property
    def tall(self) -> float:
        """Inches of its vertical axis, along which the axis' title has room."""
        return max(self.height, _LETTER * len(self.up))

    @property
    def below(self) -> float:
        """Inches that the horizontal axis takes."""
        has_scale = not any(isinstance(mark, Bars) and mark.texts for mark in self.marks)
        return 0.05 + 0.19 * has_scale + 0.18 * bool(self.across) + 0.5 * _LETTER * self._turned

    @property
    def _turned(self) -> int:
        """Letters of the longest name of a column, if they do not fit beside one another."""
        longest = max((len(_short(name)) for name in self.columns), default=0)
        return longest if _LETTER * longest * len(self.columns) > _WIDTH - self.left - 1 else 0

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
        if self.rows:
            axes.set_yticks(range(len(self.rows)), [*map(_short, self.rows)])
            axes.set_ylim(-0.6, len(self.rows) - 0.4)
        elif not any(self.is_log):
            low, high = self.range
            axes.set_ylim(bottom=low, top=high)
        points = sorted({float(x) for line in self.lines if line.has_points for x in line.x})
        if len(points) > 1 and np.ptp(points) < _MOST_TICKS * np.diff(points).min():
            axes.set_xticks(points, [f"{point:g}" for point in points])
        if self.columns:
            turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if self._turned else {}
            axes.set_xticks(range(len(self.columns)), [*map(_short, self.columns)], **turned)
        for way, is_log in zip("xy", self.is_log, strict=True):
            if is_log:
                _logarithmic(axes, way)
        if (self.is_reversed or self.rows) and not axes.yaxis_inverted():
            axes.invert_yaxis()


@dataclass(frozen=True)
class Picture:
    """Panels, which a notebook draws.

    is_over_time: all panels have one horizontal axis. num_columns: panels beside one another, in
    order of reading. heads: titles of columns, which have the same axes then. caption: lines above
    all panels. width: of all, inches.
    """

    panels: Sequence[Panel]
    is_over_time: bool = False
    num_columns: int = 1
    heads: Sequence[str] = ()
    caption: Sequence[str] = ()
    width: float = _WIDTH

    def for_print(self, width: float = COLUMN) -> Picture:
        """Return it for a paper: so many inches wide, and without the lines above its panels.

        Fonts keep their size: 9 points, and 8.5 in the legend. By default it fits one of two
        columns; say what its lines say, such as warnings, in the text. Raises ScenarioError for a
        width that no panel fits into.
        """
        if not _NARROWEST <= width <= _WIDEST:
            raise ScenarioError(
                f"width must be {_NARROWEST:g} to {_WIDEST:g} inches, got {brief(width)}"
            )
        return replace(self, width=float(width), caption=())

    def warned(self, warnings: Sequence[ResultWarning]) -> Picture:
        """Return it below the names of warnings, and of the points they are of."""
        points: dict[str, dict[str, None]] = {}
        for each in warnings:
            points.setdefault(each.kind.name, {}).update(dict.fromkeys(each.of))
        names = [f"{name} (of {who(list(of))})" if of else name for name, of in points.items()]
        told = (
            wrap(f"Warnings: {', '.join(names)}", _CAPTION, break_on_hyphens=False) if names else ()
        )
        return replace(self, caption=[*self.caption, *told])

    def headed(self, headline: str) -> Picture:
        """Return it below what was simulated. headline: of a scenario, in lines."""
        lines = [
            part
            for line in headline.splitlines()
            for part in wrap(line, _CAPTION, break_on_hyphens=False)
        ]
        return replace(self, caption=[*lines, *self.caption])

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
        """Return the picture with shaded times, if its axis is time."""
        if not self.is_over_time or not (shaded := list(spans)):
            return self
        return replace(self, panels=[replace(p, marks=[*shaded, *p.marks]) for p in self.panels])

    # ------------------------------------------------------------- as a file

    def figure(self) -> Figure:
        """Return the picture as a figure of Matplotlib. Raises ScenarioError without Matplotlib."""
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
        """Return the picture as an element of a page, with the page's ink. name: for its ids.

        It carries the values of its lines, which the page tells under the pointer.
        """
        with look():
            figure, file = self.figure(), BytesIO()
            figure.savefig(file, format="svg", transparent=True, metadata=_METADATA["svg"])
            readings = [*_readings(self.panels, figure.axes)]
        text = file.getvalue().decode()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
        told = escape(json.dumps(readings, separators=(",", ":")))
        text = text.replace("<svg", f'<svg data-panels="{told}"', 1).replace(INK, "currentColor")
        text = re.sub(r'<g id="([^"]*)">', _titled, text)
        return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", text)

    def _repr_svg_(self) -> str:
        return self.as_bytes("svg").decode()

    def draw(self, canvas: Figure | SubFigure, title: str = "") -> None:
        """Draw the panels into a figure of the height that `_Frame` has."""
        from matplotlib.lines import Line2D

        frame = _Frame(self, title)
        grid: list[Axes] = []
        for place, panel in enumerate(self.panels):
            row, column = divmod(place, self.num_columns)
            across = grid[0] if grid and self.is_over_time else None
            if self.heads and column:
                across = across or grid[row * self.num_columns]
            up = grid[row * self.num_columns] if self.heads and column else None
            axes = canvas.add_axes(frame.place(row, column), sharex=across, sharey=up)
            grid.append(axes)
            is_first = column == 0 or not self.heads
            (panel if is_first else replace(panel, title="", up="")).draw(axes)
            is_last = place >= len(self.panels) - self.num_columns
            if self.is_over_time:
                axes.set_xlabel("time, s" if is_last else "")
            if self.is_over_time and not is_last:
                axes.tick_params(labelbottom=False)
            if not is_first:
                axes.tick_params(labelleft=False)
            if place < len(self.heads):
                axes.annotate(
                    self.heads[place], (0.5, 1), (0, 22), "axes fraction",
                    textcoords="offset points", ha="center", weight="bold", fontsize=10,
                )  # fmt: skip
        if title:
            top = 1 - 0.06 / frame.height
            canvas.suptitle(title, x=0.01, y=top, ha="left", va="top", weight="bold", fontsize=11)
        if self.caption:
            lines, top = "\n".join(self.caption), 1 - (0.06 + 0.2 * bool(title)) / frame.height
            canvas.text(0.01, top, lines, va="top", fontsize=7.5)
        if frame.labels:
            found = _handles(grid)
            legend = canvas.legend(
                [found[label] for label in frame.labels], frame.labels, loc="lower left",
                bbox_to_anchor=(0.0, 0.0), ncols=frame.num_legend_columns, fontsize=8.5,
            )  # fmt: skip
            for handle in legend.legend_handles:
                if isinstance(handle, Line2D):
                    handle.set_markersize(min(handle.get_markersize(), 6.0))


class _Frame:
    """Where panels stand, in inches: a layout solver would take longer than all drawing."""

    def __init__(self, picture: Picture, title: str) -> None:
        self._picture = picture
        panels, columns = picture.panels, picture.num_columns
        firsts = panels[::columns] if picture.heads else panels
        self.left = max(0.2 * bool(panel.up) + 0.22 + panel.left for panel in firsts)
        gap = 0.12 if picture.heads else self.left + 0.1
        self._all = picture.width
        self._step = (self._all - self.left - _RIGHT + gap) / columns
        self._width = self._step - gap
        self.labels = list(
            dict.fromkeys(mark.name for p in panels for mark in p.marks if mark.name)
        )
        widths = np.cumsum(
            sorted((_LETTER * len(name) + 0.6 for name in self.labels), reverse=True)
        )
        self.num_legend_columns = max(int((widths < picture.width).sum()), 1)
        legend = 0.21 * -(-len(self.labels) // self.num_legend_columns)
        top = 0.2 * bool(title) + 0.14 * len(picture.caption) + 0.25 * bool(picture.heads)
        self._tops = []
        rows = [panels[begin : begin + columns] for begin in range(0, len(panels), columns)]
        for number, row in enumerate(rows, 1):
            is_last = number * columns >= len(panels)
            top += 0.3 if row[0].title else 0.12
            self._tops.append((top, row[0].tall))
            hides = picture.is_over_time and not is_last
            top += row[0].tall + (0.05 if hides else max(panel.below for panel in row))
            top += 0.18 * (picture.is_over_time and is_last)
        self.height = top + legend + 0.08

    def place(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height of a panel, as shares of the picture."""
        top, height = self._tops[row]
        left, bottom = self.left + column * self._step, self.height - top - height
        width = self._width
        return left / self._all, bottom / self.height, width / self._all, height / self.height


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


def write_png(
    make: Callable[[], Picture], path: Path, warnings: Sequence[ResultWarning], headline: str = ""
) -> None:
    """Write a PNG of what is made, below what was simulated and its warnings' names.

    Nothing is written without Matplotlib.
    """
    if can_draw():
        path.write_bytes(make().warned(warnings).headed(headline).as_bytes("png"))


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

    heights = [_Frame(each, title).height for title, each in pictures]
    with look():
        width = max(each.width for _, each in pictures)
        figure = Figure(figsize=(width, sum(heights)))
        parts = figure.subfigures(len(pictures), 1, height_ratios=heights, squeeze=False, hspace=0)
        for part, (title, each) in zip(parts.ravel(), pictures, strict=True):
            each.draw(part, title)
    return figure


def _short(name: str) -> str:
    """Return a name with at most so many letters; of a longer one the begin and the end."""
    half = _MOST_LETTERS // 2
    return name if len(name) <= _MOST_LETTERS else f"{name[:half]}…{name[-half:]}"


def _logarithmic(axes: Axes, way: str) -> None:
    """Make an axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogFormatter, NullFormatter

    getattr(axes, f"set_{way}scale")("log")
    axis = getattr(axes, f"{way}axis")
    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(NullFormatter())


def _handles(grid: Iterable[Axes]) -> dict[str, Any]:
    """Return the entry of a legend for each name."""
    found: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def _readings(panels: Sequence[Panel], grid: Sequence[Axes]) -> Iterator[dict[str, Any]]:
    """Yield where each panel stands, its scale, and its lines, for a page's pointer."""
    for panel, axes in zip(panels, grid, strict=True):
        lines = [
            [line.name or panel.title, *(_numbers(values) for values in (line.x, line.y))]
            for line in panel.lines
        ]
        if lines and not any(panel.is_log):
            box = [round(each, 4) for each in axes.get_position().bounds]
            yield {"box": box, "ends": [float(end) for end in axes.get_xlim()], "lines": lines}


def _numbers(values: Any) -> list[float | None]:
    """Return values in four digits; None for unknown ones."""
    numbers = np.asarray(values, dtype=float).tolist()
    return [float(f"{each:.4g}") if np.isfinite(each) else None for each in numbers]


def _titled(found: re.Match[str]) -> str:
    """Return the group of a mark with its text as a title, which browsers show."""
    gid = unescape(found[1])
    if not gid.startswith(_TOLD):
        return found[0]
    return f"<g><title>{escape(gid.removeprefix(_TOLD), quote=False)}</title>"
