"""Marks in a panel of a picture: data that draw themselves into Matplotlib's axes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.report.pictures.style import COLOURS, INK, LIMIT_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
                axes.plot([x], [y], ls="", alpha=0.8, label=name, gid=told(text), **style)
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


_TOLD = "told: "


def told(text: str) -> str:
    """Return the id that gives a mark a text under the pointer."""
    return f"{_TOLD}{text}"


def text_of(gid: str) -> str | None:
    """Return the text of such an id; None for others."""
    return gid.removeprefix(_TOLD) if gid.startswith(_TOLD) else None
