"""The tokens that one slot of an attention worker holds at a random step, from laws of lengths.

A slot serves one request after the other. One with a prompt of P tokens that stays for D decode
steps holds P, P + 1, ..., P + D - 1 tokens, so long ones are met more often than they arrive.
Source: arXiv 2601.21351v3, lemma 4.1 and corollary 4.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mist_sim.errors import ScenarioError


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


Floats = NDArray[np.float64]

MIN_REQUESTS = 30
"""Fewer give no interval that a normal law would justify."""

WIDEST = 0.5
"""Half width of theta's interval, as a share of theta, beyond which there is nothing to provision
by."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """A value and the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLoadEstimate:
    """A slot's load, estimated from a trace.

    theta, nu_squared: mean and variance of the tokens in a slot. confidence: of their intervals.
    num_requests: of those that decode. mean_prefill, mean_decode: E[P] and E[D] of these.
    covariance: of P and D.
    """

    theta: Estimated
    nu_squared: Estimated
    confidence: float
    num_requests: int
    mean_prefill: float
    mean_decode: float
    covariance: float

    @property
    def load(self) -> SlotLoad:
        """The load to provision by."""
        return SlotLoad(self.theta.value, self.nu_squared.value)


def estimate_slot_load(
    prefill: ArrayLike, decode: ArrayLike, *, confidence: float = 0.95
) -> SlotLoadEstimate:
    """Return theta and nu^2 of a trace (15, 16), with intervals by the delta method.

    Both are ratios of sums over requests, or smooth in such ratios, so they are normal for many
    requests. The intervals assume independent requests; if a trace's lengths drift, the true
    intervals are wider.

    prefill: prompt lengths in tokens, shape (n,). decode: decode steps of the same requests (>= 0;
    those of 0 never come to a slot and are left out).
    confidence: in (0, 1).
    Raises ScenarioError for a trace that is too short, ValueError for other wrong input.
    Source: arXiv 2601.21351v3, appendix A.6.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    p, d = _lengths(prefill, decode)
    n, mean_decode = len(d), float(d.mean())
    tokens = d * p + d * (d - 1) / 2
    squares = d * p**2 + p * d * (d - 1) + d * (d - 1) * (2 * d - 1) / 6
    theta = float(tokens.sum() / d.sum())
    second = float(squares.sum() / d.sum())
    of_theta = (tokens - theta * d) / mean_decode  # influence of each request on theta, times n
    of_second = (squares - second * d) / mean_decode
    z = NormalDist().inv_cdf((1 + confidence) / 2) / math.sqrt(n)
    half = z * float(of_theta.std())
    if half > WIDEST * theta:
        raise ScenarioError(
            f"the trace is too short or too heavy-tailed: theta = {theta:.4g} tokens is known to "
            f"+-{half:.4g} only, of {n} requests; at most {WIDEST:.0%} are accepted"
        )
    variance = max(second - theta**2, 0.0)
    half_variance = z * float((of_second - 2 * theta * of_theta).std())
    return SlotLoadEstimate(
        theta=Estimated(theta, theta - half, theta + half),
        nu_squared=Estimated(
            variance, max(variance - half_variance, 0.0), variance + half_variance
        ),
        confidence=confidence,
        num_requests=n,
        mean_prefill=float(p.mean()),
        mean_decode=mean_decode,
        covariance=float(np.mean((p - p.mean()) * (d - mean_decode))),
    )


def _lengths(prefill: ArrayLike, decode: ArrayLike) -> tuple[Floats, Floats]:
    """Return the lengths of requests that decode, after checks."""
    p, d = np.asarray(prefill, dtype=float), np.asarray(decode, dtype=float)
    if p.ndim != 1 or p.shape != d.shape:
        raise ValueError(f"prefill and decode must be of one length, got {p.shape} and {d.shape}")
    if not (np.isfinite(p).all() and np.isfinite(d).all()) or (p < 0).any() or (d < 0).any():
        raise ValueError("prefill and decode must be finite numbers >= 0")
    decodes = d > 0
    p, d = p[decodes], d[decodes]
    if len(d) < MIN_REQUESTS:
        raise ScenarioError(
            f"the trace is too short: it must have {MIN_REQUESTS} requests that decode, or more, "
            f"got {len(d)}"
        )
    # all sums are over steps: of answers of unequal length only so many count
    effective = float(d.sum() ** 2 / (d**2).sum())
    if effective < MIN_REQUESTS:
        raise ScenarioError(
            f"the trace is too heavy-tailed: its answers are so unequal that {len(d)} of them "
            f"count for {effective:.1f} equal ones, and {MIN_REQUESTS} are needed; the longest has "
            f"{d.max() / d.sum():.0%} of all steps"
        )
    return p, d
