"""The pictures of a run by name, each with a title; many are over equal intervals of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.result_warnings import ResultWarning, of_data, of_points
from mist_sim.errors import ScenarioError, brief, require_known
from mist_sim.metrics import Result
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.metrics.stats import areas
from mist_sim.metrics.tables import RunFolder
from mist_sim.report.elements import latency as shown_latency
from mist_sim.report.elements import percent
from mist_sim.report.pictures.picture import (
    Band,
    Bars,
    Limit,
    Line,
    Mark,
    Panel,
    Picture,
    Span,
    beside,
    hides,
    over,
)
from mist_sim.report.pictures.style import COLOURS, LIMIT_COLOUR, WAIT_COLOUR, require_matplotlib

RunData = RunFolder | Result
"""A run's summary, its tables by name, and its scenario."""


Array = NDArray[np.float64]

MOST_INTERVALS = 120
_REQUESTS_AN_INTERVAL = 20  # at least, on average, for percentiles by arrival


def edges(end: float, number: int = MOST_INTERVALS) -> Array:
    """Return where equal intervals begin, and where the last one ends, in seconds."""
    return np.linspace(0.0, end if end > 0 else 1.0, max(number, 1) + 1)


def middles(ends: Array) -> Array:
    """Return the middle of each interval."""
    return (ends[:-1] + ends[1:]) / 2


def edges_for(arrivals: Array) -> Array:
    """Return intervals in which some tens of requests arrive on average."""
    number = min(MOST_INTERVALS // 2, len(arrivals) // _REQUESTS_AN_INTERVAL)
    return edges(float(arrivals.max(initial=0.0)) * (1 + 1e-9), max(number, 1))


def rates(times: Array, ends: Array) -> Array:
    """Return the events per second in each interval."""
    counts, _ = np.histogram(times[~np.isnan(times)], ends)
    return counts / np.diff(ends)


def percentiles(times: Array, values: Array, ends: Array, asked: float) -> Array:
    """Return a percentile of the values whose times fall into each interval; NaN without any."""
    found = np.full(len(ends) - 1, np.nan)
    for place, mine in _groups(times, values, ends):
        found[place] = np.percentile(mine, asked)
    return found


def shares(times: Array, is_true: NDArray[np.bool_], ends: Array) -> Array:
    """Return the share of true values in each interval; NaN for an empty one."""
    found = np.full(len(ends) - 1, np.nan)
    for place, mine in _groups(times, is_true.astype(float), ends):
        found[place] = mine.mean()
    return found


def _groups(times: Array, values: Array, ends: Array) -> Any:
    """Yield (interval, its values), without unknown values."""
    known = ~np.isnan(values) & ~np.isnan(times)
    places = np.clip(np.searchsorted(ends, times[known], side="right") - 1, 0, len(ends) - 2)
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[known][order]
    first = np.flatnonzero(np.diff(places, prepend=-1))
    yield from zip(places[first], np.split(values, first[1:]), strict=True) if len(first) else ()


def means(start: Array, end: Array, values: Array | float, ends: Array) -> Array:
    """Return the mean over time of a value that holds in periods, and is 0 outside of them.

    start, end: of the periods, which may overlap: their values add up.
    """
    found = areas(start, ends, values) - areas(end, ends, values)
    return np.diff(found) / np.diff(ends)


def number_inside(entered: Array, left: Array, ends: Array) -> Array:
    """Return the mean number inside in each interval; items without an end stay."""
    left = np.where(np.isnan(left), ends[-1], left)
    known = ~np.isnan(entered)
    return means(entered[known], left[known], 1.0, ends)


def limits_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits of the `slo` in seconds, by metric: ttft, tpot, e2el."""
    verdicts = summary.get("slo", {}).items()
    return {name.split("_")[1]: float(verdict["limit"]) / 1e3 for name, verdict in verdicts}


_DRAWN = ((50.0, "p50"), (99.0, "p99"))


def latency(run: RunData) -> Picture:
    """Draw p50 and p99 of TTFT, TPOT and E2E by arrival, with the limits that there are."""
    finished = _finished(run)
    arrived = finished["arrival_time"].to_numpy(float)
    ends, limits = edges_for(arrived), limits_of(run.summary)
    panels = []
    for metric, name in SHORT_NAMES.items():
        values = 1e3 * finished[metric].to_numpy(float)
        marks: list[Mark] = [
            Line(middles(ends), percentiles(arrived, values, ends, asked), label, colour)
            for (asked, label), colour in zip(_DRAWN, COLOURS, strict=False)
        ]
        if metric in limits:
            limit = 1e3 * limits[metric]
            marks.append(Limit(limit, f"limit {limit:g} ms"))
        panels.append(Panel(f"{name}, ms, by arrival", marks))
    return Picture(panels, is_over_time=True)


def attainment(run: RunData) -> Picture:
    """Draw the share of requests that keep all limits, by arrival.

    Raises ScenarioError for a run without limits.
    """
    limits = limits_of(run.summary)
    if not limits:
        raise ScenarioError(
            "attainment: the run has no limits to keep; say them, such as "
            "slo: {ttft: 500 ms, tpot: 40 ms}, and run it again"
        )
    requests = run.table("requests")
    arrived = requests["arrival_time"].to_numpy(float)
    ends = edges_for(arrived)
    asked = {"all limits": limits} | {
        f"{SHORT_NAMES[metric]} <= {1e3 * limit:g} ms": {metric: limit}
        for metric, limit in limits.items()
    }
    lines = []
    for (name, some), colour in zip(asked.items(), COLOURS, strict=False):
        kept = 100 * shares(arrived, are_good(requests, some), ends)
        lines.append(Line(middles(ends), kept, name, colour, "-" if some is limits else ":"))
    lowest = float(np.nanmin(np.concatenate([each.y for each in lines]), initial=100.0))
    begin = max(10.0 * (lowest // 10) - 2, -2.0)  # at a multiple of ten below all lines
    title = "requests that keep their limits, %, by arrival"
    return Picture([Panel(title, lines, range=(begin, 101.0))], is_over_time=True)


def are_good(requests: Any, limits: dict[str, float]) -> Any:
    """Return which requests finished and keep the limits, seconds by metric."""
    ttft, tpot, e2el = (requests[name].to_numpy(float) for name in SHORT_NAMES)
    slo = Slo(ttft=limits.get("ttft"), tpot=limits.get("tpot"), e2el=limits.get("e2el"))
    gaps = np.maximum(requests["num_output_tokens"].to_numpy(np.int64) - 1, 0)
    finished = (requests["status"] == "finished").to_numpy(bool)
    return finished & slo.kept(ttft, tpot, e2el, gaps)


def _finished(run: RunData) -> Any:
    """Return the finished requests. Raises ScenarioError if none finished."""
    requests = run.table("requests")
    finished = requests[requests["status"] == "finished"]
    if finished.empty:
        raise ScenarioError("no request finished, so there are no latencies to draw")
    return finished


_SHARES = np.unique(np.concatenate([np.linspace(0, 1, 201), 1 - np.geomspace(1e-4, 0.05, 60)]))


def distributions(run: RunData) -> Picture:
    """Draw for TTFT, TPOT and E2E which share of the finished requests is as fast or faster.

    Raises ScenarioError where no request finished.
    """
    finished, limits = _finished(run), limits_of(run.summary)
    panels = []
    for (metric, name), colour in zip(SHORT_NAMES.items(), COLOURS, strict=False):
        marks: list[Mark] = []
        values = 1e3 * finished[metric].dropna().to_numpy(float)
        if len(values):
            marks.append(Line(np.quantile(values, _SHARES), 100 * _SHARES, colour=colour))
        if metric in limits:
            limit = 1e3 * limits[metric]
            marks.append(Limit(limit, f"limit {limit:g} ms", is_across=False))
        panels.append(Panel(f"{name}: % of the requests that take at most so many ms", marks))
    return Picture(panels)


_MOST_LINES = len(COLOURS)
_ROUNDING = 1e-9  # of sums over a run; an engine with less time in steps had none


def queues(run: RunData) -> Picture:
    """Draw requests that wait and requests in service at each client, means of intervals."""
    stages = run.table("stages")
    if stages.empty:
        raise ScenarioError("no client served a stage, so there are no queues to draw")
    visits = stages[stages["stage"] != "decode"]  # decode shares the queue of its prefill
    visits = stages if visits.empty else visits
    ends = edges(float(stages["finished_at"].max()))
    waiting, served = {}, {}
    for name in dict.fromkeys(stages["client"]):
        mine, all_mine = visits[visits["client"] == name], stages[stages["client"] == name]
        waiting[name] = _inside(mine, "queued_at", "started_at", ends)
        served[name] = _inside(all_mine, "started_at", "finished_at", ends)
    panels = [
        Panel("requests that wait", _lines(ends, waiting)),
        Panel("requests in service", _lines(ends, served)),
    ]
    return Picture(panels, is_over_time=True)


def batches(run: RunData) -> Picture:
    """Draw decodes and prompt tokens a step of each engine, means over the time in steps."""
    steps, ends = _steps(run)
    panels = []
    for column, title in (
        ("num_decodes", "decodes a step"),
        ("num_prefill_tokens", "prompt tokens a step"),
    ):
        found = {}
        for name, mine in steps.groupby("client", sort=False):
            busy = _mean(mine, 1.0, ends)
            values = _mean(mine, mine[column].to_numpy(float), ends)
            found[name] = np.divide(values, busy, out=np.zeros_like(values), where=busy > _ROUNDING)
        panels.append(Panel(title, _lines(ends, found)))
    return Picture(panels, is_over_time=True)


def memory(run: RunData) -> Picture:
    """Draw the KV blocks that requests hold at each engine, and how many there are."""
    steps, ends = _steps(run)
    found = {
        name: _mean(mine, mine["num_used_blocks"].to_numpy(float), ends)
        for name, mine in steps.groupby("client", sort=False)
    }
    clients = run.table("clients")
    there = clients[clients["client"].isin(list(found))]["num_gpu_blocks"]
    limits = [Limit(each, f"{each:,} blocks") for each in sorted(set(there.tolist()) - {0})]
    return Picture([Panel("KV blocks held", [*_lines(ends, found), *limits])], is_over_time=True)


def _steps(run: RunData) -> tuple[Any, Array]:
    """Return the table of steps, and intervals. Raises ScenarioError for a run without steps."""
    steps = run.table("steps")
    if steps.empty:
        raise ScenarioError("no engine took a step, so there are no batches to draw")
    return steps, edges(float(steps["end"].max()))


def _mean(rows: Any, values: Array | float, ends: Array) -> Array:
    return means(rows["start"].to_numpy(float), rows["end"].to_numpy(float), values, ends)


def _inside(rows: Any, entered: str, left: str, ends: Array) -> Array:
    return number_inside(rows[entered].to_numpy(float), rows[left].to_numpy(float), ends)


def _lines(ends: Array, found: Mapping[Any, Array]) -> list[Mark]:
    """Return a line a client; of many their mean, and the range from the lowest to the highest."""
    at = middles(ends)
    if len(found) <= _MOST_LINES:
        named = zip(found.items(), COLOURS, strict=False)
        return [Line(at, values, str(name), colour) for (name, values), colour in named]
    table = np.stack(list(found.values()))
    title = f"mean of {len(found)} clients, and their range"
    return [Band(at, table.min(axis=0), table.max(axis=0)), Line(at, table.mean(axis=0), title)]


def load(run: RunData) -> Picture:
    """Draw arrivals, finished and failed requests a second, and requests in flight."""
    requests = run.table("requests")
    arrived = requests["arrival_time"].to_numpy(float)
    finished = requests["finished_at"].to_numpy(float)
    is_done = (requests["status"] == "finished").to_numpy(bool)
    ends = edges(float(np.nanmax(finished, initial=arrived.max(initial=0.0))))
    at = middles(ends)
    lines = [
        Line(at, rates(arrived, ends), "arrive", COLOURS[0]),
        Line(at, rates(finished[is_done], ends), "finish", COLOURS[2]),
    ]
    if not is_done.all():
        lines.append(Line(at, rates(finished[~is_done], ends), "fail", LIMIT_COLOUR))
    inside = Line(at, number_inside(arrived, finished, ends), "in flight", COLOURS[1])
    panels = [Panel("requests a second", lines), Panel("requests in flight", [inside])]
    return Picture(panels, is_over_time=True)


def transfers(run: RunData) -> Picture:
    """Draw bytes a second by kind of transfer, and the time that the slowest take.

    Raises ScenarioError for a run in which no entries moved.
    """
    if not run.has("transfers"):
        raise ScenarioError("no KV entries went from one place to another, so there is nothing")
    table = run.table("transfers")
    ends = edges(float(table["end"].max()))
    at = middles(ends)
    moves, times = [], []
    for (kind, mine), colour in zip(table.groupby("kind"), COLOURS, strict=False):
        start, end = mine["start"].to_numpy(float), mine["end"].to_numpy(float)
        moved = np.nan_to_num(mine["num_bytes"].to_numpy(float)) / 1e9
        took = end - start
        speed = np.divide(moved, took, out=np.zeros_like(moved), where=took > 0)
        name = str(kind).replace("_", " ")
        moves.append(Line(at, means(start, end, speed, ends), name, colour))
        times.append(Line(at, percentiles(start, 1e3 * took, ends, 99.0), name, colour))
    panels = [Panel("moved, GB/s", moves), Panel("time of a transfer, ms, p99 by start", times)]
    return Picture(panels, is_over_time=True)


def power(run: RunData) -> Picture:
    """Draw the watts of each client and of all.

    Raises ScenarioError for a run without GPUs, or without a saved table over time.
    """
    table = run.table("over_time")
    if "power" not in table:
        raise ScenarioError("no client has GPUs whose power is known, so there are no watts")
    watts = table.pivot_table(index="start", columns="client", values="power", sort=False)
    names, at = list(watts.columns), watts.index.to_numpy(float)
    lines = []
    if len(names) <= len(COLOURS):
        for name, colour in zip(names, COLOURS, strict=False):
            lines.append(Line(at, watts[name].to_numpy(), str(name), colour, is_stepped=True))
    if len(names) > 1:
        of_all = watts.sum(axis=1).to_numpy()
        lines.append(Line(at, of_all, "all", "#555555", ":", is_stepped=True))
    return Picture([Panel("power, W", lines)], is_over_time=True)


_PARTS = ("mean", "p50", "p90", "p99")
_BAR = 0.19  # inches


def breakdown(run: RunData) -> Picture:
    """Draw the mean and percentiles of each part of the latency, ms.

    Each part has an axis of its own: waits of milliseconds are seen beside answers of seconds.
    Raises ScenarioError where no request finished.
    """
    parts = run.summary.get("latency_breakdown_ms", {})
    panels = []
    for (name, figures), colour in zip(parts.items(), [*COLOURS, *COLOURS], strict=False):
        values = [figures[shown] for shown in _PARTS]
        if any(values):
            texts = [" ".join(shown_latency(value)) for value in values]
            texts[0] += f" ({percent(figures['share'], digits=1)} of all)"
            bars = Bars(range(len(values)), values, colour=colour, texts=texts)
            height = _BAR * len(_PARTS)
            panels.append(Panel(f"{name}, ms", [bars], height=height, rows=_PARTS))
    if not panels:
        raise ScenarioError("no request finished, so there is no latency to divide")
    return Picture(panels)


NUM_SHOWN = 60
_ROW = 0.1  # inches
_ORDER = (COLOURS[5], COLOURS[0], *COLOURS[1:5], *COLOURS[6:])
"""Of stages: prompts as in other pictures, then all others."""


def requests(run: RunData, start: float = 0.0, number: int = NUM_SHOWN) -> Picture:
    """Draw the first requests that arrive after a start time.

    start: seconds of the run. number: of requests.
    Raises ScenarioError if none arrives.
    """
    table = run.table("requests")
    shown = table[table["arrival_time"] >= start].nsmallest(number, "arrival_time")
    if shown.empty:
        raise ScenarioError(f"no request arrives after {start:g} s, so there is none to draw")
    rows = {request: row for row, request in enumerate(shown["request_id"].tolist())}
    stages = run.table("stages")
    stages = stages[stages["request_id"].isin(list(rows))]
    waits = stages[stages["started_at"] > stages["queued_at"]]
    marks = [*_bars(waits, rows, "queued_at", "started_at", "waits", WAIT_COLOUR)]
    for kind, colour in zip(dict.fromkeys(stages["stage"]), _ORDER, strict=False):
        mine = stages[stages["stage"] == kind]
        marks += _bars(mine, rows, "started_at", "finished_at", kind, colour)
    height = 0.6 + _ROW * len(rows)
    title = "requests in order of arrival"
    panel = Panel(
        title, marks, up="request", height=height, range=(-1, len(rows)), is_reversed=True
    )
    return Picture([panel], is_over_time=True)


def _bars(
    spans: Any, rows: dict[int, int], start: str, end: str, name: str, colour: str
) -> Iterator[Bars]:
    """Yield spans of time, each in the row of its request."""
    spans = spans[spans[end] > spans[start]]
    if not spans.empty:
        begin = spans[start].to_numpy(float)
        width = spans[end].to_numpy(float) - begin
        yield Bars([rows[each] for each in spans["request_id"]], width, name, colour, begin)


MOST_BESIDE = 4  # columns that can be read
_AWAY = "a client is away"


class Drawable(NamedTuple):
    """A picture of a run.

    title: its heading in a report. draw: returns it; raises ScenarioError if the run lacks the
        data.
    """

    title: str
    draw: Callable[[RunData], Picture]


PICTURES = {
    "latency": Drawable("Latency over time", latency),
    "attainment": Drawable("Limits over time", attainment),
    "cdf": Drawable("Distributions of latencies", distributions),
    "load": Drawable("Load", load),
    "queue": Drawable("Queues", queues),
    "batch": Drawable("Batches", batches),
    "memory": Drawable("KV memory", memory),
    "stages": Drawable("Where the time goes", breakdown),
    "requests": Drawable("Single requests", requests),
    "transfers": Drawable("Transfers", transfers),
    "power": Drawable("Power", power),
}
"""In the order of a report."""


def draw(run: RunData, name: str) -> Picture:
    """Return a picture of a run, with outages shaded where it is over time.

    name: of `PICTURES`, or of a panel, such as "latency.ttft".
    Raises ScenarioError for other names, if the run lacks the data, and without Matplotlib.
    """
    name, _, panel = name.partition(".")
    require_known(name, PICTURES, "there is no picture")
    require_matplotlib()
    away = [
        Span(each["begin"], run.summary["duration"] if each["end"] is None else each["end"], _AWAY)
        for each in run.summary.get("outages", ())
    ]
    with np.errstate(over="ignore", invalid="ignore"):  # sums of damaged tables may be too large
        found = PICTURES[name].draw(run).with_spans(away)
    return found.panel(panel) if panel else found


def drawn(run: RunData) -> Iterator[tuple[str, Picture]]:
    """Yield the name and picture of each that the run has something for."""
    require_matplotlib()
    for name in PICTURES:
        try:
            yield name, draw(run, name)
        except ScenarioError:
            continue


def side_by_side(runs: Mapping[str, RunData], name: str = "latency") -> Picture:
    """Return one picture of several runs: a column each, with the same axes.

    runs: by the title of their column, two to four: results, or folders that `mist run` wrote
        (`RunFolder`). name: as of `Result.plot`.
    Raises ScenarioError for another number of runs, and as `Result.plot` does.
    """
    _check_runs(runs)
    if not 2 <= len(runs) <= MOST_BESIDE:
        raise ScenarioError(
            f"runs must be 2 to {MOST_BESIDE} to stand side by side, got {len(runs)}"
        )
    pictures = {title: draw(run, name) for title, run in runs.items()}
    return beside(pictures).warned(warnings_of(runs))


def overlaid(runs: Mapping[str, RunData], name: str = "latency") -> Picture:
    """Return one picture of several runs in the same axes: a colour each.

    runs: by their names, two to as many as there are colours: results, or folders that `mist run`
        wrote (`RunFolder`). name: as of `Result.plot`, of a picture of lines.
    Raises ScenarioError for another number of runs, for pictures of bars, and as `Result.plot`.
    """
    _check_runs(runs)
    if not 2 <= len(runs) <= len(COLOURS):
        raise ScenarioError(f"runs must be 2 to {len(COLOURS)} in the same axes, got {len(runs)}")
    each = {title: draw(run, name) for title, run in runs.items()}
    if any(map(hides, each.values())):
        raise ScenarioError(f"{name} has bars, which would hide one another; draw it side by side")
    return over(each).warned(warnings_of(runs))


def warnings_of(runs: Mapping[str, RunData]) -> tuple[ResultWarning, ...]:
    """Return the warnings of several runs, by their titles."""
    return of_points({title: of_data(run.summary) for title, run in runs.items()})


def _check_runs(runs: Mapping[str, RunData]) -> None:
    """Raise ScenarioError unless runs have titles."""
    given: object = runs
    if not isinstance(given, Mapping):
        raise ScenarioError(
            f'runs must be a mapping from titles to results, such as {{"first": result}}, got '
            f"{brief(given)}"
        )
