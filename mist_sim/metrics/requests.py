"""Figures of requests: rates, goodput, figures by model, parts of their latency.

Where the latency of each request went: queues, prompts, answers, transfers, other stages.

Every moment between a request's arrival and its end counts once. If several things happen at once,
the first in this order counts: transfer of entries; work on a prompt or another stage; queue;
answer (an answer may have its memory reserved while its prompt waits in another queue). A stage
lasts until the children that it sent have ended. The rest is time in which no client had the
request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.columns import TableColumns
from mist_sim.core.recorder import STATUSES, Recorder
from mist_sim.metrics import latency, stats
from mist_sim.metrics.clients import output_tokens_before
from mist_sim.metrics.goodput import Slo, SloFigure, SloShare, slo_verdicts
from mist_sim.metrics.latency import Array
from mist_sim.metrics.stability import FILLING
from mist_sim.stages import Decode, Prefill

Mask = NDArray[np.bool_]
Places = NDArray[np.int64]

ANY = "any"
"""Name of the group of requests that ask for no model."""

OTHERS = "others"
"""Name of the requests of no class of the slo."""

_RAMP = 0.2  # of the time in which requests arrive, at least
_MOST = 0.5  # of that time, at most
_PIECES = 10  # of a steady part, in each of which arrivals are counted
_VARIES = 1.25  # times: the most arrivals of a piece over the fewest, that are worth a word
_BY_CHANCE = 33.7  # chi-square of nine degrees of freedom that one in 10,000 steady loads exceeds
_OF_GROUPS = ("mean", "p50", "p90", "p95", "p99")  # as of all requests


class _OfGroups(TypedDict):
    """Figures of a run and of groups of its requests; latencies are milliseconds."""

    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    steady_request_throughput: float
    steady_output_throughput: float
    steady_total_token_throughput: float
    mean_ttft_ms: float
    p50_ttft_ms: float
    p90_ttft_ms: float
    p95_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p50_tpot_ms: float
    p90_tpot_ms: float
    p95_tpot_ms: float
    p99_tpot_ms: float
    mean_e2el_ms: float
    p50_e2el_ms: float
    p90_e2el_ms: float
    p95_e2el_ms: float
    p99_e2el_ms: float


class _Goodput(TypedDict, total=False):
    """Figures where the scenario has limits on requests."""

    request_goodput: float
    steady_request_goodput: float
    good_request_fraction: float
    num_missed: int
    misses: dict[str, int]


class GroupFigures(_OfGroups, _Goodput):
    """The figures of the requests of one model or class."""


class LatencyPart(stats.Milliseconds):
    """A part of the latency, milliseconds. share: of the whole."""

    share: float


class OfRequests(_OfGroups):
    """Figures of the requests of every run."""

    duration: float
    latency_breakdown_ms: dict[str, LatencyPart]


class OfSomeRequests(_Goodput, total=False):
    """Figures of requests where they have limits, groups, or a load that varies."""

    steady_arrivals_per_s: list[float]
    slo: dict[str, SloFigure]
    slo_shares: dict[str, SloShare]
    models: dict[str, GroupFigures]
    classes: dict[str, GroupFigures]


class SteadyPart(NamedTuple):
    """A time of a run, seconds. is_whole: there is no steady part, so it is all measured time."""

    begin: float
    end: float
    is_whole: bool

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


class Counted:
    """The requests of a run that its figures are of: those that users send, not their children.

    recorder: of the run. warmup: seconds; arrivals before its end do not count. open_loop: whether
    arrivals ignored completions.
    c: columns of all requests, with `group` where the slo has classes (`request_columns`). Masks of
    its rows: of_users; `counted`, of these those that arrive after the warm-up; `finished`, those
    that finished, whenever; `ended`, those that finished after the warm-up; `done`, those that
    arrived after it, too. duration: see there.
    """

    def __init__(self, recorder: Recorder, warmup: float = 0.0, *, open_loop: bool = True) -> None:
        self.recorder, self.warmup, self.open_loop = recorder, warmup, open_loop
        self.c = request_columns(recorder)
        self._choose(self.c["parent_id"] == self.c["request_id"])

    def _choose(self, of_users: Mask) -> None:
        c, self.of_users = self.c, of_users
        self.counted: Mask = of_users & (c["arrival_time"] >= self.warmup)
        self.finished: Mask = of_users & (c["status"] == 0)
        self.ended: Mask = self.finished & (c["finished_at"] >= self.warmup)
        self.done: Mask = self.ended & self.counted

    def among(self, mine: Mask) -> Counted:
        """Return those of them in a mask; their rates are over the same time."""
        found = copy(self)
        found.__dict__ |= {"duration": self.duration, "part": self.part}
        found._choose(self.of_users & mine)  # noqa: SLF001 - a copy of this one
        return found

    @cached_property
    def duration(self) -> float:
        """Seconds from the end of the warm-up until the last request ends, served or not.

        As `benchmark_duration` of vLLM's `benchmark`, which waits for failed requests, too.
        """
        ends = self.c["finished_at"][self.of_users]
        return max(float(ends.max(initial=0.0)) - self.warmup, 0.0)

    @cached_property
    def peak(self) -> int:
        """The most requests at a time between arrival and end, failed ones among them."""
        there = self.of_users & (self.c["finished_at"] > self.warmup)
        arrival = self.c["arrival_time"][there].clip(min=self.warmup)
        return stats.max_inside(arrival, self.c["finished_at"][there])

    @cached_property
    def part(self) -> SteadyPart:
        """The steady part of the run."""
        return steady_part(self, self.duration, lap=1 if self.open_loop else max(self.peak, 1))


def request_columns(recorder: Recorder) -> TableColumns:
    """Return the columns of requests; if the slo has classes, `group` is the class.

    Children of other requests belong to no class.
    """
    c = recorder.requests.columns()
    if not recorder.groups:
        return c
    groups, ids = np.array(recorder.groups), c["request_id"]
    of_user = ids >= 0
    return c | {"group": np.where(of_user, groups[np.where(of_user, ids, 0)], 0)}


def steady_part(run: Counted, duration: float, lap: int = 1) -> SteadyPart:
    """Return the steady part of a run.

    It begins after a fifth of the time in which requests arrive, or when clients have filled up (3
    request times, waits apart), but at half of it at the latest, and not in the warm-up. It ends
    with the last arrival. Where that is shorter than a request, or all arrive at once, there is no
    steady part.

    It begins at an arrival, whole laps before its end, if one fits: users of a closed loop end and
    send in waves, and a part of 6.2 waves would hold seven of them at one end.

    duration: seconds of the measured time, after the warm-up. lap: requests after which arrivals
    are in the same phase: the users of a closed loop, each of whom then has sent one.
    """
    c, warmup = run.c, run.warmup
    whole = SteadyPart(warmup, warmup + duration, is_whole=True)
    arrival = c["arrival_time"][run.of_users]
    if not len(arrival):
        return whole
    first, last = float(arrival.min()), float(arrival.max())
    time = 0.0
    if (done := run.finished).any():
        took = c["finished_at"][done] - c["sent_at"][done]
        time = float((took - c["queued"][done] - c["front_end"][done]).mean())
    ramp = min(max(_RAMP * (last - first), FILLING * time), _MOST * (last - first))
    begin = min(max(warmup, first + ramp), last)
    arrival = np.sort(arrival)
    of_part = len(arrival) - 1 - int(np.searchsorted(arrival, begin))
    begin = float(arrival[-1 - (of_part // lap * lap or of_part)])
    return whole if last - begin <= time else SteadyPart(begin, last, is_whole=False)


def varying_arrivals(run: Counted) -> dict[str, Any]:
    """Return the lowest and the highest rate of arrivals in tenths of the steady part, 1/s.

    Empty where the rates differ by a quarter at most, or by what a Poisson process has by chance,
    and in a closed loop.
    """
    part, arrival = run.part, run.c["arrival_time"][run.of_users]
    edges = stats.intervals(part.begin, part.end, _PIECES)
    if not run.open_loop or part.is_whole or edges is None:
        return {}
    counts = np.histogram(arrival, edges)[0]
    low, mean, high = int(counts.min()), float(counts.mean()), int(counts.max())
    if not mean or high <= _VARIES * low:
        return {}
    if float(((counts - mean) ** 2).sum()) / mean <= _BY_CHANCE:
        return {}
    seconds = float(edges[1] - edges[0])
    return {"steady_arrivals_per_s": [low / seconds, high / seconds]}


def samples(c: Mapping[str, Any], rows: Mask | slice = slice(None)) -> dict[str, Array]:
    """Return the latencies of requests, seconds, by metric. rows: of the columns; by default all.

    All that counts a request's TTFT, TPOT, E2E or time in queues has it from here.
    """
    arrival = c["arrival_time"][rows]
    return {
        "ttft": latency.ttft(arrival, c["first_token_at"][rows]),
        "tpot": latency.tpot(c["decode_time"][rows], c["num_gaps"][rows]),
        "e2el": latency.e2e(arrival, c["finished_at"][rows]),
        "queue": c["queued"][rows],
    }


def volume(run: Counted) -> dict[str, Any]:
    """Return how long the run was, and how many requests and tokens it served."""
    num_done = int(run.done.sum())
    return {
        "duration": run.duration,
        "completed": num_done,
        "failed": int(run.counted.sum()) - num_done,
        "total_input_tokens": int(run.c["num_prompt_tokens"][run.done].sum()),
        "total_output_tokens": int(run.c["num_output_tokens"][run.done].sum()),
    }


def throughput(run: Counted, begin: float, duration: float, end: float = inf) -> dict[str, float]:
    """Return requests that end, and tokens that come, per second of a time.

    begin, end: of the time, seconds, of which the end itself is no part. duration: by which rates
        are divided. Output tokens count at their step, a prompt at the first token.
    """

    def inside(times: Array) -> Mask:
        return np.asarray(run.finished & (times >= begin) & (times < end))

    c = run.c
    num_output = _tokens_before(run, end) - _tokens_before(run, begin)
    first = np.where(np.isnan(c["first_token_at"]), c["finished_at"], c["first_token_at"])
    num_input = int(c["num_prompt_tokens"][inside(first)].sum())
    return {
        "request_throughput": rate(int(np.count_nonzero(inside(c["finished_at"]))), duration),
        "output_throughput": rate(num_output, duration),
        "total_token_throughput": rate(num_input + num_output, duration),
    }


def _tokens_before(run: Counted, time: float) -> int:
    """Return how many output tokens of the finished requests came before a time."""
    c, finished = run.c, run.finished
    ended = finished & (c["finished_at"] < time)
    num_tokens = int(c["num_output_tokens"][ended].sum())
    under_way = np.flatnonzero(finished & ~ended & (c["sent_at"] < time))
    if not len(under_way):
        return num_tokens
    under_way = under_way[np.argsort(c["request_id"][under_way])]
    request_ids, sent_at = c["request_id"][under_way], c["sent_at"][under_way]
    return num_tokens + output_tokens_before(run.recorder, request_ids, sent_at, time)


def rate(count: int, duration: float) -> float:
    """Return a count a second; 0 where there was no time."""
    return count / duration if duration > 0 else 0.0


def steady_rates(run: Counted) -> dict[str, float]:
    """Return the throughput in the steady part of a run, under names that say so."""
    part = run.part
    rates = throughput(run, part.begin, part.seconds, inf if part.is_whole else part.end)
    return {f"steady_{name}": value for name, value in rates.items()}


def goodput(slo: Slo, run: Counted) -> dict[str, Any]:
    """Return goodput, the causes of misses and the verdict on each limit; empty without limits.

    `misses` counts requests that fail, by status, and that miss each limit; a finished one may miss
    several. `slo_shares` has the share of good requests of all, or by class, beside the one asked
    for; not where each limit may be kept by other requests. The goodput of the steady part is of
    the requests that arrive in it, whenever they end.

    Verdicts on the limits of a class have its name before them: `chat.p99_ttft_ms`. Limits that
    apply to none of the counted requests are kept: those of no class, if all are of one.
    """
    if not slo.judges_requests:
        return {}
    c, counted, ended, part = run.c, run.counted, run.ended, run.part
    group = c.get("group")
    of_ended = None if group is None else group[ended]
    missed = slo.missed(samples(c, ended), c["num_gaps"][ended], of_ended)
    kept = np.ones(int(ended.sum()), dtype=bool)
    for mask in missed.values():
        kept &= ~mask
    num_counted, is_counted = int(counted.sum()), counted[ended]
    num_good = int(kept[is_counted].sum())
    by_status = np.bincount(c["status"][counted], minlength=len(STATUSES)).tolist()
    arrival = c["arrival_time"][ended]
    in_part = part.is_whole | ((arrival >= part.begin) & (arrival < part.end))
    verdicts: dict[str, dict[str, Any]] = {}
    shares: dict[str, dict[str, Any]] = {}
    for place, (name, limits) in enumerate(slo.groups.items()):
        mine = counted if group is None else counted & (group == place)
        done, number = mine & ended, int(mine.sum())
        found = slo_verdicts(limits, samples(c, done), c["num_gaps"][done], number - done.sum())
        of_none = {"kept": True} if num_counted and not number else {}
        prefix = f"{name}." if name else ""
        verdicts |= {f"{prefix}{key}": verdict | of_none for key, verdict in found.items()}
        if limits.limits and not slo.asks_each and (number or not num_counted):
            value = stats.share(int(kept[mine[ended]].sum()), number)
            asked = slo.shares[name]
            who = name or (OTHERS if slo.classes else latency.ALL)
            shares[who] = {"asked": asked, "value": value, "kept": value >= asked}
    return {
        "request_goodput": rate(int(kept.sum()), run.duration),
        "steady_request_goodput": rate(int((kept & in_part).sum()), part.seconds),
        "good_request_fraction": num_good / num_counted if num_counted else 0.0,
        "num_missed": num_counted - num_good,
        "misses": dict(zip(STATUSES[1:], by_status[1:], strict=True))
        | {name: int(np.count_nonzero(mask & is_counted)) for name, mask in missed.items()},
        "slo": verdicts,
        **({"slo_shares": shares} if shares else {}),
    }


def by_group(slo: Slo, run: Counted) -> dict[str, Any]:
    """Return the figures of the requests for each model, and of each class.

    `models`: by model name, requests without a model under `any`; absent unless requests ask for
    several models. `classes`: by class of the slo, with the requests of no class; absent without
    classes.
    """
    c, found = run.c, dict[str, Any]()
    asked = np.flatnonzero(np.bincount(c["model"][run.counted | run.ended])).tolist()
    if len(asked) > 1:
        names = run.recorder.models.values
        found["models"] = {
            str(names[code] or ANY): _figures_of(slo, run.among(c["model"] == code))
            for code in asked
        }
    if slo.classes and "group" in c:
        groups = {name: c["group"] == place for place, name in enumerate(slo.groups)}
        found["classes"] = {
            name or OTHERS: _figures_of(slo, run.among(mine))
            for name, mine in groups.items()
            if mine.any()
        }
    return found


def _figures_of(slo: Slo, run: Counted) -> dict[str, Any]:
    """Return the figures of some requests."""
    rates = throughput(run, run.warmup, run.duration) | steady_rates(run)
    figures = volume(run) | rates | goodput(slo, run)
    for name in ("duration", "slo", "slo_shares"):
        figures.pop(name, None)
    times = samples(run.c, run.done)
    for name in latency.SHORT_NAMES:
        described = stats.milliseconds(stats.known(times[name]), _OF_GROUPS)
        figures |= {f"{each}_{name}_ms": value for each, value in described.items()}
    return figures


class RequestRows:
    """The rows of requests by their ids."""

    def __init__(self, recorder: Recorder) -> None:
        requests = recorder.requests.columns()
        self._rows: Places = np.argsort(requests["request_id"])
        self._ids: Places = requests["request_id"][self._rows]

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, request_ids: Places) -> Places:
        """Return the rows of requests, which must be there."""
        return self._rows[np.searchsorted(self._ids, request_ids)]

    def added(self, request_ids: Places, values: Array) -> Array:
        """Return values summed by request, in the order of the rows."""
        return np.asarray(np.bincount(self.of(request_ids), values, len(self)), dtype=float)


def spawned(recorder: Recorder) -> dict[str, Any]:
    """Return the children of a run: columns with an item a child.

    parent_id: of the request that waits for it. visit: row of the visit that sent it. stages: code
    of that visit's pipeline. sent_at, ended_at: seconds.
    """
    c = recorder.requests.columns()
    child = np.flatnonzero(c["parent_id"] != c["request_id"])
    parent, sent_at = c["parent_id"][child], c["arrival_time"][child]
    visits = recorder.visits.columns()
    visit = np.full(len(child), -1)
    if len(child):
        # A request waits where it is, so its last visit served by then is the one that sent them.
        served = np.flatnonzero(visits["served"] & np.isin(visits["request_id"], parent))
        owner = np.concatenate([visits["request_id"][served], parent])
        time = np.concatenate([visits["finished_at"][served], sent_at])
        order = np.lexsort((np.arange(len(owner)), time, owner))  # a visit before its children
        latest = np.maximum.accumulate(np.where(order < len(served), np.arange(len(order)), 0))
        is_child = order >= len(served)
        visit[order[is_child] - len(served)] = served[order[latest[is_child]]]
    return {
        "parent_id": parent,
        "visit": visit,
        "stages": visits["stages"][visit],
        "sent_at": sent_at,
        "ended_at": c["finished_at"][child],
    }


def ends_with_children(recorder: Recorder) -> Array:
    """Return when each visit ended together with the children that it sent, seconds."""
    ends: Array = recorder.visits.columns()["finished_at"].copy()
    children = spawned(recorder)
    np.maximum.at(ends, children["visit"], children["ended_at"])
    return ends


Rows = dict[str, Any]
"""Rows of a table, by column; `row`: the position of each row's request."""

QUEUE, PREFILL, DECODE, TRANSFER = "queue", Prefill.kind, Decode.kind, "transfer"
_RETRIES, _GATEWAY = "retries", "gateway"
_FRONT_END = "front_end"
_IN_ORDER = (QUEUE, PREFILL, TRANSFER, DECODE)
_TINY = 1e-9  # seconds below which a remainder is rounding
_TOGETHER = 65_536  # requests looked at together, since they may have many intervals
_OF_REQUESTS = ("arrival_time", "sent_at", "finished_at", "front_end")
_OF_VISITS = ("stages", "queued_at", "started_at", "first_token_at", "finished_at")


@dataclass(frozen=True)
class _Intervals:
    """Intervals of activity of requests; arrays with one item per interval.

    row: row of the request. what: number of the activity's name. start, end: seconds.
    """

    row: Places
    what: NDArray[np.int16]
    start: Array
    end: Array

    def select(self, chosen: Mask) -> _Intervals:
        """Return some of them."""
        return _Intervals(*(values[chosen] for values in vars(self).values()))

    @staticmethod
    def joined(parts: list[_Intervals]) -> _Intervals:
        """Return several parts as one."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return _Intervals(*(np.concatenate(column) for column in columns))


class _Table(NamedTuple):
    """Some columns of a table whose rows belong to requests: `place`, of each row's request."""

    columns: Mapping[str, Any]
    names: Sequence[str]
    place: Places

    def between(self, first: int, last: int) -> Rows:
        """Return the rows of the requests from `first` to the one before `last`."""
        here = np.flatnonzero((self.place >= first) & (self.place < last))
        row = {"row": self.place[here] - first}
        return row | {name: self.columns[name][here] for name in self.names}


class Breakdown:
    """Parts of the latency of a run's requests.

    queue: in the queue of a client, before first work and while waiting for memory. prefill: work
        on a prompt, from first work to the first token, waits for memory after a preemption
        included. decode: from there to the last token. front_end: between users and engines
        (`FrontEnd`). transfer: KV entries moving between clients, tiers and swap space. retries:
        from the arrival to the last sending. gateway: no client had the request, which was not let
        in, or none was up. Other stages have their own names, with the time of the children that
        they sent; stages that workers serve in one visit share one, such as "preprocess + rag".
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # Of two at once the later one counts. An answer's memory may be reserved before its prompt.
        self._names = [DECODE, QUEUE]

    @cached_property
    def seconds(self) -> dict[str, Array]:
        """The seconds of each thing, by request in the order of the recorder's."""
        recorder, rows = self._recorder, RequestRows(self._recorder)
        requests = recorder.requests.columns()
        visits, moves = recorder.visits.columns(), recorder.moves.columns()
        children = spawned(recorder)
        tables = (
            _Table(visits, _OF_VISITS, rows.of(visits["request_id"])),
            _Table(children, ("stages", "sent_at", "ended_at"), rows.of(children["parent_id"])),
            _Table(moves, ("start", "end"), rows.of(moves["request_id"])),
        )
        of_requests = _Table(requests, _OF_REQUESTS, np.arange(len(rows)))
        found: dict[str, Array] = {}
        for first in range(0, max(len(rows), 1), _TOGETHER):
            here = of_requests.between(first, first + _TOGETHER)
            few = [table.between(first, first + _TOGETHER) for table in tables]
            for name, seconds in self._of_some(here, *few).items():
                if name not in found and (name == QUEUE or seconds.any()):
                    found[name] = np.zeros(len(rows))
                if name in found:
                    found[name][here["row"] + first] = seconds
        return {name: found[name] for name in self._all_names() if name in found}

    def _all_names(self) -> list[str]:
        others = [name for name in self._names if name not in _IN_ORDER]
        return [*_IN_ORDER, *others, _RETRIES, _FRONT_END, _GATEWAY]

    def _of_some(
        self, requests: Rows, visits: Rows, children: Rows, moves: Rows
    ) -> dict[str, Array]:
        """Return the seconds of each thing of some requests. row: in `requests`, by the others."""
        number = len(requests["row"])
        waits, *work = self._visits(visits)
        others = [*self._children(*children.values()), self._spent(TRANSFER, *moves.values())]
        is_contested = np.bincount(waits.row, minlength=number) > 1
        for intervals in others:
            is_contested[intervals.row] = True
        found = _clipped(_Intervals.joined([waits, *work, *others]), requests)
        overlap = is_contested[found.row]
        found = _Intervals.joined([found.select(~overlap), self._disjoint(found.select(overlap))])
        shares = {}
        for name in self._all_names()[:-3]:
            mine = found.what == self._code(name)
            seconds = found.end[mine] - found.start[mine]
            shares[name] = np.bincount(found.row[mine], seconds, number).astype(float)
        shares[_RETRIES] = requests["sent_at"] - requests["arrival_time"]
        shares[_FRONT_END] = requests["front_end"]
        rest = requests["finished_at"] - requests["arrival_time"] - sum(shares.values())
        return shares | {_GATEWAY: np.where(np.abs(rest) < _TINY, 0.0, rest)}

    def _code(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def _visits(self, visits: Rows) -> Iterator[_Intervals]:
        """Yield the waits of visits, and the work done in them."""
        row = visits["row"]
        end: Array = visits["finished_at"]
        begun, first_token = (
            np.where(np.isnan(visits[name]), end, visits[name])
            for name in ("started_at", "first_token_at")
        )
        yield self._spent(QUEUE, row, visits["queued_at"], begun)
        for code, kinds in enumerate(self._recorder.pipelines.values):
            mine = visits["stages"] == code
            first, last = _parts_of(kinds)
            split = end
            if first != last:
                split = np.maximum(first_token, begun)
                yield self._spent(last, row, split, end, mine)
            yield self._spent(first, row, begun, split, mine)

    def _children(
        self, row: Places, stages: Places, start: Array, end: Array
    ) -> Iterator[_Intervals]:
        """Yield the time of children, as of the stage that sent them."""
        for code in np.flatnonzero(np.bincount(stages)).tolist():
            name = _parts_of(self._recorder.pipelines.values[code])[-1]
            yield self._spent(name, row, start, end, stages == code)

    def _spent(
        self, name: str, row: Places, start: Array, end: Array, chosen: Mask | None = None
    ) -> _Intervals:
        what = np.full(len(row), self._code(name), dtype=np.int16)
        found = _Intervals(row, what, start, end)
        return found if chosen is None else found.select(chosen)

    def _disjoint(self, intervals: _Intervals) -> _Intervals:
        """Return intervals without overlaps: at each time the activity that counts first."""
        row = np.concatenate([intervals.row] * 2)
        time = np.concatenate([intervals.start, intervals.end])
        sign = np.repeat(np.array([1, -1], dtype=np.int32), len(intervals.row))
        order = np.lexsort((time, row))
        row, time, sign = row[order], time[order], sign[order]
        what = np.concatenate([intervals.what] * 2)[order]
        counts = np.full(len(row), -1, dtype=np.int16)  # of two at once the later one counts
        last = self._code(TRANSFER)
        for code in [*(code for code in range(len(self._names)) if code != last), last]:
            counts[np.cumsum(np.where(what == code, sign, 0)) > 0] = code
        inside = (row[1:] == row[:-1]) & (counts[:-1] >= 0)
        return _Intervals(row[:-1], counts[:-1], time[:-1], time[1:]).select(inside)


def _parts_of(kinds: Any) -> tuple[str, str]:
    """Return the names of the work until the first token of a visit, and behind it.

    kinds: of its stages. Names are equal where nothing distinguishes the stages of a visit.
    """
    first, *later = list(dict.fromkeys(kinds))
    if first == PREFILL and later:
        return first, " + ".join(later)
    name = " + ".join([first, *later])
    return name, name


def _clipped(intervals: _Intervals, requests: Rows) -> _Intervals:
    """Return the intervals cut to the last attempt of each request."""
    sent, over = (requests[name][intervals.row] for name in ("sent_at", "finished_at"))
    start, end = np.clip(intervals.start, sent, over), np.clip(intervals.end, sent, over)
    return _Intervals(intervals.row, intervals.what, start, end).select(end > start)


def breakdown_summary(recorder: Recorder, done: Mask) -> dict[str, Any]:
    """Return figures of each part of the latency of some requests, and its share of all of it."""
    parts = {name: seconds[done] for name, seconds in Breakdown(recorder).seconds.items()}
    sums = {name: seconds.sum() for name, seconds in parts.items()}
    whole = float(sum(sums.values()))
    found = {
        name: {"share": stats.share(float(sums[name]), whole), **stats.milliseconds(seconds)}
        for name, seconds in parts.items()
    }
    return {"latency_breakdown_ms": found}


class Use(NamedTuple):
    """Work of the busiest process. share: of the time; above 1 more tokens come than it can stream.

    requests, tokens: that it gets, per second.
    """

    share: float
    requests: float
    tokens: float


def front_end_use(recorder: Recorder, warmup: float) -> Use | None:
    """Return the use of the busiest process in the steady part of a run; None without a front end.

    A process takes its share of all requests, when they enter an engine's queue, and of the output
    tokens of its client, which come evenly between the first and the last of a visit. Visits that
    are under way when a run ends early are not in the records, so that their work is missing.
    """
    servers = recorder.servers
    if servers is None or not servers.numbers:
        return None
    run = Counted(recorder, warmup)
    part = steady_part(run, float(run.c["finished_at"].max(initial=0.0)) - warmup)
    if part.seconds <= 0:
        return None
    visits = recorder.visits.columns()
    pipelines: Sequence[Any] = recorder.pipelines.values
    with_prompts = [code for code, kinds in enumerate(pipelines) if Prefill.kind in kinds]
    entered = (visits["queued_at"] >= part.begin) & (visits["queued_at"] < part.end)
    entered &= np.isin(visits["stages"], with_prompts)
    processes = sum(servers.numbers.values())
    requests = int(np.count_nonzero(entered)) / part.seconds / processes
    prompts = int(visits["num_input_tokens"][entered].sum()) / part.seconds / processes
    emitted = _tokens_in(part, visits)
    tokens = max(
        float(emitted[visits["client_id"] == client_id].sum()) / part.seconds / number
        for client_id, number in servers.numbers.items()
    )
    times = servers.options
    work = (
        requests * (times.request or 0.0)
        + prompts * (times.prompt_token or 0.0)
        + tokens * (times.stream_token or 0.0)
    )
    return Use(work, requests, tokens)


def _tokens_in(part: SteadyPart, visits: Mapping[str, Any]) -> Array:
    """Return the output tokens of each visit that come in a part of a run."""
    number, end = visits["num_output_tokens"], visits["finished_at"]
    first = np.where(np.isnan(visits["first_token_at"]), end, visits["first_token_at"])
    period = end - first
    inside = np.minimum(end, part.end) - np.maximum(first, part.begin)
    at_once = (end >= part.begin) & (end < part.end)
    share = np.divide(inside, period, out=at_once.astype(float), where=period > 0)
    return np.asarray(number * share.clip(min=0.0), dtype=float)
