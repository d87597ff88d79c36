"""Figures of a run under the names of other load generators, and theirs under ours (vLLM's)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
_SGLANG_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency"}
_SGLANG = {
    "duration": "duration",
    "completed": "completed",
    "total_input_tokens": "total_input_tokens",
    "total_output_tokens": "total_output_tokens",
    "request_throughput": "request_throughput",
    "output_throughput": "output_throughput",
    "total_token_throughput": "total_throughput",
    **{
        f"{statistic}_{ours}_ms": f"{statistic}_{theirs}_ms"
        for ours, theirs in _SGLANG_LATENCIES.items()
        for statistic in _STATISTICS
    },
}
"""By our name. Source: SGLang, python/sglang/bench_serving.py, BenchmarkMetrics."""

_AIPERF_LATENCIES = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",  # a mean of each request: vLLM's TPOT
    "e2el": "request_latency",
}
_AIPERF_STATISTICS = {"mean": "avg", **{name: name for name in _STATISTICS[2:]}}
_AIPERF_FIGURES = {
    "completed": ("request_count", "requests"),
    "duration": ("benchmark_duration", "sec"),
    "request_throughput": ("request_throughput", "requests/sec"),
    "output_throughput": ("output_token_throughput", "tokens/sec"),
    "total_token_throughput": ("total_token_throughput", "tokens/sec"),
    "request_goodput": ("goodput", "requests/sec"),
}
"""By our name: theirs, and the unit. Source: AIPerf, its metrics reference and JSON export."""

_IN_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6}


def as_sglang(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a summary that `sglang.bench_serving` has too, under its names.

    Its warnings come with them, as they are.
    """
    found = {theirs: summary[ours] for ours, theirs in _SGLANG.items() if ours in summary}
    if seconds := summary.get("duration"):
        found["input_throughput"] = summary["total_input_tokens"] / seconds
    return found | _warnings(summary)


def as_aiperf(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a summary as AIPerf's profile_export_aiperf.json has them.

    Its inter-token latency is a mean of each request, which is TPOT here; ITL over all gaps has no
    name there. The warnings of the summary come with them, as they are.
    """
    found: dict[str, Any] = {
        theirs: {"unit": unit, "avg": summary[ours]}
        for ours, (theirs, unit) in _AIPERF_FIGURES.items()
        if ours in summary
    }
    for ours, theirs in _AIPERF_LATENCIES.items():
        keys = {name: f"{ours_name}_{ours}_ms" for ours_name, name in _AIPERF_STATISTICS.items()}
        found[theirs] = {"unit": "ms"} | {
            name: summary[key] for name, key in keys.items() if key in summary
        }
    return found | _warnings(summary)


def _warnings(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {"warnings": summary["warnings"]} if "warnings" in summary else {}


NAMES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "aiperf": as_aiperf,
    "sglang": as_sglang,
}
"""By the tool whose names they give."""


def as_ours(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the plain numbers of a result of vLLM, SGLang or AIPerf under vLLM's names.

    Which it is shows in its names; what none of the tables has keeps its own.
    """
    numbers = {
        key: float(value)
        for key, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    of_sglang = {theirs: ours for ours, theirs in _SGLANG.items()}
    found = {of_sglang.get(key, key): value for key, value in numbers.items()}
    for ours, (theirs, _) in _AIPERF_FIGURES.items():
        found |= _number(ours, figures.get(theirs), "avg", 1.0)
    for ours, theirs in _AIPERF_LATENCIES.items():
        block = figures.get(theirs)
        factor = _IN_MS.get(block.get("unit", ""), 0.0) if isinstance(block, Mapping) else 0.0
        for statistic, name in _AIPERF_STATISTICS.items():
            if factor:
                found |= _number(f"{statistic}_{ours}_ms", block, name, factor)
    return found


def _number(ours: str, block: Any, name: str, factor: float) -> dict[str, float]:
    value = block.get(name) if isinstance(block, Mapping) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {ours: value * factor}
    return {}
