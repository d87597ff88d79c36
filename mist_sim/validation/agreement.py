"""How alike measured and simulated latencies are: by distribution, and by mean ratio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.05
"""Of the test: the chance to call latencies equivalent that differ by the margin."""
_BATCHES = 20  # requests near one another share queues, so that means of batches are tested
_FEWEST = 2 * _BATCHES


@dataclass(frozen=True)
class Agreement:
    """How latencies agree.

    distance: Kolmogorov and Smirnov's, the largest difference of the two distribution functions.
    is_equivalent: whether the mean ratio is inside the margin by two one-sided t-tests at the 5 %
    level (TOST; Schuirmann 1987); None for fewer than 40 requests. p_value: of the tests, the
    larger one.
    """

    distance: float
    is_equivalent: bool | None
    p_value: float


def agreement(measured: Array, simulated: Array, margin: float) -> Agreement:
    """Return how latencies of the same requests agree.

    margin: share by which the mean ratio may differ (> 0). The logarithms of the ratios are tested,
    as means of 20 batches of requests in their order.
    """
    from scipy.stats import ks_2samp, ttest_1samp

    distance = float(ks_2samp(measured, simulated).statistic)
    if len(measured) < _FEWEST:
        return Agreement(distance, None, float("nan"))
    logs = np.log(simulated / measured)
    means = np.array([batch.mean() for batch in np.array_split(logs, _BATCHES)])
    low, high = np.log1p(-margin), np.log1p(margin)
    if np.ptp(means) == 0:  # no spread to test against
        inside = bool(low < means[0] < high)
        return Agreement(distance, inside, 0.0 if inside else 1.0)
    p_value = max(
        float(ttest_1samp(means, low, alternative="greater").pvalue),
        float(ttest_1samp(means, high, alternative="less").pvalue),
    )
    return Agreement(distance, p_value < LEVEL, p_value)
