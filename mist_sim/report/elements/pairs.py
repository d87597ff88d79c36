"""Rows of a name, a number, and its unit or a remark."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mist_sim.report.elements.widths import Fitting

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
