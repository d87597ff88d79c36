"""A bundle in a simulation gives token times equal to the bit to a bundle stepped singly."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim.clients import AfdClient
from mist_sim.clients.afd import engine
from tests.effort import examples
from tests.reference.afd import ReferenceBundle

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


def served(rows, bundle, link, **workload):
    prefill = mist.llm_client("prefill", model="llama-3.1-8b", gpu="h100-sxm", role="prefill")
    bandwidth, latency = link
    return mist.Simulation(
        clients=[prefill, bundle],
        workload=mist.Workload(mist.Rows(rows), mist.TraceArrivals(), PIPELINE, **workload),
        network=mist.Link(bandwidth=bandwidth, latency=latency),
    ).run()


@examples(25)
@given(cases())
def test_token_times_are_those_of_a_bundle_stepped_singly(case):
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


@examples(25)
@given(cases(), st.floats(0.02, 2.0))
def test_how_far_it_looks_ahead_changes_nothing(case, timeout):
    """Nor does it when requests are given up while they wait, come, or decode."""
    rows, bundle, link = case
    limits = mist.TimeLimits(timeout=timeout)
    far = served(rows, bundle, link, time_limits=limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_FIRST_LIMIT", 1)
        patch.setattr(engine, "_LONGEST", 1)
        near = served(rows, bundle, link, time_limits=limits)
    pd.testing.assert_frame_equal(far.requests, near.requests, check_exact=True)
    for request_id in far.requests["request_id"]:
        assert np.array_equal(far.token_times(request_id), near.token_times(request_id))
    assert all(slots.num_filled == 0 and not slots.held.any() for slots in bundle.bundle.batches)
