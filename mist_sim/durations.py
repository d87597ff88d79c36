"""Laws of times in seconds: how long a user is patient, how long a worker takes for a stage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice, pairwise
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from mist_sim.bounds import MEASURED_TIMES, TABLE_BYTES
from mist_sim.checks import Checked, NotNegative, Positive, check_fields
from mist_sim.errors import ScenarioError, TraceError, brief
from mist_sim.inputs import lines_of, text_of
from mist_sim.registry import Registry
from mist_sim.units import Seconds, require_number
from mist_sim.user_paths import user_path

__all__ = [
    "BLOCK",
    "DURATIONS",
    "ConstantDuration",
    "DurationDistribution",
    "EmpiricalDuration",
    "ExponentialDuration",
    "Floats",
    "GammaDuration",
    "LogNormalDuration",
    "SecondsOrLaw",
    "UniformDuration",
    "draws",
    "lognormal",
    "not_reached",
    "require_plan",
    "require_positive",
    "require_spread",
]


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


SecondsOrLaw: TypeAlias = NotNegative[Seconds] | DurationDistribution
"""A time that is always the same (>= 0 s), or one that is drawn anew each time."""


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


@DURATIONS.register("empirical")
@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalDuration:
    """Measured times, drawn with replacement; the mean is their mean.

    times: the measured times in seconds (> 0).
    path: a file of times instead, with a number of seconds (> 0) in each line. Blank lines, and
        lines that begin with #, are skipped.
    Raises ValueError for other times, TraceError for a bad line of the file and ScenarioError for a
    file that cannot be read.
    """

    times: Sequence[Seconds] | None = None
    path: str | None = None
    _values: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.times is None and self.path is None:
            raise ValueError("times must be given, or path in place of them, got neither")
        if self.times is not None and self.path is not None:
            raise ValueError("times must be left out with path, got both")
        if self.path is not None:
            values = tuple(islice(_times_in(self.path), MEASURED_TIMES + 1))
            if len(values) > MEASURED_TIMES:
                raise ScenarioError(f"{self.path}: must have <= {MEASURED_TIMES} times")
        else:
            values = tuple(self.times or ())
            for position, seconds in enumerate(values):
                require_positive(f"times[{position}]", seconds, "s")
            object.__setattr__(self, "times", values)
        if not values:
            raise ValueError(f"{self.path or 'times'} must have at least one time, got none")
        object.__setattr__(self, "_values", np.array(values, dtype=np.float64))

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n times."""
        return self._values[rng.integers(len(self._values), size=n)]


def _times_in(path: str) -> Iterator[float]:
    """Yield the seconds of each line of a file."""
    text = text_of(user_path(path), TABLE_BYTES)
    for number, line in enumerate(lines_of(StringIO(text, newline=""), path), start=1):
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        seconds = _number(said)
        if seconds is None or not 0 < seconds < math.inf:
            got = "other text" if seconds is None else brief(said)
            problem = f"must be a finite number of seconds > 0, such as 0.25, got {got}"
            raise TraceError(path, number, problem)
        yield seconds


def _number(text: str) -> float | None:
    """Return a number; None for other text, which messages never show."""
    try:
        return float(text)
    except ValueError:
        return None


@DURATIONS.register("constant")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantDuration(Checked):
    """Always the same. time: seconds (> 0), which is also the mean."""

    time: Positive[Seconds]

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n equal times, without a random draw."""
        return np.full(n, self.time)


@DURATIONS.register("exponential")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDuration(Checked):
    """An exponential distribution: the chance to end does not depend on the time so far.

    mean: seconds (> 0).

    Source: patience in the Erlang-A queue (Palm, 1957; Garnett, Mandelbaum and Reiman, 2002).
    """

    mean: Positive[Seconds]

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n times."""
        return _above_zero(rng.exponential(self.mean, n))


@DURATIONS.register("gamma")
@dataclass(frozen=True, slots=True, kw_only=True)
class GammaDuration:
    """A gamma distribution: of shape (mean / std)^2; with std = mean it is the exponential one.

    mean, std: seconds (> 0), of the law itself; std is 1e-6 to 100 times the mean.
    """

    mean: Positive[Seconds]
    std: Positive[Seconds]

    def __post_init__(self) -> None:
        check_fields(self)
        require_spread(self.mean, self.std)
        if self.std < 1e-6 * self.mean:
            raise ValueError(
                f"std must be >= 1e-6 x mean ({1e-6 * self.mean:g}), got {self.std}; "
                "constant is for times that do not vary"
            )

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n times."""
        ratio = self.std / self.mean
        return _above_zero(rng.gamma(ratio**-2, self.std * ratio, n))


@DURATIONS.register("lognormal")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalDuration:
    """A lognormal distribution. mean, std: seconds (> 0), of the lognormal itself."""

    mean: Positive[Seconds]
    std: Positive[Seconds]

    def __post_init__(self) -> None:
        check_fields(self)
        require_spread(self.mean, self.std)

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n times."""
        return _above_zero(lognormal(rng, self.mean, self.std, n))


@DURATIONS.register("uniform")
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformDuration:
    """Times between two bounds, equally likely; the mean is (low + high) / 2.

    low (>= 0), high: the bounds in seconds.
    """

    low: NotNegative[Seconds]
    high: Seconds

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.low < self.high < math.inf:
            raise ValueError(f"high must be finite and > low ({self.low} s), got {self.high}")

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n times."""
        return _above_zero(rng.uniform(self.low, self.high, n))


def _above_zero(times: Floats) -> Floats:
    """Return times > 0, since a floating-point draw may be 0."""
    return np.maximum(times, np.finfo(np.float64).tiny)
