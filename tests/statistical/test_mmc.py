"""M/M/c: c slots in one engine whose steps take the same time whatever they hold.

Two biases, both of one step or less. A request that arrives during a step is admitted at its
end, half a step later when the engine is busy: with steps of 1/100 of a service at most +0.9 % of
the mean wait for 2 slots and +1.4 % for 4. Geometric lengths in the place of exponential ones:
-0.5 %. Together, as measured, +0.2 % and +0.8 %, against half widths of 10 % and 13 % of the mean.
"""

import math

import pytest

from mist_sim.traces import GeometricLength
from tests.statistical.queueing import Queue, assert_mean, mean_waits

TOKENS = 100
SERVICE_S = 5.0


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits; `load` is that of one server. Source: Erlang (1917)."""
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers + 1)]
    all_busy = terms.pop() / (1 - load)
    return all_busy / (sum(terms) + all_busy)


def test_erlang_c_of_one_server_is_its_load():
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 0.5) == pytest.approx(1 / 3)  # worked by hand


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("servers", "load", "num_requests", "guard"),
    [
        (2, 0.6, 6_000, 0.18),  # false 0.0 %, power at 2 % 15 %, at 5 % 100 %
        # false 0.3 %, power at 2 % 32 %, at 5 % 100 %
        pytest.param(4, 0.7, 8_000, 0.25, marks=pytest.mark.deep),
    ],
)
def test_mean_wait(servers, load, num_requests, guard):
    """E[wait] = C(c, rho) s / (c (1 - rho)), C by Erlang."""
    expected = erlang_c(servers, load) * SERVICE_S / (servers * (1 - load))
    queue = Queue(
        rate=servers * load / SERVICE_S,
        output=GeometricLength(mean=TOKENS),
        step=SERVICE_S / TOKENS,
        servers=servers,
        num_requests=num_requests,
    )
    assert_mean(mean_waits(queue, entropy=17), expected, guard * expected)
