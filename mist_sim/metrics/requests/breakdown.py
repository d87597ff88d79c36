"""Where the latency of each request went: queues, prompts, answers, transfers, other stages.

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics import stats
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests.rows import RequestRows
from mist_sim.metrics.requests.spawned import spawned
from mist_sim.metrics.requests.window_rates import Mask
from mist_sim.metrics.tables.tabular import Columns, in_order
from mist_sim.stages import Decode, Prefill

Places = NDArray[np.int64]
Rows = dict[str, Any]
"""Rows of a table, by column; `row`: the position of each row's request."""

QUEUE, PREFILL, DECODE, TRANSFER = "queue", Prefill.kind, Decode.kind, "transfer"
_RETRIES, _OTHER = "retries", "other"
_FRONT_END = "front_end"
_IN_ORDER = (QUEUE, PREFILL, TRANSFER, DECODE)
_FIGURES = ("mean", "p50", "p90", "p99")
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
        from the arrival to the last sending. other: no client had the request, for example because
        none was up. Other stages have their own names, with the time of the children that they
        sent; stages that workers serve in one visit share one, such as "preprocess + rag".
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
        return [*_IN_ORDER, *others, _RETRIES, _FRONT_END, _OTHER]

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
        return shares | {_OTHER: np.where(np.abs(rest) < _TINY, 0.0, rest)}

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
