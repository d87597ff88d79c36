"""Routers in front of single servers with exponential service, against the exact stationary law.

Each client is one worker with a mean service of 1 s. Random routing makes every client an M/M/1,
in turn an E_c/M/1; for those that look at queues the Markov chain of all queue lengths is solved,
cut where longer queues have a probability below 1e-6. Times in the system, of 16 seeds.
"""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import spsolve

from mist_sim import (
    ExponentialDuration,
    FixedLength,
    LeastOutstandingRouter,
    LoadRouter,
    PoissonArrivals,
    PowerOfTwoRouter,
    RandomRouter,
    RoundRobinRouter,
    SequentialClient,
    Simulation,
    Synthetic,
    Workload,
)
from mist_sim.stages import Preprocess
from tests.statistical.queueing import NUM_WARMUP, assert_mean, over_seeds
from tests.statistical.test_mmc import erlang_c

State = tuple[int, ...]
Choice = Callable[[State], Iterator[tuple[int, float]]]
"""Yields (server, probability) of where an arrival goes."""


def shortest(state: State) -> Iterator[tuple[int, float]]:
    yield state.index(min(state)), 1.0


def shorter_of_two(state: State) -> Iterator[tuple[int, float]]:
    """Of two that are drawn; the one drawn first among equals."""
    number = len(state)
    for one, other in product(range(number), repeat=2):
        if one != other:
            chosen = other if state[other] < state[one] else one
            yield chosen, 1 / (number * (number - 1))


def mean_time(choice: Choice, servers: int, load: float, longest: int) -> float:
    """Return the mean time in the system by Little's law, from the stationary distribution."""
    states = list(product(range(longest + 1), repeat=servers))
    numbers = {state: number for number, state in enumerate(states)}
    rows, columns, rates = [], [], []

    def add(state: State, server: int, change: int, rate: float) -> None:
        after = numbers.get((*state[:server], state[server] + change, *state[server + 1 :]))
        if after is not None:
            rows.extend((after, numbers[state]))
            columns.extend((numbers[state], numbers[state]))
            rates.extend((rate, -rate))

    for state in states:
        for server, probability in choice(state):
            add(state, server, 1, servers * load * probability)
        for server, length in enumerate(state):
            if length:
                add(state, server, -1, 1.0)
    balance = coo_matrix((rates, (rows, columns)), shape=(len(states),) * 2).tolil()
    balance[0] = 1.0  # in place of one equation: probabilities add up to 1
    right = np.zeros(len(states))
    right[0] = 1.0
    law = spsolve(balance.tocsr(), right)
    at_the_end = np.array([longest in state for state in states])
    assert law[at_the_end].sum() < 1e-6
    num_in_system = np.array([sum(state) for state in states])
    return float(law @ num_in_system / (servers * load))


def in_turn(servers: int, load: float) -> float:
    """Return the mean time in an E_c/M/1, 1 / (1 - s), s = E[exp(-(1 - s) gap)].

    Source: L. Kleinrock, Queueing Systems I, section 6.4.
    """
    rate = servers * load
    root = brentq(lambda s: (rate / (rate + 1 - s)) ** servers - s, 0.0, 1 - 1e-9)
    return 1 / (1 - root)


def mean_times(router, servers: int, load: float, num_requests: int):
    def sample(seed: np.random.SeedSequence) -> float:
        lengths = Synthetic(
            num_requests=num_requests, prompt=FixedLength(tokens=1), output=FixedLength(tokens=1)
        )
        clients = [
            SequentialClient(str(k), serves=["preprocess"], base_time=ExponentialDuration(mean=1.0))
            for k in range(servers)
        ]
        workload = Workload(
            lengths,
            PoissonArrivals(rate=servers * load),
            pipeline=lambda row: (Preprocess(num_tokens=1),),
        )
        number = int(seed.generate_state(1)[0])
        requests = (
            Simulation(clients=clients, workload=workload, router=router(), seed=number)
            .run()
            .requests
        )
        times = np.asarray(requests["finished_at"] - requests["arrival_time"])
        return float(times[NUM_WARMUP:].mean())

    return over_seeds(sample, entropy=23)


def test_the_chain_of_one_server_is_plain_queue():
    assert mean_time(shortest, 1, 0.5, 60) == pytest.approx(2.0)
    assert in_turn(1, 0.5) == pytest.approx(2.0)


def test_the_more_a_router_looks_at_the_nearer_it_is_to_one_common_queue():
    times = [mean_time(choice, 3, 0.7, 15) for choice in (shortest, shorter_of_two)]
    common_queue = 1 + erlang_c(3, 0.7) / (3 * (1 - 0.7))
    ordered = [common_queue, *times, 1 / (1 - 0.7)]
    assert ordered == sorted(ordered)
    assert 1 + erlang_c(2, 0.7) / (2 * (1 - 0.7)) < mean_time(shortest, 2, 0.7, 40)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("router", "servers", "expected"),
    [
        pytest.param(RandomRouter, 3, 1 / (1 - 0.7), marks=pytest.mark.deep),
        (RoundRobinRouter, 3, in_turn(3, 0.7)),
        (LeastOutstandingRouter, 2, None),
        (PowerOfTwoRouter, 3, None),
        pytest.param(LoadRouter, 2, None, marks=pytest.mark.deep),  # no prompts: by requests
    ],
)
def test_mean_time_in_the_system(router, servers, expected):
    if expected is None:
        choice = shorter_of_two if router is PowerOfTwoRouter else shortest
        expected = mean_time(choice, servers, 0.7, longest=40 if servers == 2 else 18)
    means = mean_times(router, servers, 0.7, num_requests=4_000)
    assert_mean(means, expected, guard=0.12 * expected)
