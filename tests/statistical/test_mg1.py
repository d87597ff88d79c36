"""M/G/1: one slot, other distributions of output lengths (Pollaczek and Khinchine)."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from mist_sim.traces import LengthDistribution, LogNormalLength
from tests.statistical.queueing import Queue, assert_mean, lindley, mean_waits

LOAD = 0.5
STEP_S = 0.01


@dataclass(frozen=True)
class TwoLengths:
    """A long answer of 64 tokens with probability 0.1, otherwise one of 4 tokens."""

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.where(rng.random(n) < 0.1, 64, 4)


# output: (E[n], E[n^2], guard on the half width relative to the mean)
OUTPUTS: dict[str, tuple[LengthDistribution, float, float, float]] = {
    # false 0.0 %, power at 2 % 10 %, at 5 % 96 %; no bias
    "two lengths": (TwoLengths(), 10.0, 0.9 * 4**2 + 0.1 * 64**2, 0.18),
    # false 0.0 %, power at 2 % 11 %, at 5 % 97 %; rounding adds about 1/12 to E[n^2] = 5000
    "lognormal": (LogNormalLength(mean=50, std=50), 50.0, 50.0**2 + 50.0**2, 0.18),
}


@pytest.mark.statistical
@pytest.mark.deep
@pytest.mark.parametrize("name", OUTPUTS)
def test_mean_wait(name):
    """E[wait] = rate E[S^2] / (2 (1 - rho))."""
    output, mean, mean_square, guard = OUTPUTS[name]
    rate = LOAD / (mean * STEP_S)
    expected = rate * mean_square * STEP_S**2 / (2 * (1 - LOAD))
    assert math.isclose(rate * mean * STEP_S, LOAD)
    queue = Queue(rate, output, STEP_S)
    assert_mean(mean_waits(queue, entropy=13), expected, guard * expected)


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_wait_is_that_of_lindleys_recursion(name):
    """Long and short services in turn, at a load of 0.8: an error of any size shows."""
    output, mean, *_ = OUTPUTS[name]
    requests = Queue(0.8 / (mean * STEP_S), output, STEP_S).run(np.random.SeedSequence(7)).requests
    services = requests["num_output_tokens"].to_numpy() * STEP_S
    expected = lindley(requests["arrival_time"].to_numpy(), services)
    np.testing.assert_allclose(requests["queued"], expected, rtol=0, atol=1e-8)
