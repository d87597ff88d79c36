"""Distributions of lengths (whole tokens, >= 1), drawn in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mist_sim.durations import Floats, lognormal, require_spread
from mist_sim.traces.base import LENGTHS, require_count

Tokens = npt.NDArray[np.int64]


@runtime_checkable
class LengthDistribution(Protocol):
    """Draw numbers of tokens: `n` of them, each >= 1, from `rng` alone."""

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return `n` lengths in tokens, shape (n,), each >= 1."""


def _require_mean_and_std(mean: float, std: float) -> None:
    if not 1 <= mean < math.inf:
        raise ValueError(f"mean must be finite and >= 1 token, got {mean}")
    if not 0 <= std < math.inf:
        raise ValueError(f"std must be finite and >= 0 tokens, got {std}")


@LENGTHS.register("fixed")
@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    """Every request has the same number of `tokens` (>= 1)."""

    tokens: int

    def __post_init__(self) -> None:
        require_count("tokens", self.tokens)

    @property
    def shortest(self) -> int:
        """The smallest number of tokens."""
        return self.tokens

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n equal lengths; draws nothing."""
        return np.full(n, self.tokens, dtype=np.int64)


@LENGTHS.register("uniform")
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLength:
    """Whole numbers of tokens from `low` (>= 1) to `high`, both included, equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        require_count("low", self.low)
        if self.high < self.low:
            raise ValueError(f"high must be >= low ({self.low}), got {self.high}")

    @property
    def shortest(self) -> int:
        """The smallest number of tokens."""
        return self.low

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        return rng.integers(self.low, self.high, size=n, endpoint=True, dtype=np.int64)


@LENGTHS.register("normal")
@dataclass(frozen=True, slots=True, kw_only=True)
class NormalLength:
    """A normal distribution rounded to whole tokens; values below 1 are drawn again.

    mean (>= 1), std (>= 0): tokens, of the normal before truncation. The mean of what is drawn
    is higher by std * phi(a) / (1 - Phi(a)) with a = (0.5 - mean) / std: under 0.2 % of the mean
    for mean >= 100 and std <= mean / 3. Source: MIST §III-B2 (lengths as a normal distribution).
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        _require_mean_and_std(self.mean, self.std)

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        return _redraw_below_one(lambda count: rng.normal(self.mean, self.std, count), n)


def _redraw_below_one(draw: Callable[[int], Floats], n: int) -> Tokens:
    """Return n rounded values >= 1, drawing again for those below; half or more must pass."""
    values = np.rint(draw(n))
    while (below := np.flatnonzero(values < 1)).size:
        values[below] = np.rint(draw(below.size))
    return values.astype(np.int64)


@LENGTHS.register("lognormal")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLength:
    """A lognormal distribution rounded to whole tokens; values below 1 become 1.

    mean (>= 1), std (>= 0): tokens, of the lognormal itself (not of its logarithm). Rounding up
    to 1 raises the mean by less than one token.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        _require_mean_and_std(self.mean, self.std)
        require_spread(self.mean, self.std)

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        values = lognormal(rng, self.mean, self.std, n)
        return np.maximum(np.rint(values), 1).astype(np.int64)


@LENGTHS.register("geometric")
@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricLength:
    """A geometric distribution on 1, 2, ...: after each token the answer ends with 1 / mean.

    mean: tokens (>= 1).
    """

    mean: float

    def __post_init__(self) -> None:
        _require_mean_and_std(self.mean, 0.0)

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        return rng.geometric(1 / self.mean, n)
