"""Rules that every trace reader keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

from mist_sim.testing.rules import name_of, require
from mist_sim.traces import TraceReader, TraceRow


def check_trace_reader(factory: Callable[[], TraceReader]) -> None:
    """Check that a reader gives sound rows, the same at every reading.

    factory: makes a reader of an existing file with at least two requests. Lengths are whole
    numbers >= 1; times are seconds from the first row, never decreasing, or None in every row.
    A reader with a `num_requests` gives the first so many rows.
    """
    reader = factory()
    require(isinstance(reader, TraceReader), f"{name_of(reader)} needs rows()")
    iterator = reader.rows()
    require(isinstance(iterator, Iterator), f"{name_of(reader)}.rows must return an iterator")
    rows = list(iterator)
    require(len(rows) >= 2, f"{name_of(reader)}: the check needs 2 rows or more, got {len(rows)}")
    last = 0.0
    for position, row in enumerate(rows):
        _check_row(f"{name_of(reader)}: row {position}", row, last)
        last = row.arrival_time or 0.0
    require(list(reader.rows()) == rows, f"{name_of(reader)}.rows must start anew at each call")
    halted = reader.rows()
    next(halted)
    require(
        list(factory().rows()) == rows and list(halted) == rows[1:],
        f"{name_of(reader)}: readings at the same time must not disturb each other",
    )
    times = [row.arrival_time for row in rows]
    all_or_none = times[0] == 0.0 if None not in times else set(times) == {None}
    rule = "rows have times from 0 s on, or none has a time"
    require(all_or_none, f"{name_of(reader)}: {rule}, got {times[0]} and {times[-1]}")
    if "num_requests" in getattr(reader, "__dataclass_fields__", {}):
        short = replace(cast(Any, reader), num_requests=1)
        require(
            list(short.rows()) == rows[:1], f"{name_of(reader)}: num_requests=1 must give one row"
        )


def _check_row(place: str, row: Any, last: float) -> None:
    require(isinstance(row, TraceRow), f"{place} must be a TraceRow, got {row!r}")
    for field in ("num_prompt_tokens", "num_output_tokens"):
        count = getattr(row, field)
        require(
            type(count) is int and count >= 1,
            f"{place}: {field} must be an int >= 1, got {count!r}",
        )
    time = row.arrival_time
    require(
        time is None or (isinstance(time, float) and last <= time < math.inf),
        f"{place}: times must be finite floats that never decrease, got {time!r} after {last}",
    )
    require(
        isinstance(row.content, tuple) and all(map(_is_span, row.content)),
        f"{place}: content must be a tuple of (id, tokens >= 1), got {row.content!r}",
    )


def _is_span(span: object) -> bool:
    if not (isinstance(span, tuple) and len(span) == 2):
        return False
    return type(span[0]) is int and type(span[1]) is int and span[1] >= 1
