"""Laws of times that have a formula."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mist_sim.durations.base import (
    DURATIONS,
    Floats,
    lognormal,
    require_positive,
    require_spread,
)
from mist_sim.units import Seconds


@DURATIONS.register("constant")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantDuration:
    """Always the same. time: seconds (> 0), which is also the mean."""

    time: Seconds

    def __post_init__(self) -> None:
        require_positive("time", self.time, "s")

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n equal times, without a random draw."""
        return np.full(n, self.time)


@DURATIONS.register("exponential")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDuration:
    """An exponential distribution: the chance to end does not depend on the time so far.

    mean: seconds (> 0).

    Source: patience in the Erlang-A queue (Palm, 1957; Garnett, Mandelbaum and Reiman, 2002).
    """

    mean: Seconds

    def __post_init__(self) -> None:
        require_positive("mean", self.mean, "s")

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n times."""
        return _above_zero(rng.exponential(self.mean, n))


@DURATIONS.register("gamma")
@dataclass(frozen=True, slots=True, kw_only=True)
class GammaDuration:
    """A gamma distribution: of shape (mean / std)^2; with std = mean it is the exponential one.

    mean, std: seconds (> 0), of the law itself; std is 1e-6 to 100 times the mean.
    """

    mean: Seconds
    std: Seconds

    def __post_init__(self) -> None:
        require_positive("mean", self.mean, "s")
        require_positive("std", self.std, "s")
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

    mean: Seconds
    std: Seconds

    def __post_init__(self) -> None:
        require_positive("mean", self.mean, "s")
        require_positive("std", self.std, "s")
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

    low: Seconds
    high: Seconds

    def __post_init__(self) -> None:
        if not 0 <= self.low < math.inf:
            raise ValueError(f"low must be finite and >= 0 s, got {self.low}")
        if not self.low < self.high < math.inf:
            raise ValueError(f"high must be finite and > low ({self.low} s), got {self.high}")

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n times."""
        return _above_zero(rng.uniform(self.low, self.high, n))


def _above_zero(times: Floats) -> Floats:
    """Return times > 0, since a floating-point draw may be 0."""
    return np.maximum(times, np.finfo(np.float64).tiny)
