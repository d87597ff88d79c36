"""The tail of decode lengths, and its effect on a slot's load.

If P(D > x) falls as x^-alpha, the age of a request in a slot falls as x^-(alpha - 1), for long
requests are met more often. So for alpha <= 3 the variance of a slot's load is infinite, and for
alpha <= 2 its mean. Source: arXiv 2601.21351v3, appendix A.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mist_sim.errors import ScenarioError

MIN_LENGTHS = 400
"""Fewer have too few extremes to judge a tail by."""

FINITE_VARIANCE, FINITE_MEAN = 3.0, 2.0
"""Tail exponents at and below which variance and mean of the load are infinite."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The tail exponent of lengths.

    alpha: infinite for a tail that falls faster than any power, as of geometric lengths.
    low: lower end of its 95 % interval. num_extremes: lengths it is estimated from.
    """

    alpha: float
    low: float
    num_extremes: int

    @property
    def verdict(self) -> str:
        """Moments of the load: "finite", "infinite variance" or "infinite mean"."""
        if self.alpha <= FINITE_MEAN:
            return "infinite mean"
        return "infinite variance" if self.alpha <= FINITE_VARIANCE else "finite"


def tail_of(lengths: ArrayLike) -> Tail | None:
    """Return the tail exponent of lengths (> 0); None where they are too few.

    The moment estimator on the largest n^(2/3) / 2 of n lengths: unlike Hill's, it also covers
    tails that are lighter than a power law. Source: Dekkers, Einmahl and de Haan, Annals of
    Statistics 17, 1989.
    """
    ordered = np.sort(np.asarray(lengths, dtype=float))
    n = len(ordered)
    if n < MIN_LENGTHS:
        return None
    k = int(n ** (2 / 3) / 2)
    logs = np.log(ordered[-k:] / ordered[-k - 1])
    first, second = float(logs.mean()), float((logs**2).mean())
    if second <= first**2:  # all at one value, such as a longest answer
        return Tail(math.inf, math.inf, k)
    gamma = first + 1 - 0.5 / (1 - first**2 / second)
    high = gamma + 1.96 * math.sqrt((1 + gamma**2) / k)
    return Tail(_inverse(gamma), _inverse(high), k)


def _inverse(gamma: float) -> float:
    return 1 / gamma if gamma > 0 else math.inf


def check_tail(tail: Tail | None) -> None:
    """Raise ScenarioError where not even the mean of a slot's load is finite."""
    if tail is not None and tail.verdict == "infinite mean":
        raise ScenarioError(
            f"the trace is too heavy-tailed: the tail exponent of its decode lengths must be > "
            f"{FINITE_MEAN:g} for the mean load of a slot to exist, got {tail.alpha:.2f} from the "
            f"{tail.num_extremes} longest; cut answers at a longest length, as servers do"
        )
