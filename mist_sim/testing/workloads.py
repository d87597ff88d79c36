"""Rules that arrivals, samplers, laws of times and lengths, and readers of traces keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np

from mist_sim.durations import DurationDistribution
from mist_sim.testing.rules import name_of, repeated, require, require_same, stream_of
from mist_sim.traces import ArrivalProcess, LengthDistribution, RowSampler, TraceReader, TraceRow

T = TypeVar("T")

_NUMBERS = (1, 7, 4096)  # of lengths that are asked for
_MANY = 10_000  # times and rows that are looked at
_REMEDY = "draw from the given rng alone, and keep nothing"


def check_arrivals(factory: Callable[[], ArrivalProcess]) -> None:
    """Check that a process yields times that are finite, >= 0 s and never decrease, without end.

    Equal generators give equal times, from another object of the same kind and beside another
    reading as well.
    """
    process = factory()
    kind = name_of(process)
    require(isinstance(process, ArrivalProcess), f"{kind} needs times(rng)")
    times = _twice(factory, lambda each, rng: each.times(rng))
    require(len(times) == _MANY, f"{kind}.times must not end, and did after {len(times)} times")
    last = 0.0
    for place, time in enumerate(times):
        sound = isinstance(time, float | int) and last <= time < math.inf
        require(sound, f"{kind}.times: time {place} must be >= {last} s, got {time!r}")
        last = time


def check_length_law(factory: Callable[[], LengthDistribution]) -> None:
    """Check that a law draws numbers of tokens, all of them from the generator that it is given.

    `sample(rng, n)` returns an array of n whole numbers >= 1; equal generators give equal lengths,
    whatever was drawn before and from another object of the same kind as well.
    """
    _check_law(factory, LengthDistribution, np.signedinteger, "whole numbers", 1, "lengths >= 1")


def check_duration_law(factory: Callable[[], DurationDistribution]) -> None:
    """Check that a law draws times, all of them from the generator that it is given.

    `sample(rng, n)` returns a float64 array of n times that are finite and > 0 s; equal generators
    give equal times, whatever was drawn before and from another object of the same kind as well.
    """
    least = np.nextafter(0.0, 1.0)
    _check_law(factory, DurationDistribution, np.float64, "float64", least, "finite times > 0 s")


def _check_law(
    factory: Callable[[], Any], protocol: type, dtype: type, form: str, least: float, rule: str
) -> None:
    """Check a law whose draws are `least` or more. form: the name of their type."""
    kind = name_of(factory())
    require(isinstance(factory(), protocol), f"{kind} needs sample(rng, n)")

    def drawn(law: Any) -> list[float]:
        found: list[float] = []
        for n in _NUMBERS:
            each = law.sample(stream_of("check_law"), n)
            require(
                isinstance(each, np.ndarray)
                and np.issubdtype(each.dtype, dtype)
                and each.shape == (n,),
                f"{kind}.sample must return {form} of shape ({n},), got {each!r}",
            )
            wrong = each[~((each >= least) & (each < np.inf))]
            require(not wrong.size, f"{kind}.sample must return {rule}, got {wrong[:1]}")
            found += each.tolist()
        return found

    repeated(factory, drawn, _REMEDY)


def check_sampler(factory: Callable[[], RowSampler]) -> None:
    """Check that a sampler yields sound rows: whole numbers of tokens >= 1.

    Equal generators give equal rows, from another object of the same kind and beside another
    reading as well.
    """
    sampler = factory()
    kind = name_of(sampler)
    require(isinstance(sampler, RowSampler), f"{kind} needs sample_rows(rng)")
    rows = _twice(factory, lambda each, rng: each.sample_rows(rng))
    require(rows, f"{kind}.sample_rows must yield a row or more")
    for place, row in enumerate(rows):
        given: Any = row
        require(isinstance(given, TraceRow), f"{kind}: row {place} must be a TraceRow, got {row!r}")
        for name in ("num_prompt_tokens", "num_output_tokens"):
            count = getattr(row, name)
            sound = type(count) is int and count >= 1
            require(sound, f"{kind}: {name} of row {place} must be an int >= 1, got {count!r}")


def _twice(
    factory: Callable[[], Any], read: Callable[[Any, np.random.Generator], Iterator[T]]
) -> list[T]:
    """Return the first of what is drawn; raise AssertionError where it is not the same again."""
    plugin, seed = factory(), "check_workload"
    found = list(islice(read(plugin, stream_of(seed)), _MANY))
    beside, other = read(plugin, stream_of(seed)), read(factory(), stream_of(seed))
    pairs = list(islice(zip(beside, other, strict=False), len(found)))
    require_same(plugin, found, [one for one, _ in pairs], "when it is asked again", _REMEDY)
    require_same(plugin, found, [one for _, one in pairs], "in another one of its kind", _REMEDY)
    return found


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
