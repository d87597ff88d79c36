"""The report of a comparison: the winner, goodputs with intervals, latencies, costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import Any

from mist_sim.report.comparison import comparison_table
from mist_sim.report.elements import metric_cell, percent
from mist_sim.report.pages.page import Brief, Card, Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pages.sheets import cheapest_token, decision, how_sure
from mist_sim.report.pictures.marks import Bars
from mist_sim.report.pictures.picture import Panel, Picture

_BARS = {
    "p99_ttft_ms": "p99 TTFT, ms",
    "p99_tpot_ms": "p99 TPOT, ms",
    "steady_output_throughput": "output tokens a second, steady part",
    "energy_per_output_token_j": "J an output token",
    "cost_per_million_output_tokens_usd": "$ a million output tokens",
}
_ROW = 0.27  # inches


def comparison_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a comparison. summary: `Comparison.summary`."""
    decided = decision(summary.get("judged", {}), _room(summary))
    if decided:
        verdict, brief = decided
        sentences = filter(None, (verdict.sentence, summary["verdict"] * bool(summary["goodput"])))
        verdict = replace(verdict, sentence=" ".join(sentences))
    else:
        verdict, brief = _verdict(summary), _brief(summary)
    return printed_page(
        title,
        verdict,
        comparison_table(summary),
        figures=list(_drawings(summary)),
        brief=brief,
    )


def _verdict(summary: Mapping[str, Any]) -> Verdict:
    sentence = summary["verdict"] or "Each column is a scenario; * marks the best of those that "
    "keep their limits."
    return Verdict("plain", f"{len(summary['scenarios'])} scenarios.", sentence)


def _room(summary: Mapping[str, Any]) -> Card:
    cases = summary["scenarios"]
    room = {
        n: each["headroom"] for n, each in cases.items() if not isnan(each.get("headroom", nan))
    }
    if not room:
        return Card("room", "-", note="how many more requests each serves: compare --goodput")
    told = [f"{name} {percent(share)}" for name, share in room.items()]
    return Card("room", told[0], "more requests", note=", ".join(told[1:]))


def _brief(summary: Mapping[str, Any]) -> Brief:
    cases = summary["scenarios"]
    question = f"Which is best: {', '.join(cases)}?"
    shares = {name: each.get("good_request_fraction", nan) for name, each in cases.items()}
    good = {name: share for name, share in shares.items() if not isnan(share)}
    cost = "cost_per_million_output_tokens"
    keys = (f"{cost}_at_goodput_usd", f"{cost}_usd")
    prices = {
        name: next((each[key] for key in keys if not isnan(each.get(key, nan))), nan)
        for name, each in cases.items()
    }
    tiles = [
        _most("limits", good, "of the requests are good"),
        cheapest_token(prices),
        _room(summary),
    ]
    bars = [each for each in summary["expected_errors"].values() if each]
    return Brief(question, how_sure("", {"expected_errors": bars[0] if bars else {}}), tiles)


def _most(name: str, shares: Mapping[str, float], unit: str) -> Card:
    """Return the tile of the largest share, with whose it is."""
    if not shares:
        return Card(name, "-", note="not known")
    best = max(shares, key=lambda each: shares[each])
    return Card(name, percent(shares[best], digits=1), unit, note=f"the most, of {best}")


def _drawings(summary: Mapping[str, Any]) -> Iterator[Drawing]:
    if summary["goodput"]:
        yield Drawing(
            "goodput",
            "Goodput, requests a second within their limits",
            _goodputs(summary["goodput"]),
        )
    cases = summary["scenarios"]
    for key, title in _BARS.items():
        known = {name: each[key] for name, each in cases.items() if not isnan(each.get(key, nan))}
        if any(known.values()):
            shown = [metric_cell(key, value) for value in known.values()]
            bars = Bars(range(len(known)), list(known.values()), texts=shown)
            yield Drawing(key, title, _horizontal(list(known), bars, ""))


def _goodputs(found: Mapping[str, Mapping[str, Any]]) -> Picture:
    """Draw the goodput of each scenario with its interval; an open end is cut at the value."""
    rates = [each["goodput"] or 0.0 for each in found.values()]
    ends = [each["interval"] for each in found.values()]
    below = [max(rate - (low or 0.0), 0.0) for rate, (low, _) in zip(rates, ends, strict=True)]
    above = [_above(rate, high) for rate, (_, high) in zip(rates, ends, strict=True)]
    bars = Bars(range(len(rates)), rates, errors=(below, above))
    return _horizontal(list(found), bars, "requests a second")


def _above(rate: float, high: float | None) -> float:
    return 0.0 if high is None or high == float("inf") else max(high - rate, 0.0)


def _horizontal(names: Sequence[str], bars: Bars, title: str) -> Picture:
    """Draw a bar each. title: of the axis of values."""
    return Picture([Panel("", [bars], title, height=_ROW * len(names), rows=names)])
