"""A bundle in a simulation gives token times equal to the bit to a bundle stepped singly."""

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim.clients import AfdClient
from mist_sim.core.front_end import NONE
from mist_sim.lifecycle import Autoscaling, Drain, Failures, Lifecycle, OnFailure, StartUp
from tests.effort import examples, features_seen, missing
from tests.property.test_failures import (
    POLICIES,
    assert_served_by_those_who_are_there,
    some_failures,
)
from tests.reference.afd import ReferenceBundle
from tests.reference.run_lengths import records

PIPELINE = mist.template([mist.Prefill, mist.Decode])


@st.composite
def cases(draw):
    """Bundles from slack to overloaded, on links from fast to slow."""
    num_requests = draw(st.integers(1, 40))
    layers = draw(st.sampled_from([None, 1, 2, 7]))
    lengths = st.tuples(st.integers(1, 900), st.integers(1, draw(st.sampled_from([3, 20, 200]))))
    gaps = st.floats(0, draw(st.sampled_from([0.0, 0.01, 0.5])))
    rows, now = [], 0.0
    for _ in range(num_requests):
        now += draw(gaps)
        rows.append(mist.TraceRow(*draw(lengths), arrival_time=now))
    bundle = AfdClient(
        "bundle",
        model="llama-3.1-8b",
        attention_workers=draw(st.integers(1, 3)),
        ffn_workers=draw(st.integers(1, 2)),
        slots=draw(st.integers(1, 3)),
        batches=draw(st.integers(1, 3)),
        alpha_a=draw(st.sampled_from([0.01, 1.0])),
        beta_a=draw(st.sampled_from([0.0, 50.0])),
        alpha_f=draw(st.sampled_from([1.0, 40.0])),
        beta_f=100.0,
        alpha_c=draw(st.sampled_from([0.0, 30.0])),
        beta_c=20.0,
        cycle_s=1e-5,
        static_graph=draw(st.booleans()),
        layers=layers,
        joint_steps=layers is not None and draw(st.booleans()),
        placement="least_load",
    )
    link = draw(st.sampled_from([(1e12, 0.0), (50e9, 1e-3), (1e9, 0.0)]))
    return rows, bundle, link


def served(rows, bundle, link, lifecycle=None, **workload):
    prefill = mist.llm_client("prefill", model="llama-3.1-8b", gpu="h100-sxm", role="prefill")
    bandwidth, latency = link
    return mist.Simulation(
        clients=[prefill, bundle],
        workload=mist.Workload(mist.Rows(rows), mist.TraceArrivals(), PIPELINE, **workload),
        network=mist.Link(bandwidth=bandwidth, latency=latency),
        front_end=NONE,
        lifecycle=lifecycle,
    ).run()


@examples(25)
@given(cases())
def test_token_times_are_those_of_bundle_stepped_singly(case):
    rows, bundle, link = case
    result = served(rows, bundle, link)
    visits = result.stages.query("stage == 'decode'").sort_values("queued_at", kind="stable")
    arrivals = [
        (queued, rows[k].num_prompt_tokens, rows[k].num_output_tokens - 1)
        for k, queued in zip(visits["request_id"], visits["queued_at"], strict=True)
    ]
    reference = ReferenceBundle(bundle.config, bundle.kv_bytes_per_token, *link)
    for request_id, times in zip(visits["request_id"], reference.serve(arrivals), strict=True):
        found = result.token_times(request_id)[1:]  # the first came from prefill
        assert np.array_equal(found, times), request_id
    assert bundle.view.num_outstanding == 0
    assert all(slots.num_filled == 0 and not slots.held.any() for slots in bundle.bundle.batches)


def check_tokens(result):
    """Each request has as many times of tokens as tokens, in order."""
    numbers = result.requests.set_index("request_id")["num_output_tokens"]
    for request_id, number in numbers.items():
        times = result.token_times(request_id)
        assert len(times) == number
        assert (np.diff(times) >= 0).all()


@examples(25)
@given(cases(), st.floats(0.02, 2.0))
def test_slots_are_free_behind_requests_that_are_given_up(case, timeout):
    """While they wait, come, or decode."""
    rows, bundle, link = case
    result = served(rows, bundle, link, time_limits=mist.TimeLimits(timeout=timeout))
    check_tokens(result)
    assert all(slots.num_filled == 0 and not slots.held.any() for slots in bundle.bundle.batches)


# --- failures -----------------------------------------------------------------------------------


@st.composite
def failing_cases(draw):
    """A case whose bundle fails at the ends of steps, between them, and while entries come."""
    rows, bundle, link = draw(cases())
    result = served(rows, bundle, link)
    ends = sorted({time for row in range(len(rows)) for time in result.token_times(row).tolist()})
    middles = [(one + other) / 2 for one, other in pairwise(ends)]
    arrivals = {row.arrival_time for row in rows}
    times = sorted({*ends, *middles} - arrivals)
    assume(times)
    failures, policy = [], draw(st.sampled_from(["retry", "resume", "fail"]))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.sampled_from(times))
        repair = draw(st.sampled_from([2.0**-10, 0.01, 0.3]))
        failures.append(Failures(clients=("bundle",), at=(begin,), repair=repair))
        times = [time for time in times if time > begin + repair]
        if not times:
            break
    tries = {} if policy == "fail" else {"max_retries": 1000}
    return (
        rows,
        bundle,
        link,
        Lifecycle(failures=tuple(failures), on_failure=OnFailure(policy=policy, **tries)),
    )


def seen_by(bundle):
    """Let a bundle note the visits that come: when, of whom, tokens held, and steps."""
    seen, accept = [], bundle.accept

    def note(visit):
        stay = bundle.stays[visit]
        if stay.num_steps > 0:
            seen.append((visit, (bundle.env.now, stay.num_held, stay.num_steps)))
        accept(visit)

    bundle.accept = note
    return seen


def assert_fails_as_stepped_singly(case):
    """Compare the tokens that each visit got, to the bit. Return what the case exercised."""
    rows, bundle, link, lifecycle = case
    seen = seen_by(bundle)
    result = served(rows, bundle, link, lifecycle)
    reference = ReferenceBundle(bundle.config, bundle.kv_bytes_per_token, *link)
    times = [time for failure in lifecycle.failures for time in failure.at]
    expected = reference.serve([arrival for _, arrival in seen], times)
    num_found = dict.fromkeys(range(len(rows)), 0)
    known, features = {}, set()
    for (visit, (_, _, num_steps)), tokens in zip(seen, expected, strict=True):
        request_id = visit.request.request_id
        if visit.kv is not known.get(request_id):  # else nobody had fetched them (resume)
            num_found[request_id] += 1  # one came from prefill
        known[request_id], first = visit.kv, num_found[request_id]
        if tokens and len(tokens) < num_steps:
            features.add("lost with tokens")
        features |= {"lost without a token"} if not tokens else set()
        assert visit.num_output_tokens == len(tokens), request_id
        found = result.token_times(request_id)[first : first + len(tokens)]
        assert np.array_equal(found, tokens), request_id
        num_found[request_id] += len(tokens)
    if lifecycle.on_failure.policy != "fail":
        assert result.summary["completed"] == len(rows)
    for number, row in enumerate(rows):
        if result.requests.set_index("request_id").loc[number, "status"] == "finished":
            assert len(result.token_times(number)) == row.num_output_tokens
    assert bundle.view.num_outstanding == 0
    shares = bundle.idle_shares
    assert all(np.isnan(share) or -1e-9 <= share <= 1 for share in shares)
    return features


@pytest.mark.exact
@examples(50)
@given(failing_cases())
def test_failures_lose_what_a_bundle_stepped_singly_loses(case):
    for feature in assert_fails_as_stepped_singly(case):
        event(feature)


@examples(25)
@given(failing_cases(), st.floats(0.02, 2.0))
def test_tokens_are_those_of_steps_also_of_requests_given_up_as_a_step_is_lost(case, timeout):
    rows, bundle, link, lifecycle = case
    limits = mist.TimeLimits(timeout=timeout)
    check_tokens(served(rows, bundle, link, lifecycle, time_limits=limits))


@pytest.mark.deep
def test_each_kind_of_loss_is_reached():
    wanted = ("lost with tokens", "lost without a token")
    seen = features_seen(failing_cases(), assert_fails_as_stepped_singly, wanted)
    assert not missing(seen, wanted), seen


# --- random lives -------------------------------------------------------------------------------


@st.composite
def lives(draw):
    """Two prefill clients and three bundles, all of which may fail, drain and be scaled."""
    rows, bundle, (bandwidth, latency) = draw(cases())
    options = {field.name: getattr(bundle, field.name) for field in fields(bundle)}
    clients = [
        mist.llm_client(f"prefill{k}", model="llama-3.1-8b", gpu="h100-sxm", role="prefill")
        for k in range(2)
    ]
    clients += [AfdClient(**(options | {"name": f"bundle{k}"})) for k in range(3)]
    names = [client.name for client in clients]
    scaled = tuple(draw(st.sampled_from([(), ("bundle0", "bundle1"), ("bundle2",)])))
    groups = ()
    if scaled:
        policy, lowest = draw(POLICIES), draw(st.integers(0, len(scaled)))
        groups = (Autoscaling(clients=scaled, policy=policy, min=lowest, interval=0.1),)
    drains = ()
    if draw(st.booleans()):
        who = draw(st.sampled_from([name for name in names if name not in scaled]))
        back = draw(st.none() | st.just(0.3))
        drains = (Drain(clients=(who,), at=draw(st.sampled_from([0.0, 0.05])), back=back),)
    start = draw(st.none() | st.just(StartUp(time=0.02)))
    lifecycle = Lifecycle(
        failures=tuple(draw(st.lists(some_failures(names), max_size=3))),
        on_failure=OnFailure(
            policy=draw(st.sampled_from(["retry", "resume"])), max_retries=draw(st.integers(0, 9))
        ),
        drains=drains,
        autoscaling=groups,
        start_up=start,
    )
    limits = draw(st.none() | st.just(mist.TimeLimits(timeout=1.0)))
    workload = mist.Workload(mist.Rows(rows), mist.TraceArrivals(), PIPELINE, time_limits=limits)
    return rows, mist.Simulation(
        clients=clients,
        workload=workload,
        network=mist.Link(bandwidth=bandwidth, latency=latency),
        front_end=NONE,
        lifecycle=lifecycle,
        slo=mist.Slo(ttft=0.05),
    )


@examples(60)
@given(lives())
def test_nothing_is_lost_and_nothing_served_twice(case):
    """The conservation of requests, stages and visits is checked at the end of the run itself."""
    rows, simulation = case
    result = simulation.run()
    assert sorted(result.requests["request_id"]) == list(range(len(rows)))
    for row in result.requests.itertuples():
        tokens = result.token_times(row.request_id)
        assert bool(row.reason) == (row.status != "finished")
        assert (tokens[1:] >= tokens[:-1]).all()
        if row.status == "finished":
            assert len(tokens) == rows[row.request_id].num_output_tokens
    assert_served_by_those_who_are_there(result)
    assert records(simulation.run()) == records(result)
