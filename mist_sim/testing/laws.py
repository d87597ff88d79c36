"""Rules that every law of times keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mist_sim.durations import DurationDistribution
from mist_sim.testing.rules import name_of, require, stream_of

_NUMBERS = (1, 7, 4096)  # of times that are asked for


def check_duration_law(factory: Callable[[], DurationDistribution]) -> None:
    """Check that a law draws times, all of them from the generator that it is given.

    `sample(rng, n)` returns a float64 array of n times that are finite and > 0 s; equal generators
    give equal times, whatever was drawn before and from another object of the same kind as well.
    """
    law = factory()
    kind = name_of(law)
    require(isinstance(law, DurationDistribution), f"{kind} needs sample(rng, n)")
    first = [_drawn(law, n) for n in _NUMBERS]
    remedy = "draw from the given rng alone, and keep nothing"
    for times, again, other in zip(
        first,
        [_drawn(law, n) for n in _NUMBERS],
        [_drawn(factory(), n) for n in _NUMBERS],
        strict=True,
    ):
        require(np.array_equal(times, again), f"{kind} draws other times again; {remedy}")
        require(np.array_equal(times, other), f"{kind} draws other times in another one; {remedy}")


def _drawn(law: DurationDistribution, n: int) -> Any:
    """Return n times from a new generator."""
    kind = name_of(law)
    times: Any = law.sample(stream_of("check_duration_law"), n)
    require(
        isinstance(times, np.ndarray) and times.dtype == np.float64 and times.shape == (n,),
        f"{kind}.sample must return float64 of shape ({n},), got {times!r}",
    )
    wrong = times[~((times > 0) & (times < np.inf))]
    require(not wrong.size, f"{kind}.sample must return finite times > 0 s, got {wrong[:1]}")
    return times
