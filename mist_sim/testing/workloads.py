"""Rules that every arrival process, sampler of rows, and law of times or lengths keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from mist_sim.durations import DurationDistribution
from mist_sim.testing.rules import name_of, repeated, require, require_same, stream_of
from mist_sim.traces import ArrivalProcess, LengthDistribution, RowSampler, TraceRow

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
