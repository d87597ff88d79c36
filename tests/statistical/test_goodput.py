"""The goodput of an M/D/1 queue, against the distribution of its waits."""

from math import exp, factorial, floor

import pytest
from scipy.optimize import brentq

from mist_sim import Scenario
from mist_sim.search.goodput import GoodputOptions, find_goodput
from tests.reference.scenarios import synthetic

SERVICE = 1.0
NUM_SEEDS = 6
SCENARIO = {
    "replications": NUM_SEEDS,
    "warmup": "200 s",
    "workload": synthetic(3000, 1, 1, "0.5 /s", pipeline=[{"type": "preprocess", "num_tokens": 1}]),
    "clients": [
        {"name": "cpu", "type": "sequential", "serves": ["preprocess"], "base_time": "1 s"}
    ],
}


def share_within(rate: float, wait: float) -> float:
    """P(W <= t) of M/D/1 (Erlang 1909; Tijms, A First Course in Stochastic Models, 9.3.1)."""
    terms = (
        (rate * (k * SERVICE - wait)) ** k / factorial(k) * exp(-rate * (k * SERVICE - wait))
        for k in range(floor(wait / SERVICE) + 1)
    )
    return (1 - rate * SERVICE) * sum(terms)


@pytest.mark.statistical
@pytest.mark.parametrize("limit", [2.5, pytest.param(6.5, marks=pytest.mark.deep)])
def test_the_goodput_of_a_queue(limit):
    """90 % wait no longer than the limit less the service; the interval is of 95 %, 6 seeds."""
    expected = brentq(lambda rate: share_within(rate, limit - SERVICE) - 0.9, 0.01, 0.99)
    scenario = Scenario.from_dict(SCENARIO, {"slo": {"e2el": f"{limit} s"}})
    found = find_goodput(scenario, GoodputOptions(rates=(0.4, 0.95), tolerance=0.01), jobs=1)
    low, high = found.interval
    assert low <= expected <= high
    assert high - low < 0.12 * expected, "too few samples to notice a real error"
