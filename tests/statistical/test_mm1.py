"""M/M/1: one slot, geometric outputs of many short steps.

Geometric lengths of mean m make E[S^2] smaller than exponential ones by 1/(2 m): with m = 100
the mean wait is 0.5 % below theory, against a half width of 7 % to 10 % of the mean.
"""

from functools import cache

import numpy as np
import pytest

from mist_sim.traces import GeometricLength
from tests.statistical.queueing import (
    NUM_SEEDS,
    NUM_WARMUP,
    CountingRouter,
    Queue,
    assert_mean,
    lindley,
    waits,
)

TOKENS = 100
SERVICE_S = 2.0

# load: guard on the half width relative to the mean, for all three figures. Measured for
# (wait, time, found): false, power at 2 %, power at 5 %.
LOADS = {
    0.5: 0.12,  # (0.3, 0.0, 0.0) %, (19, 34, 11) %, (100, 100, 96) %
    0.7: 0.18,  # (0.3, 0.0, 0.3) %, (18, 19, 10) %, (99, 100, 98) %
}


def queue(load: float) -> Queue:
    output = GeometricLength(mean=TOKENS)
    return Queue(load / SERVICE_S, output, SERVICE_S / TOKENS)


@cache
def figures(load: float) -> dict[str, np.ndarray]:
    """Run all seeds once: mean wait, mean time in the system, mean number found by arrivals."""
    means = {"wait": [], "time": [], "found": []}
    for seed in np.random.SeedSequence(11).spawn(NUM_SEEDS):
        router = CountingRouter()
        result = queue(load).run(seed, router=router)
        means["wait"].append(waits(result)[NUM_WARMUP:].mean())
        means["time"].append(result.requests["e2el"].to_numpy()[NUM_WARMUP:].mean())
        means["found"].append(np.mean(router.found[NUM_WARMUP:]))
    return {name: np.array(values) for name, values in means.items()}


@pytest.mark.statistical
@pytest.mark.parametrize("load", [pytest.param(0.5, marks=pytest.mark.deep), 0.7])
def test_mean_wait(load):
    """E[wait] = rho s / (1 - rho)."""
    expected = load * SERVICE_S / (1 - load)
    assert_mean(figures(load)["wait"], expected, LOADS[load] * expected)


@pytest.mark.statistical
@pytest.mark.parametrize("load", [pytest.param(0.5, marks=pytest.mark.deep), 0.7])
def test_mean_time_in_the_system(load):
    """E[time] = s / (1 - rho)."""
    expected = SERVICE_S / (1 - load)
    assert_mean(figures(load)["time"], expected, LOADS[load] * expected)


@pytest.mark.statistical
@pytest.mark.parametrize("load", [pytest.param(0.5, marks=pytest.mark.deep), 0.7])
def test_arrivals_find_the_mean_number(load):
    """Poisson arrivals see time averages: a router's view shows rho / (1 - rho) on average."""
    expected = load / (1 - load)
    assert_mean(figures(load)["found"], expected, LOADS[load] * expected)


def test_every_wait_is_that_of_lindleys_recursion():
    result = queue(0.7).run(np.random.SeedSequence(7))
    requests = result.requests
    services = requests["num_output_tokens"].to_numpy() * (SERVICE_S / TOKENS)
    expected = lindley(requests["arrival_time"].to_numpy(), services)
    np.testing.assert_allclose(waits(result), expected, rtol=0, atol=1e-7)
