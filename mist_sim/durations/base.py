"""Shared by laws of times: registry and protocol, draws in blocks, checks of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from mist_sim.errors import ScenarioError
from mist_sim.registry import Registry
from mist_sim.units import Seconds, require_number

Floats = npt.NDArray[np.float64]

BLOCK = 4096
"""Random values drawn at once. Always whole blocks, so a longer run begins like a shorter one."""

DURATIONS = Registry("durations")
"""Distributions of a time in seconds (see `DurationDistribution`)."""


@runtime_checkable
class DurationDistribution(Protocol):
    """Draw times: `n` of them, each > 0 s, from `rng` alone."""

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return `n` times in seconds, shape (n,), each > 0."""


SecondsOrLaw: TypeAlias = Seconds | DurationDistribution
"""A time that is always the same, or one that is drawn anew each time."""


def draws(
    law: DurationDistribution, rng: np.random.Generator, name: str, block: int = BLOCK
) -> Iterator[float]:
    """Yield times in seconds without end, drawn in blocks.

    name: name of the time in messages.
    Raises ScenarioError for a law that does not return the requested number of times > 0 s.
    """
    while True:
        times = np.asarray(law.sample(rng, block), dtype=np.float64)
        if times.shape != (block,):
            raise ScenarioError(
                f"{name} must be {block} times to match the number asked for, got an array of "
                f"shape "
                f"{times.shape} from {type(law).__name__}"
            )
        if not (times > 0).all():
            raise ScenarioError(f"{name} must be > 0 s, got {times.min()} from {law}")
        yield from times.tolist()


def lognormal(rng: np.random.Generator, mean: float, std: float, n: int) -> Floats:
    """Return n draws of the lognormal that has this mean and standard deviation itself."""
    variance = math.log1p((std / mean) ** 2)
    return rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), n)


def require_positive(name: str, value: float, unit: str = "") -> None:
    """Raise ValueError unless a quantity is finite and above 0; `unit` is named in the message."""
    require_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be finite and > 0{unit and ' ' + unit}, got {value}")


def require_plan(
    name: str, at: Sequence[float], values: Sequence[float], period: float | None
) -> None:
    """Refuse times that are no plan: ascending from 0 s, a value each, a period after the last.

    name: of the values, in messages.
    """
    if not at or at[0] != 0:
        raise ValueError(f"at must begin with 0 s, got {list(at)}")
    if any(later <= earlier for earlier, later in pairwise(at)):
        raise ValueError(f"at must be ascending, got {list(at)}")
    if len(values) != len(at):
        raise ValueError(
            f"{name} must have a number for each of {len(at)} times, got {len(values)}"
        )
    if period is not None and not at[-1] < period < math.inf:
        raise ValueError(f"period must be finite and > {at[-1]} s, got {period}")


def require_spread(mean: float, std: float) -> None:
    """Refuse a law so wide that almost all draws lie far below its mean."""
    if std > 100 * mean:
        raise ValueError(f"std must be <= 100 x mean ({100 * mean:g}), got {std}")


def not_reached(place: str, at: Sequence[float], end: float) -> Iterator[tuple[str, str]]:
    """Yield (place, when) if some times (seconds) lie behind the end of a run; once for all."""
    if behind := sorted(time for time in at if time > end):
        more = f" and {len(behind) - 1} later" if len(behind) > 1 else ""
        yield place, f"at {behind[0]:g} s{more}"
