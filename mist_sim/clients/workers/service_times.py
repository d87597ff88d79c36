"""Service times of workers: numbers, laws that are drawn, or a user's function.

Each client that draws has a stream named after it, so that clients do not shift one another's
draws.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from math import inf
from typing import Protocol

import numpy as np

from mist_sim.core.request import Stage
from mist_sim.durations import DurationDistribution, SecondsOrLaw, draws
from mist_sim.rng import Streams
from mist_sim.stages import ToolCall

_BLOCK = 64  # draws at once; there may be thousands of clients
_NUMBER = (int, float, np.integer, np.floating)


class SeededServiceTime(Protocol):
    """A service time that draws: its seconds come from the stage and `rng` alone."""

    def __call__(self, stage: Stage, *, rng: np.random.Generator) -> float:
        """Return the seconds that a stage takes on one worker (finite, >= 0)."""


GivenServiceTime = Callable[[Stage], float] | SeededServiceTime
"""What a user may give: a function of the stage, with a parameter `rng` if it draws."""


class LinearTime:
    """Seconds of a stage: a base plus a time per token; each a number, or drawn anew.

    By default the base is a tool call's own duration, and 0 for other stages. A stage without
    `num_tokens` has 0 tokens. The mean is the mean base plus the mean time per token times
    `num_tokens`.
    """

    def __init__(self, base: Iterator[float] | None, per_token: Iterator[float]) -> None:
        self._base = base
        self._per_token = per_token

    def __call__(self, stage: Stage) -> float:
        """Return the duration of a stage in seconds."""
        if self._base is not None:
            base = next(self._base)
        else:
            base = stage.duration if isinstance(stage, ToolCall) else 0.0
        return base + next(self._per_token) * int(getattr(stage, "num_tokens", 0))


def linear(
    client: str, streams: Streams, base: SecondsOrLaw | None, per_token: SecondsOrLaw | None
) -> LinearTime:
    """Return the time of a client's stages, from the beginning of its streams."""

    def each(name: str, time: SecondsOrLaw) -> Iterator[float]:
        if not isinstance(time, DurationDistribution):
            return repeat(time)
        rng = streams.generator(f"{client}: {name}")
        return draws(time, rng, f"{client}: {name}", _BLOCK)

    return LinearTime(
        None if base is None else each("base_time", base),
        each("time_per_token", per_token or 0.0),
    )


def seeded(client: str, streams: Streams, given: GivenServiceTime) -> Callable[[Stage], float]:
    """Return a user's function of the stage; one with a parameter `rng` has the client's there."""
    function: Callable[..., float] = given
    if _draws(_signature(given)):
        return partial(function, rng=streams.generator(f"{client}: service_time"))
    return function


def check_time(name: str, time: SecondsOrLaw | None) -> None:
    """Raise ValueError unless a time is left out, a number of seconds >= 0, or a law."""
    if time is None or isinstance(time, DurationDistribution):
        return
    if not isinstance(time, _NUMBER):
        raise ValueError(f"{name} must be a number of seconds or a law of times, got {time!r}")
    if not 0 <= time < inf:
        raise ValueError(f"{name} must be finite and >= 0 s, got {time}")


def check_function(given: GivenServiceTime) -> None:
    """Raise ValueError unless a service time can be called with a stage, and `rng` if it draws."""
    rule = "service_time must be a function of a stage, and of `rng` if it draws"
    if not callable(given):
        raise ValueError(f"{rule}, got {given!r}")
    signature = _signature(given)
    try:
        if signature is not None:
            signature.bind("stage", **({"rng": None} if _draws(signature) else {}))
    except TypeError as error:
        raise ValueError(f"{rule}, got one with {signature}: {error}") from None


def is_time(seconds: object) -> bool:
    """Tell whether a service time is a finite number >= 0."""
    return isinstance(seconds, _NUMBER) and bool(0 <= seconds < inf)


def _signature(given: GivenServiceTime) -> inspect.Signature | None:
    """Return the parameters of a function; None where Python cannot tell."""
    try:
        return inspect.signature(given)
    except ValueError:
        return None


def _draws(signature: inspect.Signature | None) -> bool:
    return signature is not None and "rng" in signature.parameters
