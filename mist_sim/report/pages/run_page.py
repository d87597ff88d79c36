"""The report of one run, and pages of pictures of one run or of several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.metrics.latency import ALL, NAMES
from mist_sim.metrics.run_warnings import LEAST_AT_LIMIT, nothing_finished
from mist_sim.metrics.stability import AT_END, grows
from mist_sim.report.elements import in_ms, latency, metric_title, number, percent
from mist_sim.report.pages.page import (
    Brief,
    Card,
    Drawing,
    Page,
    Verdict,
    billed,
    how_sure,
    limits_kept,
    printed,
)
from mist_sim.report.pictures.catalog import (
    MOST_BESIDE,
    PICTURES,
    draw,
    drawn,
    overlaid,
    side_by_side,
    warnings_of,
)
from mist_sim.report.pictures.style import COLOURS
from mist_sim.report.run import TITLES_OF, saved_tables, titled

if TYPE_CHECKING:
    from mist_sim.metrics import Result
    from mist_sim.report.pictures.catalog import RunData
    from mist_sim.report.pictures.picture import Picture


_ARRIVALS = re.compile(r"^  arrivals:\n((?: {4}.*\n)+)", re.MULTILINE)
_RATE = re.compile(r"(\S+) /s")
_KEY = re.compile(r"^ {4}(\w+): (\S.*)$", re.MULTILINE)


def offered_load(run: RunData) -> str:
    """Return a run's load: a rate as the scenario says it, users, or a burst.

    Rates that change, a trace's own and those of a run without a scenario are means over all
    arrivals.
    """
    # read by its lines, as `Scenario.resolved` writes them: YAML is above this package
    found = _ARRIVALS.search(run.scenario or "")
    arrivals = dict(_KEY.findall(found[1])) if found else {}  # rates are per second
    if arrivals.get("type") == "closed_loop":
        return _some(int(arrivals["concurrency"]), "user")
    if rate := _RATE.fullmatch(arrivals.get("rate", "")):
        return f"{float(rate[1]):g} requests a second"
    summary = run.summary
    some = _some(summary["completed"] + summary["failed"], "request")
    if arrivals.get("type") == "all_at_once":
        return f"a burst of {some}"
    if "stability" not in summary or not run.has("requests"):
        return some  # of users, whose number only a scenario says, or all at once
    table = run.table("requests")
    sent = table["arrival_time"][table["parent_id"].isna()]
    return f"{(len(sent) - 1) / (sent.max() - sent.min()):.3g} requests a second on average"


def _some(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"


_RANKS = ("miss", "within error", "pass")
_WORDS = {
    "miss": ("bad", "Misses its limits."),
    "within error": ("unsure", "Within error of its limits."),
    "pass": ("good", "Keeps its limits."),
}


def run_verdict(summary: Mapping[str, Any]) -> Verdict:
    """Return whether a run keeps its limits; without limits, its throughput."""
    if not summary["completed"]:
        return Verdict("bad", "Nothing finished.", nothing_finished(summary))
    if summary.get("unstable"):
        why = (
            "More work arrives than the clients can do, so latencies grow with the length of the "
            "run."
        )
        return Verdict("bad", "Overloaded.", f"{why} {_limits(summary)}".strip())
    if grows(summary):
        why = (
            "More and more requests waited until the last arrival, so latencies depend on when the "
            "load ends."
        )
        return Verdict("bad", f"{AT_END.capitalize()}.", f"{why} {_limits(summary)}".strip())
    if not summary.get("slo"):
        return Verdict("plain", "No limits were set.", _served(summary))
    judged = [*summary.get("slo_shares", {}).values(), *summary["slo"].values()]
    worst = min((each["verdict"] for each in judged), key=_RANKS.index)
    level, word = _WORDS[worst]
    return Verdict(level, word, _limits(summary))


def _limits(summary: Mapping[str, Any]) -> str:
    told = [_share(name, each) for name, each in summary.get("slo_shares", {}).items()]
    told += [_limit(name, each) for name, each in summary.get("slo", {}).items()]
    return f"{'; '.join(told)}." if told else ""


def _share(name: str, share: Mapping[str, Any]) -> str:
    who = "" if name == ALL else f" of {name}"
    good = "-" if share["value"] is None else f"{100 * share['value']:.4g} %"
    return f"{good} good requests{who}, {100 * share['asked']:g} % asked: {share['verdict']}"


def _limit(name: str, verdict: Mapping[str, Any]) -> str:
    percentile, metric, _ = name.split("_")
    value, limit = verdict["value"], f"{verdict['limit']:g} ms"
    found = "has no figure, as too many requests failed" if value is None else in_ms(value)
    unknown = "" if value is None or verdict["error_known"] else ", error not known"
    return f"{percentile} {NAMES[metric]} {found} of {limit}: {verdict['verdict']}{unknown}"


def _served(summary: Mapping[str, Any]) -> str:
    of_part, where = "", "the whole run"
    if summary.get("has_steady_part"):
        of_part, where = "steady_", "the steady part"
    return (
        f"{number(summary[f'{of_part}request_throughput'])} requests and "
        f"{number(summary[f'{of_part}output_throughput'])} output tokens a second in {where}, "
        f"p99 TTFT {' '.join(latency(summary['p99_ttft_ms']))}."
    )


_CARDS = (
    *("request_throughput", "output_throughput", "p99_ttft_ms", "p99_tpot_ms"),
    *("request_goodput", "steady_request_goodput", "energy_per_output_token_j"),
)
_DOUBTS = {
    "too short to tell": "unsure: too short to tell whether the clients keep up with the arrivals",
    AT_END: "overloaded at the end: queues grow until the last arrival",
    "unstable": "unstable: queues grow, so a longer run has longer latencies",
}
_MILLION = 1e6


def run_page(run: RunData, title: str, subtitle: Sequence[str] = ()) -> Page:
    """Return the report of a run. title: description of what was simulated."""
    summary = run.summary
    page = Page(
        title=title,
        subtitle=subtitle,
        verdict=run_verdict(summary),
        cards=list(_cards(summary)),
        figures=[_drawing(name, found) for name, found in drawn(run)],
        details=_details(run),
        brief=_brief(run, title),
    )
    return printed(page, saved_tables(run))


def page_of_result(found: Result, title: str) -> Page:
    """Return the report of a run in memory."""
    lines = found.title.splitlines()[1:]
    return run_page(found, title, [line for line in lines if line != title])


def _drawing(name: str, figure: Picture) -> Drawing:
    """Return a picture, or a panel of one, such as latency.ttft, below its heading."""
    return Drawing(name, PICTURES[name.partition(".")[0]].title, figure)


def plots_page(run: RunData, title: str, names: Sequence[str]) -> Page:
    """Return a page of some pictures, or of all pictures that the run has data for.

    Raises ScenarioError for unknown names, and for data that were not recorded.
    """
    asked = list(dict.fromkeys(names))
    found = [(name, draw(run, name)) for name in asked] if asked else list(drawn(run))
    if not found:
        raise ScenarioError("the run has no data to draw: no request arrived")
    drawings = [_drawing(name, figure) for name, figure in found]
    page = Page(title=title, verdict=run_verdict(run.summary), figures=drawings)
    return page.warned(run.summary)


def several_page(
    runs: Mapping[str, RunData], names: Sequence[str], *, in_one: bool = False
) -> Page:
    """Return a page of pictures of several runs, side by side or in the same axes (`in_one`).

    runs: by their titles. Raises ScenarioError as `side_by_side` and `overlaid` do; without names,
    what cannot be drawn of them is left out.
    """
    together, most = (overlaid, len(COLOURS)) if in_one else (side_by_side, MOST_BESIDE)
    drawings = []
    for name in dict.fromkeys(names) or PICTURES:
        try:
            figure = together(runs, name)
        except ScenarioError:
            if names or not 2 <= len(runs) <= most:
                raise
            continue
        drawings.append(_drawing(name, figure))
    how = "in the same axes" if in_one else "side by side"
    verdict = Verdict("plain", f"{len(runs)} runs {how}.", "")
    page = Page(title=" and ".join(runs), verdict=verdict, figures=drawings)
    return page.warned({"warnings": [each.data for each in warnings_of(runs)]})


def _brief(run: RunData, title: str) -> Brief:
    """Return the sheet: does it keep its limits, at what price, and with how much room?"""
    summary = run.summary
    what = title.split(";", maxsplit=1)[0]
    slo = summary.get("slo", {})
    question = (
        f"Can {what} serve {offered_load(run)} with {_asked(summary)}?"
        if slo
        else f"What can {what} serve?"
    )
    tiles = [_kept(summary), billed(summary), _room(run)]
    return Brief(question, _sure(summary), tiles, list(_assumed(summary)))


def _asked(summary: Mapping[str, Any]) -> str:
    """Return what is asked for, in words: shares of good requests, and limits on percentiles."""
    shares = [
        f"{100 * share['asked']:g} % of requests good" + ("" if name == ALL else f" of {name}")
        for name, share in summary.get("slo_shares", {}).items()
    ]
    limits = [f"{titled(name)} <= {each['limit']:g} ms" for name, each in summary["slo"].items()]
    return " and ".join([*shares, *limits])


def _sure(summary: Mapping[str, Any]) -> str:
    """Return how sure the verdict is.

    A run that is too short, or in which queues grow, tells nothing of a longer one; else the
    distance to limits counts, and the expected error.
    """
    if doubt := _DOUBTS.get(summary.get("stability", "")):
        return how_sure(doubt, summary)
    judged = [*summary.get("slo_shares", {}).values(), *summary.get("slo", {}).values()]
    verdicts = [(each["verdict"], each["error_known"]) for each in judged]
    if not all(is_known for _, is_known in verdicts):
        how = "not known of each limit"
    elif ("within error", True) in verdicts:
        how = "unsure, as a limit lies within the expected error"
    else:
        how = "sure beyond the expected error" if verdicts else ""
    return how_sure(how, summary)


def _kept(summary: Mapping[str, Any]) -> Card:
    slo = summary.get("slo", {})
    if not slo:
        return Card("limits", "none", note="give an slo to have them judged")
    good, shares = summary.get("good_request_fraction"), summary.get("slo_shares", {})
    notes = [] if good is None else [f"{percent(good, digits=1)} of the requests are good"]
    if (share := shares.get(ALL)) is not None:
        notes.append(f"{100 * share['asked']:g} % asked")
    return limits_kept({**shares, **slo}, *notes)


def _room(run: RunData) -> Card:
    """Return the tile of how full the engines are, and where capacity is told."""
    summary, clients = run.summary, run.table("clients")
    room = summary.get("room")
    known = clients[clients["num_gpu_blocks"] > 0]
    use = (known["peak_used_blocks"] / known["num_gpu_blocks"]).max() if len(known) else None
    notes = [] if use is None else [f"at the peak {percent(use)} of the KV cache is used"]
    capacity = "mist goodput tells how much more load it carries"
    if room is None:
        why = "not known: clients fail or start, or all requests came at once"
        return Card("room", "-", note="; ".join([why, *notes, capacity]))
    limit = summary.get("room_limit")
    if limit and 1 - room >= LEAST_AT_LIMIT:
        notes.insert(0, f"else mostly full for {limit}")
    note = "; ".join(["steps could have held more", *notes, capacity])
    return Card("room", percent(room), "of the time", note=note)


def _assumed(summary: Mapping[str, Any]) -> Iterator[str]:
    names = summary.get("assumed", {}).values()
    if every := dict.fromkeys(name for each in names for name in each):
        yield f"Not given, so assumed: {', '.join(every)}."
    times = dict.fromkeys(summary["estimates"].values())
    engines = dict.fromkeys(summary.get("engines", {}).values())
    if times:
        yield f"Step times: {', '.join(times)}."
    if engines:
        yield f"Defaults of {', '.join(engines)}."


def _cards(summary: Mapping[str, Any]) -> Iterator[Card]:
    for key in _CARDS:
        if (value := summary.get(key)) is not None:
            name, unit = TITLES_OF.get(key) or metric_title(key)
            shown = latency(value) if unit == "ms" else (number(value), unit)
            yield Card(name, *shown, key)
    if summary.get("usd_per_hour") is not None or summary.get("cost_usd") is not None:
        yield replace(billed(summary), note="")
        yield _of_tokens(summary)


def _of_tokens(summary: Mapping[str, Any]) -> Card:
    """Return the tile of dollars a million output tokens: as billed, or of GPUs rented for it."""
    key, unit = "cost_per_million_output_tokens_usd", "$ a million output tokens"
    if summary.get(key) is not None:
        return Card("cost", number(summary[key]), unit, key)
    tokens = summary["output_throughput"] or 0.0
    dollars = summary["usd_per_hour"] / 3600 / tokens * _MILLION if tokens else float("nan")
    return Card("cost", number(dollars), unit)


def _details(run: RunData) -> dict[str, str]:
    summary: Mapping[str, Any] = run.summary
    times, engines, assumed = (summary.get(key, {}) for key in ("estimates", "engines", "assumed"))
    lines = [
        *(f"{client}: step times {origin}" for client, origin in times.items()),
        *(f"{client}: defaults of {name}" for client, name in engines.items()),
        *(f"{each}: assumed, since not given: {', '.join(of)}" for each, of in assumed.items()),
    ]
    found = {"Where the step times come from": "\n".join(lines) or "no client times steps"}
    if run.scenario is not None:
        found["The scenario, with every default"] = run.scenario
    return found
