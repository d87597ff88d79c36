"""A plan as text for a terminal: the purchase, its certainty, the runner-up, the commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mist_sim.report.elements import good_share, listed, number, section
from mist_sim.report.goodput import ENDED_EARLY
from mist_sim.report.run import expected_of_each

_MOST_ROWS = 12  # of the candidates tried; all are in the files


def plan_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a plan. summary: `Plan.summary`."""
    return Group(
        *section("Plan", _lines(summary)),
        *section("Runner-up", Text(summary["runner_up"] or "nothing else was tried")),
        *_what_binds(summary["binding"]),
        *section(_tried_title(summary), _tried(summary)),
        *expected_of_each({"": summary["expected_errors"]}),
        *_left_out(summary),
        *_deploy(summary),
    )


def _lines(summary: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(style="dim", no_wrap=True)
    for line in summary["lines"]:
        table.add_row(Text(line["name"]), Text(line["text"]), Text(line["confidence"]))
    return table


def _what_binds(binding: Mapping[str, Any] | None) -> Iterator[RenderableType]:
    if binding is not None:
        yield from section("What binds", Text(binding["sentence"]))


def _tried_title(summary: Mapping[str, Any]) -> str:
    total, shown = len(summary["tried"]), min(len(summary["tried"]), _MOST_ROWS)
    excluded = sum(summary["excluded"].values())
    of_all = f", {shown} of {total} shown" if shown < total else ""
    proved = f"; {excluded} more cannot do, by bounds" if excluded else ""
    return f"Tried at {summary['rate']:.4g} /s{of_all}{proved}"


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


def _left_out(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    if summary["left_out"]:
        texts = [Text(f"{name}: {text}") for name, text in summary["left_out"].items()]
        yield from section("Left out", Group(*texts))


def _deploy(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    lines = [*summary["deployment_notes"], *_counted(summary["vllm"]), *summary["proxy"]]
    yield from section("Deploy", Group(*map(Text, lines)))


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
