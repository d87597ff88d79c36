"""The elements of all reports: cells, rows, layouts, output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import zip_longest
from typing import Any

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mist_sim.core.result_warnings import ResultWarning, WarningKind, of_data
from mist_sim.errors import brief, printable

LONG_MS = 10_000.0  # from here on latencies are easier to read in seconds


def section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    """Yield a title and its content."""
    yield Text(title, style="bold")
    yield Padding(body, (0, 0, 1, 2), expand=False)


def percent(share: float, digits: int = 0) -> str:
    """Return a share in percent, and `-` for a missing one."""
    if math.isnan(share):
        return "-"
    return f"{share * 100:.{digits}f} %"


def good_share(run: Mapping[str, Any]) -> str:
    """Return the share of good requests; of a run that was ended early, at most how many."""
    share = percent(run["attainment"], 1)
    return share if run["is_whole"] or share == "-" else f"≤ {share}"


def count(value: int) -> str:
    """Return a whole number."""
    return f"{value:,}"


def number(value: float) -> str:
    """Return a number with at least three digits, and `-` for a missing one."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def latency(ms: float) -> tuple[str, str]:
    """Return a latency and its unit: milliseconds, from 10 s on seconds."""
    return (number(ms / 1e3), "s") if ms >= LONG_MS else (number(ms), "ms")


def in_ms(ms: float) -> str:
    """Return a latency for a column of milliseconds; a value in seconds has its unit."""
    text, unit = latency(ms)
    return f"{text} s" if unit == "s" else text


LISTED = 4  # names on a line; more are counted


def who(names: Sequence[str], num_all: int | None = None) -> str:
    """Return names, or how many they are where a list would be long. num_all: that there are."""
    if len(names) <= LISTED:
        return ", ".join(names)
    return "all" if len(names) == num_all else f"{names[0]} and {len(names) - 1} others"


def merged(told: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines of names and texts; names that share a text share a line."""
    names: dict[str, list[str]] = {}
    for name, text in told:
        names.setdefault(text, []).append(name)
    return [f"{who(found)}: {text}" if any(found) else text for text, found in names.items()]


def duration(seconds: float) -> str:
    """Return a time in seconds, or below one in milliseconds."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"


_LONGEST = 40  # characters of a value
_PLAIN = re.compile(r"[A-Za-z_/][\w./$%+-]*|\d[\d.]* [A-Za-z/$%]+")  # names, and quantities
_WORDS = ("true", "false", "null", "True", "False", "Null", "TRUE", "FALSE", "NULL")


def headline_line(headline: str) -> str:
    """Return the line of a scenario's headline that names its clients, or the only one."""
    lines = headline.splitlines() or [""]
    return next((line for line in lines if " on " in line), lines[0])


def labels_of(keys: Sequence[str]) -> dict[str, str]:
    """Return a label for each dotted key: its shortest unique end."""
    found = {}
    for key in keys:
        steps = key.split(".")
        others = [other for other in keys if other != key]
        for begin in reversed(range(len(steps))):
            label = ".".join(steps[begin:])
            is_one = not any(f".{other}".endswith(f".{label}") for other in others)
            if is_one and not steps[begin].isdecimal() and label not in ("type", "name"):
                break
        found[key] = label
    return found


def value_text(value: Any) -> str:
    """Return a value as one line of text; mappings and lists whole, as YAML in one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and set(value) == {"type"}:
        return str(value["type"])
    if isinstance(value, Mapping | list | tuple):
        return _flow(value)
    return brief(json.loads(json.dumps(value, default=str)), _LONGEST)


def setting_cells(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as cells of a table: numbers as they are, the rest as text."""
    return {
        key: value if isinstance(value, int | float) else value_text(value)
        for key, value in values.items()
    }


def _flow(value: Any) -> str:
    """Return a value as YAML in one line; text in quotes where it would read as something else."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _WORDS:
        return value
    return json.dumps(value, default=str, ensure_ascii=False)


_SHARES = ("fraction", "hit_rate", "hit_rate_unbounded", "utilisation", "room")
_UNITS = {"ms": "ms", "s": "s", "j": "J", "w": "W", "usd": "$", "throughput": "/s", "goodput": "/s"}
_IN_CAPITALS = ("ttft", "tpot", "itl", "kv")


def metric_cell(name: str, value: float, half_width: float = 0.0) -> str:
    """Return a value; shares in percent, long latencies in seconds.

    name: of the number in the summary. half_width: of its interval; 0: without one.
    """
    if name.endswith("_ms") and value >= LONG_MS:
        return f"{metric_cell('', value / 1e3, half_width / 1e3)} s"
    parts = (value, half_width) if half_width > 0 else (value,)
    is_share = name.endswith(_SHARES)
    return " ± ".join(percent(part, 1) if is_share else number(part) for part in parts)


def metric_title(name: str) -> tuple[str, str]:
    """Return the title of a number of the summary in two lines: what it is, and its unit."""
    words = name.split("_")
    unit = _UNITS.get(words[-1], "")
    if unit and words[-1] not in ("throughput", "goodput"):
        words = words[:-1]
    shown = [w.upper() if w in _IN_CAPITALS else "E2E" if w == "e2el" else w for w in words]
    return " ".join(shown), unit


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


Row = tuple[str, str, str]


def pairs(rows: Iterable[Row]) -> Fitting:
    """Return rows of a name, a number and its unit or a remark."""
    content = list(rows)
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=26)
    table.add_column(justify="right", min_width=10)
    table.add_column(style="dim")
    for name, value, remark in content:
        table.add_row(Text(name), Text(value), Text(remark))
    return Fitting(table, _Narrow(content))


class _Narrow:
    """The same in a narrow terminal: a remark that is too long stands on a line of its own."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max((len(name) for name, *_ in self._rows), default=0)
        digits = max((len(value) for _, value, _ in self._rows), default=0)
        for name, value, remark in self._rows:
            line = f"{name:<{width}}  {value:>{digits}}" if name else ""
            room = options.max_width - len(line) - 2
            here, rest = _split(remark, room if name else 0)
            if name:
                yield Text.assemble(line, ("  " + here if here else "", "dim"))
            if rest:
                yield Padding(Text(rest, style="dim"), (0, 0, 0, 4))


def _split(remark: str, room: int) -> tuple[str, str]:
    """Split a remark into the part on its number's line (a unit) and the part on the line below."""
    if len(remark) <= room:
        return remark, ""
    unit, *rest = re.split("[,;] ", remark, maxsplit=1)
    return (unit, rest[0]) if rest and len(unit) <= min(room, 3) else ("", remark)


class Terminal(Console):
    """Rich's console, to which a name is a name.

    Square brackets and words between colons mean nothing, and what is not printable is written as
    an escape (`errors.printable`): names of files and words of plugins reach it unchecked.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of something, each of them printable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                lines = "\n".join(map(printable, segment.text.split("\n")))
                yield Segment(lines, segment.style)


_WIDTH = 100  # columns of a notebook's cell
_PRE = '<pre style="white-space: pre; overflow-x: auto; line-height: normal">{code}</pre>'


def show(title: str, body: RenderableType) -> None:
    """Print a title and its content, as wide as the terminal."""
    Terminal().print(_titled(title, body))


def as_html(title: str, body: RenderableType, *, width: int = _WIDTH) -> str:
    """Return what the terminal shows as HTML. width: of the terminal, in columns."""
    console = Terminal(record=True, width=width, file=StringIO(), force_jupyter=False)
    console.print(_titled(title, body))
    return console.export_html(inline_styles=True, code_format=_PRE)


def _titled(title: str, body: RenderableType) -> RenderableType:
    return Trimmed(Group(Text(title, style="bold"), "", body) if title else body)


_MOST_OF_A_KIND = 8  # lines about single points; files and JSON have all


def with_warnings(summary: Mapping[str, Any], body: RenderableType) -> RenderableType:
    """Return the tables of findings with their warnings. summary: `Findings.summary`."""
    found = of_data(summary)
    briefs = "\n".join(_briefs(found))
    whole = [each for each in found if each.kind.leads and not each.brief]
    below = list(_lines([each for each in found if each not in whole]))
    above = [Text(f"{line}\n") for line in [*([briefs] if briefs else []), *_lines(whole)]]
    title = [Text("Warnings", style="bold yellow")] if below else []
    return Group(*above, body, *title, *(Padding(Text(line), (0, 0, 0, 2)) for line in below))


def warning_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the warnings of findings as paragraphs, those that lead first."""
    return list(_lines(sorted(of_data(summary), key=lambda each: not each.kind.leads)))


def _briefs(warnings: Sequence[ResultWarning]) -> Iterator[str]:
    """Yield what stands above the tables in brief, a line each."""
    found: dict[str, dict[str, None]] = {}
    for each in warnings:
        if each.kind.leads and each.brief:
            found.setdefault(each.brief, {}).update(dict.fromkeys(each.of))
    for text, names in [*found.items()][:_MOST_OF_A_KIND]:
        yield _of([*names], text)
    if (left := len(found) - _MOST_OF_A_KIND) > 0:
        yield f"... and {left} more like it, below and in files"


def _lines(warnings: Sequence[ResultWarning]) -> Iterator[str]:
    """Yield the lines of warnings; each kind has one at least."""
    kinds: dict[WarningKind, list[str]] = {}
    whole: dict[WarningKind, list[str]] = {}
    for text, several in _alike(warnings):
        first = several[0]
        lines = kinds if any(each.of for each in several) else whole
        lines.setdefault(first.kind, []).append(_paragraph(text, several))
    for kind in dict.fromkeys(each.kind for each in warnings):
        yield from whole.get(kind, ())
        mine = kinds.get(kind, [])
        yield from mine[:_MOST_OF_A_KIND]
        if (left := len(mine) - _MOST_OF_A_KIND) > 0:
            yield f"... and {left} more like it ({kind.name}); --json and files have all"


def _alike(warnings: Sequence[ResultWarning]) -> Iterator[tuple[str, list[ResultWarning]]]:
    """Yield warnings that have the same kind and text, together."""
    found: dict[tuple[WarningKind, str], list[ResultWarning]] = {}
    for each in warnings:
        found.setdefault((each.kind, each.text), []).append(each)
    for (_, text), several in found.items():
        yield text, several


def _paragraph(text: str, several: Sequence[ResultWarning]) -> str:
    """Return a text, and below it what holds for single points; in one line if it is of one."""
    if len(several) == 1:
        (only,) = several
        return _of(only.of, str(only))
    shown = [f"  {_of(each.of, each.detail)}" for each in several[:_MOST_OF_A_KIND]]
    left = len(several) - len(shown)
    more = [f"  ... and {left} more; --json and files have all"] if left else []
    return "\n".join([_of((), text), *shown, *more])


def _of(names: Sequence[str], text: str) -> str:
    if names:
        wholes = [*dict.fromkeys(name.split(": ")[0] for name in names)]  # without their parts
        return f"{who(names if len(names) <= LISTED else wholes)}: {text}"
    return text[:1].upper() + text[1:]
