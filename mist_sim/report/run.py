"""The results of one run as tables: its sections, and `results_table`, which has them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isnan
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from numpy import nan, nan_to_num
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mist_sim.errors import in_words
from mist_sim.metrics.latency import ALL, SHORT_NAMES, limit_of, limit_title
from mist_sim.metrics.recoveries import RECOVERING
from mist_sim.metrics.run_warnings import LEAST_AT_LIMIT
from mist_sim.metrics.stability import AT_END, grows
from mist_sim.report.elements import (
    Fitting,
    Row,
    columns,
    count,
    duration,
    in_ms,
    latency,
    listed,
    number,
    pairs,
    percent,
    section,
    who,
)
from mist_sim.stages import Decode, Prefill

if TYPE_CHECKING:
    from mist_sim.metrics import Result
    from mist_sim.metrics.clients import Room
    from mist_sim.report.pictures.catalog import RunData


_STAGE_FIGURES = ("mean", "p50", "p90", "p99")
_GIGA, _MS = 1e9, 1e3

WORKLOAD = {
    "completed": ("requests finished", ""),
    "num_rejected": ("requests rejected", ""),
    "num_timed_out": ("requests timed out", ""),
    "num_cancelled": ("requests cancelled", ""),
    "num_lost": ("requests lost", ""),
    "total_input_tokens": ("input tokens", ""),
    "total_output_tokens": ("output tokens", ""),
    "duration": ("simulated time", "s"),
}
RATES = {
    "request_throughput": ("requests", "/s"),
    "output_throughput": ("output tokens", "/s"),
    "total_token_throughput": ("input and output tokens", "/s"),
    "request_goodput": ("goodput", "/s"),
    "steady_request_throughput": ("requests, steady part", "/s"),
    "steady_output_throughput": ("output tokens, steady part", "/s"),
    "steady_request_goodput": ("goodput, steady part", "/s"),
}
SPENDING = {
    "average_power_w": ("average power", "W"),
    "energy_per_output_token_j": ("energy per output token", "J"),
    "cost_per_million_output_tokens_usd": ("a million output tokens", "$"),
    "good_tokens_per_usd": ("good output tokens", "per $"),
    "api_cost_per_million_output_tokens_usd": ("the same from an API", "$ a million"),
}
TITLES_OF = {
    **WORKLOAD,
    **RATES,
    **SPENDING,
    "failed": ("requests failed", ""),
    "num_preemptions": ("preemptions", ""),
    "peak_requests_in_flight": ("requests in flight, peak", ""),
    "good_tokens_per_j": ("good output tokens", "per J"),
}
"""Figures of a summary in tables of runs, and of their means: title and unit."""


def figure_row(
    summary: Mapping[str, Any], key: str, show: Callable[[Any], str] = number, remark: str = ""
) -> Row:
    """Return the row of a figure. remark: in place of its unit."""
    title, unit = TITLES_OF[key]
    return title, show(summary[key]), remark or unit


def breakdown_sections(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the parts of latencies, stages beside prefill and decode, and communication."""
    parts = summary["latency_breakdown_ms"]
    if any(of["share"] > 0 for of in parts.values()):
        shares = {name: percent(of["share"], digits=1) for name, of in parts.items()}
        yield from section("Where the time goes, ms", _latencies_of("share", shares, parts))
    stages = summary["stage_latency_ms"]
    if not stages.keys() <= {Prefill.kind, Decode.kind}:
        served = {name: count(int(of["count"])) for name, of in stages.items()}
        yield from section("Stages with their queues, ms", _latencies_of("served", served, stages))
    if moved := summary.get("communication"):
        rows = [
            (
                kind.replace("_", " "),
                count(int(of["transfers"])),
                count(int(of["tokens"])),
                number(of["bytes"] / _GIGA),
                in_ms(of["seconds"] / of["transfers"] * _MS),
            )
            for kind, of in moved.items()
        ]
        titles = ("", "transfers", "tokens", "GB", "mean ms")
        yield from section("Communication", listed(titles, rows, right=range(1, 5)))


def _latencies_of(
    title: str, cells: Mapping[str, str], figures: Mapping[str, Mapping[str, float]]
) -> Fitting:
    """Return latencies by name. title, cells: of the column before them."""
    rows = [
        (name, cells[name], *(in_ms(of[each]) for each in _STAGE_FIGURES))
        for name, of in figures.items()
    ]
    return listed(("", title, *_STAGE_FIGURES), rows, right=range(1, 6))


_MAX_ROWS = 12
_TITLES = ("", "visits", "room", "running", "decodes", "KV use", "step times")
_BELOW = ("", "", "of time", "mean", "a step", "peak", "")

Client = dict[str, Any]
"""The cells of a row of `Result.clients`."""
_SHOWN = (
    *("client", "num_visits", "room", "mean_running", "mean_decodes", "num_steps"),
    *("peak_used_blocks", "num_gpu_blocks"),
)


def clients_table(result: Result) -> RenderableType:
    """Return a row a group of equal clients, and which limits their steps reach."""
    names = result.client_groups or result.client_names
    limits = zip(names, result.step_limits, strict=False)
    seats = {name: max(each.sequences) for name, each in limits if each is not None}
    estimates = result.summary["estimates"]
    shown = client_groups(result.columns("clients"), estimates, names, seats)
    below = *_capacities(result, names), *_at_limits(names, result.rooms)
    return Group(shown, *(Text(line, style="dim") for line in below))


def client_groups(
    table: Any,
    estimates: Mapping[str, str],
    names: Sequence[str] = (),
    seats: Mapping[str, int] = MappingProxyType({}),
) -> RenderableType:
    """Return a row a group of equal clients.

    table: of clients, by column. estimates: of the summary. names: of the group of each client; by
    default each is one of its own. seats: of a step (`max_num_seqs`) by group, if they are known.
    """
    groups: dict[str, list[Client]] = {}
    columns = [table[key].tolist() for key in _SHOWN]
    for name, *row in zip(names or columns[0], *columns, strict=True):
        client = dict(zip(_SHOWN, row, strict=True))
        most = client["num_gpu_blocks"]
        client["kv_use"] = client["peak_used_blocks"] / most if most else nan
        groups.setdefault(name, []).append(client)
    rows = [list(_row(name, each, estimates, seats.get(name))) for name, each in groups.items()]
    if len(rows) > _MAX_ROWS:
        rest = len(rows) - _MAX_ROWS
        rows[_MAX_ROWS:] = [[f"and {rest} more", *[""] * (len(_TITLES) - 1)]]
    return listed(_TITLES, rows, right=range(1, 6), below=_BELOW)


def _capacities(result: Result, names: Sequence[str]) -> Iterator[str]:
    """Yield how much each group of clients can keep, a line for clients that can keep the same."""
    sizes = result.block_tokens or [0] * len(names)
    groups = result.block_groups or [1] * len(names)
    stored = result.kv_entries or [""] * len(names)
    told: dict[tuple[str, str], dict[str, None]] = {}
    every = zip(names, result.num_gpu_blocks, sizes, groups, stored, strict=True)
    for name, blocks, tokens, parts, entries in every:
        if blocks:
            held = f" of {tokens} tokens, {count(blocks * tokens)} tokens" if tokens else ""
            if tokens and parts > 1:
                held = f", each of {count(tokens)} tokens in one of {parts} groups of layers"
            how = f", {entries}" if entries else ""
            told.setdefault((how, f"{count(blocks)} blocks{held}"), {})[name] = None
    for (how, room), mine in list(told.items())[:_MAX_ROWS]:
        yield f"KV cache of {who(list(mine))}{how}: {room}"


def _at_limits(names: Sequence[str], rooms: Sequence[Room]) -> Iterator[str]:
    """Yield a line for each group of clients whose steps reach a limit for some time."""
    groups: dict[str, list[Room]] = {}
    for name, room in zip(names, rooms, strict=True):
        groups.setdefault(name, []).append(room)
    for name, found in list(groups.items())[:_MAX_ROWS]:
        least = min(found, key=lambda room: nan_to_num(room.room, nan=1.0))
        if 1 - least.room >= LEAST_AT_LIMIT:
            share = percent(1 - least.room)
            yield f"no room in {share} of the time at {name}, mostly for {least.limit}"


def _row(
    name: str, clients: list[Client], estimates: Mapping[str, str], seats: int | None
) -> Iterator[str]:
    """Yield the cells of equal clients. seats: of a step (`max_num_seqs`), if it is known."""
    yield f"{len(clients)} x {name}" if len(clients) > 1 else name
    yield _range((c["num_visits"] for c in clients), count)
    yield _range((c["room"] for c in clients), percent)
    yield _range((c["mean_running"] for c in clients), number)
    for values, shown in (
        ((c["mean_decodes"] for c in clients), number),
        ((c["kv_use"] for c in clients), percent),
    ):
        told = _range(values, shown) if any(c["num_steps"] for c in clients) else "-"
        yield f"{told} of {count(seats)}" if shown is number and seats and told != "-" else told
    yield ", ".join(dict.fromkeys(estimates.get(c["client"], "-") for c in clients))


def _range(values: Iterable[float], shown: Callable[[Any], str]) -> str:
    """Return the lowest and the highest value; one where they look alike."""
    found = [value for value in values if value == value]
    if not found:
        return "-"
    low, high = shown(min(found)), shown(max(found))
    if low == high:
        return high
    return f"{low.removesuffix(' %')}–{high}"


_EVEN = 0.015  # by which the ends of a range may differ that is shown as ±
_MANY = 9.0  # times more, beyond which percents say nothing
_METRICS = ("TTFT", "TPOT")
_GROWING = 0.2  # of a step's time: errors of step times count 1 / (1 - 0.2) times
_UNKNOWN = "no measurements like it"

Bars = Mapping[str, Mapping[str, Mapping[str, Any] | None]]


_EXPECTED = "Expected error, nine in ten"
_WITHOUT_BARS = "ITL has the bar of TPOT, E2E and throughput those of both; energy and cost none"


def expected_section(expected: Bars, cell: Callable[[str], str]) -> Iterator[RenderableType]:
    """Yield the range of nine in ten measurements; empty if no client times steps.

    expected: the summary's `expected_errors`. cell: returns the text of a key
    of the summary, as in a column of milliseconds.
    """
    rows = [
        (f"{metric} {mean}{'' if mean.endswith(' s') else ' ms'}", shown, like)
        for metric, shown, like in expected_rows(expected)
        if (mean := cell(f"mean_{metric.lower()}_ms")) != "-"
    ]
    if rows:
        yield from section(_EXPECTED, Group(pairs(rows), Text(_WITHOUT_BARS, style="dim")))


def expected_of_each(cases: Mapping[str, Bars], note: str = "") -> Iterator[RenderableType]:
    """Yield the ranges of scenarios, by name; scenarios with equal ranges share a line.

    note: what is said below them.
    """
    found: dict[Row, list[str]] = {}
    for name, expected in cases.items():
        for row in expected_rows(expected):
            found.setdefault(row, []).append(name)
    by_metric = sorted(found.items(), key=lambda each: _METRICS.index(each[0][0]))
    rows: list[Row] = [
        (f"{metric} {who([*filter(None, names)], len(cases))}".strip(), shown, like)
        for (metric, shown, like), names in by_metric
    ]
    if rows:
        below = [Text(note, style="dim")] if note else []
        yield from section(_EXPECTED, Group(pairs(rows), *below))


def expected_rows(expected: Bars) -> Iterator[Row]:
    """Yield (metric, range, measurements it rests on); of several clients, the widest range."""
    for metric in _METRICS:
        key = metric.lower()
        of_clients = {name: bars[key] for name, bars in expected.items() if key in bars}
        if of_clients:
            name, bar = max(of_clients.items(), key=lambda each: _width(each[1]))
            is_only = all(other == bar for other in of_clients.values())
            whose = "" if is_only else f"widest, of {name}: "
            shown, like = told(bar)
            yield metric, shown, f"{whose}{like}"


def told(bar: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return a range, and its basis."""
    if bar is None:
        return "-", _UNKNOWN
    if bar["low"] is None:
        return "-", str(bar["like"])
    return error_range(bar["low"], bar["high"]), basis(bar)


def basis(bar: Mapping[str, Any]) -> str:
    """Return the measured run nearest to one, and in what it is other."""
    found = bar.get("other", ())  # files of older versions have none
    other = f"; other: {', '.join(found)}" if found else ""
    at_load = ""
    if bar.get("sensitivity", {}).get("growing", 0.0) > _GROWING:
        steps = error_range(*bar["step_times"])
        at_load = f"step times {steps}, which this load makes more of; "
    return f"{at_load}nearest of {count(bar['num_points'])} measured: {bar['like']}{other}"


def _width(bar: Mapping[str, Any] | None) -> float:
    is_known = bar is not None and bar["low"] is not None
    return float(bar["high"] - bar["low"]) if bar and is_known else float("inf")


def error_range(low: float, high: float) -> str:
    """Return a range of shares in percent: "± 6 %", or "−20 to +5 %" where it leans to a side.

    A range without a useful upper end is "−66 % to over 10 times".
    """
    if high > _MANY:
        return f"{100 * low:+.0f} % to over {1 + _MANY:g} times".replace("-", "−")
    if abs(high + low) <= _EVEN:
        return f"± {100 * max(high, -low):.0f} %"
    ends = (f"{100 * end:+.0f}".replace("-", "−") for end in (low, high))
    return f"{' to '.join(ends)} %"


_IN_PHASES = (
    "during: while a client was away, requests that began before or ended after included; queue: "
    "waits of all visits, of those that the failure ended too, which may be after the first token."
)

Phases = Mapping[str, Mapping[str, float | None]]
"""`through_failures` of the summary."""


def failures_section(phases: Phases) -> Iterator[RenderableType]:
    """Yield a row a phase of the failures; empty without failures."""
    rows = [
        [
            name,
            *(count(int(of[key] or 0)) for key in ("completed", "failed")),
            *("-" if (ms := of[f"p99_{each}_ms"]) is None else in_ms(ms) for each in RECOVERING),
        ]
        for name, of in phases.items()
    ]
    if rows:
        titles = ("", "finished", "failed", *RECOVERING.values())
        table = listed(titles, rows, right=range(1, len(titles)))
        body = Group(table, Text(_IN_PHASES, style="dim"))
        yield from section("Latency through failures, p99, ms", body)


_HIDDEN = 5  # times the p99 of gaps, from which on the longest gap is named

_LATENCIES = (
    ("ttft", "TTFT", "arrival to first token"),
    ("tpot", "TPOT", "mean gap of a request"),
    ("itl", "ITL", "every gap, pooled"),
    ("e2el", "E2E", "arrival to the end"),
    ("queue", "queue", "wait before first work"),
)


def latency_title(summary: Mapping[str, Any]) -> str:
    """Return the title of figures of latencies, which says of which requests where some failed."""
    if not summary["failed"]:
        return "Latency, ms"
    return f"Latency of the {summary['completed']:,.0f} requests that finished, ms"


def note_on_stalls(summary: Mapping[str, Any]) -> str:
    """Return the longest gap between tokens where the p99 hides it; else nothing."""
    longest, p99 = summary.get("max_itl_ms", 0.0), summary["p99_itl_ms"]
    if not longest > _HIDDEN * p99:
        return ""
    value, unit = latency(longest)
    return f"The longest gap between tokens is {value} {unit}; p99 ITL does not show gaps so rare."


def note_on_turns(summary: Mapping[str, Any]) -> str:
    """Return of which call TTFT is, where requests call a model several times; else nothing."""
    calls = summary["stage_latency_ms"].get(Prefill.kind, {"count": 0})
    again = summary["num_retries"] + summary.get("num_lost_visits", 0)
    if calls["count"] <= summary["completed"] + again:
        return ""
    figures = ", ".join(f"{name} {in_ms(calls[name])}" for name in ("mean", "p50", "p90", "p99"))
    return (
        "TTFT, in limits too, is that of a request's first call. Prefill of all "
        f"{calls['count']:,.0f} calls, with its queue: {figures}."
    )


def latency_table(
    figures: Sequence[str], cell: Callable[[str], str], *, width: int, with_legend: bool = True
) -> Fitting:
    """Return the latencies' figures; in a narrow terminal without explanations.

    cell: returns the text of a key of the summary, such as "p50_ttft_ms". width: least width of a
        column, if there is room.
    """

    def table(
        figures: Sequence[str], *, legend: bool = False, gap: int = 2, width: int = 0
    ) -> Table:
        rows = [
            [name, *(cell(f"{figure}_{key}_ms") for figure in figures), *([meaning] * legend)]
            for key, name, meaning in _LATENCIES
        ]
        titles = ["", *figures, *([""] * legend)]
        last = len(figures) + 1
        return columns(titles, rows, right=range(1, last), dim=[last], gap=gap, min_width=width)

    half = (len(figures) + 1) // 2
    layouts: list[RenderableType] = [
        table(figures, width=width),
        table(figures, gap=1),
        Group(table(figures[:half]), table(figures[half:])),
    ]
    if with_legend:
        layouts.insert(0, table(figures, legend=True, width=width))
    return Fitting(*layouts)


_OF_GROUPS = ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms")
_MODEL_TITLES = ("", "finished", "output", "TTFT", "TTFT", "TPOT", "TPOT")
_BELOW_MODEL_TITLES = ("", "", "tokens/s", "p50, ms", "p99, ms", "p50, ms", "p99, ms")


def groups_section(title: str, groups: Mapping[str, Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Yield a row per group of requests; empty without groups. groups: as in the summary."""
    if not groups:
        return
    has_slo = any("good_request_fraction" in of for of in groups.values())
    rows = [
        (
            name,
            count(of["completed"]),
            number(of["steady_output_throughput"]),
            *(in_ms(of[key]) for key in _OF_GROUPS),
            *([percent(of["good_request_fraction"], digits=1)] if has_slo else []),
        )
        for name, of in groups.items()
    ]
    titles = (*_MODEL_TITLES, *(["good"] * has_slo))
    below = (*_BELOW_MODEL_TITLES, *([""] * has_slo))
    yield from section(title, listed(titles, rows, right=range(1, len(titles)), below=below))


_KILO = 1e3


def spending_section(result: Result) -> Iterator[RenderableType]:
    """Yield energy and cost where a scenario says something of either."""
    summary = result.summary
    joules = _joules(summary) if "energy_j" in summary else ()
    dollars = _dollars(summary) if "cost_usd" in summary else ()
    if result.asks_for_spending and (joules or dollars):
        yield from section("Energy and cost", pairs([*joules, *dollars]))


def _joules(summary: Mapping[str, Any]) -> Iterator[Row]:
    idle = summary["idle_energy_j"] / summary["energy_j"] if summary["energy_j"] else 0.0
    remark = f"kJ, {percent(idle)} idle; GPU power {_origins(summary['power_estimates'])}"
    yield "energy", number(summary["energy_j"] / _KILO), remark
    yield figure_row(summary, "average_power_w")
    yield figure_row(summary, "energy_per_output_token_j", "{:.3g}".format)
    if "good_tokens_per_j" in summary:
        yield figure_row(summary, "good_tokens_per_j")


def _dollars(summary: Mapping[str, Any]) -> Iterator[Row]:
    yield "cost", f"{summary['cost_usd']:.3g}", f"$; GPUs at {_origins(summary['prices'])}"
    if "electricity_cost_usd" in summary:
        yield "of it electricity", f"{summary['electricity_cost_usd']:.3g}", "$"
    million = "cost_per_million_output_tokens_usd"
    for key in (million, "good_tokens_per_usd", f"api_{million}"):
        if key in summary:
            yield figure_row(summary, key)


def _origins(names: Mapping[str, str]) -> str:
    return "; ".join(dict.fromkeys(names.values()))


Verdicts = Mapping[str, Mapping[str, Any]]
"""`limit` and `value` in milliseconds, `kept`, `verdict` and `error_known`, by names such as
`p99_ttft_ms`."""


def slo_section(
    verdicts: Verdicts, shares: Verdicts, num_failed: float
) -> Iterator[RenderableType]:
    """Yield every limit with the figure that keeps or misses it; empty without limits.

    shares: `slo_shares` of a summary. num_failed: requests that did not finish, which count as
    later than all others.
    """
    if not verdicts:
        return
    failed = f"the {num_failed:,.0f} that failed counted as latest"
    title = f"Limits (slo), of all requests, {failed}" if num_failed else "Limits (slo)"
    good = [
        (
            "good requests" if name == ALL else f"good requests of {name}",
            _percent(share["value"]),
            f"{_percent(share['asked'])} asked: {share['verdict']}",
        )
        for name, share in shares.items()
    ]
    yield from section(title, pairs([*good, *_verdict_rows(verdicts)]))


def _percent(share: float) -> str:
    return "-" if isnan(share) else f"{100 * share:.4g} %"


def _verdict_rows(verdicts: Verdicts) -> Iterator[Row]:
    for name, verdict in verdicts.items():
        remark = f"limit {_limit(verdict)}: {verdict['verdict']}"
        if isnan(verdict["value"]):
            why = ", applies to no request" if verdict["kept"] else ", too many failed"
            yield titled(name), "-", remark + why
        else:
            value, unit = latency(verdict["value"])
            unknown = "" if verdict["error_known"] else ", error not known"
            yield titled(name), value, f"{unit}, {remark}{unknown}"


def shortcomings(
    summaries: Sequence[Mapping[str, Any]], verdicts: Verdicts, shares: Verdicts
) -> list[str]:
    """Return the shortcomings of the runs, a sentence each, that fail `--strict`.

    These are: a run in which no request finished, more than half of the runs unstable or overloaded
    at the end, too few good requests where a share of them is asked for, else a missed limit, and
    limits on percentiles that the slo names.
    shares: `slo_shares` of a summary.
    """
    found = []
    if not all(summary["completed"] for summary in summaries):
        found.append("no request finished")
    if 2 * sum(map(grows, summaries)) > len(summaries):
        is_all = 2 * sum(summary["unstable"] for summary in summaries) > len(summaries)
        found.append(
            "unstable: more work arrives than the clients can do"
            if is_all
            else "overloaded at the end: more and more requests wait until the last arrival"
        )
    for name, share in shares.items():
        if not share["kept"]:
            who = "" if name == ALL else f" of {name}"
            asked = f"{_percent(share['asked'])} asked"
            found.append(
                f"{_percent(share['value'])} of the requests{who} keep all limits, {asked}"
            )
    for name, verdict in verdicts.items():
        if not verdict["kept"]:
            figure = "has no figure, as too many requests failed;"
            if not isnan(verdict["value"]):
                figure = f"is {' '.join(latency(verdict['value']))},"
            found.append(f"{titled(name)} {figure} limit {_limit(verdict)}")
    return found


def titled(name: str) -> str:
    """Return a limit in words, such as "p99 TTFT"."""
    limit, percentile = limit_of(name)
    return f"{percentile} {limit_title(limit)}"


def _limit(verdict: Mapping[str, Any]) -> str:
    return duration(verdict["limit"] / 1e3)


_FIGURES = ("mean", "p50", "p90", "p95", "p99")
_COUNTS = (
    *("completed", "failed", "total_input_tokens", "total_output_tokens", "num_preemptions"),
    "peak_requests_in_flight",
)
_WITH_NONE = ("expected_errors", "outages", "recoveries")  # of which it says something else
_LOSSES = {
    "num_timed_out": "",
    "num_cancelled": "by users who went away",
    "num_lost": "with clients that failed",
}


def results_table(result: Result) -> RenderableType:
    """Return everything worth reading about a run; it prints in 50 columns or more."""
    summary: Mapping[str, Any] = result.summary
    return Group(
        *section("Workload", pairs(_workload(result, summary))),
        *section("Throughput", pairs(_throughput(result, summary))),
        *_sections(summary),
        *spending_section(result),
        *section("Clients", clients_table(result)),
    )


def saved_tables(run: RunData) -> RenderableType:
    """Return of `results_table` what the files of a run tell."""
    summary = _with_nan(run.summary)
    counted = [figure_row(summary, key, count) for key in _COUNTS]
    return Group(
        *section("Workload", pairs([*counted, figure_row(summary, "duration")])),
        *_sections(summary),
        *section("Clients", client_groups(run.table("clients"), summary["estimates"])),
    )


def _with_nan(value: Any) -> Any:
    """Return figures with NaN for those without a sample, which are null in files."""
    if isinstance(value, Mapping):
        return {k: v if k in _WITH_NONE else _with_nan(v) for k, v in value.items()}
    return nan if value is None else value


def _sections(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what the summary alone tells."""
    yield from section(latency_title(summary), Group(*_latency(summary)))
    yield from failures_section(summary.get("through_failures", {}))
    yield from breakdown_sections(summary)
    yield from groups_section("Models", summary.get("models", {}))
    yield from groups_section("Classes", summary.get("classes", {}))
    expected = summary.get("expected_errors", {})
    yield from expected_section(expected, lambda key: in_ms(summary[key]))
    slo, shares = summary.get("slo", {}), summary.get("slo_shares", {})
    yield from slo_section(slo, shares, summary["failed"])


def _latency(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield latency_table(_FIGURES, lambda key: in_ms(summary[key]), width=7)
    for note in (note_on_turns(summary), note_on_stalls(summary)):
        if note:
            yield Text(note)
    if "tier_hit_rates" in summary:
        yield Text("queue: loads from tiers count, too; below they are transfer.", style="dim")


def _doubt(summary: Mapping[str, Any]) -> str:
    """Return what the first line says where the clients may not keep up."""
    if summary["unstable"]:
        return "; overloaded"
    if grows(summary):
        return f"; {AT_END}"
    if summary["completed"] and summary.get("stability") == "too short to tell":
        return "; overload not ruled out"
    return ""


def _workload(result: Result, summary: Mapping[str, Any]) -> Iterator[Row]:
    yield figure_row(summary, "completed", count, result.loop + _doubt(summary))
    yield from _failures(summary)
    for key in ("total_input_tokens", "total_output_tokens"):
        yield figure_row(summary, key, count)
    warmup = f"s without {result.warmup:g} s of warm-up" if result.warmup else ""
    yield figure_row(summary, "duration", remark=warmup)
    if "reconfigurations" in summary:
        yield "sliders moved", count(len(summary["reconfigurations"])), "times"
    if "max_moves_per_request" in summary:
        most = summary["max_moves_per_request"]
        what = f"times a request, {most:g} at most"
        yield "answers moved", number(summary["mean_moves_per_request"]), what
    if "layouts" in summary:
        clients = [period["client"] for period in summary["layouts"]]
        yield "layouts changed", count(len(clients) - len(set(clients))), "times"


def _failures(summary: Mapping[str, Any]) -> Iterator[Row]:
    yield figure_row(summary, "num_rejected", count)
    for key, what in _LOSSES.items():
        if summary.get(key):
            yield figure_row(summary, key, count, what)
    if summary.get("num_retried_visits"):
        yield "sent to another client", count(summary["num_retried_visits"]), "times"
    if "mean_clients_up" in summary:
        failed, started = summary["num_client_failures"], summary["num_client_starts"]
        what = f"on average; {in_words(failed, 'failure')}, {in_words(started, 'start')}"
        yield "clients up", number(summary["mean_clients_up"]), what
    if summary["num_retries"]:
        yield "sent again", count(summary["num_retries"]), "times"
    if wasted := summary["wasted_input_tokens"] + summary["wasted_output_tokens"]:
        yield "tokens computed in vain", count(wasted), "input and output"


def _throughput(result: Result, summary: Mapping[str, Any]) -> Iterator[Row]:
    for key in ("request_throughput", "output_throughput", "total_token_throughput"):
        yield figure_row(summary, key, remark=_in_steady_part(summary, key))
    if summary["has_steady_part"]:
        begin, end = number(summary["steady_begin"]), number(summary["steady_end"])
        yield "", "", f"({_part(summary)}: {begin} to {end} s, without ramp and end)"
        if "steady_arrivals_per_s" in summary:
            low, high = map(number, summary["steady_arrivals_per_s"])
            yield "", "", f"(no steady load: {low} to {high} arrivals/s in tenths of that time)"
    yield "output tokens, peak", number(summary["max_output_tokens_per_s"]), "in one second"
    yield figure_row(summary, "peak_requests_in_flight", count)
    most = count(summary["max_concurrent_requests"])
    yield "requests in a second, peak", most, "ended ones too (max_concurrent_requests)"
    if "spec_decode_acceptance_rate" in summary:
        accepted = number(summary["spec_decode_acceptance_length"])
        share = percent(summary["spec_decode_acceptance_rate"] / 100, digits=1)
        yield "tokens a decode step", accepted, f"{share} of the draft tokens accepted"
    if summary["num_preemptions"]:
        yield figure_row(summary, "num_preemptions", count, "computed again for lack of memory")
    if summary["prefix_cache_hit_rate_unbounded"] > 0:
        found = percent(summary["prefix_cache_hit_rate"], digits=1)
        known = percent(summary["prefix_cache_hit_rate_unbounded"], digits=1)
        yield "prompt tokens cached", found, f"prefix cache hit rate; one cache for all: {known}"
        for tier, rate in summary.get("tier_hit_rates", {}).items():
            yield f"  from {tier}", percent(rate, digits=1), "of the prompt tokens"
    if "retrieval_hit_rate" in summary:
        found = percent(summary["retrieval_hit_rate"], digits=1)
        yield "context tokens retrieved", found, "of those that were asked for"
        for level, rate in summary["retrieval_hit_rates"].items():
            yield f"  from {level}", percent(rate, digits=1), "of those that were asked for"
    if "request_goodput" in summary:
        good = percent(summary["good_request_fraction"], digits=1)
        rates = _in_steady_part(summary, "request_goodput")
        yield figure_row(summary, "request_goodput", remark=rates)
        yield "", "", f"{good} of the requests keep"
        limits = result.slo.limits_on_requests.items()
        told = (f"{limit_title(name)} <= {duration(limit)}" for name, limit in limits)
        yield "", "", " and ".join(told)
        if summary["num_missed"]:  # by limits, of which one may miss several, or as they failed
            causes = ", ".join(
                f"{count(int(times))} {SHORT_NAMES.get(cause, cause.replace('_', ' '))}"
                for cause, times in summary["misses"].items()
                if times
            )
            yield "requests that miss", count(summary["num_missed"]), causes


def _in_steady_part(summary: Mapping[str, Any], key: str) -> str:
    if not summary["has_steady_part"]:
        return "/s"
    return f"/s; {number(summary[f'steady_{key}'])} in the {_part(summary)}"


def _part(summary: Mapping[str, Any]) -> str:
    """Return what the time without ramp and end is called, which may have no steady load."""
    return "middle part" if "steady_arrivals_per_s" in summary else "steady part"
