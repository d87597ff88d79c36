"""Distributions of a time in seconds, such as how long users wait before they go away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mist_sim.traces.base import DURATIONS, require_positive
from mist_sim.units import Seconds

Times = npt.NDArray[np.float64]


@runtime_checkable
class DurationDistribution(Protocol):
    """Draw times: `n` of them, each > 0 s, from `rng` alone."""

    def sample(self, rng: np.random.Generator, n: int) -> Times: ...


@DURATIONS.register("exponential")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDuration:
    """As likely to end at every moment, however long it has lasted. mean: seconds (> 0).

    Source: patience in the Erlang-A queue (Palm, 1957; Garnett, Mandelbaum and Reiman, 2002).
    """

    mean: Seconds

    def __post_init__(self) -> None:
        require_positive("mean", self.mean, "s")

    def sample(self, rng: np.random.Generator, n: int) -> Times:
        """Return n times."""
        return _above_zero(rng.exponential(self.mean, n))


@DURATIONS.register("lognormal")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalDuration:
    """A lognormal distribution. mean, std: seconds (> 0), of the lognormal itself."""

    mean: Seconds
    std: Seconds

    def __post_init__(self) -> None:
        require_positive("mean", self.mean, "s")
        require_positive("std", self.std, "s")
        if self.std > 100 * self.mean:
            raise ValueError(f"std must be <= 100 x mean ({100 * self.mean:g}), got {self.std}")

    def sample(self, rng: np.random.Generator, n: int) -> Times:
        """Return n times."""
        variance = math.log1p((self.std / self.mean) ** 2)
        mean = math.log(self.mean) - variance / 2
        return _above_zero(rng.lognormal(mean, math.sqrt(variance), n))


@DURATIONS.register("uniform")
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformDuration:
    """Every time between two bounds alike. low (>= 0), high: the bounds in seconds."""

    low: Seconds
    high: Seconds

    def __post_init__(self) -> None:
        if not 0 <= self.low < math.inf:
            raise ValueError(f"low must be finite and >= 0 s, got {self.low}")
        if not self.low < self.high < math.inf:
            raise ValueError(f"high must be finite and > low ({self.low} s), got {self.high}")

    def sample(self, rng: np.random.Generator, n: int) -> Times:
        """Return n times."""
        return _above_zero(rng.uniform(self.low, self.high, n))


def _above_zero(times: Times) -> Times:
    """Return times of which none is 0, which a draw in floating point may be."""
    return np.maximum(times, np.finfo(np.float64).tiny)
