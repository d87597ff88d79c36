"""BestServe's fast simulators against Algorithms 2 to 7 as they are printed, request by request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.bestserve import Method, Requests, Strategy, simulate_strategy
from mist_sim.bestserve.oracle import Batch
from mist_sim.bestserve.simulators import Order
from mist_sim.rng import Streams
from tests.effort import examples, features_seen, missing
from tests.reference import bestserve as printed


@dataclass(frozen=True)
class Linear:
    """Step times that are whole numbers where `grain` is 1, so that events meet at an instant."""

    token: float
    step: float
    more: float
    overlap: float

    def prefill(self, prompts):
        seconds = self.token * sum(prompts)
        return Batch(seconds, seconds * self.overlap)

    def decode(self, batch, context):
        return self.step + self.more * batch * context


@st.composite
def cases(draw):
    num = draw(st.integers(1, 25))
    whole = draw(st.booleans())
    gaps = st.integers(0, 6) if whole else st.floats(0, 6)
    arrival = np.cumsum(draw(st.lists(gaps, min_size=num, max_size=num))).tolist()
    lengths = st.lists(st.integers(1, 5), min_size=num, max_size=num)
    fixed = draw(st.booleans())
    prompts = [draw(st.integers(1, 5))] * num if fixed else draw(lengths)
    outputs = [draw(st.integers(1, 5))] * num if fixed else draw(lengths)
    counts = draw(
        st.one_of(
            st.builds(dict, together=st.integers(1, 4)),
            st.builds(dict, prefill=st.integers(1, 3), decode=st.integers(1, 3)),
        )
    )
    batches = {"prefill_batch": draw(st.integers(1, 4)), "decode_batch": draw(st.integers(1, 6))}
    strategy = Strategy(**counts, **batches)
    number = st.sampled_from([1.0, 2.0]) if whole else st.floats(0.1, 2)
    times = Linear(
        draw(number), draw(number), draw(number) if draw(st.booleans()) else 0.0,
        draw(st.sampled_from([1.0, 1.0, 0.5])),
    )  # fmt: skip
    method = Method(
        tau=draw(st.sampled_from([1.0, 1.5, 2.5])),
        routing=draw(st.sampled_from(["shuffle", "round_robin"])),
    )
    return Requests.of(arrival, prompts, outputs), strategy, times, method, draw(st.integers(0, 9))


def as_printed(requests, strategy, times, method, seed):
    """Return D1 and D2 of the transcription, which draws the same orders."""
    given_ = requests.arrival.tolist(), requests.prompt.tolist(), requests.output.tolist()
    rng = Streams(seed).generator("bestserve routing")
    if strategy.is_apart:
        any_order = Order(method.routing, strategy.prefill, Streams(99).generator("any"))
        orders = any_order, Order(method.routing, strategy.decode, rng)
        return printed.simulate_apart(*given_, strategy, times, method.tau, orders)
    order = Order(method.routing, strategy.together, rng)
    return printed.Collocation(*given_, strategy, times, method.tau, order).run()


def features(case):
    requests, strategy, times, _, _ = case
    found = simulate_strategy(strategy, requests, times, seed=case[4], method=case[3])
    seen = {"apart" if strategy.is_apart else "together", case[3].routing}
    seen.add("lengths differ" if len(set(requests.prompt.tolist())) > 1 else "lengths are equal")
    alone = [times.decode(1, max(p + o - 2, p)) for p, o in _lengths(requests)]
    decodes = requests.output > 1
    if (found.tpot[decodes] > np.array(alone)[decodes] + 1e-9).any():
        seen.add("someone waits or is suspended")
    if (requests.output == 1).any():
        seen.add("nothing to decode")
    if (np.diff(found.prefilled) < 0).any():
        seen.add("prompts overtake each other")
    if times.overlap < 1:
        seen.add("a pipeline")
    return seen


def _lengths(requests):
    return zip(requests.prompt.tolist(), requests.output.tolist(), strict=True)


WANTED = (
    "apart", "together", "shuffle", "round_robin", "lengths differ", "lengths are equal",
    "someone waits or is suspended", "nothing to decode", "prompts overtake each other",
    "a pipeline",
)  # fmt: skip


@examples(400)
@given(cases())
def test_every_request_is_served_as_printed_algorithms_do(case):
    requests, strategy, times, method, seed = case
    fast = simulate_strategy(strategy, requests, times, seed=seed, method=method)
    prefilled, done = as_printed(*case)
    assert fast.prefilled.tolist() == prefilled
    assert fast.done.tolist() == done


@examples(200)
@given(cases())
def test_laws(case):
    """Nothing is early, every answer ends, and boxes and instances are never taken twice."""
    requests, strategy, times, method, seed = case
    found = simulate_strategy(strategy, requests, times, seed=seed, method=method)
    own = [times.prefill((prompt,)).latency for prompt in requests.prompt.tolist()]
    assert (found.ttft >= np.array(own) - 1e-9).all()
    assert np.isfinite(found.done).all()
    assert (found.done >= found.prefilled).all()
    assert (found.tpot[requests.output == 1] == 0).all()
    num_boxes = strategy.decode_batch * (strategy.decode or strategy.together)
    decodes = requests.output > 1
    alone = np.array([times.decode(1, max(p + o - 2, p)) for p, o in _lengths(requests)])
    work = (requests.output * alone)[decodes].sum()
    span = found.done.max() - requests.arrival[0]
    assert work <= num_boxes * span * (1 + 1e-9)


def test_the_cases_reach_what_they_should():
    seen = features_seen(cases(), features, WANTED)
    assert not missing(seen, WANTED), seen


@pytest.mark.parametrize("routing", ["shuffle", "round_robin"])
@pytest.mark.parametrize("name", ["3m", "2p2d"])
def test_a_longer_run_is_equal_too(name, routing):
    rng = Streams(5).generator("a longer run")
    arrival = np.cumsum(rng.exponential(0.4, 800)).tolist()
    requests = Requests.of(arrival, rng.integers(1, 60, 800), rng.integers(1, 40, 800))
    case = requests, Strategy.parse(name), Linear(0.01, 0.1, 1e-3, 1.0), Method(routing=routing), 3
    fast = simulate_strategy(*case[1:2], requests, case[2], seed=3, method=case[3])
    prefilled, done = as_printed(*case)
    assert (fast.prefilled.tolist(), fast.done.tolist()) == (prefilled, done)
