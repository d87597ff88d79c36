"""A run's results as text for a terminal of 80 columns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from mist_sim.metrics import Result

_LATENCIES = (
    ("ttft", "TTFT", "arrival to first token"),
    ("tpot", "TPOT", "mean gap of a request"),
    ("itl", "ITL", "every gap, pooled"),
    ("e2el", "E2E", "arrival to the end"),
    ("queue", "queue", "wait before first work"),
)
_FIGURES = ("mean", "p50", "p90", "p95", "p99")
_LIMITS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E"))
_MAX_ROWS = 12  # clients and reasons that are listed one by one


def results_table(result: Result) -> RenderableType:
    """Return everything worth reading about a run; it prints in 80 columns."""
    summary = result.summary
    return Group(
        *_section("Workload", _pairs(_workload(result, summary))),
        *_section("Throughput", _pairs(_throughput(result, summary))),
        *_section("Latency, ms", _latency(summary)),
        *_section("Clients", _clients(result, summary)),
        *_warnings(result, summary),
    )


def _section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text(title, style="bold")
    yield Padding(body, (0, 0, 1, 2), expand=False)


def _pairs(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Return rows of a name, a number and its unit or a remark."""
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=26)
    table.add_column(justify="right", min_width=10)
    table.add_column(style="dim")
    for name, number, remark in rows:
        table.add_row(name, number, remark)
    return table


def _workload(result: Result, summary: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    loop = "open loop" if result.open_loop else "closed loop"
    yield "requests finished", _count(summary["completed"]), loop
    yield from _failures(summary)
    yield "input tokens", _count(summary["total_input_tokens"]), ""
    yield "output tokens", _count(summary["total_output_tokens"]), ""
    warmup = f"without {result.warmup:g} s of warm-up" if result.warmup else ""
    yield "simulated time", _number(summary["duration"]), f"s {warmup}".strip()


def _failures(summary: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "requests rejected", _count(summary["num_rejected"]), ""
    if summary["num_timed_out"]:
        yield "requests timed out", _count(summary["num_timed_out"]), ""
    if summary["num_cancelled"]:
        yield "requests cancelled", _count(summary["num_cancelled"]), "by users who went away"
    if summary["num_retries"]:
        yield "sent again", _count(summary["num_retries"]), "times"
    if wasted := summary["wasted_input_tokens"] + summary["wasted_output_tokens"]:
        yield "tokens computed in vain", _count(wasted), "input and output"


def _throughput(result: Result, summary: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "requests", _number(summary["request_throughput"]), "/s"
    yield "output tokens", _number(summary["output_throughput"]), "/s"
    yield "input and output tokens", _number(summary["total_token_throughput"]), "/s"
    yield "output tokens, peak", _number(summary["max_output_tokens_per_s"]), "in one second"
    yield "requests in flight, peak", _count(summary["max_concurrent_requests"]), ""
    if "spec_decode_acceptance_rate" in summary:
        accepted = _number(summary["spec_decode_acceptance_length"])
        share = _percent(summary["spec_decode_acceptance_rate"] / 100, digits=1)
        yield "tokens a decode step", accepted, f"{share} of the draft tokens accepted"
    if summary["num_preemptions"]:
        yield "preemptions", _count(summary["num_preemptions"]), "computed again for lack of memory"
    if summary["prefix_cache_hit_rate"] > 0:
        found = _percent(summary["prefix_cache_hit_rate"], digits=1)
        yield "prompt tokens cached", found, "prefix cache hit rate"
        for tier, rate in summary.get("tier_hit_rates", {}).items():
            yield f"  from {escape(tier)}", _percent(rate, digits=1), "of the prompt tokens"
    if "request_goodput" in summary:
        good = _percent(summary["good_request_fraction"], digits=1)
        yield "goodput", _number(summary["request_goodput"]), f"/s, {good} of the requests keep"
        yield "", "", _limits(result)


def _limits(result: Result) -> str:
    limits = ((name, getattr(result.slo, key)) for key, name in _LIMITS)
    return " and ".join(f"{name} <= {_duration(limit)}" for name, limit in limits if limit)


def _latency(summary: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("")
    for figure in _FIGURES:
        table.add_column(figure, justify="right", min_width=7)
    table.add_column("", style="dim")
    for key, name, meaning in _LATENCIES:
        numbers = [_number(summary[f"{figure}_{key}_ms"]) for figure in _FIGURES]
        table.add_row(name, *numbers, meaning)
    return table


def _clients(result: Result, summary: dict[str, Any]) -> Table:
    frame = result.clients
    estimates = summary["estimates"]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("")
    for title in ("visits", "busy", "decodes", "KV blocks"):
        table.add_column(title, justify="right")
    table.add_column("step times")
    table.add_row("", "", "share", "a step", "peak", "", style="dim")
    end = max(float(summary["duration"]) + result.warmup, 1e-12)
    for row in frame.head(_MAX_ROWS).to_dict("records"):
        engine = bool(row["num_steps"])
        table.add_row(
            escape(row["client"]),
            _count(int(row["num_visits"])),
            _percent(row["busy"] / end) if engine else "-",
            _number(float(row["mean_decodes"])) if engine else "-",
            _count(int(row["peak_used_blocks"])) if engine else "-",
            estimates.get(row["client"], "-"),
        )
    if len(frame) > _MAX_ROWS:
        table.add_row(f"and {len(frame) - _MAX_ROWS} more", *[""] * 5, style="dim")
    return table


def _warnings(result: Result, summary: dict[str, Any]) -> Iterator[RenderableType]:
    lines = list(_warning_lines(result, summary))
    if lines:
        yield Text("Warnings", style="bold yellow")
        for line in lines:
            yield Padding(Text(line), (0, 0, 0, 2))


def _warning_lines(result: Result, summary: dict[str, Any]) -> Iterator[str]:
    if not summary["completed"]:
        yield "No request finished in the measured time, so there are no latencies."
    if summary["unstable"]:
        yield (
            "Unstable: more work arrives than the clients can do, and the requests in the system "
            "grow until the last arrival. Latencies depend on how long the run is; lower the rate "
            "or add clients."
        )
    if summary["num_truncated"]:
        yield (
            f"{summary['num_truncated']:,} answers were cut at max_model_len; a model with a "
            "longer context would generate more."
        )
    for count, reason in _reasons(result):
        yield f"Failed: {count:,} request{'s, such as' if count > 1 else ':'} {reason}"
    if "spec-only" in summary["estimates"].values():
        yield (
            "Step times marked spec-only come from data sheets and typical efficiencies; "
            "nobody has compared them with that GPU."
        )


def _reasons(result: Result) -> list[tuple[int, str]]:
    """Return (count, an example) of reasons that differ in numbers or clients only."""
    reasons = result.requests["reason"]
    found = sorted((_kind(reason), reason) for reason in reasons[reasons != ""])
    groups = []
    for _, members in groupby(found, key=lambda item: item[0]):
        examples = [reason for _, reason in members]
        groups.append((len(examples), examples[0]))
    groups.sort(key=lambda group: (-group[0], group[1]))
    rest = sum(count for count, _ in groups[_MAX_ROWS:])
    return groups[:_MAX_ROWS] + ([(rest, "those with other reasons")] if rest else [])


def _kind(reason: str) -> str:
    return re.sub(r"\d+", "#", reason.partition(": ")[2] or reason)


def _percent(share: float, digits: int = 0) -> str:
    return f"{share * 100:.{digits}f} %"


def _count(value: int) -> str:
    return f"{value:,}"


def _number(value: float) -> str:
    """Return a number with three digits or more, and `-` where there is none."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"
