"""The report of a plan: what to buy, how sure that is, and what else was tried at what price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

from mist_sim.metrics.spending import HOURS_A_MONTH
from mist_sim.report.pages.page import Brief, Card, Detail, Drawing, Page, Verdict
from mist_sim.report.pages.printed_page import printed_page
from mist_sim.report.pages.sheets import how_sure, limits_kept, monthly
from mist_sim.report.pictures.marks import Bars
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, WAIT_COLOUR
from mist_sim.report.plan import plan_table

_LEVELS = {"sure": "good", "likely": "unsure", "unsure": "bad"}
_COLOURS = {"attained": COLOURS[2], "missed": LIMIT_COLOUR, "undecided": WAIT_COLOUR}
_WORDS = {
    "together": "each engine computes prompts and answers",
    "prefill": "some engines compute prompts, the others answers",
    "hybrid": "two kinds of engines, one better at prompts, one at answers (TaiChi)",
    "re-sharding": "engines change their layout between prompts and answers (Seesaw)",
}
_ROW = 0.27  # inches
_ON_A_SHEET = 8  # candidates


def plan_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a plan. summary: `Plan.summary`; title: the question."""
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
    headroom = summary["headroom"]
    tiles = [
        limits_kept(summary["limits"], f"at {summary['rate']:.4g} requests a second"),
        monthly(summary),
        Card(
            "room",
            "-" if headroom is None else f"{100 * headroom:.0f} %",
            "" if headroom is None else "more requests",
            note="until a limit is missed" if headroom is not None else "goodput not known",
        ),
    ]
    question = f"What serves {title.partition(';')[0]} within its limits for the least money?"
    return Brief(
        question,
        how_sure("", summary),  # the verdict has the rest
        tiles,
        answer=_answer(summary),
        figure=next(_drawings(summary, _ON_A_SHEET), None),
        beside=[*_glossary(summary), *filter(None, summary["runner_up"].split("\n"))],
    )


def _glossary(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of the candidates' names on a sheet, explained."""
    rows = [row for row in summary["tried"] if row["verdict"] != "impossible"]
    designs = {row["design"].split(" ")[0] for row in rows}
    known = [
        f"{word}: {text}" for word, text in _WORDS.items() if any(word in each for each in designs)
    ]
    if any(row["tensor_parallel_size"] > 1 for row in rows):
        known.append("TP 2: an engine is split over 2 GPUs (tensor parallelism)")
    known.append("a number at the end: at most that many tokens in a step")
    yield f"Names: {'; '.join(known)}."


def _level(summary: Mapping[str, Any]) -> str:
    """Return the confidence of the line that says what to buy."""
    buy = next((line for line in summary["lines"] if line["name"] == "buy"), None)
    return buy["confidence"] if buy else ""


def _margin(summary: Mapping[str, Any]) -> str:
    """Return what the line that says what to buy adds, if a limit is near."""
    texts = {line["name"]: line["text"] for line in summary["lines"]}
    return str(texts.get("buy", "").partition("; ")[2])


def _answer(summary: Mapping[str, Any]) -> str:
    """Return the engines to buy, and their GPUs where an engine has several."""
    name, number = str(summary["name"]), summary["num_gpus"]
    return name if name.startswith(f"{number} x ") else f"{name} ({number} GPUs)"


def _verdict(summary: Mapping[str, Any]) -> Verdict:
    """Return the answer, with the confidence of the line that says what to buy."""
    level = _level(summary)
    headroom = summary["headroom"]
    room = "" if headroom is None else f", with {100 * headroom:.0f} % headroom"
    month = f"{HOURS_A_MONTH * summary['usd_per_hour']:,.0f} $ a month"
    sentence = f"{summary['usd_per_hour']:.2f} $/h, {month}, serve {summary['rate']:.4g} /s{room}"
    margin = "".join(f"; {each}" for each in [_margin(summary)] if each)
    told = f"; {level} that the limits are kept{margin}." if level else "."
    return Verdict(_LEVELS.get(level, "plain"), f"Buy {_answer(summary)}.", sentence + told)


def _drawings(summary: Mapping[str, Any], most: int | None = None) -> Iterator[Drawing]:
    """Yield the picture of the candidates, by price. most: those nearest to the answer's."""
    rows = [row for row in summary["tried"] if not isnan(row["attainment"])]
    name, price = summary["name"], summary["usd_per_hour"]
    best = {  # of each GPU
        row["gpu"]: row["name"]
        for row in sorted(rows, key=lambda row: -row["usd_per_hour"])
        if row["verdict"] == "attained"
    }

    def rank(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
        is_answer, is_best = row["name"] == name, row["name"] in best.values()
        return not is_answer, not is_best, abs(row["usd_per_hour"] - price)

    nearest = sorted(rows, key=rank)[:most]
    shown = sorted(nearest, key=lambda row: row["usd_per_hour"])
    if shown:
        few = (
            ""
            if len(shown) == len(rows)
            else f"; {len(shown)} of {len(rows)}: of each GPU the cheapest that keeps them, and "
            "the nearest in price"
        )
        yield Drawing(
            "tried", f"Requests within the limits, by candidate{few}", _tried(shown, name)
        )


def _tried(rows: list[Mapping[str, Any]], answer: str) -> Picture:
    """Draw the share of good requests, a bar a candidate, with its price."""
    marks = []
    for verdict, colour in _COLOURS.items():
        if found := [place for place, row in enumerate(rows) if row["verdict"] == verdict]:
            shares = [100 * rows[place]["attainment"] for place in found]
            texts = [
                f"{'' if rows[place]['is_whole'] else 'at most '}{share:.1f} %"
                for place, share in zip(found, shares, strict=True)
            ]
            marks.append(Bars(found, shares, verdict, colour, texts=texts))
    names = [
        f"{'buy: ' * (row['name'] == answer)}{row['name']}; {row['usd_per_hour']:.2f} $/h"
        for row in rows
    ]
    return Picture([Panel("", marks, height=_ROW * len(rows), rows=names)])
