"""Rules that every arrival process, law of lengths and sampler of rows keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from mist_sim.testing.rules import name_of, require, stream_of
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
    times = _twice(kind, factory, lambda each, rng: each.times(rng))
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
    law = factory()
    kind = name_of(law)
    require(isinstance(law, LengthDistribution), f"{kind} needs sample(rng, n)")
    for number in _NUMBERS:
        lengths, again, other = (
            each.sample(stream_of("check_length_law"), number) for each in (law, law, factory())
        )
        found: Any = lengths
        require(
            isinstance(found, np.ndarray) and found.dtype.kind == "i" and found.shape == (number,),
            f"{kind}.sample must return whole numbers of shape ({number},), got {found!r}",
        )
        require((found >= 1).all(), f"{kind}.sample must return lengths >= 1, got {found.min()}")
        require(np.array_equal(lengths, again), f"{kind} draws other lengths again; {_REMEDY}")
        require(
            np.array_equal(lengths, other), f"{kind} draws other lengths in another one; {_REMEDY}"
        )


def check_sampler(factory: Callable[[], RowSampler]) -> None:
    """Check that a sampler yields sound rows: whole numbers of tokens >= 1.

    Equal generators give equal rows, from another object of the same kind and beside another
    reading as well.
    """
    sampler = factory()
    kind = name_of(sampler)
    require(isinstance(sampler, RowSampler), f"{kind} needs sample_rows(rng)")
    rows = _twice(kind, factory, lambda each, rng: each.sample_rows(rng))
    require(rows, f"{kind}.sample_rows must yield a row or more")
    for place, row in enumerate(rows):
        given: Any = row
        require(isinstance(given, TraceRow), f"{kind}: row {place} must be a TraceRow, got {row!r}")
        for name in ("num_prompt_tokens", "num_output_tokens"):
            count = getattr(row, name)
            sound = type(count) is int and count >= 1
            require(sound, f"{kind}: {name} of row {place} must be an int >= 1, got {count!r}")


def _twice(
    kind: str, factory: Callable[[], Any], read: Callable[[Any, np.random.Generator], Iterator[T]]
) -> list[T]:
    """Return the first of what is drawn; raise AssertionError where it is not the same again."""
    plugin, seed = factory(), "check_workload"
    found = list(islice(read(plugin, stream_of(seed)), _MANY))
    beside, other = read(plugin, stream_of(seed)), read(factory(), stream_of(seed))
    pairs = list(islice(zip(beside, other, strict=False), len(found)))
    again = [one for one, _ in pairs]
    require(again == found, f"{kind} draws something else again; {_REMEDY}")
    require([one for _, one in pairs] == found, f"{kind} draws else in another one; {_REMEDY}")
    return found
