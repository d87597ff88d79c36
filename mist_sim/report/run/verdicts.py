"""Each limit of the slo with its figure and verdict; shortcomings that fail a strict run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from rich.console import RenderableType

from mist_sim.metrics.latency import limit_of, limit_title
from mist_sim.report.elements.cells import duration, latency, section
from mist_sim.report.elements.pairs import pairs

Verdicts = Mapping[str, Mapping[str, Any]]
"""`limit` and `value` in milliseconds, `kept`, `verdict` and `error_known`, by names such as
`p99_ttft_ms`."""


def slo_section(verdicts: Verdicts, num_failed: float) -> Iterator[RenderableType]:
    """Yield every limit with the figure that keeps or misses it; empty without limits.

    num_failed: requests that did not finish, which count as later than all others.
    """
    if verdicts:
        failed = f"the {num_failed:,.0f} that failed counted as latest"
        title = f"Limits (slo), of all requests, {failed}" if num_failed else "Limits (slo)"
        yield from section(title, pairs(_rows(verdicts)))


def _rows(verdicts: Verdicts) -> Iterator[tuple[str, str, str]]:
    for name, verdict in verdicts.items():
        remark = f"limit {_limit(verdict)}: {verdict['verdict']}"
        if isnan(verdict["value"]):
            why = ", applies to no request" if verdict["kept"] else ", too many failed"
            yield _title(name), "-", remark + why
        else:
            value, unit = latency(verdict["value"])
            unknown = "" if verdict["error_known"] else ", error not known"
            yield _title(name), value, f"{unit}, {remark}{unknown}"


def shortcomings(summaries: Sequence[Mapping[str, Any]], verdicts: Verdicts) -> list[str]:
    """Return the shortcomings of the runs, a sentence each, that fail `--strict`.

    These are: a run in which no request finished, more than half of the runs unstable, a missed
    limit.
    """
    found = []
    if not all(summary["completed"] for summary in summaries):
        found.append("no request finished")
    if 2 * sum(summary["unstable"] for summary in summaries) > len(summaries):
        found.append("unstable: more work arrives than the clients can do")
    found += [_miss(name, verdict) for name, verdict in verdicts.items() if not verdict["kept"]]
    return found


def _miss(name: str, verdict: Mapping[str, Any]) -> str:
    if isnan(verdict["value"]):
        return f"{_title(name)} has no figure, as too many requests failed; limit {_limit(verdict)}"
    value, unit = latency(verdict["value"])
    return f"{_title(name)} is {value} {unit}, limit {_limit(verdict)}"


def _title(name: str) -> str:
    limit, percentile = limit_of(name)
    return f"{percentile} {limit_title(limit)}"


def _limit(verdict: Mapping[str, Any]) -> str:
    return duration(verdict["limit"] / 1e3)
