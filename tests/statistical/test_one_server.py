"""One slot: means of M/M/1, and every wait of M/M/1, M/D/1 and M/G/1 by Lindley's recursion.

Geometric lengths of mean m make E[S^2] smaller than exponential ones by 1/(2 m): with m = 100
the mean wait is 0.5 % below theory, against a half width of 7 % to 10 % of the mean.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from mist_sim.traces import FixedLength, GeometricLength, LogNormalLength
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


@cache
def figures(load: float) -> dict[str, np.ndarray]:
    """Run all seeds once: mean wait, mean time in the system, mean number found by arrivals."""
    means = {"wait": [], "time": [], "found": []}
    queue = Queue(load / SERVICE_S, GeometricLength(mean=TOKENS), SERVICE_S / TOKENS)
    for seed in np.random.SeedSequence(11).spawn(NUM_SEEDS):
        router = CountingRouter()
        result = queue.run(seed, router=router)
        means["wait"].append(waits(result)[NUM_WARMUP:].mean())
        means["time"].append(result.requests["e2el"].to_numpy()[NUM_WARMUP:].mean())
        means["found"].append(np.mean(router.found[NUM_WARMUP:]))
    return {name: np.array(values) for name, values in means.items()}


@pytest.mark.statistical
@pytest.mark.parametrize("load", [pytest.param(0.5, marks=pytest.mark.deep), 0.7])
def test_means_of_an_m_m_1_queue(load):
    """E[wait] = rho s / (1 - rho), E[time] = s / (1 - rho), and arrivals find rho / (1 - rho).

    Poisson arrivals see time averages: so many a router's view shows.
    """
    found = load / (1 - load)
    theory = {"wait": found * SERVICE_S, "time": SERVICE_S / (1 - load), "found": found}
    for name, expected in theory.items():
        assert_mean(figures(load)[name], expected, LOADS[load] * expected)


@dataclass(frozen=True)
class TwoLengths:
    """A long answer of 64 tokens with probability 0.1, otherwise one of 4 tokens."""

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.where(rng.random(n) < 0.1, 64, 4)


@pytest.mark.parametrize(
    ("output", "mean"),
    [
        (GeometricLength(mean=TOKENS), TOKENS),
        (FixedLength(tokens=1), 1),
        (TwoLengths(), 10),
        (LogNormalLength(mean=50, std=50), 50),
    ],
    ids=["M/M/1", "M/D/1", "two lengths", "lognormal"],
)
def test_every_wait_is_that_of_lindleys_recursion(output, mean):
    """The same arrivals and services at a load of 0.8: an error of any size shows."""
    step = SERVICE_S / mean
    result = Queue(0.8 / SERVICE_S, output, step).run(np.random.SeedSequence(7))
    requests = result.requests
    services = requests["num_output_tokens"].to_numpy() * step
    expected = lindley(requests["arrival_time"].to_numpy(), services)
    np.testing.assert_allclose(waits(result), expected, rtol=0, atol=1e-7)
