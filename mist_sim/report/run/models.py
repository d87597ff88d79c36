"""The tables of models that requests ask for, where they ask for several, and of their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from mist_sim.report.elements.cells import count, in_ms, number, percent, section
from mist_sim.report.elements.widths import listed

_LATENCIES = ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms")
_TITLES = ("", "finished", "output", "TTFT", "TTFT", "TPOT", "TPOT")
_BELOW = ("", "", "tokens/s", "p50, ms", "p99, ms", "p50, ms", "p99, ms")


def groups_section(title: str, groups: Mapping[str, Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Yield a row per group of requests; empty without groups. groups: as in the summary."""
    if not groups:
        return
    has_slo = any("good_request_fraction" in of for of in groups.values())
    rows = [
        (
            name,
            count(of["completed"]),
            number(of["steady_output_throughput"]),
            *(in_ms(of[key]) for key in _LATENCIES),
            *([percent(of["good_request_fraction"], digits=1)] if has_slo else []),
        )
        for name, of in groups.items()
    ]
    titles = (*_TITLES, *(["good"] * has_slo))
    below = (*_BELOW, *([""] * has_slo))
    yield from section(title, listed(titles, rows, right=range(1, len(titles)), below=below))
