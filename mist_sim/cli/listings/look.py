"""The look of lists."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


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


def with_broken(body: RenderableType, problems: Iterable[str]) -> RenderableType:
    """Return something, and below it what is wrong with plugins that cannot be loaded."""
    lines = [Padding(Text(problem), (0, 0, 0, 2)) for problem in problems]
    return Group(body, Text("\nNot usable", style="bold yellow"), *lines) if lines else body


def described(text: str, more: str) -> Text:
    """Return a text with a dim one below it, if there is more to say."""
    return Text.assemble(text, (f"\n{more}" if more else "", "dim"))
