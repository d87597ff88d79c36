"""Parts of the page of one sheet that findings of several kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.metrics.expected_errors import WITHIN
from mist_sim.metrics.latency import limit_of, limit_title
from mist_sim.metrics.spending import HOURS_A_MONTH, billed_per_hour
from mist_sim.report.elements import in_ms, number
from mist_sim.report.pages.page import Brief, Card, Verdict
from mist_sim.report.run import expected_rows


def how_sure(how: str, summary: Mapping[str, Any]) -> str:
    """Return a sentence on how sure an answer is, with the expected error of its step times.

    how: in words; empty if there is nothing to be sure of. summary: has `expected_errors`.
    """
    bars = [
        f"{metric} {shown} ({like})"
        for metric, shown, like in expected_rows(summary.get("expected_errors", {}))
    ]
    told = f"nine of ten measurements would lie within {'; '.join(bars)}" if bars else ""
    words = "; ".join(filter(None, (how, told)))
    return f"How sure: {words}." if words else ""


def limits_kept(slo: Mapping[str, Mapping[str, Any]], *notes: str) -> Card:
    """Return the tile of the limits that the simulation keeps, and of those that are not sure.

    slo: of a run's summary, one limit at least.
    """
    kept = sum(bool(each["kept"]) for each in slo.values())
    near = sum(each["verdict"] == WITHIN for each in slo.values())
    unsure = [f"by the expected error {near} may turn out otherwise"] if near else []
    note = "; ".join(["in the simulation", *unsure, *notes])
    return Card("limits", f"{kept} of {len(slo)}", "kept", note=note)


def monthly(summary: Mapping[str, Any]) -> Card:
    """Return the tile of dollars a month, of all GPUs if all are rented.

    summary: has `usd_per_hour` and `price_origins`, if they are known.
    """
    if (hourly := summary.get("usd_per_hour")) is None:
        return Card("cost", "-", note="not known: a GPU has no price; give gpu_price")
    origins = "; ".join(summary.get("price_origins", ()))
    note = f"{hourly:.2f} $/h; a GPU {origins}" if origins else f"{hourly:.2f} $/h"
    return Card("cost", f"{HOURS_A_MONTH * hourly:,.0f}", "$ a month", note=note)


def billed(summary: Mapping[str, Any]) -> Card:
    """Return the tile of dollars a month at what a run was billed, else as `monthly`.

    summary: of a run.
    """
    rent, bill = summary.get("usd_per_hour"), billed_per_hour(summary)
    if bill is None or bill == rent:
        return monthly(summary)
    told = f"{bill:.2f} $/h, as billed in this run"
    note = told if rent is None else f"{told}; all GPUs all the time: {rent:.2f} $/h"
    return Card("cost", f"{HOURS_A_MONTH * bill:,.0f}", "$ a month", note=note)


def cheapest_token(dollars: Mapping[str, float]) -> Card:
    """Return the tile of dollars a million output tokens: the lowest of those by name."""
    known = {name: value for name, value in dollars.items() if value == value}
    if not known:
        return Card("cost", "-", note="not known: give cost in the scenario, and every gpu_price")
    best = min(known, key=lambda name: known[name])
    unit = "$ a million output tokens"
    return Card("cost", number(known[best]), unit, note=f"the least, of {best}")


Cases = Mapping[str, Mapping[str, Any]]
"""By name, as `metrics.keeping.judged` has them; empty for one that was not judged."""


def decision(cases: Cases, room: Card) -> tuple[Verdict, Brief] | None:
    """Return the answer and the sheet; None unless two keep or miss limits.

    The answer is the cheapest that keeps its limits, or has fewest GPUs where prices are unknown.
    room: the tile of how much more is served.
    """
    judged = {name: each for name, each in cases.items() if each}
    sizes = ("usd_per_hour", "num_gpus")
    known = [key for key in sizes if all(each.get(key) is not None for each in judged.values())]
    if len(judged) < 2 or not known:
        return None
    order = sorted(judged, key=lambda name: judged[name][known[0]])
    kept = [name for name in order if judged[name]["keeps"]]
    cheapest, dearest = order[0], order[-1]
    answer = kept[0] if kept and len(order) > 2 else cheapest
    of_answer, others = judged[answer], [name for name in order if name != answer]
    verdict = _of_two(answer, dearest, of_answer) if len(order) == 2 else _of_many(answer, kept)
    question = f"Which is the cheapest that keeps its limits: {', '.join(judged)}?"
    if len(order) == 2:
        question = f"May {cheapest} take the place of {dearest}?"
    missed = [name for name in others if name not in kept]
    told = "; ".join([*_limits(of_answer), *(f"{name} misses its limits" for name in missed)])
    doubt = _doubt(of_answer)
    level = "unsure" if doubt and verdict.level == "good" else verdict.level
    tiles = [_kept(answer, of_answer), _cost(answer, others, judged), room]
    sheet = Brief(question, how_sure(doubt or "sure beyond the expected error", of_answer), tiles)
    return Verdict(level, verdict.word, f"{told}."), sheet


def _of_two(one: str, other: str, of_one: Mapping[str, Any]) -> Verdict:
    if not of_one["keeps"]:
        return Verdict("bad", f"No, {one} misses its limits.", "")
    if _doubt(of_one):
        return Verdict("unsure", f"Perhaps: {one} keeps its limits, but that is not sure.", "")
    return Verdict("good", f"Yes, {one} may take the place of {other}.", "")


def _of_many(answer: str, kept: list[str]) -> Verdict:
    if not kept:
        return Verdict("bad", "None keeps its limits.", "")
    return Verdict("good", f"{answer} is the cheapest that keeps its limits.", "")


def _doubt(case: Mapping[str, Any]) -> str:
    """Return why it is not sure that limits are kept or missed; empty if it is."""
    doubts = {
        "is_sure": "a limit lies within the expected error of the step times, or of other seeds",
        "is_long": "the run is too short to tell whether queues grow",
        "has_error": "the error of the step times is not known",
    }
    found = [text for key, text in doubts.items() if not case[key]]
    return f"unsure, since {' and '.join(found)}" if found else ""


def _limits(case: Mapping[str, Any]) -> list[str]:
    told = []
    if "asked" in case:
        told.append(f"{100 * case['good']:.1f} % of the requests are good, {_asked(case)}")
    for name, each in case["slo"].items():
        latency, percentile = limit_of(name)
        value = "-" if each["value"] is None else in_ms(each["value"])
        told.append(f"{percentile} {limit_title(latency)} {value} of {each['limit']:g} ms")
    return told


def _asked(case: Mapping[str, Any]) -> str:
    return f"{100 * case['asked']:g} % asked"


def _kept(name: str, case: Mapping[str, Any]) -> Card:
    if "asked" in case:
        share = f"{100 * case['good']:.1f} %"
        return Card("limits", share, "good", note=f"requests of {name}; {_asked(case)}")
    kept = sum(bool(each["kept"]) for each in case["slo"].values())
    return Card("limits", f"{kept} of {len(case['slo'])}", "kept", note=f"by {name}")


def _cost(answer: str, others: list[str], cases: Cases) -> Card:
    """Return the tile of dollars a month of the answer, with those of the others."""
    month = {name: _dollars(cases[name]) for name in (answer, *others)}
    if month[answer] is None:
        return Card("cost", "-", note="not known: a GPU has no price; give gpu_price")
    beside = [f"{name} {month[name]:,.0f}" for name in others if month[name] is not None]
    note = f"of {answer}; {', '.join(beside)}"
    return Card("cost", f"{month[answer]:,.0f}", "$ a month", note=note)


def _dollars(case: Mapping[str, Any]) -> float | None:
    """Return dollars a month of all GPUs; None if not known."""
    hourly = case.get("usd_per_hour")
    return None if hourly is None else HOURS_A_MONTH * float(hourly)
