"""The table of latencies: a row a metric, a column a figure of its distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from mist_sim.report.elements.cells import in_ms
from mist_sim.report.elements.widths import Fitting, columns
from mist_sim.stages import Prefill

LATENCIES = (
    ("ttft", "TTFT", "arrival to first token"),
    ("tpot", "TPOT", "mean gap of a request"),
    ("itl", "ITL", "every gap, pooled"),
    ("e2el", "E2E", "arrival to the end"),
    ("queue", "queue", "wait before first work"),
)


def latency_title(summary: Mapping[str, Any]) -> str:
    """Return the title of figures of latencies, which says of which requests where some failed."""
    if not summary["failed"]:
        return "Latency, ms"
    return f"Latency of the {summary['completed']:,.0f} requests that finished, ms"


def note_on_turns(summary: Mapping[str, Any]) -> str:
    """Return of which call TTFT is, where requests call a model several times; else nothing."""
    calls = summary["stage_latency_ms"].get(Prefill.kind, {"count": 0})
    again = summary["num_retries"] + summary.get("num_lost_visits", 0)
    if calls["count"] <= summary["completed"] + again:
        return ""
    figures = ", ".join(f"{name} {in_ms(calls[name])}" for name in ("mean", "p50", "p90", "p99"))
    return (
        "TTFT, in limits too, is that of a request's first call. Prefill of all "
        f"{calls['count']:,.0f} calls, with its queue: {figures}."
    )


def latency_table(
    figures: Sequence[str], cell: Callable[[str], str], *, width: int, with_legend: bool = True
) -> Fitting:
    """Return the latencies' figures; in a narrow terminal without explanations.

    cell: returns the text of a key of the summary, such as "p50_ttft_ms". width: least width of a
        column, if there is room.
    """

    def table(
        figures: Sequence[str], *, legend: bool = False, gap: int = 2, width: int = 0
    ) -> Table:
        rows = [
            [name, *(cell(f"{figure}_{key}_ms") for figure in figures), *([meaning] * legend)]
            for key, name, meaning in LATENCIES
        ]
        titles = ["", *figures, *([""] * legend)]
        last = len(figures) + 1
        return columns(titles, rows, right=range(1, last), dim=[last], gap=gap, min_width=width)

    half = (len(figures) + 1) // 2
    layouts: list[RenderableType] = [
        table(figures, width=width),
        table(figures, gap=1),
        Group(table(figures[:half]), table(figures[half:])),
    ]
    if with_legend:
        layouts.insert(0, table(figures, legend=True, width=width))
    return Fitting(*layouts)
