"""The tables of the parts of requests' latency, and of communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from mist_sim.report.elements.cells import count, in_ms, number, percent, section
from mist_sim.report.elements.widths import Fitting, listed
from mist_sim.stages import Decode, Prefill

_FIGURES = ("mean", "p50", "p90", "p99")
_GIGA, _MS = 1e9, 1e3


def breakdown_sections(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the parts of latencies, stages beside prefill and decode, and communication."""
    parts = summary["latency_breakdown_ms"]
    if any(figures["share"] > 0 for figures in parts.values()):
        yield from section("Where the time goes, ms", _parts_table(parts))
    by_stage = summary["stage_latency_ms"]
    if not by_stage.keys() <= {Prefill.kind, Decode.kind}:
        yield from section("Stages with their queues, ms", _stages_table(by_stage))
    if moved := summary.get("communication"):
        yield from section("Communication", _moves_table(moved))


def _parts_table(parts: Mapping[str, Mapping[str, float]]) -> Fitting:
    rows = [
        (name, percent(figures["share"], digits=1), *(in_ms(figures[f]) for f in _FIGURES))
        for name, figures in parts.items()
    ]
    titles = ("", "share", *_FIGURES)
    return listed(titles, rows, right=range(1, len(titles)))


def _stages_table(by_stage: Mapping[str, Mapping[str, float]]) -> Fitting:
    rows = [
        (name, count(int(figures["count"])), *(in_ms(figures[f]) for f in _FIGURES))
        for name, figures in by_stage.items()
    ]
    return listed(("", "served", *_FIGURES), rows, right=range(1, 6))


def _moves_table(moved: Mapping[str, Mapping[str, float]]) -> Fitting:
    rows = [
        (
            kind.replace("_", " "),
            count(int(of["transfers"])),
            count(int(of["tokens"])),
            number(of["bytes"] / _GIGA),
            in_ms(of["seconds"] / of["transfers"] * _MS),
        )
        for kind, of in moved.items()
    ]
    return listed(("", "transfers", "tokens", "GB", "mean ms"), rows, right=range(1, 5))
