"""Figures of requests: parts of their latency, rates, figures by model.

Where the latency of each request went: queues, prompts, answers, transfers, other stages.

Every moment between a request's arrival and its end counts once. If several things happen at once,
the first in this order counts: transfer of entries; work on a prompt or another stage; queue;
answer (an answer may have its memory reserved while its prompt waits in another queue). A stage
lasts until the children that it sent have ended. The rest is time in which no client had the
request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics import latency, stats
from mist_sim.metrics.clients import output_tokens_before
from mist_sim.metrics.goodput import Limits, Slo, slo_verdicts
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.columns import TableColumns
from mist_sim.metrics.records.recorder import STATUSES, ColumnRecorder
from mist_sim.metrics.stability import FILLING
from mist_sim.metrics.tables import Coded, Columns, in_order
from mist_sim.stages import Decode, Prefill

_Positions = NDArray[np.int64]


class RequestRows:
    """The rows of requests by their ids."""

    def __init__(self, recorder: ColumnRecorder) -> None:
        requests = recorder.requests.columns()
        self._rows: _Positions = np.argsort(requests["request_id"])
        self._ids: _Positions = requests["request_id"][self._rows]

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, request_ids: _Positions) -> _Positions:
        """Return the rows of requests, which must be there."""
        return self._rows[np.searchsorted(self._ids, request_ids)]

    def added(self, request_ids: _Positions, values: Array) -> Array:
        """Return values summed by request, in the order of the rows."""
        return np.asarray(np.bincount(self.of(request_ids), values, len(self)), dtype=float)


def spawned(recorder: ColumnRecorder) -> dict[str, Any]:
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


def ends_with_children(recorder: ColumnRecorder) -> Array:
    """Return when each visit ended together with the children that it sent, seconds."""
    ends: Array = recorder.visits.columns()["finished_at"].copy()
    children = spawned(recorder)
    np.maximum.at(ends, children["visit"], children["ended_at"])
    return ends


Mask = NDArray[np.bool_]


def throughput(
    recorder: ColumnRecorder,
    c: Mapping[str, Any],
    finished: Mask,
    begin: float,
    duration: float,
    end: float = inf,
) -> dict[str, float]:
    """Return requests that end, and tokens that come, per second of a time.

    finished: the requests that count, whenever they ended. begin, end: of the time, seconds, of
        which the end itself is no part. duration: by which rates are divided. Output tokens count
        at their step, a prompt at the first token.
    """
    ended = finished & _is_between(c["finished_at"], begin, end)
    num_output = _tokens_before(recorder, c, finished, end)
    num_output -= _tokens_before(recorder, c, finished, begin)
    first = np.where(np.isnan(c["first_token_at"]), c["finished_at"], c["first_token_at"])
    num_input = int(c["num_prompt_tokens"][finished & _is_between(first, begin, end)].sum())
    return {
        "request_throughput": rate(int(np.count_nonzero(ended)), duration),
        "output_throughput": rate(num_output, duration),
        "total_token_throughput": rate(num_input + num_output, duration),
    }


def _is_between(times: Array, begin: float, end: float) -> Mask:
    return np.asarray((times >= begin) & (times < end))


def _tokens_before(
    recorder: ColumnRecorder, c: Mapping[str, Any], finished: Mask, time: float
) -> int:
    """Return how many output tokens of the requests came before a time."""
    ended = finished & (c["finished_at"] < time)
    num_tokens = int(c["num_output_tokens"][ended].sum())
    under_way = np.flatnonzero(finished & ~ended & (c["sent_at"] < time))
    if not len(under_way):
        return num_tokens
    under_way = under_way[np.argsort(c["request_id"][under_way])]
    request_ids, sent_at = c["request_id"][under_way], c["sent_at"][under_way]
    return num_tokens + output_tokens_before(recorder, request_ids, sent_at, time)


def rate(count: int, duration: float) -> float:
    """Return a count a second; 0 where there was no time."""
    return count / duration if duration > 0 else 0.0


Places = NDArray[np.int64]
Rows = dict[str, Any]
"""Rows of a table, by column; `row`: the position of each row's request."""

QUEUE, PREFILL, DECODE, TRANSFER = "queue", Prefill.kind, Decode.kind, "transfer"
_RETRIES, _GATEWAY = "retries", "gateway"
_FRONT_END = "front_end"
_IN_ORDER = (QUEUE, PREFILL, TRANSFER, DECODE)
_FIGURES = ("mean", "p50", "p90", "p99")
_OF_GROUPS = ("mean", "p50", "p90", "p95", "p99")  # as of all requests
_MS = 1e3
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

    def __init__(self, recorder: ColumnRecorder) -> None:
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
        shares = {name: self._sum(found, name, number) for name in self._all_names()[:-3]}
        shares[_RETRIES] = requests["sent_at"] - requests["arrival_time"]
        shares[_FRONT_END] = requests["front_end"]
        rest = requests["finished_at"] - requests["arrival_time"] - sum(shares.values())
        return shares | {_GATEWAY: np.where(np.abs(rest) < _TINY, 0.0, rest)}

    def _sum(self, intervals: _Intervals, name: str, number: int) -> Array:
        """Return the seconds of one thing by request. number: of the requests."""
        mine = intervals.what == self._code(name)
        seconds = intervals.end[mine] - intervals.start[mine]
        return np.asarray(np.bincount(intervals.row[mine], seconds, number), dtype=float)

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
        counts = np.full(len(row), -1, dtype=np.int16)
        for code in self._by_rank():
            counts[np.cumsum(np.where(what == code, sign, 0)) > 0] = code
        inside = (row[1:] == row[:-1]) & (counts[:-1] >= 0)
        return _Intervals(row[:-1], counts[:-1], time[:-1], time[1:]).select(inside)

    def _by_rank(self) -> list[int]:
        """Return the numbers of all names; of two at once the later one counts."""
        last = self._code(TRANSFER)
        return [code for code in range(len(self._names)) if code != last] + [last]


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


def breakdown_columns(breakdown: Breakdown, recorder: ColumnRecorder) -> Columns:
    """A row a request of a user, in their order: latency (`e2el`), and the seconds of its parts.

    The time of children counts in the stage that sent them.
    """
    c = recorder.requests.columns()
    latencies = {"e2el": c["finished_at"] - c["arrival_time"]}
    columns: Columns = {"request_id": c["request_id"], **latencies, **breakdown.seconds}
    rows = np.argsort(c["request_id"])
    return in_order(columns, rows[(c["parent_id"] == c["request_id"])[rows]])


def breakdown_summary(breakdown: Breakdown, done: Mask) -> dict[str, Any]:
    """Return figures of each part of the latency of some requests, and its share of all of it."""
    sums = {name: seconds[done].sum() for name, seconds in breakdown.seconds.items()}
    whole = float(sum(sums.values()))
    found = {}
    for name, seconds in breakdown.seconds.items():
        figures = stats.describe(seconds[done])
        shown = {figure: figures[figure] * _MS for figure in _FIGURES}
        found[name] = {"share": stats.share(float(sums[name]), whole)} | shown
    return {"latency_breakdown_ms": found}


_RAMP = 0.2  # of the time in which requests arrive, at least
_MOST = 0.5  # of that time, at most
_PIECES = 10  # of a steady part, in each of which arrivals are counted
_VARIES = 1.25  # times: the most arrivals of a piece over the fewest, that are worth a word
_BY_CHANCE = 33.7  # chi-square of nine degrees of freedom that one in 10,000 steady loads exceeds


class SteadyPart(NamedTuple):
    """A time of a run, seconds. is_whole: there is no steady part, so it is all measured time."""

    begin: float
    end: float
    is_whole: bool

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


def steady_part(
    c: Mapping[str, Any], of_users: Mask, warmup: float, duration: float, lap: int = 1
) -> SteadyPart:
    """Return the steady part of a run.

    It begins after a fifth of the time in which requests arrive, or when clients have filled up (3
    request times, waits apart), but at half of it at the latest, and not in the warm-up. It ends
    with the last arrival. Where that is shorter than a request, or all arrive at once, there is no
    steady part.

    It begins at an arrival, whole laps before its end, if one fits: users of a closed loop end and
    send in waves, and a part of 6.2 waves would hold seven of them at one end.

    c: columns of requests. of_users: which of these users sent. duration: seconds of the measured
    time, after the warm-up. lap: requests after which arrivals are in the same phase: the users of
    a closed loop, each of whom then has sent one.
    """
    whole = SteadyPart(warmup, warmup + duration, is_whole=True)
    arrival = c["arrival_time"][of_users]
    if not len(arrival):
        return whole
    first, last = float(arrival.min()), float(arrival.max())
    done = of_users & (c["status"] == 0)
    time = 0.0
    if done.any():
        took = c["finished_at"][done] - c["sent_at"][done]
        time = float((took - c["queued"][done] - c["front_end"][done]).mean())
    ramp = min(max(_RAMP * (last - first), FILLING * time), _MOST * (last - first))
    begin = min(max(warmup, first + ramp), last)
    arrival = np.sort(arrival)
    of_part = len(arrival) - 1 - int(np.searchsorted(arrival, begin))
    begin = float(arrival[-1 - (of_part // lap * lap or of_part)])
    return whole if last - begin <= time else SteadyPart(begin, last, is_whole=False)


def varying_arrivals(
    c: Mapping[str, Any], of_users: Mask, part: SteadyPart
) -> tuple[float, float] | None:
    """Return the lowest and the highest rate of arrivals in tenths of a steady part, 1/s.

    None where the rates differ by a quarter at most, or by what a Poisson process has by chance.
    """
    arrival = c["arrival_time"][of_users]
    counts, edges = np.histogram(arrival, _PIECES, (part.begin, max(part.end, part.begin)))
    low, mean, high = int(counts.min()), float(counts.mean()), int(counts.max())
    if part.is_whole or not mean or high <= _VARIES * low:
        return None
    if float(((counts - mean) ** 2).sum()) / mean <= _BY_CHANCE:
        return None
    seconds = float(edges[1] - edges[0])
    return low / seconds, high / seconds


def request_columns(recorder: ColumnRecorder) -> TableColumns:
    """Return the columns of requests; if the slo has classes, `group` is the class.

    Children of other requests belong to no class.
    """
    c = recorder.requests.columns()
    if not recorder.groups:
        return c
    groups, ids = np.array(recorder.groups), c["request_id"]
    of_user = ids >= 0
    return c | {"group": np.where(of_user, groups[np.where(of_user, ids, 0)], 0)}


def class_columns(recorder: ColumnRecorder, names: Sequence[str]) -> Columns:
    """Return each request's class as a column of the table of requests; absent without classes.

    names: names of the classes, as in `Slo.groups`; "" for none.
    """
    c = request_columns(recorder)
    if "group" not in c:
        return {}
    return {"class": Coded(c["group"][np.argsort(c["request_id"])], names)}


def volume(c: Mapping[str, Any], counted: Mask, done: Mask, duration: float) -> dict[str, Any]:
    """Return how long the run was, and how many requests and tokens it served."""
    num_done = int(done.sum())
    return {
        "duration": duration,
        "completed": num_done,
        "failed": int(counted.sum()) - num_done,
        "total_input_tokens": int(c["num_prompt_tokens"][done].sum()),
        "total_output_tokens": int(c["num_output_tokens"][done].sum()),
    }


def samples(c: Mapping[str, Any], done: Mask) -> dict[str, Array]:
    """Return the times of each finished request, seconds, by metric."""
    arrival = c["arrival_time"][done]
    return {
        "ttft": latency.ttft(arrival, c["first_token_at"][done]),
        "tpot": latency.tpot(c["decode_time"][done], c["num_gaps"][done]),
        "e2el": latency.e2e(arrival, c["finished_at"][done]),
        "queue": c["queued"][done],
    }


def steady_rates(
    recorder: ColumnRecorder, c: Mapping[str, Any], finished: Mask, part: SteadyPart
) -> dict[str, float]:
    """Return the throughput in the steady part of a run, under names that say so."""
    end = inf if part.is_whole else part.end
    rates = throughput(recorder, c, finished, part.begin, part.seconds, end)
    return {f"steady_{name}": value for name, value in rates.items()}


def goodput(
    slo: Slo, c: Mapping[str, Any], ended: Mask, counted: Mask, duration: float, part: SteadyPart
) -> dict[str, Any]:
    """Return goodput, the causes of misses and the verdict on each limit; empty without limits.

    `slo_shares` has the share of good requests of all, or by class, beside the one asked for; not
    where each limit may be kept by other requests.

    The goodput of the steady part is of the requests that arrive in it, whenever they end.

    c: columns of requests, with `group` where the slo has classes (`request_columns`). Verdicts on
    the limits of a class have its name before them: `chat.p99_ttft_ms`. Limits that apply
    to none of the counted requests are kept: those of no class, if all are of one.
    """
    if not slo.judges_requests:
        return {}
    group = c.get("group")
    times = samples(c, ended)
    num_gaps = c["num_gaps"][ended]
    of_ended = None if group is None else group[ended]
    kept = slo.kept(times["ttft"], times["tpot"], times["e2el"], num_gaps, of_ended)
    num_counted, num_good = int(counted.sum()), int(kept[counted[ended]].sum())
    arrival = c["arrival_time"][ended]
    in_part = part.is_whole | ((arrival >= part.begin) & (arrival < part.end))
    verdicts: dict[str, dict[str, Any]] = {}
    shares: dict[str, dict[str, Any]] = {}
    for place, (name, limits) in enumerate(slo.groups.items()):
        mine = counted if group is None else counted & (group == place)
        prefix = f"{name}." if name else ""
        found = _verdicts(limits, c, mine & ended, int(mine.sum()))
        of_none = {"kept": True} if num_counted and not mine.any() else {}
        verdicts |= {f"{prefix}{key}": verdict | of_none for key, verdict in found.items()}
        if limits.limits and not slo.asks_each and (mine.any() or not num_counted):
            value = stats.share(int(kept[mine[ended]].sum()), int(mine.sum()))
            asked = slo.shares[name]
            who = name or (OTHERS if slo.classes else latency.ALL)
            shares[who] = {"asked": asked, "value": value, "kept": value >= asked}
    return {
        "request_goodput": rate(int(kept.sum()), duration),
        "steady_request_goodput": rate(int((kept & in_part).sum()), part.seconds),
        "good_request_fraction": num_good / num_counted if num_counted else 0.0,
        "num_missed": num_counted - num_good,
        "misses": _misses(slo, c, counted, counted & ended),
        "slo": verdicts,
        **({"slo_shares": shares} if shares else {}),
    }


def _misses(slo: Slo, c: Mapping[str, Any], counted: Mask, done: Mask) -> dict[str, int]:
    """Return how many of the counted requests miss by failing, by status, and by each limit.

    done: the finished ones among them, which may miss several limits.
    """
    by_status = np.bincount(c["status"][counted], minlength=len(STATUSES)).tolist()
    failed = dict(zip(STATUSES[1:], by_status[1:], strict=True))
    times, group = samples(c, done), c.get("group")
    missed = slo.missed(times, c["num_gaps"][done], None if group is None else group[done])
    return failed | {name: int(np.count_nonzero(mask)) for name, mask in missed.items()}


def _verdicts(
    limits: Limits, c: Mapping[str, Any], done: Mask, num_counted: int
) -> dict[str, dict[str, Any]]:
    """Return the verdicts on the limits of some requests. done: the finished ones among them."""
    times, num_gaps = samples(c, done), c["num_gaps"][done]
    return slo_verdicts(limits, times, num_gaps, num_counted - int(done.sum()))


ANY = "any"
"""Name of the group of requests that ask for no model."""

OTHERS = "others"
"""Name of the requests of no class of the slo."""

_LATENCIES = ("ttft", "tpot", "e2el")


def by_group(
    recorder: ColumnRecorder,
    slo: Slo,
    counted: Mask,
    finished: Mask,
    warmup: float,
    duration: float,
    part: SteadyPart,
) -> dict[str, Any]:
    """Return counts, rates and latencies of groups of requests, as in the summary of all.

    counted: requests that count. finished: of users, whenever they ended. part: the steady part.
    `models`: by model; absent if all requests name the same one or none. `classes`: by class of the
    slo, with the requests of no class; absent without classes.
    """
    c = request_columns(recorder)
    figures = _Figures(recorder, c, slo, counted, finished, warmup, duration, part)
    found: dict[str, Any] = {}
    asked = np.flatnonzero(np.bincount(c["model"][counted | figures.ended])).tolist()
    if len(asked) > 1:
        names = recorder.models.values
        models = {str(names[code] or ANY): figures.of(c["model"] == code) for code in asked}
        found["models"] = models
    if slo.classes and "group" in c:
        groups = {name: c["group"] == place for place, name in enumerate(slo.groups)}
        classes = {name or OTHERS: figures.of(mine) for name, mine in groups.items() if mine.any()}
        found["classes"] = classes
    return found


@dataclass(frozen=True)
class _Figures:
    """Figures of some requests; the fields are as of `by_group`. columns: of all requests."""

    recorder: ColumnRecorder
    columns: Mapping[str, Any]
    slo: Slo
    counted: Mask
    finished: Mask
    warmup: float
    duration: float
    part: SteadyPart

    @cached_property
    def ended(self) -> Mask:
        """The requests that finished in the `duration`."""
        return np.asarray(self.finished & (self.columns["finished_at"] >= self.warmup))

    def of(self, mine: Mask) -> dict[str, Any]:
        """Return the figures of the requests in a mask."""
        c, counted, ended = self.columns, self.counted & mine, self.ended & mine
        figures = volume(c, counted, ended & counted, self.duration)
        del figures["duration"]
        finished = self.finished & mine
        figures |= throughput(self.recorder, c, finished, self.warmup, self.duration)
        figures |= steady_rates(self.recorder, c, finished, self.part)
        good = goodput(self.slo, c, ended, counted, self.duration, self.part)
        figures |= {
            name: value for name, value in good.items() if name not in {"slo", "slo_shares"}
        }
        times = samples(c, ended & counted)
        for name in _LATENCIES:
            described = stats.describe(times[name][~np.isnan(times[name])])
            figures |= {f"{each}_{name}_ms": described[each] * _MS for each in _OF_GROUPS}
        return figures


NO_LEVEL = 0
"""Code of what no level had."""


def retrievals_summary(recorder: ColumnRecorder, request_ids: Any) -> dict[str, Any]:
    """Return the hits of retrievals of some requests; empty without retrievals.

    retrieval_hit_rate: share of the tokens asked for that any level had. retrieval_hit_rates: the
    same by level. mean_retrieval_ms: of a batch, waiting not included.
    """
    rows = recorder.retrievals.columns()
    mine = np.isin(rows["request_id"], request_ids)
    if not mine.any():
        return {}
    level, num_tokens = rows["level"][mine], rows["num_tokens"][mine]
    asked, by_level = num_tokens.sum(), np.bincount(level, num_tokens, len(_names(recorder)))
    found = asked - by_level[NO_LEVEL]
    visits = np.stack([rows[name][mine] for name in ("request_id", "client_id", "start", "end")])
    _, _, start, end = np.unique(visits, axis=1)
    return {
        "num_retrievals": len(start),
        "retrieved_tokens": float(found),
        "retrieval_hit_rate": stats.share(found, asked),
        "retrieval_hit_rates": {
            name: stats.share(by_level[code], asked)
            for code, name in enumerate(_names(recorder))
            if code != NO_LEVEL
        },
        "mean_retrieval_ms": float((end - start).mean()) * _MS,
    }


def retrievals_columns(recorder: ColumnRecorder, client_names: list[str]) -> Columns:
    """Return a row for each level that had entries of a requested context, by start.

    client: the retrieving client. level: empty for entries that no level had and an engine
        computes.
    num_tokens: tokens whose entries these are, a mean with expected hits. num_bytes: bytes from the
        level.
    start, end: of the batch, seconds.
    """
    c = recorder.retrievals.columns()
    columns: Columns = {
        "request_id": c["request_id"],
        "client": Coded(c["client_id"], client_names),
        "level": Coded(c["level"], _names(recorder)),
        **{name: c[name] for name in ("num_tokens", "num_bytes", "start", "end")},
    }
    return in_order(columns, np.argsort(c["start"], kind="stable"))


def _names(recorder: ColumnRecorder) -> list[str]:
    """Return the levels by code."""
    return ["" if name is None else str(name) for name in recorder.level_names.values]


def communication(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return transfers, tokens, bytes and seconds of the KV entries moved for some requests.

    By kind: `hand_over`, `fetch`, `load`, `swap_out`, `swap_in`, and `retrieval` from a level of a
    retrieval client; kinds without transfers are absent. Seconds are summed, also over simultaneous
    transfers. Bytes are NaN if unknown for any transfer.
    """
    moves = recorder.moves.columns()
    counted = np.isin(moves["request_id"], request_ids)
    seconds = moves["end"] - moves["start"]
    found = {}
    for code in np.flatnonzero(np.bincount(moves["kind"][counted])).tolist():
        mine = counted & (moves["kind"] == code)
        found[str(recorder.move_names.values[code])] = {
            "transfers": int(mine.sum()),
            "tokens": int(moves["num_tokens"][mine].sum()),
            "bytes": float(moves["num_bytes"][mine].sum()),
            "seconds": float(seconds[mine].sum()),
        }
    found |= _retrieved(recorder, request_ids)
    return {"communication": found} if found else {}


def _retrieved(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return the seconds of entries that came from levels of retrieval clients."""
    rows = recorder.retrievals.columns()
    mine = np.isin(rows["request_id"], request_ids) & (rows["level"] != NO_LEVEL)
    if not mine.any():
        return {}
    came = {
        "transfers": int(mine.sum()),
        "tokens": round(float(rows["num_tokens"][mine].sum())),
        "bytes": float(rows["num_bytes"][mine].sum()),
        "seconds": float((rows["end"] - rows["start"])[mine].sum()),
    }
    return {"retrieval": came}


def answers_moved(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return how often answers moved: the mean over all requests, and the largest number.

    The hand-over from the client of the prompt to the first decode client does not count. Empty if
    no answer moved.
    """
    visits = recorder.visits.columns()
    pipelines: list[Any] = recorder.pipelines.values
    num_stages = np.array([len(kinds) for kinds in pipelines], dtype=int)
    left_some = visits["num_served_stages"] < num_stages[visits["stages"]]
    movers = visits["request_id"][visits["served"] & left_some]
    movers = movers[np.isin(movers, request_ids)]
    if not len(movers):
        return {}
    _, counts = np.unique(movers, return_counts=True)
    return {
        "mean_moves_per_request": len(movers) / len(request_ids),
        "max_moves_per_request": int(counts.max()),
    }


class Use(NamedTuple):
    """Work of the busiest process. share: of the time; above 1 more tokens come than it can stream.

    requests, tokens: that it gets, per second.
    """

    share: float
    requests: float
    tokens: float


def front_end_use(recorder: ColumnRecorder, warmup: float) -> Use | None:
    """Return the use of the busiest process in the steady part of a run; None without a front end.

    A process takes its share of all requests, when they enter an engine's queue, and of the output
    tokens of its client, which come evenly between the first and the last of a visit. Visits that
    are under way when a run ends early are not in the records, so that their work is missing.
    """
    servers, c = recorder.servers, recorder.requests.columns()
    if servers is None or not servers.numbers:
        return None
    of_users = c["parent_id"] == c["request_id"]
    part = steady_part(c, of_users, warmup, float(c["finished_at"].max(initial=0.0)) - warmup)
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
