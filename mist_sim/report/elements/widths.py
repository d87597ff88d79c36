"""Layouts that change with the width of the terminal: explanations go first, numbers stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000


class Fitting:
    """Shows the first layout that fits, widest first; the last one if none does."""

    def __init__(self, *layouts: RenderableType) -> None:
        self._layouts = layouts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._chosen(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._chosen(console, options))

    def _chosen(self, console: Console, options: ConsoleOptions) -> RenderableType:
        for layout in self._layouts[:-1]:
            if _width(console, options, layout) <= options.max_width:
                return layout
        return self._layouts[-1]


class Trimmed:
    """Shows something without the blanks with which Rich fills up the lines of tables."""

    def __init__(self, body: RenderableType) -> None:
        self._body = body

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._body, options, pad=False):
            while line and not line[-1].text.rstrip():
                line.pop()
            if line:
                text, style, control = line.pop()
                line.append(Segment(text.rstrip(), style, control))
            yield from line
            yield Segment.line()


def listed(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Iterable[int] = (),
    below: Sequence[str] = (),
) -> Fitting:
    """Return rows under titles; in a narrow terminal columns, or a paragraph each.

    right: columns of numbers. below: the rest of the titles, on a
    line of its own.
    """
    wide, tight = (columns(titles, rows, right=right, below=below, gap=gap) for gap in (2, 1))
    whole = [f"{title} {more}".strip() for title, more in zip_longest(titles, below, fillvalue="")]
    return Fitting(wide, tight, _turned(whole, rows), _paragraphs(whole, rows))


def columns(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[int] = (),
    below: Sequence[str] = (),
    dim: Iterable[int] = (),
    gap: int = 2,
    min_width: int = 0,
) -> Table:
    """Return rows under titles.

    right: columns of numbers, each `min_width` wide at least. dim: columns of explanations.
    below: as in `listed`. gap: blanks between columns.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    numbers, explanations = set(right), set(dim)
    for position, title in enumerate(titles):
        is_number = position in numbers
        table.add_column(
            title,
            justify="right" if is_number else "left",
            style="dim" if position in explanations else "",
            min_width=min_width if is_number else None,
            no_wrap=True,
        )
    if below:
        table.add_row(*below, style="dim")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


class Folded:
    """Shows a table that splits into tables below one another if its columns are too wide.

    titles, below, rows: as in `columns`; the first column, a name, stands in each of the tables,
    and all others are numbers.
    """

    def __init__(
        self, titles: Sequence[str], below: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        self._titles, self._below, self._rows = titles, below, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, table in enumerate(self._tables(console, options)):
            if number:
                yield Text()
            yield table

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [_width(console, options, each) for each in self._tables(console, options)]
        return Measurement(1, min(max(widths), options.max_width))

    def _tables(self, console: Console, options: ConsoleOptions) -> list[Table]:
        """Return tables of as many columns as fit, one number each at least."""
        found: list[Table] = []
        start = end = 1
        while start < len(self._titles):
            end = start + 1
            while end < len(self._titles) and (
                _width(console, options, self._part(start, end + 1)) <= options.max_width
            ):
                end += 1
            found.append(self._part(start, end))
            start = end
        return found

    def _part(self, start: int, end: int) -> Table:
        """Return the names, and the columns from `start` to `end`."""
        titles, below, *rows = (
            [row[0], *row[start:end]] for row in (self._titles, self._below, *self._rows)
        )
        return columns(titles, rows, right=range(1, len(titles)), below=below)


def _width(console: Console, options: ConsoleOptions, body: RenderableType) -> int:
    """Return the width of something without line breaks."""
    return Measurement.get(console, options.update(max_width=_ANY_WIDTH), body).maximum


def _turned(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return the rows as columns, and the titles in front of them."""
    head, *others = zip(titles, *rows, strict=True)
    return columns(["", *head[1:]], others, right=range(1, len(head)))


def _paragraphs(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Group:
    """Return the first cell of each row as a line, and the others with their titles below."""
    parts: list[RenderableType] = []
    for row in rows:
        cells = zip(titles[1:], row[1:], strict=True)
        told = [Text(f"{title} {cell}".strip()) for title, cell in cells if cell not in ("", "-")]
        parts += [Text(row[0]), Padding(Columns(told, padding=(0, 2)), (0, 0, 0, 2))]
    return Group(*parts)
