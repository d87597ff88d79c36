"""Scenarios side by side, and the winner over the plane of limits: tables, page and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isinf, isnan, nan
from string import ascii_uppercase
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.metrics.latency import limit_of, limit_title
from mist_sim.report.elements import (
    Folded,
    in_ms,
    listed,
    merged,
    metric_cell,
    number,
    percent,
    section,
)
from mist_sim.report.pages.page import (
    Brief,
    Card,
    Drawing,
    Page,
    Verdict,
    cheapest_token,
    decision,
    how_sure,
)
from mist_sim.report.pictures.picture import Bars, Panel, Picture
from mist_sim.report.run import expected_of_each

Title = TypeVar("Title")

_TITLES = {
    "num_gpus": "GPUs",
    "goodput": "goodput, /s",
    "goodput_per_gpu": "goodput per GPU, /s",
    "headroom": "headroom",
    "room": "room, of the time",
    "good_request_fraction": "good requests",
    "failed": "failed requests",
    **{
        f"p{p}_{metric}_ms": f"p{p} {metric.upper()}, ms"
        for metric in ("ttft", "tpot")
        for p in (50, 90, 99)
    },
    "steady_output_throughput": "output tokens, /s",
    "steady_output_throughput_per_gpu": "output tokens per GPU, /s",
    "num_hand_overs": "transfers",
    "handed_over_tokens": "tokens transferred",
    "mean_hand_over_ms": "mean transfer, ms",
    "energy_j": "energy, J",
    "cost_usd": "cost, $",
    "cost_per_million_output_tokens_usd": "$ a million output tokens",
    "good_tokens_per_usd": "good output tokens per $",
    "energy_per_output_token_j": "J an output token",
    "cost_per_million_output_tokens_at_goodput_usd": "the same $ at goodput",
    "energy_per_output_token_at_goodput_j": "the same J at goodput",
}
_COUNTS = ("num_gpus", "failed", "num_hand_overs", "handed_over_tokens")
_LEAST_RATE = 0.005  # requests a second; less is written as 0.00
_MARKED, _PLAIN = " *", "  "


_COLUMNS = {
    "num_gpus": ("GPUs", ""),
    "goodput": ("goodput", "/s"),
    "goodput_per_gpu": ("a GPU", "/s"),
    "headroom": ("headroom", ""),
    "room": ("room", "of time"),
    "good_request_fraction": ("good", ""),
    "failed": ("failed", ""),
    **{
        f"p{p}_{metric}_ms": (f"{metric.upper()}", f"p{p}, ms")
        for metric in ("ttft", "tpot")
        for p in (50, 99)
    },
    "steady_output_throughput": ("tokens", "/s"),
    "mean_hand_over_ms": ("transfer", "ms"),
    "energy_per_output_token_j": ("J", "a token"),
    "cost_per_million_output_tokens_usd": ("$", "a million"),
    "energy_per_output_token_at_goodput_j": ("J", "at goodput"),
    "cost_per_million_output_tokens_at_goodput_usd": ("$", "at goodput"),
}
"""Figures by which many scenarios are compared, as titles of two lines; others are in the files.

The percentile of a limit takes the place of a median."""

_BY_GOODPUT = ("goodput", "goodput_per_gpu", "headroom")
_BY_GPU = ("num_gpus", "goodput_per_gpu")
_STAR = "* the best{}; goodputs, means of seeds only beyond errors"
_RATES = (
    "tokens a second of the steady part of each run, without ramp and end; no star where requests "
    "come at a rate, which all serve that keep up; dollars and joules are of whole runs, with both"
)
_FINISHED = "latencies of requests that finished, except beside limits"
_JOULES = "joules, where they were measured, are 7 % (H100) to 17 % (B200) off in the mean"
# docs/background/power_and_cost.md
_COARSE = "≥ not searched further, since another surely serves more"
_PRICES = 3  # at which others break even, a line each
_SIDE_BY_SIDE = 4  # scenarios; more stand below one another


def comparison_table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a comparison. summary: `Comparison.summary`."""
    names = list(summary["scenarios"])
    plane = summary.get("slo_plane")
    cases = summary["scenarios"]
    if len(names) > _SIDE_BY_SIDE:
        title, table = _below_one_another(summary)
    else:
        title, right = "Comparison", range(1, len(names) + 1)
        table = listed(["", *names], list(_rows(summary)), right=right)
    title += ", stopped before its end" if summary.get("is_stopped") else ""
    has_limits = any(not isnan(each["good_request_fraction"]) for each in cases.values())
    star = _STAR.format(" that keep their limits" if has_limits or summary["limits"] else "")
    below = [star, _RATES, *([_COARSE] if _coarse(summary) else [])]
    if any(not isnan(case.get("energy_j", nan)) for case in cases.values()):
        below.append(_JOULES)
    if any(case["failed"] > 0 for case in cases.values()):
        below.append(_FINISHED)
    prices = summary.get("break_even", ())
    at_prices = list(prices[:_PRICES])
    if len(prices) > _PRICES:
        at_prices.append(f"and {len(prices) - _PRICES} more")
    return Group(
        *section(title, Group(table, *(Text(line, style="dim") for line in below))),
        *section("Verdict", Text(summary["verdict"])) if summary["verdict"] else (),
        *_split(summary.get("split")),
        *_told("Why the others lose", summary.get("losers", {})),
        *section("Break-even", Group(*map(Text, at_prices))) if prices else (),
        *_told("Left out", summary.get("left_out", {})),
        *expected_of_each(summary["expected_errors"]),
        *_plane(plane, names) if plane else (),
    )


def _split(found: Mapping[str, Any] | None) -> Iterator[RenderableType]:
    """Yield whether to split, and what would turn the answer; empty without both forms."""
    if found is not None:
        answer, said = found["answer"].capitalize(), found["sentence"]
        answer = said if said.startswith(answer) else f"{answer}: {said}"
        turns = [f"It would turn with {line}." for line in found["turns"]]
        not_even = found["does_not_turn"]
        less = [f"Not even {not_even} would turn it."] if not_even else []
        yield from section("Should I split?", Text(" ".join([answer, *turns, *less])))


def _told(title: str, texts: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield text for the known entries by name; empty without any."""
    if texts:
        yield from section(title, Group(*map(Text, merged(texts.items()))))


def _below_one_another(summary: Mapping[str, Any]) -> tuple[str, RenderableType]:
    """Return a title, and a table with a row a scenario."""
    cases = summary["scenarios"]
    gpus = {case["num_gpus"] for case in cases.values() if not isnan(case["num_gpus"])}
    alike = len(gpus) == 1
    judged = {limit_of(key)[0] for key in summary.get("limits", ()) if key not in _COLUMNS}
    few = {
        key: title for key, title in _COLUMNS.items() if key not in map("p50_{}_ms".format, judged)
    }
    columns = _with_limits(few, summary, lambda latency, p: (latency, f"{p}, ms"))
    keys = [key for key in columns if _is_shown(key, summary) and not (alike and key in _BY_GPU)]
    titles, below = zip(*[columns[key] for key in keys], strict=True)
    rows = [[name, *(_marked(summary, key, name) for key in keys)] for name in cases]
    each = ""
    if alike:
        (size,) = gpus
        each = f", {size:,.0f} GPU{'s' * (size != 1)} each"
    return f"Comparison of {len(cases)} scenarios{each}", Folded(["", *titles], ["", *below], rows)


def _with_limits(
    titles: Mapping[str, Title], summary: Mapping[str, Any], title_of: Callable[[str, str], Title]
) -> dict[str, Title]:
    """Return titles with those of the figures beside limits, by latency and percentile.

    title_of: makes one of a latency and a percentile.
    """
    keys = list(titles)
    latencies = [key for key in keys if key.startswith("p") and key.endswith("_ms")]
    first = keys.index(latencies[0])
    latencies += [key for key in summary.get("limits", ()) if key not in titles]
    order = list(dict.fromkeys(limit_of(key)[0] for key in latencies))

    def place(key: str) -> tuple[int, float]:
        limit, percentile = limit_of(key)
        return order.index(limit), float(percentile.removeprefix("p"))

    latencies.sort(key=place)
    found: dict[str, Title] = {}
    for key in dict.fromkeys((*keys[:first], *latencies, *keys)):
        if key in titles:
            found[key] = titles[key]
        else:
            limit, percentile = limit_of(key)
            found[key] = title_of(limit_title(limit), percentile)
    return found


def _rows(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row a figure that some scenario has."""
    cases = summary["scenarios"]
    titles = _with_limits(_TITLES, summary, lambda latency, p: f"{p} {latency}, ms")
    for key, title in titles.items():
        if _is_shown(key, summary):
            yield [title, *(_marked(summary, key, name) for name in cases)]


def _is_shown(key: str, summary: Mapping[str, Any]) -> bool:
    """Tell whether some scenario has the figure, or its goodput was searched."""
    values = [figures.get(key, nan) for figures in summary["scenarios"].values()]
    known = [value for value in values if not isnan(value)]
    if key == "failed":
        return any(known)
    return bool(known) or (key == "goodput" and bool(summary["goodput"]))


def _marked(summary: Mapping[str, Any], key: str, name: str) -> str:
    """Return the figure of a scenario, marked where it is the best."""
    is_best = name in summary["best"].get(key, ())
    is_coarse = key in _BY_GOODPUT and name in _coarse(summary)
    value = summary["scenarios"][name][key]
    if key == "goodput" and isnan(value) and name in summary["goodput"]:
        cell = _bound(summary["goodput"][name])
    else:
        cell = ("≥ " if is_coarse else "") + _cell(key, value)
    return cell + (_MARKED if is_best else _PLAIN)


def _bound(found: Mapping[str, Any]) -> str:
    """Return the bounds of a goodput that has no value. found: `Goodput.summary`."""
    low, high = found["bounds"]
    if low and high is not None and not isinf(high):
        return f"{number(low)} to {number(high)}"
    if low:
        return f"> {number(low)}"
    if high is None or isinf(high):
        return "-"
    return f"< {number(high)}" if high >= _LEAST_RATE else "none"


def _coarse(summary: Mapping[str, Any]) -> list[str]:
    """Return the scenarios whose search ended early because another surely serves more."""
    return [name for name, found in summary["goodput"].items() if found.get("is_coarse")]


def _cell(key: str, value: float) -> str:
    if isnan(value):
        return "-"
    if key == "good_request_fraction":
        return percent(value, 1)
    if key in ("headroom", "room"):
        return percent(value)
    is_small = key.startswith("cost_per") and 0 < abs(value) < 1
    if is_small or key == "cost_usd" or key.startswith("energy_per"):
        return f"{value:.3g}"
    if key in _COUNTS and value == round(value):
        return f"{value:,.0f}"
    if key.endswith("_ms"):
        return in_ms(value)
    return number(value)


def _plane(plane: Mapping[str, Any], names: list[str]) -> Iterator[RenderableType]:
    """Yield a map of letters, `?` beyond the 26th, and their legend."""

    def letter(winner: str, is_clear: bool) -> str:
        found = letters.get(winner, "?")
        return found if is_clear else found.lower()

    letters = dict(zip(names, ascii_uppercase, strict=False)) | {"tie": "=", "nobody": "."}
    rows = zip(plane["ttft_limits_s"], plane["winners"], plane["is_clear"], strict=True)
    lines = [
        f"{_ms(limit):>7}  " + " ".join(map(letter, winners, is_clear))
        for limit, winners, is_clear in reversed(list(rows))
    ]
    low, high = (_ms(plane["tpot_limits_s"][k]) for k in (0, -1))
    share = f"{100 * plane['attainment_asked']:g} %"
    meaning = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    is_open = (
        f"; {plane['num_open']} of the ties are of scenarios that attain the highest rate, "
        f"{plane['rates'][-1]:g} /s: higher --rates may tell them apart"
    )
    legend = f"{meaning}; small letters: not clear at the rates that were run"
    body = Group(
        Text(f"limit on TTFT (down), on TPOT (across: {low} to {high} ms), for {share}"),
        *map(Text, lines),
        Text(legend + (is_open if plane["num_open"] else ""), style="dim"),
    )
    yield from section(f"Who has most goodput{' per GPU' * bool(plane['by_gpu'])}", body)


def _ms(seconds: float) -> str:
    return f"{float(f'{1e3 * seconds:.3g}'):g}"


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
    return Page(title, verdict, figures=list(_drawings(summary)), brief=brief)


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
