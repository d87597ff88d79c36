"""The warnings of a result as text: the one place that prints them, whatever the result is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from mist_sim.core.result_warnings import ResultWarning, WarningKind, of_data
from mist_sim.report.elements.cells import LISTED, who

_MOST_OF_A_KIND = 8  # lines about single points; files and JSON have all


def with_warnings(summary: Mapping[str, Any], body: RenderableType) -> RenderableType:
    """Return the tables of findings with their warnings. summary: `Findings.summary`."""
    found = of_data(summary)
    above = [Text(f"{line}\n") for line in _lines(found, leads=True)]
    below = list(_lines(found, leads=False))
    title = [Text("Warnings", style="bold yellow")] if below else []
    return Group(*above, body, *title, *(Padding(Text(line), (0, 0, 0, 2)) for line in below))


def warning_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the warnings of findings as paragraphs, those that lead first."""
    found = of_data(summary)
    return [*_lines(found, leads=True), *_lines(found, leads=False)]


def _lines(warnings: Sequence[ResultWarning], *, leads: bool) -> Iterator[str]:
    """Yield the lines of those that lead, or of the others; each kind has one at least."""
    kinds: dict[WarningKind, list[str]] = {}
    whole: dict[WarningKind, list[str]] = {}
    for text, several in _alike([each for each in warnings if each.kind.leads is leads]):
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
