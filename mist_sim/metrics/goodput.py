"""Service-level objectives, the goodput that meets them (vLLM's `--goodput`), and pass or miss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.latency import Array
from mist_sim.units import Seconds

_LIMITS = ("ttft", "tpot", "e2el")
_MS = 1e3


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Upper limits in seconds that a good request keeps, all of them; None sets no limit.

    percentiles: of the requests, in percent (> 0, <= 100), that have to keep a limit for the run to
        pass; a request that failed keeps none.

    Raises ValueError for limits that are not positive and finite, and for other percentiles.
    """

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2el: Seconds | None = None
    percentiles: Sequence[float] = (99.0,)

    def __post_init__(self) -> None:
        for name in _LIMITS:
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"slo.{name} must be finite and > 0 s, got {limit}")
        asked = self.percentiles
        if not asked or not all(0 < percentile <= 100 for percentile in asked):
            raise ValueError(f"slo.percentiles must be in (0, 100], one or more, got {list(asked)}")

    @property
    def is_set(self) -> bool:
        """True when at least one limit is given."""
        return any(self.limits.values())

    @property
    def limits(self) -> dict[str, float]:
        """The limits that there are, in seconds, by metric."""
        limits = {name: getattr(self, name) for name in _LIMITS}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def kept(
        self, ttft: Array, tpot: Array, e2el: Array, num_gaps: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which requests keep every limit, by their times in seconds.

        num_gaps: output tokens after the first. Without any there is no TPOT to keep, as in vLLM,
        which counts it as 0. Any other time that is NaN was not measured, and keeps no limit.
        """
        good = np.ones(len(ttft), dtype=bool)
        if self.ttft is not None:
            good &= ttft <= self.ttft
        if self.tpot is not None:
            good &= (tpot <= self.tpot) | (num_gaps == 0)
        if self.e2el is not None:
            good &= e2el <= self.e2el
        return good


def slo_verdicts(
    slo: Slo, samples: Mapping[str, Array], num_gaps: NDArray[np.int64], num_failed: int
) -> dict[str, dict[str, Any]]:
    """Return the figure beside each limit, and whether it is kept, by names such as `p99_ttft_ms`.

    samples: times of the finished requests, seconds, by metric. num_gaps: their output tokens after
    the first; those without any have no TPOT. A request that failed, and one whose time was not
    measured, is later than all others; a figure among these is NaN, and a miss.
    """
    found = {}
    for metric, limit in slo.limits.items():
        times = samples[metric] if metric != "tpot" else samples[metric][num_gaps > 0]
        known = times[~np.isnan(times)]
        is_asked = len(times) or num_failed or not len(num_gaps)
        for percentile in slo.percentiles:
            value = _percentile(known, len(times) + num_failed, percentile)
            found[f"p{percentile:g}_{metric}_ms"] = {
                "limit": limit * _MS,
                "value": value * _MS,
                "kept": value <= limit or not is_asked,
            }
    return found


def _percentile(known: Array, num_all: int, percentile: float) -> float:
    """Return a percentile of `num_all` values, of which the smallest are known; else NaN.

    It interpolates linearly between order statistics, as numpy does.
    """
    rank = percentile / 100 * (num_all - 1)
    above = math.ceil(rank)
    if not 0 <= above < len(known):
        return math.nan
    below = math.floor(rank)
    low, high = np.partition(known, (below, above))[[below, above]].tolist()
    return float(low + (rank - below) * (high - low))
