"""Scenarios side by side, and the winner over the plane of limits, as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isinf, isnan, nan
from string import ascii_uppercase
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from mist_sim.metrics.latency import limit_of, limit_title
from mist_sim.report.elements import Folded, in_ms, listed, merged, number, percent, section
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
_STAR = "* the best{}; goodputs and means of seeds only if sure"
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
    is_long = len(names) > _SIDE_BY_SIDE
    title, table = _below_one_another(summary) if is_long else _side_by_side(summary)
    title += ", stopped before its end" if summary.get("is_stopped") else ""
    has_limits = any(not isnan(each["good_request_fraction"]) for each in cases.values())
    star = _STAR.format(" that keep their limits" if has_limits or summary["limits"] else "")
    below = [star, _RATES, *([_COARSE] if _coarse(summary) else [])]
    if any(not isnan(case.get("energy_j", nan)) for case in cases.values()):
        below.append(_JOULES)
    if any(case["failed"] > 0 for case in cases.values()):
        below.append(_FINISHED)
    return Group(
        *section(title, Group(table, *(Text(line, style="dim") for line in below))),
        *section("Verdict", Text(summary["verdict"])) if summary["verdict"] else (),
        *_split(summary.get("split")),
        *_told("Why the others lose", summary.get("losers", {})),
        *_break_even(summary.get("break_even", ())),
        *_told("Left out", summary.get("left_out", {})),
        *expected_of_each(summary["expected_errors"]),
        *(section(_plane_title(plane), _plane(plane, names)) if plane else ()),
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


def _break_even(lines: Sequence[str]) -> Iterator[RenderableType]:
    """Yield at which price others cost as much as the cheapest; empty without prices."""
    if lines:
        more = [f"and {len(lines) - _PRICES} more"] if len(lines) > _PRICES else []
        shown = [Text(line) for line in [*lines[:_PRICES], *more]]
        yield from section("Break-even", Group(*shown))


def _told(title: str, texts: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield text for the known entries by name; empty without any."""
    if texts:
        yield from section(title, Group(*map(Text, merged(texts.items()))))


def _side_by_side(summary: Mapping[str, Any]) -> tuple[str, RenderableType]:
    """Return a title, and a table with a column a scenario."""
    names = list(summary["scenarios"])
    table = listed(["", *names], list(_rows(summary)), right=range(1, len(names) + 1))
    return "Comparison", table


def _below_one_another(summary: Mapping[str, Any]) -> tuple[str, RenderableType]:
    """Return a title, and a table with a row a scenario."""
    cases = summary["scenarios"]
    gpus = {case["num_gpus"] for case in cases.values() if not isnan(case["num_gpus"])}
    alike = len(gpus) == 1
    judged = {limit_of(key)[0] for key in summary.get("limits", ()) if key not in _COLUMNS}
    few = {
        key: title for key, title in _COLUMNS.items() if key not in map("p50_{}_ms".format, judged)
    }
    columns = _with_limits(few, summary, _column)
    keys = [key for key in columns if _is_shown(key, summary) and not (alike and key in _BY_GPU)]
    titles, below = zip(*[columns[key] for key in keys], strict=True)
    rows = [[name, *(_marked(summary, key, name) for key in keys)] for name in cases]
    each = f", {_gpus(gpus.pop())} each" if alike else ""
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


def _title(latency: str, percentile: str) -> str:
    return f"{percentile} {latency}, ms"


def _column(latency: str, percentile: str) -> tuple[str, str]:
    return latency, f"{percentile}, ms"


def _gpus(number: float) -> str:
    return "1 GPU" if number == 1 else f"{number:,.0f} GPUs"


def _rows(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row a figure that some scenario has."""
    cases = summary["scenarios"]
    for key, title in _with_limits(_TITLES, summary, _title).items():
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


def _plane_title(plane: Mapping[str, Any]) -> str:
    by = " per GPU" if plane["by_gpu"] else ""
    return f"Who has most goodput{by}"


def _plane(plane: Mapping[str, Any], names: list[str]) -> RenderableType:
    """Return a map of letters, and their legend."""
    letters = dict(zip(names, ascii_uppercase, strict=False)) | {"tie": "=", "nobody": "."}
    rows = zip(plane["ttft_limits_s"], plane["winners"], plane["is_clear"], strict=True)
    lines = [
        f"{_ms(limit):>7}  " + " ".join(map(_letter, map(letters.get, winners), is_clear))
        for limit, winners, is_clear in reversed(list(rows))
    ]
    low, high = (_ms(plane["tpot_limits_s"][k]) for k in (0, -1))
    share = f"{100 * plane['attainment_asked']:g} %"
    meaning = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    is_open = (
        f"; {plane['num_open']} of the ties are of scenarios that attain the highest rate, "
        f"{plane['rates'][-1]:g} /s: higher --rates may tell them apart"
    )
    return Group(
        Text(f"limit on TTFT (down), on TPOT (across: {low} to {high} ms), for {share}"),
        *map(Text, lines),
        Text(
            f"{meaning}; small letters: not clear at the rates that were run"
            f"{is_open if plane['num_open'] else ''}",
            style="dim",
        ),
    )


def _letter(letter: str | None, is_clear: bool) -> str:
    """Return the letter of a cell's winner; `?` beyond the 26th."""
    return (letter or "?") if is_clear else (letter or "?").lower()


def _ms(seconds: float) -> str:
    return f"{float(f'{1e3 * seconds:.3g}'):g}"
