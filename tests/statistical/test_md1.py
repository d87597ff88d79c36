"""M/D/1: one slot, one step a request."""

import numpy as np
import pytest

from mist_sim.traces import FixedLength
from tests.statistical.queueing import Queue, assert_mean, lindley, mean_waits, waits

STEP_S = 0.7

# load: guard on the half width, relative to the mean
LOADS = {
    0.3: 0.08,  # false 0.0 %, power at 2 % 63 %, at 5 % 100 %
    0.6: 0.10,  # false 0.0 %, power at 2 % 77 %, at 5 % 100 %
    0.8: 0.18,  # false 0.3 %, power at 2 % 64 %, at 5 % 100 %
}


def queue(load: float) -> Queue:
    return Queue(load / STEP_S, FixedLength(tokens=1), STEP_S)


@pytest.mark.statistical
@pytest.mark.deep
@pytest.mark.parametrize("load", LOADS)
def test_mean_wait(load):
    """E[wait] = rho s / (2 (1 - rho)); the engine is this queue, so there is no bias."""
    expected = load * STEP_S / (2 * (1 - load))
    assert_mean(mean_waits(queue(load), entropy=7), expected, LOADS[load] * expected)


def test_every_wait_is_that_of_lindleys_recursion():
    """The same arrivals through a recursion of one line: an error of any size shows."""
    result = queue(0.8).run(np.random.SeedSequence(7))
    arrivals = result.requests["arrival_time"].to_numpy()
    expected = lindley(arrivals, np.full(len(arrivals), STEP_S))
    np.testing.assert_allclose(waits(result), expected, rtol=0, atol=1e-8)
