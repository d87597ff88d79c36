"""Means of replications, and how their runs spread: tables and page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from mist_sim.report.elements import LONG_MS, Row, count, metric_cell, number, pairs, section
from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pictures.picture import Panel, Picture, Points
from mist_sim.report.run import (
    RATES,
    SPENDING,
    WORKLOAD,
    expected_section,
    latency_table,
    latency_title,
    note_on_turns,
    slo_section,
)
from mist_sim.report.study import METRICS, ROW, means_at

if TYPE_CHECKING:
    from mist_sim.metrics import Estimate, Replications

_FIGURES = ("mean", "p50", "p90", "p99")


def replications_table(found: Replications) -> RenderableType:
    """Return means with the half widths of their confidence intervals."""
    latency = latency_table(
        _FIGURES, lambda key: _latency(key, found.estimate(key)), width=15, with_legend=False
    )
    note = note_on_turns(found.summaries[0])
    told = [Text(f"{note} Of the first run.")] if note else []
    text = f"{len(found.seeds)} replications: mean ± half width of the 95 % confidence interval"
    return Group(
        Padding(Text(text), (0, 0, 1, 0)),
        *section("Workload", pairs(_rows(found, WORKLOAD))),
        *section("Throughput", pairs(_rows(found, RATES))),
        *section(latency_title(found.summary), Group(latency, *told)),
        *expected_section(
            found.summary.get("expected_errors", {}), lambda key: _latency(key, found.estimate(key))
        ),
        *slo_section(found.slo, found.slo_shares, found.estimate("failed").mean),
        *_spending(found),
    )


def _spending(found: Replications) -> Iterator[RenderableType]:
    """Yield energy and cost where a cost was asked for."""
    if "cost_usd" in found.estimates:
        yield from section("Energy and cost", pairs(_rows(found, SPENDING)))


def _rows(found: Replications, figures: Mapping[str, tuple[str, str]]) -> Iterator[Row]:
    """Yield the rows of figures that the runs have. figures: titles and units."""
    for metric, (title, unit) in figures.items():
        if metric not in found.estimates:
            continue
        estimate = found.estimate(metric)
        if estimate.mean or metric == "num_rejected" or not metric.startswith("num_"):
            yield title, _cell(*estimate), unit


def _latency(key: str, estimate: Estimate) -> str:
    """Return a mean of milliseconds and its half width; long ones in seconds."""
    return metric_cell(key, *estimate) if estimate.mean >= LONG_MS else _cell(*estimate)


def _cell(mean: float, half_width: float) -> str:
    """Return a mean and its half width, which has as many decimals; alone where runs agree."""
    if isnan(mean):
        return number(mean)
    if isnan(half_width) or not half_width:
        return count(round(mean)) if mean == round(mean) else number(mean)
    decimals = len(number(mean).partition(".")[2])
    return f"{number(mean)} ± {half_width:,.{decimals}f}"


def replications_page(found: Replications, title: str) -> Page:
    """Return the report of replications: each run as a dot, the mean with its interval."""
    runs = found.runs
    metrics = {key: name for key, name in METRICS.items() if key in runs}
    panels = []
    for key, name in metrics.items():
        values, seeds = runs[key].tolist(), runs["seed"].tolist()
        told = [f"seed {seed}: {value:.4g}" for seed, value in zip(seeds, values, strict=True)]
        mean, half = found.estimate(key)
        marks = [Points(values, [0] * len(values), texts=told), means_at([mean], [half], 1)]
        panels.append(Panel(name, marks, height=2 * ROW, rows=["runs", "mean"]))
    sentence = "Dots are runs; the bar is the 95 % confidence interval of their mean."
    verdict = Verdict("plain", f"{len(found.seeds)} replications.", sentence)
    drawings = [Drawing("spread", "The spread of runs", Picture(panels))]
    return Page(title, verdict, figures=drawings)
