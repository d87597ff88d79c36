"""The goodput of a scenario, with the rates that were tried for it, and of TaiChi's sliders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil, exp, floor, isfinite, isinf, isnan, nan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.metrics.latency import limit_title, percentile_of
from mist_sim.report.elements import (
    columns,
    count,
    duration,
    good_share,
    latency,
    number,
    pairs,
    percent,
    section,
)
from mist_sim.report.pages.page import Brief, Card, Drawing, Page, Verdict, how_sure, monthly
from mist_sim.report.pictures.picture import Limit, Mark, Panel, Picture, Points, Span
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, WAIT_COLOUR
from mist_sim.report.run import expected_of_each

_MILLION = 1e6
_NO_LOAD = (
    "before the load makes more of them: near the goodput errors of step times fill queues, and "
    "latencies may be off by far more; mist run at that rate says by how much"
)
_FURTHEST = 100.0  # times a limit, beyond which times are cut
ENDED_EARLY = "≤ a bound: the run ended once it had missed; all of its requests may fare far worse"


def goodput_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a search. summary: `Goodput.summary`."""
    return Group(
        *section("Goodput", pairs(_figures(summary))),
        *_spending(summary),
        *section("Users tried" if _of_users(summary) else "Rates tried", _trials(summary)),
        *_what_binds(summary.get("binding")),
        *expected_of_each({"": summary["expected_errors"]}, _NO_LOAD),
    )


def error_words(summary: Mapping[str, Any]) -> str:
    """Return which errors the interval of a goodput has in it."""
    if "step_ends" in summary:
        return "with the expected error of the step times"
    return "with the expected error at the same load; slower steps that fill queues are not in it"


def asked(summary: Mapping[str, Any]) -> str:
    """Return the limits of the slo, in words."""
    of_run = _on_percentiles(summary)
    limits = [_limit(name, ms) for name, ms in summary["slo_ms"].items() if name not in of_run]
    share = f"{100 * summary['attainment_asked']:g} %"
    keep = "each limit" if summary["each_limit_alone"] else "all limits"
    slack = f" x {1 + summary['relaxation']:g}" if summary["relaxation"] else ""
    of_classes = summary.get("attainment_asked_of", {})
    share += "".join(f", {100 * each:g} % of {name}" for name, each in of_classes.items())
    own = [f"{share} keep {keep}: {', '.join(limits)}{slack}"] if limits else [f"{share} finish"]
    return "; ".join([*own, *(_limit(name, ms) for name, ms in of_run.items())])


def judges_requests(summary: Mapping[str, Any]) -> bool:
    """Whether a limit tells good requests from others; else figures of the whole run decide."""
    return not summary["slo_ms"].keys() <= _on_percentiles(summary).keys()


def time_over_limit(trial: Mapping[str, Any]) -> float:
    """Return the worst percentile over its limit; NaN if the run does not tell.

    A run that ended early has missed, no one knows by how much: 1.
    """
    if not trial["is_whole"]:
        return 1.0
    return nan if trial["over"] is None else float(trial["over"])


def _on_percentiles(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits on percentiles of a run, milliseconds."""
    own = {name: ms for name, ms in summary["slo_ms"].items() if percentile_of(name)}
    return {**own, **summary.get("percentiles_ms", {})}


def _limit(name: str, ms: float) -> str:
    return f"{limit_title(name)} {duration(ms / 1e3)}"


def _figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    unit = summary["unit"]
    doubt = "" if summary["interval"][0] or isnan(summary["goodput"]) else ", undecided"
    yield "goodput", _rate(summary["goodput"]), f"{unit}{doubt}, {asked(summary)}"
    if not isnan(summary["goodput_per_gpu"]):
        gpus = summary["num_gpus"]
        yield "per GPU", _rate(summary["goodput_per_gpu"]), f"{unit}, {gpus} GPU{'s' * (gpus > 1)}"
    if off := summary.get("error_interval"):
        yield "nine in ten", between(*off), f"{unit}, {error_words(summary)}"
    low, high = summary["interval"]
    if _of_users(summary):
        low, high = floor(low), high if isinf(high) else ceil(high)
    of_seeds = f", 95 % of {len(summary['seeds'])} seeds" if len(summary["seeds"]) > 1 else ""
    unknown = "; no rate tried is known to be attained"
    yield "at least", _rate(low or nan), f"{unit}{of_seeds if low else unknown}"
    yield "below", "-" if isinf(high) else _rate(high), f"{unit}{of_seeds}"
    if summary["first_limit"]:
        yield (
            "first to miss",
            limit_title(summary["first_limit"]),
            "beyond that" if _of_users(summary) else "beyond that rate",
        )
    runs, requests = summary["num_runs"], summary["num_requests"]
    trials = [trial for seed in summary["seeds"] for trial in seed["trials"]]
    undecided = sum(trial["attained"] is None for trial in trials)
    long = f"{undecided} without a verdict" if undecided else "each as long as its verdict needs"
    steady, as_is = f"in steady state, {long}", f"of {count(requests)} requests each"
    yield "runs", count(runs), steady if summary["is_steady"] else as_is


def _spending(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the throughput per dollar and joule at the goodput, if the scenario asks for it."""
    there = summary.get("at_goodput")
    if not there:
        return
    rate, gpus = there["output_tokens_per_s"], summary["num_gpus"]
    rows = [("output tokens", number(rate), "/s" + (f", {number(rate / gpus)} a GPU" * bool(gpus)))]
    if "good_tokens_per_s" in there:
        rows.append(("of good requests", number(there["good_tokens_per_s"]), "/s"))
    for key, unit in (("usd", "$"), ("joule", "J")):
        if f"requests_per_{key}" in there:
            tokens = there[f"output_tokens_per_{key}"]
            million = f", {_three(_MILLION / tokens)} {unit} a million" if tokens else ""
            rows.append(("requests", _three(there[f"requests_per_{key}"]), f"per {unit}"))
            rows.append(("output tokens", number(tokens), f"per {unit}{million}"))
    yield from section("At the goodput", pairs(rows))


def _of_users(summary: Mapping[str, Any]) -> bool:
    """Whether the goodput is a number of users, of a closed loop."""
    return bool(summary["unit"] == "users")


def _load(summary: Mapping[str, Any]) -> str:
    """Return what goodputs are of, in words."""
    return "users" if _of_users(summary) else "requests a second"


def _trials(summary: Mapping[str, Any]) -> RenderableType:
    """Return a table with a row per run: its rate, result and limits."""
    seeds = summary["seeds"]
    decides, cell = _what_decides(summary)
    rows = [
        [
            *([str(seed["seed"])] if len(seeds) > 1 else []),
            _rate(trial["rate"]),
            cell(trial),
            {True: "attained", False: "missed", None: "undecided"}[trial["attained"]]
            + _remark(trial),
            count(trial["num_requests"]),
        ]
        for seed in seeds
        for trial in seed["trials"]
    ]
    load = "users" if _of_users(summary) else "rate, /s"
    titles = [*(["seed"] if len(seeds) > 1 else []), load, decides, "", "requests"]
    texts = len(titles) - 2
    table = columns(titles, rows, right=[k for k in range(len(titles)) if k != texts])
    if all(trial["is_whole"] for seed in seeds for trial in seed["trials"]):
        return table
    ended_early = ENDED_EARLY if judges_requests(summary) else ENDED_EARLY.replace("≤", ">")
    return Group(table, Text(ended_early, style="dim"))


def _what_decides(
    summary: Mapping[str, Any],
) -> tuple[str, Callable[[Mapping[str, Any]], str]]:
    """Return the title and the cells of the column with what decides whether a run attains.

    Where no limit is on requests: the figure of a percentile; of several, the worst over its limit.
    """
    if judges_requests(summary):
        return "good", good_share
    limits = list(_on_percentiles(summary).items())
    name, limit = limits[0][0], limits[0][1] * (1 + summary["relaxation"])
    is_one = len(limits) == 1

    def cell(trial: Mapping[str, Any]) -> str:
        if trial["attainment"] < summary["attainment_asked"]:
            return f"{good_share(trial)} finish"
        over = min(time_over_limit(trial), _FURTHEST)
        if isnan(over):
            return "-"
        sign = "" if trial["is_whole"] and over < _FURTHEST else "> "
        return sign + (" ".join(latency(over * limit)) if is_one else percent(over, 1))

    title = f"{limit_title(name)} ≤ {duration(limit / 1e3)}"
    return title if is_one else "time over limit", cell


def _what_binds(binding: Mapping[str, Any] | None) -> Iterator[RenderableType]:
    """Yield the binding resource, if computed: a sentence, and the gain of each resource."""
    if binding is None:
        return
    rows = [
        [
            one["name"],
            f"{100 * (exp(-one['gain']) - 1):+.1f} %".replace("-", "−"),
            one["worth"]
            or (f"none, {limit_title(limit)}" if (limit := one["then_fails"]) else "-"),
        ]
        for one in binding["resources"]
    ]
    limit = binding["limit"]
    falls = limit_title(limit) if percentile_of(limit) else "time over limit"
    titles = [f"relaxed by {100 * binding['by']:g} %", falls, "more goodput"]
    table = columns(titles, rows, right=[1, 2])
    yield from section("What binds", Group(Text(binding["sentence"]), Text(), table))


def _remark(trial: Mapping[str, Any]) -> str:
    if not trial["is_whole"]:
        return ", ended early"
    if trial["attained"] is False and percentile_of(trial.get("worst_limit") or ""):
        return f", {limit_title(trial['worst_limit'])}"
    return f", {trial['stability']}" if trial["stability"] else ""


def _three(value: float) -> str:
    """Return a number that may be small, with three digits."""
    return f"{value:.3g}" if value < 1 else number(value)


def between(low: float, high: float | None) -> str:
    """Return a range of rates; None or infinite is not known."""
    if not high or isinf(high):
        return f"{low:.3g} or more"
    return f"{low:.3g} to {high:.3g}" if low else f"{high:.3g} or less"


def _rate(value: float) -> str:
    return "-" if isnan(value) else f"{value:.4g}"


_MARKS = {
    True: ("attained", COLOURS[2], "o"),
    False: ("missed", LIMIT_COLOUR, "x"),
    None: ("undecided", WAIT_COLOUR, "D"),
}


def goodput_page(summary: Mapping[str, Any], title: str) -> Page:
    """Return the report of a search. summary: `Goodput.summary`."""
    figures = list(_drawings(summary))
    return Page(title, _verdict(summary), figures=figures, brief=_brief(summary, title))


def _brief(summary: Mapping[str, Any], title: str) -> Brief:
    what = title.split(";", maxsplit=1)[0]
    load = _load(summary)
    question = f"How many {load} can {what} serve within the limits?"
    low, high = summary["interval"]
    is_known = not isnan(summary["goodput"])
    how = f"between {low:.4g} and {high:.4g} {load} by the runs"
    if off := summary.get("error_interval"):
        how += f", {between(*off)} {error_words(summary)}"
    how = how if is_known else summary["status"]
    rate = f"{summary['goodput']:.4g}" if is_known else "-"
    first = summary["first_limit"]
    room = [
        Card("limits", rate, load, note=asked(summary)),
        monthly(summary),
        Card(
            "room",
            "-" if isinf(high) or not is_known else f"{high:.4g}",
            "" if isinf(high) or not is_known else f"{load} miss a limit",
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
    return Verdict("plain", f"{summary['goodput']:.4g} {_load(summary)}.", sentence)


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
        yield Drawing(
            "rates",
            f"{what} at each {'number of users' if _of_users(summary) else 'rate'} tried",
            _rates(summary, known),
        )


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
            texts = [
                f"{row['rate']:.4g} {summary['unit']}: {_told(row, of_requests)}" for row in rows
            ]
            marks.append(Points(*at, name, colour, symbol, texts))
    asked_for = 100 * summary["attainment_asked"] if of_requests else 100.0
    marks.append(Limit(asked_for, f"asked for {asked_for:g} %" if of_requests else "limit"))
    title = "good requests, %" if of_requests else "time over limit, %"
    return Picture([Panel(title, marks, _load(summary), height=3.0)])


def _told(trial: Mapping[str, Any], of_requests: bool) -> str:
    """Return the text that a mark shows under the pointer."""
    what, bound = ("good", "at most ") if of_requests else ("of the limit", "more than ")
    share = f"{'' if trial['is_whole'] else bound}{100 * trial['share']:.1f} %"
    return f"{share} {what}, {trial['num_requests']:,} requests"


def sliders_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a race. summary: `SliderSearch.summary`."""
    best = summary["best"]
    searches = [entry["search"] for entry in best.values()]
    limits = f", {asked(searches[0])}" if searches else ""
    runs = f"{count(len(summary['positions']))} positions, {count(summary['num_runs'])} runs"
    return Group(
        *section(f"Best of each design{limits}", _best_sliders(best)) if best else (),
        *section(f"Sliders tried ({runs})", _positions(summary["positions"])),
        *section("Verdict", Text(summary["verdict"])) if summary["verdict"] else (),
        *expected_of_each({name: each["search"]["expected_errors"] for name, each in best.items()}),
    )


def _best_sliders(best: Mapping[str, Any]) -> RenderableType:
    rows = [[design, entry["name"], _found(entry)] for design, entry in best.items()]
    return columns(["", "clients x chunk", "goodput, /s"], rows, right=[2])


def _positions(positions: list[Mapping[str, Any]]) -> RenderableType:
    """A column for watermarks where some were tried."""
    marks = [row["watermark"] for row in positions]
    marked = ["watermark"] if any(mark is not None for mark in marks) else []
    rows = [
        [
            row["design"],
            f"{row['num_p']}:{row['num_d']}",
            "-" if row["s_d"] == 0 else f"{row['s_p']:,}",
            f"{row['s_d']:,}",
            *["-" if mark is None else f"{mark:g}" for _ in marked],
            _found(row),
        ]
        for row, mark in zip(positions, marks, strict=True)
    ]
    titles = ["", "P:D", "S_P", "S_D", *marked, "goodput, /s"]
    return columns(titles, rows, right=list(range(1, len(titles))))


def _found(row: Mapping[str, Any]) -> str:
    if not isnan(row["goodput"]):
        return f"{row['goodput']:.4g}"
    if not isnan(row["attained"]):
        return f"> {row['attained']:.4g}"
    return "-" if isnan(row["missed_at"]) else f"< {row['missed_at']:.4g}"
