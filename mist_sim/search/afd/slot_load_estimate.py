"""A slot's load from a trace of lengths, with confidence intervals, and without a law of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mist_sim.errors import ScenarioError
from mist_sim.search.afd.slot_load import SlotLoad

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
