"""A search of a space: the front, the outcome of the rest, one row; tables, page and picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isinf, isnan, nan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.report.elements import (
    columns,
    count,
    good_share,
    in_ms,
    listed,
    number,
    pairs,
    section,
    with_warnings,
)
from mist_sim.report.pages.page import Drawing, Page, Verdict
from mist_sim.report.pictures.findings import front_picture
from mist_sim.report.run import expected_of_each

_MOST_ROWS = 15  # of a table; all are in the files
_FEW_ROWS = 6  # all of which are shown, also equal ones
_SHORT = {
    "tensor_parallel_size": "TP",
    "pipeline_parallel_size": "PP",
    "data_parallel_size": "DP",
    "max_num_batched_tokens": "chunk",
    "max_num_seqs": "seqs",
}
_WORDS = {
    "front": "on the front",
    "kept": "keep everything, and others are ahead",
    "undecided": "attain all rates tried, and may be ahead",
    "stopped": "stopped after one run, which missed the rate of the front",
    "proved": "not run, since a bound proves that others are ahead",
    "behind": "not run, since others are ahead in all that is known",
    "excluded": "break a constraint",
    "failed": "cannot be, or failed",
    "not tried": "not tried",
}


def space_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a search. summary: `SpaceSearch.summary`."""
    by_number = {row["number"]: row for row in summary["rows"]}
    best = [by_number[number] for number in summary["front"]]
    kept = [row for row in summary["rows"] if row["status"] == "kept"]
    first = summary["objectives"][0]
    sign = 1 if summary["better"][first] == "less" else -1
    kept.sort(key=lambda row: (sign * row["figures"].get(first, nan), row["number"]))
    unknown = [row for row in summary["rows"] if row["status"] == "undecided"]
    if unknown:
        title = "The front" if len(summary["objectives"]) > 1 else "The best of the others"
    else:
        title = "The front" if len(best) > 1 else "The best"
    rows, runs = len(summary["rows"]), summary["num_runs"]
    all_rows = f"{count(rows)} configurations, {count(runs)} runs"
    return Group(
        *section("Best", Text(summary["sentence"])),
        *(section(title, _rows(best, summary)) if best else ()),
        *(section("Attain all rates tried", _rows(unknown, summary)) if unknown else ()),
        *(section("Others that keep everything", _rows(kept, summary)) if kept else ()),
        *section(all_rows, _statuses(summary)),
        *expected_of_each({row["name"]: row["expected_errors"] for row in best}),
    )


def row_table(row: Mapping[str, Any]) -> RenderableType:
    """Return all data of one row."""
    figures = [(name.replace("_", " "), _shown(name, v), "") for name, v in row["figures"].items()]
    if row["interval"]:
        low, high = row["interval"]
        ends = f"{number(low)} to {'-' if high is None or isinf(high) else number(high)}"
        figures.append(("95 % interval", ends, "/s, of the goodput"))
    if row["bound"] is not None:
        figures.append(("bound", number(row["bound"]), "/s, which no such engines exceed"))
    values = [(key, str(value), "") for key, value in row["values"].items()]
    reason = f": {row['reason']}" if row["reason"] else ""
    of_run = [
        (key.replace("_", " "), number(value), "")
        for key, value in (row["run"] or {}).items()
        if value is not None
    ]
    body = Group(
        *section(f"Row {row['number']}: {row['name']}", Text(f"{_WORDS[row['status']]}{reason}")),
        *section("Set", pairs(values)),
        *section("Figures", pairs(figures)),
        *(section("Rates tried", _trials(row["trials"])) if row["trials"] else ()),
        *(section("Run at its own rate", pairs(of_run)) if row["run"] else ()),
    )
    return with_warnings(row, body)


def _statuses(summary: Mapping[str, Any]) -> RenderableType:
    rows = []
    for status, words in _WORDS.items():
        mine = [row for row in summary["rows"] if row["status"] == status]
        if mine:
            requests = sum(row["num_requests"] for row in mine)
            rows.append([words, count(len(mine)), count(requests) if requests else "-"])
    return Group(
        columns(["", "number", "requests"], rows, right=[1, 2]), *_reasons(summary["rows"])
    )


def _reasons(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Yield a line a constraint, and one a kind of failure, with how many rows it excludes."""
    broken: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        for name in row["broken"]:
            broken.setdefault(name, []).append(row)
        if row["status"] == "failed":
            broken.setdefault("failed", []).append(row)
    for name, mine in sorted(broken.items(), key=lambda pair: -len(pair[1])):
        first = mine[0]
        yield Text(f"{name}: {len(mine)}, such as {first['name']}: {first['reason']}", style="dim")


def _rows(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> RenderableType:
    """Return a table of rows; of many rows equal in all objectives, the first one."""
    keys = list(summary["objectives"])
    own = ("num_gpus", "usd_per_hour", "goodput")
    keys += [
        key for key in own if key not in keys and any(not isnan(_value(row, key)) for row in rows)
    ]
    equal: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        values = tuple(_value(row, key) for key in summary["objectives"])
        equal.setdefault(values, []).append(row)
    first = [mine[0] for mine in equal.values()][:_MOST_ROWS]
    shown = rows if len(rows) <= _FEW_ROWS else first
    set_here = list(summary["labels"])
    titles, below = ["row"], [""]
    for key in set_here:
        *before, last = summary["labels"][key].split(".")
        titles.append(_SHORT.get(last, last))
        below.append(".".join(before))
    for key in keys:
        title, unit = summary["titles"][key]
        titles.append(title)
        below.append(unit)
    cells = [
        [
            str(row["number"]),
            *(str(row["values"].get(key, "")) for key in set_here),
            *(_figure(row, key) for key in keys),
        ]
        for row in shown
    ]
    right = [0, *range(1 + len(set_here), len(titles))]
    left_out = len(rows) - len(shown)
    note = f"{left_out} more, some of them equal to one of these; --out writes all"
    table = listed(titles, cells, right=right, below=below)
    return Group(table, *([Text(note, style="dim")] if left_out else ()))


def _value(row: Mapping[str, Any], key: str) -> float:
    """Return a figure, or what it is at least; NaN without either."""
    return float(row["figures"].get(key, row.get("at_least", {}).get(key, nan)))


def _figure(row: Mapping[str, Any], key: str) -> str:
    """Return a figure as text, with a sign before what it is at least."""
    sign = "" if key in row["figures"] or key not in row.get("at_least", ()) else "≥ "
    return sign + _shown(key, _value(row, key))


def _shown(key: str, value: float) -> str:
    return in_ms(value) if key.endswith("_ms") else number(value)


def _trials(trials: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        [
            f"{trial['rate']:.4g}",
            good_share(trial),
            trial["verdict"],
            count(trial["num_requests"]),
            trial["worst_limit"],
        ]
        for trial in trials
    ]
    return columns(["rate, /s", "good", "", "requests", "worst"], rows, right=[0, 1, 3])


def search_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a search. summary: `SpaceSearch.summary`."""
    is_plane = len(summary["objectives"]) > 1
    figures = [Drawing("front", "The front", front_picture(summary))] if is_plane else []
    found = f"{len(summary['front'])} of {len(summary['rows']):,} configurations on the front."
    verdict = Verdict("plain", found, summary["sentence"])
    return Page(title, verdict, figures=figures)
