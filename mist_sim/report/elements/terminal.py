"""A console that prints text from files and plugins without interpreting it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mist_sim.errors import printable


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
