"""A plan: the purchase, its certainty, the runner-up, the commands; tables, page and picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from math import isnan
from operator import itemgetter
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mist_sim.metrics.spending import HOURS_A_MONTH
from mist_sim.report.elements import good_share, listed, number, section
from mist_sim.report.goodput import ENDED_EARLY
from mist_sim.report.pages.page import (
    Brief,
    Card,
    Drawing,
    Page,
    Verdict,
    how_sure,
    limits_kept,
    monthly,
)
from mist_sim.report.pictures.picture import Bars, Panel, Picture
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, WAIT_COLOUR
from mist_sim.report.run import expected_of_each

_MOST_ROWS = 12  # of the candidates tried; all are in the files


def plan_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a plan. summary: `Plan.summary`."""
    left_out = [Text(f"{name}: {text}") for name, text in summary["left_out"].items()]
    commands = [*summary["deployment_notes"], *_counted(summary["vllm"]), *summary["proxy"]]
    binding, total = summary["binding"], len(summary["tried"])
    title = f"Tried {_load(summary)}"
    if total > _MOST_ROWS:
        title += f", {_MOST_ROWS} of {total} shown"
    if excluded := sum(summary["excluded"].values()):
        title += f"; {excluded} more cannot do, by bounds"
    return Group(
        *section("Plan", _lines(summary)),
        *section("By hour", _hours(summary["day"])) if "day" in summary else (),
        *section("Runner-up", Text(summary["runner_up"] or "nothing else was tried")),
        *section("What binds", Text(binding["sentence"])) if binding is not None else (),
        *section(title, _tried(summary)),
        *expected_of_each({"": summary["expected_errors"]}),
        *section("Left out", Group(*left_out)) if left_out else (),
        *section("Deploy", Group(*map(Text, commands))),
    )


def _load(summary: Mapping[str, Any], unit: str = "/s") -> str:
    """Return the load that was asked for, with a preposition. unit: of a rate."""
    if "users" in summary:
        return f"with {summary['users']} user{'s' * (summary['users'] > 1)}"
    return f"at {summary['rate']:.4g} {unit}"


def _lines(summary: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(style="dim", no_wrap=True)
    for line in summary["lines"]:
        table.add_row(Text(line["name"]), Text(line["text"]), Text(line["confidence"]))
    return table


_STEADY_HOURS = (
    "Each hour at its rate, in steady state. Starts and drains of engines between hours are not in "
    "the dollars: arrivals of type schedule with an autoscaler in mist run have them."
)


def _hours(day: Mapping[str, Any]) -> RenderableType:
    """Return what the hours of a day need; hours behind one another that need the same are one."""
    rows: list[list[str]] = []
    for (number_of, design), several in groupby(
        day["hours"], key=itemgetter("num_engines", "design")
    ):
        hours = list(several)
        low, high = (f"{pick(hour['rate'] for hour in hours):.3g}" for pick in (min, max))
        sure = max((hour["confidence"] for hour in hours), key=[*_LEVELS].index)
        rows.append(
            [
                f"{hours[0]['hour']:02}:00 to {hours[-1]['hour'] + 1:02}:00",
                low if low == high else f"{low} to {high}",
                str(number_of) if design.startswith("together") else design,
                number(hours[0]["usd_per_hour"]),
                sure + "".join({"; fewer may do" for hour in hours if not hour["is_fewest"]}),
            ]
        )
    table = listed(["", "requests/s", "engines", "$/h", ""], rows, right=[1, 2, 3])
    return Group(table, Text(_STEADY_HOURS, style="dim"))


def _tried(summary: Mapping[str, Any]) -> RenderableType:
    rows = [
        [
            f"{row['name']}{' <' if row['name'] == summary['name'] else ''}",
            number(row["usd_per_hour"]),
            good_share(row),
            row["verdict"] + ("" if row["is_whole"] else ", ended early"),
        ]
        for row in _nearest(summary)
    ]
    table = listed(["", "$/h", "good", ""], rows, right=[1, 2])
    if all(row["is_whole"] for row in _nearest(summary)):
        return table
    return Group(table, Text(ENDED_EARLY, style="dim"))


def _nearest(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows to show, the cheapest first: feasible ones, then nearly feasible ones."""
    tried = [row for row in summary["tried"] if row["verdict"] != "impossible"]
    best = [row for row in tried if row["name"] == summary["name"]]
    others = [row for row in tried if row["name"] != summary["name"]]
    others.sort(key=lambda row: (row["verdict"] != "attained", -row["attainment"]))
    first = {row["gpu"]: row for row in reversed([*best, *others])}  # of each GPU
    others.sort(key=lambda row: first[row["gpu"]] is not row)
    shown = [*best, *others][:_MOST_ROWS]
    return sorted(shown, key=lambda row: (row["usd_per_hour"], row["name"]))


def _counted(commands: list[str]) -> list[str]:
    """Return commands, merging those that differ only by port."""
    found: dict[str, list[str]] = {}
    for command in commands:
        start, _, port = command.rpartition(" --port ")
        found.setdefault(start, []).append(port)
    return [
        f"{start} --port {ports[0]}" + (f"  # and on {', '.join(ports[1:])}" if ports[1:] else "")
        for start, ports in found.items()
    ]


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
    return Page(
        title,
        _verdict(summary),
        figures=[*_drawings(summary), *_of_hours(summary)],
        details={"Commands that deploy it": commands},
        brief=_brief(summary, title),
    )


def _brief(summary: Mapping[str, Any], title: str) -> Brief:
    headroom = summary["headroom"]
    tiles = [
        limits_kept(summary["limits"], _load(summary, "requests a second")),
        monthly(summary),
        Card(
            "room",
            "-" if headroom is None else f"{100 * headroom:.0f} %",
            "" if headroom is None else "more users" if "users" in summary else "more requests",
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


def _answer(summary: Mapping[str, Any]) -> str:
    """Return the engines to buy, and their GPUs where an engine has several."""
    name, number = str(summary["name"]), summary["num_gpus"]
    return name if name.startswith(f"{number} x ") else f"{name} ({number} GPUs)"


def _verdict(summary: Mapping[str, Any]) -> Verdict:
    """Return the answer, with the confidence of the line that says what to buy."""
    buy = next((line for line in summary["lines"] if line["name"] == "buy"), None)
    level = buy["confidence"] if buy else ""
    headroom = summary["headroom"]
    room = "" if headroom is None else f", with {100 * headroom:.0f} % headroom"
    month = f"{HOURS_A_MONTH * summary['usd_per_hour']:,.0f} $ a month"
    load = _load(summary).partition(" ")[2]
    sentence = f"{summary['usd_per_hour']:.2f} $/h, {month}, serve {load}{room}"
    _, near, margin = buy["text"].partition("; ") if buy else ("", "", "")  # if a limit is near
    told = f"; {level} that the limits are kept{near}{margin}." if level else "."
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
        yield Drawing("tried", f"Requests within the limits, by candidate{few}", _bars(shown, name))


def _of_hours(summary: Mapping[str, Any]) -> Iterator[Drawing]:
    if "day" in summary:
        yield Drawing("day", "Engines that each hour of a day needs", _by_hour(summary["day"]))


def _by_hour(day: Mapping[str, Any]) -> Picture:
    """Draw the engines of each hour, a bar an hour."""
    numbers = [hour["num_engines"] for hour in day["hours"]]
    names = [f"{hour['hour']:02}:00, {hour['rate']:.3g} /s" for hour in day["hours"]]
    bars = Bars(range(len(numbers)), numbers, texts=[str(number) for number in numbers])
    return Picture([Panel("", [bars], height=_ROW * len(numbers), rows=names)])


def _bars(rows: list[Mapping[str, Any]], answer: str) -> Picture:
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
