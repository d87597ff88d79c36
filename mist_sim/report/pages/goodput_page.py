"""The report of a search for goodput: the rate, and how every rate that was tried fared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, isinf, isnan
from typing import Any

from mist_sim.metrics.latency import limit_title
from mist_sim.report.goodput import (
    asked,
    between,
    error_words,
    goodput_table,
    judges_requests,
    time_over_limit,
)
from mist_sim.report.pages.page import Brief, Card, Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pages.sheets import how_sure, monthly
from mist_sim.report.pictures.marks import Limit, Mark, Points, Span
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, WAIT_COLOUR

_MARKS = {
    True: ("attained", COLOURS[2], "o"),
    False: ("missed", LIMIT_COLOUR, "x"),
    None: ("undecided", WAIT_COLOUR, "D"),
}


def goodput_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a search. summary: `Goodput.summary`."""
    return printed_page(
        title,
        _verdict(summary),
        goodput_table(summary),
        figures=list(_drawings(summary)),
        brief=_brief(summary, title),
    )


def _brief(summary: Mapping[str, Any], title: str) -> Brief:
    what = title.split(";", maxsplit=1)[0]
    question = f"How many requests a second can {what} serve within the limits?"
    low, high = summary["interval"]
    is_known = not isnan(summary["goodput"])
    how = f"between {low:.4g} and {high:.4g} requests a second by the runs"
    if off := summary.get("error_interval"):
        how += f", {between(*off)} {error_words(summary)}"
    how = how if is_known else summary["status"]
    rate = f"{summary['goodput']:.4g}" if is_known else "-"
    first = summary["first_limit"]
    room = [
        Card("limits", rate, "requests a second", note=asked(summary)),
        monthly(summary),
        Card(
            "room",
            "-" if isinf(high) or not is_known else f"{high:.4g}",
            "" if isinf(high) or not is_known else "requests a second miss a limit",
            note=f"{limit_title(first)} misses first" if first else "no limit was missed",
        ),
    ]
    return Brief(question, how_sure(how, summary), room)


def _verdict(summary: Mapping[str, Any]) -> Verdict:
    if isnan(summary["goodput"]):
        found = f"Goodput not known: {summary['status']}."
        return Verdict("unsure", found, f"Asked: {asked(summary)}.")
    first = summary["first_limit"]
    beyond = f"; beyond it {limit_title(first)} misses first" if first else ""
    sentence = f"{asked(summary)}{beyond}."
    return Verdict("plain", f"{summary['goodput']:.4g} requests a second.", sentence)


def _drawings(summary: Mapping[str, Any]) -> Iterator[Drawing]:
    of_requests = judges_requests(summary)
    trials = [
        trial | {"share": trial["attainment"] if of_requests else time_over_limit(trial)}
        for seed in summary["seeds"]
        for trial in seed["trials"]
    ]
    known = [trial for trial in trials if isfinite(trial["share"])]
    what = "Good requests" if of_requests else "Time over limit"
    if known:
        yield Drawing("rates", f"{what} at each rate tried", _rates(summary, known))


def _rates(summary: Mapping[str, Any], trials: list[Mapping[str, Any]]) -> Picture:
    """Draw what decides over the rate, and the interval of the goodput as a band.

    trials: each with its `share`: of good requests, or of the limit that its worst percentile is.
    """
    marks: list[Mark] = []
    of_requests = judges_requests(summary)
    low, high = summary["interval"]
    if not isnan(summary["goodput"]) and not isinf(high):
        marks.append(Span(low, high, "interval of the goodput", COLOURS[0]))
    for attained, (name, colour, symbol) in _MARKS.items():
        if rows := [trial for trial in trials if trial["attained"] is attained]:
            at = [row["rate"] for row in rows], [100 * row["share"] for row in rows]
            texts = [f"{row['rate']:.4g} /s: {_told(row, of_requests)}" for row in rows]
            marks.append(Points(*at, name, colour, symbol, texts))
    asked_for = 100 * summary["attainment_asked"] if of_requests else 100.0
    marks.append(Limit(asked_for, f"asked for {asked_for:g} %" if of_requests else "limit"))
    title = "good requests, %" if of_requests else "time over limit, %"
    return Picture([Panel(title, marks, "requests a second", height=3.0)])


def _told(trial: Mapping[str, Any], of_requests: bool) -> str:
    """Return the text that a mark shows under the pointer."""
    what, bound = ("good", "at most ") if of_requests else ("of the limit", "more than ")
    share = f"{'' if trial['is_whole'] else bound}{100 * trial['share']:.1f} %"
    return f"{share} {what}, {trial['num_requests']:,} requests"
