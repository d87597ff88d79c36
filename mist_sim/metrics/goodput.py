"""Service-level objectives, and the goodput that meets them (vLLM's `--goodput`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.latency import Array
from mist_sim.units import Seconds


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Upper limits in seconds that a good request keeps, all of them; None sets no limit.

    Raises ValueError for limits that are not positive and finite.
    """

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2el: Seconds | None = None

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot", "e2el"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"slo.{name} must be finite and > 0 s, got {limit}")

    @property
    def is_set(self) -> bool:
        """True when at least one limit is given."""
        return any(limit is not None for limit in (self.ttft, self.tpot, self.e2el))

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
