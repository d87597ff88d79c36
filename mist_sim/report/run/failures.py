"""Latencies before, during and after failures: a row each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType

from mist_sim.metrics.recoveries import RECOVERING
from mist_sim.report.elements.cells import count, in_ms, section
from mist_sim.report.elements.widths import listed

TITLE = "Latency through failures, p99, ms"
TITLES = ("", "finished", "failed", *RECOVERING.values())
NOTE = "during: while a client was away, requests that began before or ended after included"

Phases = Mapping[str, Mapping[str, float | None]]
"""`through_failures` of the summary."""


def failures_section(phases: Phases) -> Iterator[RenderableType]:
    """Yield a row a phase of the failures; empty without failures."""
    if phases:
        yield from section(TITLE, listed(TITLES, rows_of(phases), right=range(1, len(TITLES))))


def rows_of(phases: Phases) -> list[list[str]]:
    """Return the cells of each phase, as `TITLES` names them."""
    return [
        [
            name,
            *(count(int(of[key] or 0)) for key in ("completed", "failed")),
            *(_cell(of[f"p99_{metric}_ms"]) for metric in RECOVERING),
        ]
        for name, of in phases.items()
    ]


def _cell(value: float | None) -> str:
    return "-" if value is None else in_ms(value)
