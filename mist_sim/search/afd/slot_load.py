"""The tokens that one slot of an attention worker holds at a random step, from laws of lengths.

A slot serves one request after the other. One with a prompt of P tokens that stays for D decode
steps holds P, P + 1, ..., P + D - 1 tokens, so long ones are met more often than they arrive.
Source: arXiv 2601.21351v3, lemma 4.1 and corollary 4.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """Mean and variance of a slot's tokens: theta and nu^2 of the paper.

    Raises ValueError unless mean > 0 and variance >= 0, both finite.
    """

    mean: float
    variance: float

    def __post_init__(self) -> None:
        if not 0 < self.mean < math.inf:
            raise ValueError(f"mean must be finite and > 0 tokens, got {self.mean}")
        if not 0 <= self.variance < math.inf:
            raise ValueError(f"variance must be finite and >= 0, got {self.variance}")

    @property
    def std(self) -> float:
        """Nu: the standard deviation, tokens."""
        return math.sqrt(self.variance)


def mean_slot_load(
    mean_prefill: float, mean_decode: float, var_decode: float, covariance: float = 0.0
) -> float:
    """Return theta (4).

    mean_prefill, mean_decode: E[P] >= 0 and E[D] >= 1. var_decode: of D. covariance: of P and D.
    """
    _check_means(mean_prefill, mean_decode)
    if var_decode < 0:
        raise ValueError(f"var_decode must be >= 0, got {var_decode}")
    return (
        mean_prefill
        + (mean_decode - 1) / 2
        + var_decode / (2 * mean_decode)
        + covariance / mean_decode
    )


def dependent_slot_load(
    decode: tuple[float, float, float], joint: tuple[float, float, float]
) -> SlotLoad:
    """Return the load of any law of P and D (3).

    decode: E[D], E[D^2], E[D^3]. joint: E[D P], E[D P^2], E[D^2 P]. The covariance alone, as in
        `mean_slot_load`, does not determine the variance. From a trace: `estimate_slot_load`.
    """
    (d1, d2, d3), (dp, dpp, ddp) = decode, joint
    _check_means(dp / d1 if d1 else 0.0, d1)
    theta = (dp + (d2 - d1) / 2) / d1
    second = (dpp + ddp - dp + (2 * d3 - 3 * d2 + d1) / 6) / d1
    return SlotLoad(theta, second - theta**2)


def independent_slot_load(
    prefill: tuple[float, float], decode: tuple[float, float, float]
) -> SlotLoad:
    """Return the load where P and D are independent (3).

    prefill: E[P], E[P^2]. decode: E[D], E[D^2], E[D^3].
    """
    (p1, p2), (d1, d2, _) = prefill, decode
    _check_means(p1, d1)
    return dependent_slot_load(decode, (d1 * p1, d1 * p2, d2 * p1))


def geometric_slot_load(mean_prefill: float, var_prefill: float, mean_decode: float) -> SlotLoad:
    """Return the load where D is geometric on 1, 2, ... and independent of P."""
    _check_means(mean_prefill, mean_decode)
    tokens_before_last = mean_decode - 1
    return SlotLoad(
        mean_prefill + tokens_before_last,
        var_prefill + tokens_before_last * (tokens_before_last + 1),
    )


def _check_means(mean_prefill: float, mean_decode: float) -> None:
    if not 0 <= mean_prefill < math.inf:
        raise ValueError(f"mean_prefill must be finite and >= 0 tokens, got {mean_prefill}")
    if not 1 <= mean_decode < math.inf:
        raise ValueError(f"mean_decode must be finite and >= 1 step, got {mean_decode}")
