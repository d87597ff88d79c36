"""The Gaussian cycle time: an attention phase ends with the slowest of the workers.

The tokens of a worker are a sum over its slots, so they are nearly normal, and the slowest
worker's are the largest of as many normal variables. Source: arXiv 2601.21351v3, sections 4.2, 4.3.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr, roots_legendre

# 1 - Phi(m)^r is 1 below the first and 0 above the second to 1e-16, for r up to some thousands
_LOW, _HIGH = -9.0, 9.5
_NODES, _WEIGHTS = roots_legendre(160)


def expected_maximum(num_workers: int) -> float:
    """Return kappa_r: the mean of the largest of `num_workers` standard normal variables (5)."""
    return expected_excess(num_workers, _LOW) + _LOW


def expected_excess(num_workers: int, z: float) -> float:
    """Return E[(M - z)+] for M, the largest of `num_workers` (>= 1) standard normal variables.

    It is the integral of P(M > m) from z on; in closed form for one worker and for two.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers must be >= 1, got {num_workers}")
    if num_workers == 1:
        return _density(z) - z * float(ndtr(-z))
    if num_workers == 2:
        above = float(ndtr(-z))
        return (
            2 * _density(z) * (1 - above)
            + float(ndtr(-math.sqrt(2) * z)) / math.sqrt(math.pi)
            - z * above * (2 - above)
        )
    return excess_by_quadrature(num_workers, z)


def excess_by_quadrature(num_workers: int, z: float) -> float:
    """Return the same for any number of workers by Gauss-Legendre quadrature."""
    start = min(max(z, _LOW), _HIGH)
    half = (_HIGH - start) / 2
    m = start + half * (_NODES + 1)
    above = -np.expm1(num_workers * log_ndtr(m))
    return max(_LOW - z, 0.0) + half * float(_WEIGHTS @ above)


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def expected_cycle(
    mean: float, std: float, others: float, num_workers: int, *, rest: float = 0.0, batches: int = 0
) -> float:
    """Return the mean of a cycle, max(a, others), where a is the slowest attention worker's time.

    With `batches` in flight, the cycles of a batch are no shorter than all its phases one after
    the other, so a cycle is max(a, others, (a + rest) / batches). With many, that makes no
    difference, and it is the Gaussian cycle time of the paper (9).

    mean, std: of one worker's time. others: the longest of the other phases. rest: what a batch
    spends outside attention. batches: >= 2, or 0 for as many as it takes.
    """
    if std == 0:
        return max(mean, others, (mean + rest) / batches if batches else 0.0)

    def excess(time: float) -> float:
        return std * expected_excess(num_workers, (time - mean) / std)

    if not batches:
        return others + excess(others)
    from_sum = batches * others - rest  # attention times at which one phase overtakes the next
    from_attention = rest / (batches - 1)
    if from_sum >= from_attention:
        return others + excess(others)
    return others + excess(from_sum) / batches + excess(from_attention) * (1 - 1 / batches)
