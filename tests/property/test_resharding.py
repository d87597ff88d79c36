"""A client that re-shards: laws, and equal bits beside a plain stepwise client."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim import ContinuousScheduler
from mist_sim.clients.resharding.client import ReshardingClient
from mist_sim.clients.resharding.staging import Phases
from mist_sim.clients.scheduling.order import ORDERS
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.network import Link
from mist_sim.traces import Workload
from tests.effort import examples
from tests.reference.comparison import workload
from tests.reference.engines import llm_engine
from tests.reference.predictors import AWKWARD
from tests.reference.resharded import OutgrownError, ReferenceResharding
from tests.reference.resharding import BLOCK_BYTES, resharding_engine
from tests.reference.resharding_policies import (
    Bound,
    DecodeFirst,
    Drain,
    Out,
    Pause,
    PrefillFirst,
    Threshold,
)
from tests.reference.stepwise import Job

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
    static = llm_engine("llm", predictor=predictor, **options)
    found, plain = simulate(client, jobs, times), simulate(static, jobs, times)
    assert found.requests.equals(plain.requests)
    assert found.steps.equals(plain.steps)
    assert repr(found.summary) == repr(plain.summary)
    event(f"preempted: {bool(plain.requests['num_preemptions'].sum())}")


# --- beside a plain stepwise client ---------------------------------------------------------------

BUFFERED = {"drain": Drain(), "pause": Pause(), "out": Out()}
STAGED = {
    "prefill_prioritised": PrefillFirst(),
    "decode_prioritised": DecodeFirst(),
    "threshold": Threshold(0.6),
}
BUDGET = 20  # tokens of prompts in a step
JOBS = st.lists(st.tuples(st.integers(1, 16), st.integers(1, 24)), min_size=6, max_size=20)
GAPS = st.lists(
    st.sampled_from([0.0, 0.0, 0.7e-3 / 3, 0.011 / 7, 0.3 / 11]), min_size=20, max_size=20
)
COPIES = st.sampled_from([0.0, 1.7e-4 / 3, 2.3e-3 / 7, 0.011 / 13])
BLOCKS = st.integers(16, 32) | st.integers(16, 80)
MORE = st.sampled_from([0, 8, -4])  # blocks while prompts are computed, more or fewer
RELOADS = st.sampled_from([(0.0, 0.0), (0.1 / 3, 0.2 / 7)])
SYSTEM = st.fixed_dictionaries(
    {
        "jobs": JOBS,
        "gaps": GAPS,
        "seats": st.integers(1, 6),
        "num_blocks": BLOCKS,
        "more_blocks": MORE,
        "per_block": COPIES,
        "reload": RELOADS,
    }
)


def check_beside(
    rule,
    *,
    jobs,
    gaps,
    num_blocks,
    more_blocks,
    host_blocks,
    seats,
    per_block,
    per_copy=0.0,
    reload,
    **more,
):
    """Hold a client against the plain one: the times of all tokens, layouts, and what was copied.

    more_blocks: that prompts have beside those of answers. reload: seconds for the weights of the
    layout for prompts, and of the other one. more: options of `Resharding`.
    """
    if per_copy:
        more["host_copy_bandwidth"] = BLOCK_BYTES / per_copy
        per_copy = BLOCK_BYTES / more["host_copy_bandwidth"]
    bandwidth = BLOCK_BYTES / per_block if per_block else 1e300
    client = resharding_engine(
        PLAIN,
        SLOWER,
        num_host_blocks=host_blocks or 0,
        host_bandwidth=bandwidth,
        weights=tuple(seconds * bandwidth for seconds in reload),
        prefill_blocks=num_blocks + more_blocks,
        options={"tensor_parallel_size": 2} | more,
        scheduler=scheduler(seats, BUDGET),
        num_gpu_blocks=num_blocks,
        block_size=SIZE,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
    )
    reference = ReferenceResharding(
        prefill_time=lambda new: PLAIN.step_time(StepBatch(tuple((n, 0) for n in new))),
        decode_time=lambda n, contexts: SLOWER.step_time(StepBatch((), n, contexts)),
        blocks=num_blocks,
        prefill_blocks=num_blocks + more_blocks,
        host_blocks=host_blocks,
        size=SIZE,
        seats=seats,
        budget=BUDGET,
        per_block=BLOCK_BYTES / bandwidth,
        per_copy=per_copy,
        reload=tuple(seconds * bandwidth / bandwidth for seconds in reload),
        policy=rule,
        sets_aside=host_blocks is not None and more.get("running", "out") == "out",
        prefetches=host_blocks is not None and more.get("prefetch", True),
    )
    times = [sum(gaps[: n + 1]) for n in range(len(jobs))]
    try:
        answers = reference.run(jobs, times)
    except OutgrownError:
        assume(False)
    result = simulate(client, jobs, times)
    for answer in answers:
        assert result.token_times(answer.number).tolist() == answer.times
    assert len(client.layouts or (0,)) - 1 == reference.num_transitions
    moves = result.transfers.groupby("kind")["num_bytes"].sum()
    assert moves.get("swap_out", 0) == reference.blocks_out * BLOCK_BYTES
    assert moves.get("swap_in", 0) == reference.blocks_back * BLOCK_BYTES
    assert not result.requests["num_preemptions"].any()
    event(f"transitions: {min(reference.num_transitions, 4)}")
    event(f"prefetched: {reference.num_prefetched > 0}")


@pytest.mark.exact
@examples(500)
@given(
    system=SYSTEM,
    host_blocks=st.integers(6, 60),
    per_copy=COPIES,
    running=st.sampled_from([*BUFFERED]),
    prefetch=st.sampled_from([True, True, False]),
)
def test_buffered_runs_are_those_of_a_stepwise_client(
    system, host_blocks, per_copy, running, prefetch
):
    check_beside(
        BUFFERED[running],
        **system,
        host_blocks=host_blocks,
        per_copy=per_copy,
        running=running,
        prefetch=prefetch,
    )


@pytest.mark.exact
@examples(20)
@given(seats=st.integers(2, 6), per_block=COPIES)
def test_no_more_comes_back_than_the_layout_for_answers_holds(seats, per_block):
    """Twenty prompts of four blocks; 60 blocks for prompts, and 20 for answers."""
    check_beside(
        Out(),
        jobs=[(16, 2)] * 20,
        gaps=[0.0] * 20,
        num_blocks=20,
        more_blocks=40,
        host_blocks=60,
        seats=seats,
        per_block=per_block,
        reload=(0.0, 0.0),
    )


@pytest.mark.exact
@examples(200)
@given(system=SYSTEM, policy=st.sampled_from([*STAGED]))
def test_runs_without_buffer_are_those_of_stepwise_client(system, policy):
    share = {"threshold": 0.6} if policy == "threshold" else {}
    check_beside(STAGED[policy], **system, host_blocks=None, policy=policy, **share)


@pytest.mark.exact
@examples(20)
@given(num=st.integers(2, 5), reload=RELOADS)
def test_prompts_wait_for_an_answer_to_end_where_none_fits_beside_it(num, reload):
    """They would fit in the layout for answers, which has 12 blocks, but not in the 8 for prompts.

    Without that wait layouts would change for ever.
    """
    check_beside(
        PrefillFirst(),
        jobs=[(16, 20)] * num,
        gaps=[0.0] * num,
        num_blocks=12,
        more_blocks=-4,
        host_blocks=None,
        seats=6,
        per_block=1e-6,
        reload=reload,
        policy="prefill_prioritised",
    )


@pytest.mark.exact
@examples(300)
@given(
    system=SYSTEM,
    host_blocks=st.integers(20, 80),
    limit=st.sampled_from([0.003, 0.02, 0.3]),
    shares=st.sampled_from([(0.0, 0.5), (0.1, 0.2), (0.5, 0.9)]),
    prefetch=st.sampled_from([True, True, False]),
)
def test_runs_under_limit_are_those_of_stepwise_client(
    system, host_blocks, limit, shares, prefetch
):
    early, late = shares
    check_beside(
        Bound(early * limit, late * limit),
        **system,
        host_blocks=host_blocks,
        policy="ttft_bound",
        ttft_limit=limit,
        to_decode=early,
        to_prefill=late,
        prefetch=prefetch,
    )


@pytest.mark.exact
@examples(50)
@given(
    jobs=st.lists(st.tuples(st.sampled_from([4, 8, 16]), st.integers(2, 6)), min_size=6),
    host_blocks=st.integers(5, 8),
    per_block=st.sampled_from([1e-4, 3e-3]),
)
def test_all_lanes_hear_of_room_in_the_buffer(jobs, host_blocks, per_block):
    """Two lanes compute prompts for a buffer of one or two of them; what came back leaves room."""
    client = resharding_engine(
        HALVES,
        PLAIN,
        num_host_blocks=host_blocks,
        host_bandwidth=BLOCK_BYTES / per_block,
        weights=1e-3,
        options={"tensor_parallel_size": 8},
        scheduler=scheduler(4),
        num_gpu_blocks=48,
        block_size=SIZE,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
    )
    result = simulate(client, jobs)
    assert (result.requests["status"] == "finished").all()


# --- laws -----------------------------------------------------------------------------------------

POLICIES = [
    {"policy": "transition_minimising", "running": "out"},
    {"policy": "transition_minimising", "running": "drain"},
    {"policy": "transition_minimising", "running": "pause"},
    {"policy": "prefill_prioritised"},
    {"policy": "decode_prioritised"},
    {"policy": "threshold", "threshold": 0.4},
    {"policy": "ttft_bound", "ttft_limit": 0.02},
    {"policy": "transition_minimising", "prefetch": False},
]


def check_tiers(phases: Phases) -> None:
    """Every sequence is in one place, and blocks on the GPUs and the host add up."""
    on_host = 0
    for lane in phases.lanes:
        core = lane.core
        places = [core.running, core.queue, core.swapped, core.loaded, core.moved]
        everybody = [slot for place in places for slot in place]
        assert len(everybody) == len(set(everybody))
        assert core.num_decodes + len(core.prefilling) + len(core.paused) == len(core.running)
        assert 0 <= core.blocks.num_free <= core.blocks.num_blocks
        assert core.num_promised >= 0
        on_host += sum(core.to_swap(slot)[0] for slot in {*core.swapped, *core.going})
        on_host += sum(core.to_come(slot)[0] for slot in core.returning)
    if phases.room is not None:
        assert on_host == phases.room.num_used <= phases.room.num_blocks


LAWFUL = st.fixed_dictionaries(
    {
        "jobs": lengths,
        "gaps": st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.3]), min_size=12, max_size=12),
        "options": st.sampled_from(POLICIES),
        "layouts": st.sampled_from(PAIRS),
        "host_blocks": st.integers(6, 60),
        "per_block": st.sampled_from([0.0, 1e-4, 3e-3]),
        "num_blocks": st.integers(24, 80),
        "replicas": st.sampled_from([1, 1, 2]),
        "order": st.sampled_from(["fcfs", "fcfs", *ORDERS]),
    }
)
LIMITS = st.lists(
    st.sampled_from([{}, {}, {"timeout": 0.02}, {"timeout": 0.3}, {"ttft_timeout": 0.01}]),
    min_size=12,
    max_size=12,
)


def lawful(jobs, gaps, options, layouts, host_blocks, per_block, num_blocks, replicas, order):
    """Return a client, and when its requests arrive."""
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
        scheduler=replace(scheduler(4), order=order),
        num_gpu_blocks=num_blocks,
        block_size=SIZE,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
        data_parallel_size=replicas,
    )
    return client, [sum(gaps[: n + 1]) for n in range(len(jobs))]


def watched(run):
    """Run with a check of all places and blocks at the end of every step."""
    note_end = Phases.note_end

    def checked(phases, **options):
        note_end(phases, **options)
        check_tiers(phases)

    with patch.object(Phases, "note_end", checked):
        return run()


def assert_all_is_free(client: ReshardingClient) -> None:
    """Blocks of both tiers, unless entries of one that gave up were on their way at the end."""
    if any(lane.has_moves for lane in client.lanes):
        return
    for lane in client.lanes:
        assert lane.core.num_in_use() == lane.core.num_inside() == lane.core.num_promised == 0
    if client.phases is not None and client.phases.room is not None:
        assert client.phases.room.num_used == 0


@pytest.mark.exact
@examples(200)
@given(case=LAWFUL)
def test_nothing_is_lost_and_entries_are_conserved(case):
    """At the end of every step: blocks of both tiers; at the end of the run: all tokens are out."""
    client, times = lawful(**case)
    result = watched(lambda: simulate(client, case["jobs"], times))
    for number, (_, output) in enumerate(case["jobs"]):
        row = result.requests.iloc[number]
        if row["status"] == "finished":
            assert row["num_output_tokens"] == output == len(result.token_times(number))
            assert (result.token_times(number)[1:] > result.token_times(number)[:-1]).all()
        else:
            assert row["status"] == "rejected"
            assert "exceed" in row["reason"]
    assert_all_is_free(client)
    if case["layouts"][0] is case["layouts"][1]:
        assert all(each.ready == each.start for each in client.layouts)
    event(f"{case['options']['policy']}, changes: {min(len(client.layouts), 4)}")


@pytest.mark.exact
@examples(200)
@given(case=LAWFUL, limits=LIMITS, fails=st.booleans(), at=st.floats(1e-3, 0.2))
def test_what_disturbs_a_client_leaves_no_trace(case, limits, fails, at):
    """Senders give up and the client fails: times stay in order, and the same run is the same."""

    def run():
        client, times = lawful(**case)
        jobs = [
            Job(time, *lengths, priority=number % 3, **limit)
            for number, (time, lengths, limit) in enumerate(
                zip(times, case["jobs"], limits, strict=False)
            )
        ]
        lives = Lifecycle(failures=(Failures(clients=("llm",), at=(at,), repair=0.01),))
        lives = lives if fails else Lifecycle()
        simulation = mist.Simulation(clients=[client], workload=workload(jobs), lifecycle=lives)
        return client, watched(simulation.run)

    client, result = run()
    requests = result.requests
    assert not (requests["queued"] < 0).any()
    ends = requests["finished_at"]
    assert (ends >= requests["arrival_time"])[ends.notna()].all()
    assert_all_is_free(client)
    again = run()[1]
    assert requests.equals(again.requests)
    assert result.steps.equals(again.steps)
    for status in sorted(set(requests["status"])):
        event(f"{case['options']['policy']}: {status}")


@pytest.mark.exact
@examples(200)
@given(
    case=LAWFUL,
    per_block=st.sampled_from([1e-9, 1e-4, 3e-3]),
    latency=st.sampled_from([0.0, 1e-3]),
    router=st.sampled_from(["round_robin", "least_outstanding"]),
)
def test_answers_whose_prompts_another_client_computed_go_on_here(case, per_block, latency, router):
    """Whole requests come, too; blocks of both add up after every step, and all tokens are out."""
    client, times = lawful(**case)
    other = llm_engine(
        "prompts",
        predictor=PLAIN,
        scheduler=scheduler(4),
        num_gpu_blocks=case["num_blocks"],
        block_size=SIZE,
        enable_prefix_caching=False,
        kv_block_bytes=BLOCK_BYTES,
        role="prefill",
    )
    prompts, outputs = zip(*case["jobs"], strict=True)
    simulation = mist.Simulation(
        clients=[other, client],
        workload=Workload.from_lists(list(prompts), list(outputs), times),
        router=router,
        network=Link(bandwidth=BLOCK_BYTES / per_block, latency=latency),
    )
    result = watched(simulation.run)
    for number, row in result.requests.iterrows():
        if row["status"] == "finished":
            assert row["num_output_tokens"] == outputs[number] == len(result.token_times(number))
        else:
            assert "tokens" in row["reason"]
    assert_all_is_free(client)
    handed = (result.transfers["kind"] == "hand_over").any()
    event(f"{case['options']['policy']}, handed over: {handed}")
