"""The report of a plan: what to buy, how sure that is, and what else was tried at what price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan, nan
from typing import Any

from mist_sim.metrics.spending.cost import HOURS_A_MONTH
from mist_sim.report.pages.page import Brief, Card, Detail, Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pages.sheets import how_sure, monthly
from mist_sim.report.pictures.marks import Points
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, WAIT_COLOUR
from mist_sim.report.plan import plan_table

_LEVELS = {"sure": "good", "likely": "unsure", "unsure": "bad"}
_MARKS = {
    "attained": (COLOURS[2], "o"),
    "missed": (LIMIT_COLOUR, "x"),
    "undecided": (WAIT_COLOUR, "D"),
}


def plan_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a plan. summary: `Plan.summary`; title: where it has none."""
    title = (summary.get("title") or title).splitlines()[0]
    commands = "\n".join([*summary["vllm"], *summary["proxy"]])
    return printed_page(
        title,
        _verdict(summary),
        plan_table(summary),
        figures=list(_drawings(summary)),
        details=[Detail("Commands that deploy it", commands)],
        brief=_brief(summary, title),
    )


def _brief(summary: Mapping[str, Any], title: str) -> Brief:
    level, headroom = _level(summary), summary["headroom"]
    limits = summary["limits"]
    kept = sum(each["verdict"] == "pass" for each in limits.values())
    tiles = [
        Card("limits", f"{kept} of {len(limits)}", "kept", note=f"at {summary['rate']:.4g} /s"),
        monthly(summary),
        Card(
            "room",
            "-" if headroom is None else f"{100 * headroom:.0f} %",
            "" if headroom is None else "more requests",
            note="until a limit is missed" if headroom is not None else "goodput not known",
        ),
    ]
    told = f"{level} that the limits are kept" if level else ""
    return Brief(title, how_sure(told, summary), tiles)


def _level(summary: Mapping[str, Any]) -> str:
    """Return the confidence of the line that says what to buy."""
    buy = next((line for line in summary["lines"] if line["name"] == "buy"), None)
    return buy["confidence"] if buy else ""


def restored_plan(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a `plan.json`: figures that are null there are NaN."""
    numbers = ("attainment", "estimate")
    rows = [
        {**row, **{name: nan if row[name] is None else row[name] for name in numbers}}
        for row in summary["tried"]
    ]
    return {**summary, "tried": rows}


def _verdict(summary: Mapping[str, Any]) -> Verdict:
    """Return the answer, with the confidence of the line that says what to buy."""
    level = _level(summary)
    headroom = summary["headroom"]
    room = "" if headroom is None else f", with {100 * headroom:.0f} % headroom"
    month = f"{HOURS_A_MONTH * summary['usd_per_hour']:,.0f} $ a month"
    sentence = f"{summary['usd_per_hour']:.2f} $/h, {month}, serve {summary['rate']:.4g} /s{room}"
    told = f"; {level} that the limits are kept." if level else "."
    return Verdict(_LEVELS.get(level, "plain"), f"Buy {summary['name']}.", sentence + told)


def _drawings(summary: Mapping[str, Any]) -> Iterator[Drawing]:
    rows = [row for row in summary["tried"] if not isnan(row["attainment"])]
    if rows:
        yield Drawing("tried", "Good requests of each candidate over its price", _tried(rows))


def _tried(rows: list[Mapping[str, Any]]) -> Picture:
    """Draw the share of good requests over dollars an hour; a mark a candidate."""
    marks = []
    for verdict, (colour, symbol) in _MARKS.items():
        if found := [row for row in rows if row["verdict"] == verdict]:
            at = [row["usd_per_hour"] for row in found], [100 * row["attainment"] for row in found]
            marks.append(Points(*at, verdict, colour, symbol, [row["name"] for row in found]))
    return Picture([Panel("good requests, %", marks, "$/h", height=3.0)])
