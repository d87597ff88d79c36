"""A client that re-shards: laws, and equal bits beside a plain stepwise client."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim import ContinuousScheduler
from mist_sim.clients.resharding import ReshardingClient
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.traces import Workload
from tests.effort import examples
from tests.reference.engines import llm_engine
from tests.reference.predictors import AWKWARD
from tests.reference.resharded import OutgrownError, ReferenceResharding
from tests.reference.resharding import BLOCK_BYTES, resharding_engine

PLAIN = replace(AWKWARD, per_longest=0.0, needs_longest_context=False)
SLOWER = replace(PLAIN, base=2.9e-3 / 7, per_prompt_token=3.1e-6 / 9, per_decode=4.3e-5 / 11)
HALVES = PipelinePredictor((PLAIN, SLOWER), lambda num_tokens: num_tokens * 1.3e-7 / 3)
QUARTERS = PipelinePredictor((PLAIN, SLOWER, SLOWER, PLAIN), lambda num_tokens: num_tokens * 1e-7)
PAIRS = [(HALVES, PLAIN), (PLAIN, HALVES), (QUARTERS, HALVES), (HALVES, HALVES), (PLAIN, PLAIN)]
SIZE = 4  # tokens of a block

lengths = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 20)), min_size=1, max_size=12)


def scheduler(seats: int, budget: int | None = 32) -> ContinuousScheduler:
    return ContinuousScheduler(max_num_seqs=seats, max_num_batched_tokens=budget)


def simulate(client, jobs, times=None):
    prompts, outputs = zip(*jobs, strict=True)
    workload = Workload.from_lists(list(prompts), list(outputs), times or [0.0] * len(jobs))
    return mist.Simulation(clients=[client], workload=workload).run()


# --- equal layouts --------------------------------------------------------------------------------


@pytest.mark.exact
@examples(150)
@given(
    jobs=lengths,
    gaps=st.lists(st.sampled_from([0.0, 1e-3, 0.02]), min_size=12, max_size=12),
    seats=st.integers(2, 6),
    num_blocks=st.integers(12, 40),
    predictor=st.sampled_from([PLAIN, HALVES]),
)
def test_equal_layouts_are_the_static_engine(jobs, gaps, seats, num_blocks, predictor):
    """With c_p = c_d, no buffer and prefill-prioritised scheduling, all tables have equal bits."""
    times = [sum(gaps[: n + 1]) for n in range(len(jobs))]
    options = {"scheduler": scheduler(seats), "num_gpu_blocks": 2 * num_blocks, "block_size": SIZE}
    options |= {"enable_prefix_caching": False, "kv_block_bytes": BLOCK_BYTES}
    ranks = len(predictor.ranks) if isinstance(predictor, PipelinePredictor) else 1
    same = {"policy": "prefill_prioritised", "pipeline_parallel_size": ranks}
    client = resharding_engine(predictor, predictor, options=same, **options)
    static = llm_engine("llm", predictor=predictor, step_loop="general", **options)
    found, plain = simulate(client, jobs, times), simulate(static, jobs, times)
    assert found.requests.equals(plain.requests)
    assert found.steps.equals(plain.steps)
    assert repr(found.summary) == repr(plain.summary)
    event(f"preempted: {bool(plain.requests['num_preemptions'].sum())}")


# --- beside a plain stepwise client ---------------------------------------------------------------


@pytest.mark.exact
@examples(300)
@given(
    jobs=lengths,
    seats=st.integers(1, 6),
    num_blocks=st.integers(12, 40),
    host_blocks=st.integers(6, 60),
    per_block=st.sampled_from([0.0, 1.7e-4 / 3, 2.3e-3 / 7, 0.011 / 13]),
    reload=st.sampled_from([0.0, 0.1 / 3]),
    running=st.sampled_from(["out", "drain"]),
)
def test_runs_are_those_of_a_stepwise_client(
    jobs, seats, num_blocks, host_blocks, per_block, reload, running
):
    bandwidth = BLOCK_BYTES / per_block if per_block else 1e300
    client = resharding_engine(
        PLAIN,
        SLOWER,
        num_host_blocks=host_blocks,
        host_bandwidth=bandwidth,
        weights=reload * bandwidth,
        options={"tensor_parallel_size": 2, "running": running},
        scheduler=scheduler(seats),
        num_gpu_blocks=num_blocks,
        block_size=SIZE,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
    )
    reference = ReferenceResharding(
        prefill_time=lambda new: PLAIN.step_time(StepBatch(tuple((n, 0) for n in new))),
        decode_time=lambda n, contexts: SLOWER.step_time(StepBatch((), n, contexts)),
        blocks=num_blocks,
        host_blocks=host_blocks,
        size=SIZE,
        seats=seats,
        budget=32,
        per_block=BLOCK_BYTES / bandwidth,
        reload=reload * bandwidth / bandwidth,
        running=running,
    )
    try:
        answers = reference.run(jobs)
    except OutgrownError:
        assume(False)
    result = simulate(client, jobs)
    for answer in answers:
        assert result.token_times(answer.number).tolist() == answer.times
    assert len(client.layouts or (0,)) - 1 == reference.num_transitions
    event(f"transitions: {min(reference.num_transitions, 4)}")


# --- laws -----------------------------------------------------------------------------------------

POLICIES = [
    {"policy": "transition_minimising", "running": "out"},
    {"policy": "transition_minimising", "running": "drain"},
    {"policy": "transition_minimising", "running": "pause"},
    {"policy": "prefill_prioritised"},
    {"policy": "decode_prioritised"},
    {"policy": "threshold", "threshold": 0.4},
]


def check_tiers(client: ReshardingClient) -> None:
    """Every sequence is in one place, and blocks on the GPUs and the host add up."""
    phases, on_host = client.phases, 0
    for state in client.lane_states:
        places = [state.running, state.swapped, state.loading, state.loaded, state.moved]
        everybody = [each for place in places for each in place]
        assert len(everybody) == len(set(everybody))
        assert 0 <= state.pool.num_free <= state.pool.num_blocks
        if phases.room is not None:
            returning = state.swaps.returning.values()
            on_host += sum(move.num_blocks for move in (*state.swapped.values(), *returning))
            going = set(state.swaps.going) - set(state.swapped)
            on_host += sum(state.pool.blocks_for(state.swaps.going[each][1]) for each in going)
    if phases.room is not None:
        assert on_host == phases.room.num_used <= phases.room.num_blocks


@examples(200)
@given(
    jobs=lengths,
    gaps=st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.3]), min_size=12, max_size=12),
    options=st.sampled_from(POLICIES),
    layouts=st.sampled_from(PAIRS),
    host_blocks=st.integers(6, 60),
    per_block=st.sampled_from([0.0, 1e-4, 3e-3]),
    num_blocks=st.integers(24, 80),
)
def test_nothing_is_lost_and_entries_are_conserved(
    jobs, gaps, options, layouts, host_blocks, per_block, num_blocks
):
    """At the end of every step: blocks of both tiers; at the end of the run: all tokens are out."""
    prefill, decode = layouts
    other = {"tensor_parallel_size": 8}
    if prefill is decode:
        other = {"pipeline_parallel_size": 2 if decode is HALVES else 1}
    client = resharding_engine(
        prefill,
        decode,
        num_host_blocks=host_blocks,
        host_bandwidth=BLOCK_BYTES / per_block if per_block else 1e300,
        weights=1e-3,
        options=other | options,
        scheduler=scheduler(4),
        num_gpu_blocks=num_blocks,
        block_size=SIZE,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
    )
    start = client.start

    def watched(env, client_id, recorder):
        start(env, client_id, recorder)
        record = recorder.record_steps

        def checked(*args, **kwargs):
            check_tiers(client)
            record(*args, **kwargs)

        recorder.record_steps = checked

    client.start = watched
    times = [sum(gaps[: n + 1]) for n in range(len(jobs))]
    result = simulate(client, jobs, times)
    for number, (_, output) in enumerate(jobs):
        row = result.requests.iloc[number]
        if row["status"] == "finished":
            assert row["num_output_tokens"] == output == len(result.token_times(number))
            assert (result.token_times(number)[1:] > result.token_times(number)[:-1]).all()
        else:
            assert row["status"] == "rejected"
            assert "exceed" in row["reason"]
    assert all(state.pool.num_free == state.pool.num_blocks for state in client.lane_states)
    if prefill is decode:
        assert all(each.ready == each.start for each in client.layouts)
    event(f"{options['policy']}, changes: {min(len(client.layouts), 4)}")
