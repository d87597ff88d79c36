"""Tables in a terminal and in a notebook."""

from __future__ import annotations

from io import StringIO

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.report.elements.terminal import Terminal
from mist_sim.report.elements.widths import Trimmed

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
