"""A run as a timeline: Chrome trace events, for Perfetto and chrome://tracing.

One process per client, with its steps, queue and blocks; one for the requests, with a row for each
and its stages; one for the transfers. Source of the format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.core.events import ENDED, EVICTED, MOVED
from mist_sim.core.result_warnings import of_data

if TYPE_CHECKING:
    import pandas as pd

Event = dict[str, Any]

TABLES = ("requests", "stages", "steps", "transfers", "events")
"""The tables of a result that a timeline is made of."""

OPTIONAL = ("transfers", "events")
"""Those that may be missing: of runs without moves, and of runs that kept no events."""

_SPANS = (MOVED, ENDED)  # decisions that are drawn as the ends of spans
_CHUNK = 10_000  # rows
_RESHARD = 10**6  # a thread below those of all engines
_REQUESTS, _TRANSFERS, _FIRST_CLIENT = 1, 2, 10  # processes, in the order that they are shown


def timeline(
    tables: Mapping[str, pd.DataFrame],
    summary: Mapping[str, Any],
    start: float = 0.0,
    end: float = inf,
) -> Iterator[str]:
    """Yield the JSON text of a run's timeline, an event at a time.

    tables: tables of a result by name (`TABLES`). summary: of the result; the texts of its warnings
        are `otherData`, metadata of the trace. start, end: seconds of the run; items outside are
        left out, items that overlap the bounds are kept whole.
    """
    told = json.dumps({"warnings": [str(each) for each in of_data(summary)]})
    yield f'{{"displayTimeUnit": "ms", "otherData": {told}, "traceEvents": [\n'
    between = ""
    for event in _Timeline(tables, summary.get("layouts", ()), start, end).events():
        yield between + json.dumps(event)
        between = ",\n"
    yield "\n]}\n"


@dataclass(frozen=True)
class _Timeline:
    """The parameters of `timeline`. layouts: of clients that changed theirs."""

    tables: Mapping[str, pd.DataFrame]
    layouts: Sequence[Mapping[str, Any]]
    start: float
    end: float

    def events(self) -> Iterator[Event]:
        """Yield all events."""
        yield _name("process_name", _REQUESTS, "requests")
        yield from self._requests()
        steps = self.tables["steps"]
        pids = {name: _FIRST_CLIENT + n for n, name in enumerate(dict.fromkeys(steps["client"]))}
        for client, pid in pids.items():
            yield _name("process_name", pid, client)
            titles = [each["layout"] for each in self.layouts if each["client"] == client]
            yield from self._steps(steps[steps["client"] == client], pid, titles)
        transfers = self.tables.get("transfers")
        if transfers is not None and len(transfers):
            yield _name("process_name", _TRANSFERS, "transfers")
            yield from self._transfers(transfers)
        yield from self._transitions(pids)
        if (events := self.tables.get("events")) is not None:
            yield from self._decisions(events, pids)

    def _inside(self, rows: pd.DataFrame) -> Iterator[Mapping[Any, Any]]:
        """Yield the rows of a table within the bounds, holding some thousand of them at a time."""
        inside = rows[(rows["start"] < self.end) & (rows["end"] >= self.start)]
        for first in range(0, len(inside), _CHUNK):
            yield from inside.iloc[first : first + _CHUNK].to_dict("records")

    def _requests(self) -> Iterator[Event]:
        """Yield a span for each request, and in it one for each wait and each stage."""
        requests = self.tables["requests"]
        inside = (requests["arrival_time"] < self.end) & ~(requests["finished_at"] < self.start)
        for row, own in _with_visits(requests[inside], self.tables["stages"]):
            begun, over = row["arrival_time"], row["finished_at"]
            if not isfinite(over):
                over = max([begun, *(visit["finished_at"] for visit in own)])
            if begun >= self.end or over < self.start:
                continue
            keys = ("status", "num_prompt_tokens", "num_output_tokens", "num_cached_tokens")
            told = {key: row[key] for key in (*keys, "num_preemptions")}
            name = f"request {row['request_id']}"
            outer = _span(_REQUESTS, name, row["request_id"], begun, over, "request", told)
            yield next(outer)
            for visit in own:
                yield from _visit(visit)
            yield next(outer)

    def _steps(self, steps: pd.DataFrame, pid: int, titles: Sequence[str]) -> Iterator[Event]:
        """Yield the steps of a client, each run as one span, and its counters.

        titles: titles of its layouts, in order; empty if it did not change.
        """
        lanes = _lanes(steps, titles)
        for tid, name in dict.fromkeys(lanes.values()):
            yield _name("thread_name", pid, name, tid)
        keys = ("num_steps", "num_chunks", "num_prefill_tokens", "num_decodes")
        for row in self._inside(steps):
            told = {key: row[key] for key in keys}
            tid, lane = lanes[row["track"]]
            at = {"pid": pid, "tid": tid, "ts": _us(row["start"])}
            busy = _us(row["end"]) - at["ts"]
            yield {"ph": "X", "name": _kind(row), "dur": busy, "args": told, **at}
            engine = f", {lane}" if tid or titles else ""
            for counted, column in (("waiting", "num_waiting"), ("KV blocks", "num_used_blocks")):
                name = counted + engine
                yield {"ph": "C", "name": name, "args": {name: row[column]}, **at}

    def _transitions(self, pids: Mapping[str, int]) -> Iterator[Event]:
        """Yield a span for each change of a client's layout, below its steps."""
        changes = [
            each
            for each in self.layouts
            if each["ready"] > each["start"] and each["client"] in pids
        ]
        for name in dict.fromkeys(each["client"] for each in changes):
            yield _name("thread_name", pids[name], "re-shard", _RESHARD)
        for each in changes:
            if each["start"] < self.end and each["ready"] >= self.start:
                at = {"pid": pids[each["client"]], "tid": _RESHARD, "ts": _us(each["start"])}
                name = f"re-shard to {each['layout']}"
                yield {"ph": "X", "name": name, "dur": _us(each["ready"]) - at["ts"], **at}

    def _decisions(self, events: pd.DataFrame, pids: Mapping[str, int]) -> Iterator[Event]:
        """Yield an instant for each decision: on its request's row, or at an evicting client."""
        times = events["time"]
        inside = events[(times >= self.start) & (times < self.end) & ~events["event"].isin(_SPANS)]
        for row in inside.to_dict("records"):
            told = {"reason": row["reason"], "num_tokens": row["num_tokens"]}
            at: Event = {"name": row["event"], "ts": _us(row["time"]), "tid": 0}
            if row["event"] == EVICTED:
                yield at | {"ph": "i", "s": "p", "pid": pids[row["client"]], "args": told}
            else:
                of = {"cat": "request", "id": int(row["request_id"]), "pid": _REQUESTS}
                yield at | {"ph": "n", "args": told | {"client": row["client"]}} | of

    def _transfers(self, transfers: pd.DataFrame) -> Iterator[Event]:
        for number, row in enumerate(self._inside(transfers)):
            told = {key: row[key] for key in ("request_id", "source", "destination", "num_bytes")}
            name = f"{row['kind']} {row['source']} to {row['destination']}"
            yield from _span(_TRANSFERS, name, number, row["start"], row["end"], "transfer", told)


def _with_visits(
    requests: pd.DataFrame, stages: pd.DataFrame
) -> Iterator[tuple[Mapping[Any, Any], list[Mapping[Any, Any]]]]:
    """Yield each request with the rows of its stages, holding some thousand of them at a time."""
    order = np.argsort(stages["request_id"].to_numpy(), kind="stable")
    ids = stages["request_id"].to_numpy()[order]
    for first in range(0, len(requests), _CHUNK):
        chunk = requests.iloc[first : first + _CHUNK]
        begin, end = (np.searchsorted(ids, chunk["request_id"], side) for side in ("left", "right"))
        counts = end - begin
        places = np.arange(counts.sum()) + np.repeat(begin - np.cumsum(counts) + counts, counts)
        rows = iter(stages.iloc[order[places]].to_dict("records"))
        for row, count in zip(chunk.to_dict("records"), counts.tolist(), strict=True):
            yield row, list(islice(rows, count))


def _visit(visit: Mapping[Any, Any]) -> Iterator[Event]:
    """Yield the wait of a visit and its service, if they have any length."""
    for name, begun, over in (
        ("wait", visit["queued_at"], visit["started_at"]),
        (visit["stage"], visit["started_at"], visit["finished_at"]),
    ):
        if isfinite(begun) and isfinite(over) and over > begun:
            told = {"client": visit["client"]}
            number = visit["request_id"]
            yield from _span(_REQUESTS, name, number, begun, over, "request", told)


def _lanes(steps: pd.DataFrame, titles: Sequence[str]) -> dict[int, tuple[int, str]]:
    """Return by track where its steps are drawn: the number and name of a thread.

    Equal layouts have theirs in common, however often a client goes from one to the other.
    """
    if not titles or "layout" not in steps:
        return {track: (track, f"engine {track}") for track in sorted(set(steps["track"].tolist()))}
    found, numbers = {}, dict[str, int]()
    first = steps.groupby("layout")["track"].min().to_dict()
    for layout, track in sorted(set(zip(steps["layout"], steps["track"], strict=True))):
        name = f"{titles[layout]}, engine {track - first[layout]}"
        found[track] = numbers.setdefault(name, len(numbers)), name
    return found


def _kind(row: Mapping[Any, Any]) -> str:
    """Return the kind of work of a step, in one word."""
    if row["num_chunks"] and row["num_decodes"]:
        return "mixed"
    return "prefill" if row["num_chunks"] else "decode"


def _span(
    pid: int, name: str, number: int, start: float, end: float, category: str, told: Event
) -> Iterator[Event]:
    """Yield both ends of a span that may overlap others; equal numbers share a row."""
    both = {"cat": category, "id": int(number), "name": name, "pid": pid, "tid": 0}
    yield {"ph": "b", "ts": _us(start), "args": told, **both}
    yield {"ph": "e", "ts": _us(end), **both}


def _name(what: str, pid: int, name: str, tid: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _us(seconds: float) -> float:
    """Return microseconds, the unit of the form, to the nanosecond."""
    return round(seconds * 1e6, 3)
