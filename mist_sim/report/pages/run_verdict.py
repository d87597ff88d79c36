"""The verdict on a run, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.metrics.latency import NAMES
from mist_sim.metrics.run_warnings import nothing_finished
from mist_sim.report.elements.cells import in_ms, latency, number
from mist_sim.report.pages.page import Verdict

_RANKS = ("miss", "within error", "pass")
_WORDS = {
    "miss": ("bad", "Misses its limits."),
    "within error": ("unsure", "Within error of its limits."),
    "pass": ("good", "Keeps its limits."),
}


def run_verdict(summary: Mapping[str, Any]) -> Verdict:
    """Return whether a run keeps its limits; without limits, its throughput."""
    if not summary["completed"]:
        return Verdict("bad", "Nothing finished.", nothing_finished(summary))
    if summary.get("unstable"):
        return Verdict(
            "bad",
            "Overloaded.",
            "More work arrives than the clients can do, so latencies grow with the length of the "
            f"run. {_limits(summary)}".strip(),
        )
    if not summary.get("slo"):
        return Verdict("plain", "No limits were set.", _served(summary))
    worst = min((each["verdict"] for each in summary["slo"].values()), key=_RANKS.index)
    level, word = _WORDS[worst]
    return Verdict(level, word, _limits(summary))


def _limits(summary: Mapping[str, Any]) -> str:
    told = [_limit(name, each) for name, each in summary.get("slo", {}).items()]
    return f"{'; '.join(told)}." if told else ""


def _limit(name: str, verdict: Mapping[str, Any]) -> str:
    percentile, metric, _ = name.split("_")
    value, limit = verdict["value"], f"{verdict['limit']:g} ms"
    found = "has no figure, as too many requests failed" if value is None else in_ms(value)
    unknown = "" if value is None or verdict["error_known"] else ", error not known"
    return f"{percentile} {NAMES[metric]} {found} of {limit}: {verdict['verdict']}{unknown}"


def _served(summary: Mapping[str, Any]) -> str:
    of_part, where = "", "the whole run"
    if summary.get("has_steady_part"):
        of_part, where = "steady_", "the steady part"
    return (
        f"{number(summary[f'{of_part}request_throughput'])} requests and "
        f"{number(summary[f'{of_part}output_throughput'])} output tokens a second in {where}, "
        f"p99 TTFT {' '.join(latency(summary['p99_ttft_ms']))}."
    )
