"""A run's results as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.errors import in_words
from mist_sim.metrics.latency import SHORT_NAMES, limit_title
from mist_sim.report.elements.cells import (
    count,
    duration,
    in_ms,
    number,
    percent,
    section,
)
from mist_sim.report.elements.pairs import pairs
from mist_sim.report.run.breakdown import breakdown_sections
from mist_sim.report.run.clients import clients_table
from mist_sim.report.run.expected import expected_section
from mist_sim.report.run.failures import failures_section
from mist_sim.report.run.latency import latency_table, latency_title, note_on_turns
from mist_sim.report.run.models import groups_section
from mist_sim.report.run.spending import spending_section
from mist_sim.report.run.verdicts import slo_section

if TYPE_CHECKING:
    from mist_sim.metrics import Result

_FIGURES = ("mean", "p50", "p90", "p95", "p99")
_RATES = {
    "requests": "request_throughput",
    "output tokens": "output_throughput",
    "input and output tokens": "total_token_throughput",
}


def results_table(result: Result) -> RenderableType:
    """Return everything worth reading about a run; it prints in 50 columns or more."""
    summary: Mapping[str, Any] = result.summary
    return Group(
        *section("Workload", pairs(_workload(result, summary))),
        *section("Throughput", pairs(_throughput(result, summary))),
        *section(latency_title(summary), Group(*_latency(summary))),
        *failures_section(summary.get("through_failures", {})),
        *breakdown_sections(summary),
        *groups_section("Models", summary.get("models", {})),
        *groups_section("Classes", summary.get("classes", {})),
        *expected_section(summary.get("expected_errors", {}), lambda key: in_ms(summary[key])),
        *slo_section(summary.get("slo", {}), summary["failed"]),
        *spending_section(result),
        *section("Clients", clients_table(result)),
    )


def _latency(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield latency_table(_FIGURES, lambda key: in_ms(summary[key]), width=7)
    if note := note_on_turns(summary):
        yield Text(note)


def _doubt(summary: Mapping[str, Any]) -> str:
    """Return what the first line says where the clients may not keep up."""
    if summary["unstable"]:
        return "; overloaded"
    if summary["completed"] and summary.get("stability") == "too short to tell":
        return "; overload not ruled out"
    return ""


def _workload(result: Result, summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "requests finished", count(summary["completed"]), result.loop + _doubt(summary)
    yield from _failures(summary)
    yield "input tokens", count(summary["total_input_tokens"]), ""
    yield "output tokens", count(summary["total_output_tokens"]), ""
    warmup = f"without {result.warmup:g} s of warm-up" if result.warmup else ""
    yield "simulated time", number(summary["duration"]), f"s {warmup}".strip()
    if "reconfigurations" in summary:
        yield "sliders moved", count(len(summary["reconfigurations"])), "times"
    if "max_moves_per_request" in summary:
        most = summary["max_moves_per_request"]
        what = f"times a request, {most:g} at most"
        yield "answers moved", number(summary["mean_moves_per_request"]), what
    if "layouts" in summary:
        clients = [period["client"] for period in summary["layouts"]]
        yield "layouts changed", count(len(clients) - len(set(clients))), "times"


def _failures(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "requests rejected", count(summary["num_rejected"]), ""
    if summary["num_timed_out"]:
        yield "requests timed out", count(summary["num_timed_out"]), ""
    if summary["num_cancelled"]:
        yield "requests cancelled", count(summary["num_cancelled"]), "by users who went away"
    yield from _lives(summary)
    if summary["num_retries"]:
        yield "sent again", count(summary["num_retries"]), "times"
    if wasted := summary["wasted_input_tokens"] + summary["wasted_output_tokens"]:
        yield "tokens computed in vain", count(wasted), "input and output"


def _lives(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield failures, starts and losses of clients."""
    if "mean_clients_up" not in summary:
        return
    if summary["num_lost"]:
        yield "requests lost", count(summary["num_lost"]), "with clients that failed"
    if summary["num_retried_visits"]:
        yield "sent to another client", count(summary["num_retried_visits"]), "times"
    failed, started = summary["num_client_failures"], summary["num_client_starts"]
    what = f"on average; {in_words(failed, 'failure')}, {in_words(started, 'start')}"
    yield "clients up", number(summary["mean_clients_up"]), what


def _throughput(result: Result, summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, key in _RATES.items():
        yield name, number(summary[key]), _in_steady_part(summary, key)
    if summary["has_steady_part"]:
        begin, end = number(summary["steady_begin"]), number(summary["steady_end"])
        yield "", "", f"(steady part: {begin} to {end} s, without ramp and end)"
    yield "output tokens, peak", number(summary["max_output_tokens_per_s"]), "in one second"
    yield "requests in flight, peak", count(summary["peak_requests_in_flight"]), ""
    most = count(summary["max_concurrent_requests"])
    yield "requests in a second, peak", most, "vLLM's max_concurrent_requests"
    if "spec_decode_acceptance_rate" in summary:
        accepted = number(summary["spec_decode_acceptance_length"])
        share = percent(summary["spec_decode_acceptance_rate"] / 100, digits=1)
        yield "tokens a decode step", accepted, f"{share} of the draft tokens accepted"
    if summary["num_preemptions"]:
        yield "preemptions", count(summary["num_preemptions"]), "computed again for lack of memory"
    if summary["prefix_cache_hit_rate_unbounded"] > 0:
        found = percent(summary["prefix_cache_hit_rate"], digits=1)
        known = percent(summary["prefix_cache_hit_rate_unbounded"], digits=1)
        yield "prompt tokens cached", found, f"prefix cache hit rate; one cache for all: {known}"
        for tier, rate in summary.get("tier_hit_rates", {}).items():
            yield f"  from {tier}", percent(rate, digits=1), "of the prompt tokens"
    if "retrieval_hit_rate" in summary:
        found = percent(summary["retrieval_hit_rate"], digits=1)
        yield "context tokens retrieved", found, "of those that were asked for"
        for level, rate in summary["retrieval_hit_rates"].items():
            yield f"  from {level}", percent(rate, digits=1), "of those that were asked for"
    if "request_goodput" in summary:
        good = percent(summary["good_request_fraction"], digits=1)
        rates = _in_steady_part(summary, "request_goodput")
        yield "goodput", number(summary["request_goodput"]), rates
        yield "", "", f"{good} of the requests keep"
        yield "", "", _limits(result)
        if summary["num_missed"]:
            yield "requests that miss", count(summary["num_missed"]), _causes(summary["misses"])


def _in_steady_part(summary: Mapping[str, Any], key: str) -> str:
    if not summary["has_steady_part"]:
        return "/s"
    return f"/s; {number(summary[f'steady_{key}'])} in the steady part"


def _causes(misses: Mapping[str, float]) -> str:
    """Return why requests miss: by limits, of which one may miss several, or as they failed."""
    return ", ".join(
        f"{count(int(times))} {SHORT_NAMES.get(cause, cause.replace('_', ' '))}"
        for cause, times in misses.items()
        if times
    )


def _limits(result: Result) -> str:
    limits = result.slo.limits_on_requests.items()
    return " and ".join(f"{limit_title(name)} <= {duration(limit)}" for name, limit in limits)
