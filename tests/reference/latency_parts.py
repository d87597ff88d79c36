"""What the latency of a request consisted of, moment by moment, in plain Python."""

from collections import defaultdict
from itertools import pairwise
from math import isnan
from typing import Any

from mist_sim.metrics import Result

LEAST, QUEUED, WORKED, MOVED = range(4)
"""What counts where several things went on at once: the last of these."""

RANKS = {"decode": (LEAST, 1), "queue": (QUEUED, 0)}


def rows_of(table: Any) -> list[dict[str, Any]]:
    columns = {name: values.tolist() for name, values in table.columns().items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def latency_parts(result: Result) -> dict[int, dict[str, float]]:
    """Return the seconds of each part by user's request, without what nobody had it for."""
    recorder = result.recorder
    served: dict[int, list[tuple[float, str]]] = defaultdict(list)
    spans: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
    for visit in rows_of(recorder.visits):
        own = visit_spans(visit, recorder.pipelines.values[visit["stages"]])
        spans[visit["request_id"]] += own
        if visit["served"]:
            served[visit["request_id"]].append((visit["finished_at"], own[-1][0]))
    for move in rows_of(recorder.moves):
        spans[move["request_id"]].append(("transfer", move["start"], move["end"]))
    found = {}
    requests = rows_of(recorder.requests)
    for request in requests:
        if request["parent_id"] != request["request_id"]:
            sent, parent = request["arrival_time"], request["parent_id"]
            by = [name for time, name in served[parent] if time <= sent][-1]
            spans[parent].append((by, sent, request["finished_at"]))
    for request in requests:
        number = request["request_id"]
        if request["parent_id"] != number:
            continue
        parts = painted(spans[number], request["sent_at"], request["finished_at"])
        if request["sent_at"] > request["arrival_time"]:
            parts["retries"] = request["sent_at"] - request["arrival_time"]
        found[number] = dict(parts)
    return found


def visit_spans(visit: dict[str, Any], kinds: tuple[str, ...]) -> list[tuple[str, float, float]]:
    begun, over, first = visit["started_at"], visit["finished_at"], visit["first_token_at"]
    if isnan(begun):
        return [("queue", visit["queued_at"], over)]
    names = list(dict.fromkeys(kinds))
    spans = [("queue", visit["queued_at"], begun)]
    if names[0] == "prefill" and len(names) > 1:
        split = over if isnan(first) else max(first, begun)
        return [*spans, ("prefill", begun, split), (" + ".join(names[1:]), split, over)]
    return [*spans, (" + ".join(names), begun, over)]


def painted(spans: list[tuple[str, float, float]], sent: float, over: float) -> dict[str, float]:
    """Return the seconds of each name between two times, each moment given to one."""
    times = sorted({sent, over, *(t for _, *ends in spans for t in ends if sent <= t <= over)})
    parts: dict[str, float] = defaultdict(float)
    for begin, end in pairwise(times):
        there = [name for name, first, last in spans if first <= begin and end <= last]
        if there:
            rank = {
                name: RANKS.get(name, (MOVED if name == "transfer" else WORKED, 0))
                for name in there
            }
            parts[max(there, key=rank.__getitem__)] += end - begin
    return parts
