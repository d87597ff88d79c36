"""A law of lengths from a published mean, median and 95th percentile."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np

from mist_sim.durations import Floats
from mist_sim.traces.base import LENGTHS
from mist_sim.traces.lengths.distributions import Tokens

_P95 = 0.95
_Z95 = NormalDist().inv_cdf(_P95)
_TAIL = 2 * (NormalDist().pdf(_Z95) / (1 - _P95) - _Z95)
"""Width of the tail in logarithms, as a multiple of the middle's slope: with it the mean of the
logarithms above the 95th percentile is that of a lognormal."""
_NUM_POINTS = 8192
_ERROR = 0.005  # of the mean of whole tokens, relative
_MOST_SKEW = 1e4


@LENGTHS.register("mean_median_p95")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanMedianP95Length:
    """Lengths with three known figures, rounded to whole tokens; values below 1 become 1.

    mean, median, p95: tokens (>= 1); p95 > median. The mean may lie below the median, or far above
    it, where no lognormal has all three.

    The logarithm of the length is a function of a normal draw z in three pieces. From the median to
    the 95th percentile it is a lognormal's of slope s. Below the median the slope is s / k. The
    tail above the 95th percentile is log-uniform and ends at p95 * exp(0.84 s k). The skew k is
    solved for the mean; with 1 the law is close to a lognormal. With k < 1 the middle bends, as (z
    / z95)^(1 / k); near the least possible mean the lengths jump at the median and at p95, and
    samples scatter about both. Nothing but the three figures is fitted: other quantiles are the
    law's own.

    Raises ValueError for impossible figures: half of the lengths are at least 1, 45 % at least the
    median and 5 % at least p95. Source: MIST, Table III gives such figures.
    """

    mean: float
    median: float
    p95: float
    _skew: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("mean", "median", "p95"):
            value = getattr(self, name)
            if not 1 <= value < math.inf:
                raise ValueError(f"{name} must be finite and >= 1 token, got {value}")
        if self.p95 <= self.median:
            raise ValueError(
                f"p95 must be > median ({self.median:g}), got {self.p95:g}; "
                "fixed or uniform are for lengths that hardly vary"
            )
        object.__setattr__(self, "_skew", _skew(self))

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        normal, uniform = rng.standard_normal(n), rng.random(n)
        return self._lengths(normal, uniform, self._skew)

    @property
    def longest(self) -> float:
        """The end of the tail, tokens."""
        return self.p95 * math.exp(_TAIL * self.slope * self._skew)

    @property
    def slope(self) -> float:
        """Of the logarithm of the length between the median and p95, for each unit of z."""
        return math.log(self.p95 / self.median) / _Z95

    def _lengths(self, normal: Floats, uniform: Floats, skew: float) -> Tokens:
        """Return the lengths of normal draws; in the tail, of uniform draws."""
        slope = self.slope
        bend = max(1.0, 1 / skew)
        middle = _Z95 * slope * np.clip(normal / _Z95, 0, 1) ** bend
        logs = np.where(normal < 0, normal * (slope / skew), middle)
        tail = middle + _TAIL * slope * skew * uniform
        logs = np.where(normal > _Z95, tail, logs)
        return np.maximum(np.rint(self.median * np.exp(logs)), 1).astype(np.int64)

    def mean_at(self, skew: float) -> float:
        """Return the mean in whole tokens with a skew."""
        return float(self._lengths(*_points(), skew).mean())


@lru_cache(maxsize=128)
def _skew(law: MeanMedianP95Length) -> float:
    """Return the skew that gives the mean in whole tokens; the mean grows with the skew.

    Kept, since a scenario with the same three figures is often built many times.
    """
    least = 0.5 + 0.45 * law.median + 0.05 * law.p95
    if law.mean < least:
        raise ValueError(
            f"mean must be >= {least:g} with median {law.median:g} and p95 {law.p95:g}, got "
            f"{law.mean:g}: half of the lengths are >= 1, 45 % >= the median, 5 % >= p95"
        )
    low, high = 1 / _MOST_SKEW, 1.0
    while law.mean_at(high) < law.mean:
        low, high = high, 2 * high
        if high * law.slope * _TAIL > math.log(1e9):
            raise ValueError(
                f"mean must be smaller with median {law.median:g} and p95 {law.p95:g}, got "
                f"{law.mean:g}: the longest twentieth would have more than 1e9 tokens each"
            )
    for _ in range(60):
        middle = math.sqrt(low * high)
        if law.mean_at(middle) < law.mean:
            low = middle
        else:
            high = middle
    if abs(law.mean_at(high) / law.mean - 1) > _ERROR:
        raise ValueError(
            f"mean, median and p95 must be figures that whole tokens can have, got "
            f"{law.mean:g}, {law.median:g} and {law.p95:g}; lengths so short are better "
            "given as uniform or geometric"
        )
    return high


@cache
def _points() -> tuple[Floats, Floats]:
    """Return equally likely normal draws, and for each draw in the tail its place there."""
    shares = (np.arange(_NUM_POINTS) + 0.5) / _NUM_POINTS
    normal = np.array([NormalDist().inv_cdf(share) for share in shares.tolist()])
    return normal, (shares - _P95) / (1 - _P95)
