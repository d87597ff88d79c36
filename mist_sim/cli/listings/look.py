"""The look of lists."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mist_sim.report.elements.cells import warnings


def captioned(body: RenderableType, caption: str) -> RenderableType:
    """Return something with a dim line below it."""
    return Group(body, Text(caption, style="dim italic"))


def named(*titles: str) -> Table:
    """Return an empty table with names in its first column."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, caption_justify="left")
    for title in titles:
        table.add_column(title)
    table.columns[0].no_wrap = True
    return table


def with_warnings(body: RenderableType, texts: Iterable[str]) -> RenderableType:
    """Return something with warnings below it, if there are any."""
    found = list(warnings(texts))
    return Group(body, "", *found) if found else body


def described(text: str, more: str) -> Text:
    """Return a text with a dim one below it, if there is more to say."""
    return Text.assemble(text, (f"\n{more}" if more else "", "dim"))
