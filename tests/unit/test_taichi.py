"""TaiChi: Algorithm 1 line by line on states made by hand, and runs in which it matters."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.clients.kv_cache import KvCacheManager
from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.scheduling import LaneState, StepPlan
from mist_sim.clients.scheduling.flowing_answers import LongestFlowing, SlowestFlowing
from mist_sim.clients.scheduling.order import EntriesFirst
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.candidates import Candidates
from mist_sim.core.flowing import Backflow, Degradation
from mist_sim.core.request import Request
from mist_sim.core.visit import HeldKv, Pace, Visit
from mist_sim.rng import Streams
from mist_sim.routers import FlowingPolicy
from mist_sim.scenario.build import build
from mist_sim.scenario.schema import imitated
from mist_sim.stages import completion
from mist_sim.testing.doubles import FakeView
from tests.reference.scenarios import of_profile

# --- Algorithm 1: who leaves ------------------------------------------------------------------


def lane(num_blocks: int = 100) -> LaneState:
    manager = KvCacheManager(BlockPool(num_blocks, 4))
    return LaneState(manager, EntriesFirst(), max_num_seqs=64, by_piece=True, tells_joins=True)


def decode(state: LaneState, prompt: int, *, emitted: int, pace: Pace, left: int = 50) -> Any:
    """Let a decode run that has emitted some tokens; its time per token counts from `pace`."""
    request = Request(0, 0.0, completion(prompt, emitted + left), prompt, emitted + left)
    kv = HeldKv(
        "elsewhere",
        lambda: None,
        num_tokens=prompt + emitted - 1,
        num_prompt_tokens=prompt,
        num_output_tokens=emitted,
        last_token_at=pace.time,
        pace=pace,
    )
    sequence = SequenceState(Visit(request, request.stages[1:], 0.0, kv), prompt, emitted + left)
    sequence.num_tokens += emitted
    state.kv_cache.grow(state.pool.blocks_for(prompt + emitted - 1))
    state.running[sequence] = None
    state.clock.join(sequence)
    return sequence


DECODES = StepPlan()
DECODES.decodes = True


def test_an_answer_leaves_a_p_heavy_client_when_it_is_above_the_limit():
    """Line 2: 11 tokens since the pace began, so the limit of 0.1 s is passed after 1.1 s."""
    state, flow = lane(), SlowestFlowing(Backflow(0.1))
    slow = decode(state, 8, emitted=10, pace=Pace(1.0, 1))
    decode(state, 8, emitted=10, pace=Pace(1.5, 1))
    flow.num_steps(state, DECODES, 2.0, 1)
    state.clock.advance(1)
    assert flow.leaving(state, 2.0) == []  # 1.0 s and ten tokens: at the limit, not above
    assert flow.leaving(state, 2.0 + 1e-6) == [slow]
    assert flow.leaving(state, 2.0 + 1e-6) == []  # it has left; the other is at 0.05 s


@pytest.mark.parametrize(("most", "leaves"), [(None, True), (3, True), (2, False), (0, False)])
def test_who_has_left_as_often_as_it_may_stays(most, leaves):
    """And the run of steps need not end for it."""
    state, flow = lane(), SlowestFlowing(Backflow(0.1, most))
    slow = decode(state, 8, emitted=10, pace=Pace(1.0, 1, 2))
    ends = 2.0 + np.arange(1, 41)
    assert flow.num_steps(state, DECODES, ends, 40) == (1 if leaves else 40)
    state.clock.advance(1)
    assert flow.leaving(state, 3.0) == ([slow] if leaves else [])
    assert flow.pace(slow, 3.0).num_backflows == 3
    assert LongestFlowing(Degradation(0.9)).pace(slow, 3.0).num_backflows == 2


def test_one_that_joins_with_a_step_leaves_with_it_when_it_is_above_the_limit():
    """It was preempted, and what it had is computed again."""
    state, flow = lane(), SlowestFlowing(Backflow(0.1))
    flow.num_steps(state, DECODES, 2.0, 1)
    state.clock.advance(1)
    slow = decode(state, 8, emitted=10, pace=Pace(1.0, 1))
    assert flow.leaving(state, 2.0) == [slow]


def test_one_that_joined_twice_before_anybody_asked_leaves_once():
    """It was preempted meanwhile, as where no other client is up for long."""
    state, flow = lane(), SlowestFlowing(Backflow(0.1))
    slow = decode(state, 8, emitted=10, pace=Pace(1.0, 1))
    state.leave_clock(slow)
    state.clock.join(slow)
    assert flow.leaving(state, 3.0) == [slow]


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.11, 0.2])
def test_a_run_ends_with_the_first_step_after_which_one_leaves(seconds):
    state, flow = lane(), SlowestFlowing(Backflow(0.1))
    decode(state, 8, emitted=10, pace=Pace(0.0, 1))
    decode(state, 8, emitted=4, pace=Pace(0.4, 1))
    ends = 0.9 + seconds * np.arange(1, 41)
    above = [
        k + 1
        for k, end in enumerate(ends)
        if end > 0.1 * (9 + k + 1) or end - 0.4 > 0.1 * (3 + k + 1)
    ]
    expected = above[0] if above else 40
    assert flow.num_steps(state, DECODES, ends, 40) == expected


def test_a_run_ends_with_the_first_token_of_an_answer_that_may_be_slow():
    """Its time begins then; the other one could stay for all 40 steps."""
    state, flow = lane(), SlowestFlowing(Backflow(0.1))
    decode(state, 8, emitted=10, pace=Pace(1.0, 10))
    waits = decode(state, 8, emitted=1, pace=Pace(nan, 1))
    ends = 0.9 + 0.05 * np.arange(1, 41)
    assert flow.num_steps(state, DECODES, ends, 40) == 1
    waits.visit.kv.pace = Pace(1.0, 2)
    assert flow.num_steps(state, DECODES, ends, 40) == 40


def test_who_has_left_the_batch_does_not_flow():
    state, flow = lane(), SlowestFlowing(Backflow(0.1))
    gone = decode(state, 8, emitted=10, pace=Pace(0.0, 1))
    stays = decode(state, 8, emitted=10, pace=Pace(0.5, 1))
    assert flow.num_steps(state, DECODES, np.array([5.0]), 1) == 1
    state.stop(gone)
    state.clock.advance(1)
    assert flow.leaving(state, 5.0) == [stays]


def test_the_longest_answers_leave_a_d_heavy_client_until_it_is_below_the_watermark():
    """Lines 7 to 11: 40 blocks hold 17 + 11 + 11, one above the watermark of 95 % (38)."""
    state, flow = lane(40), LongestFlowing(Degradation(0.95))
    long = decode(state, 60, emitted=9, pace=Pace(0.0, 1))
    longer = decode(state, 24, emitted=21, pace=Pace(0.0, 1))
    decode(state, 40, emitted=5, pace=Pace(0.0, 1))
    assert state.pool.num_used == 39
    assert flow.leaving(state, 1.0) == [longer]
    decode(state, 3, emitted=1, pace=Pace(0.0, 1))
    assert flow.leaving(state, 1.0) == [longer]
    state.move_out(longer)
    assert flow.leaving(state, 1.0) == []  # held blocks are as good as free
    state.release_held(longer)
    state.kv_cache.grow(40 - state.pool.num_used)
    assert flow.leaving(state, 1.0) == [long]


def test_so_many_leave_as_memory_asks_for_and_no_more():
    """Lines 7 to 11: all 40 blocks are 10 above 75 %; the longest give back 5 and then 5."""
    state, flow = lane(40), LongestFlowing(Degradation(0.75))
    answers = [decode(state, 8, emitted=13 - k, pace=Pace(0.0, 1)) for k in range(4)]
    decode(state, 76, emitted=2, pace=Pace(0.0, 1))
    assert state.pool.num_used == 40
    assert flow.leaving(state, 1.0) == answers[:2]


def test_who_flowed_back_counts_as_new():
    state, flow = lane(40), LongestFlowing(Degradation(0.9))
    decode(state, 40, emitted=30, pace=Pace(3.0, 30))
    first = decode(state, 76, emitted=5, pace=Pace(0.0, 1))
    assert flow.leaving(state, 4.0) == [first]


@pytest.mark.parametrize("counts_seats", [True, False])
def test_the_longest_answers_leave_while_too_many_seats_are_taken(counts_seats):
    """Sixty of 64 seats are below the watermark of 95 % (60.8), and 62 are two above it."""
    state, flow = lane(4000), LongestFlowing(Degradation(0.95, counts_seats))
    first = [decode(state, 8, emitted=5 + k, pace=Pace(0.0, 1)) for k in range(60)]
    assert flow.leaving(state, 1.0) == []
    assert flow.num_steps(state, DECODES, np.zeros(30), 30) == 30
    decode(state, 8, emitted=2, pace=Pace(0.0, 1))
    coming = decode(state, 8, emitted=2, pace=Pace(0.0, 1))
    del state.running[coming]
    state.coming.loading[coming] = None  # has a seat as soon as its entries are here
    assert flow.leaving(state, 1.0) == (first[:-3:-1] if counts_seats else [])
    assert flow.num_steps(state, DECODES, np.zeros(30), 30) == (1 if counts_seats else 30)


@pytest.mark.parametrize("num_free", [0, 1, 5])
def test_a_run_ends_with_the_first_step_above_the_watermark(num_free):
    state, flow = lane(40), LongestFlowing(Degradation(0.9))
    sequence = decode(state, 4 * (36 - num_free) - 4, emitted=5, pace=Pace(0.0, 1))
    state.num_taken = state.clock.blocks_needed_now()
    state.kv_cache.grow(state.num_taken)
    steps = flow.num_steps(state, DECODES, np.zeros(30), 30)
    used = [-(-(sequence.num_tokens - 1 + k) // 4) for k in range(1, 31)]
    assert steps == 1 + next(k for k, blocks in enumerate(used) if blocks > 36)


def test_a_clock_that_nobody_clears_forgets_who_has_left():
    state = lane(10**6)
    stays = decode(state, 8, emitted=10, pace=Pace(0.0, 1), left=10**6)
    for _ in range(1000):
        state.stop(decode(state, 8, emitted=10, pace=Pace(0.0, 1)))
    assert stays in state.clock.joined
    assert len(state.clock.joined) < 300


def test_the_pace_of_who_leaves():
    state = lane()
    slow = decode(state, 8, emitted=10, pace=Pace(1.0, 1))
    state.stop(slow)
    assert SlowestFlowing(Backflow(0.1)).pace(slow, 7.0) == Pace(7.0, 10, 1)
    assert LongestFlowing(Degradation(0.9)).pace(slow, 7.0) == Pace(1.0, 1)


# --- where answers go -------------------------------------------------------------------------

P0, P1 = FakeView(0, role="p_heavy"), FakeView(1, role="p_heavy")
D2, D3 = FakeView(2, role="d_heavy"), FakeView(3, role="d_heavy")


def among(policy: FlowingPolicy, *views: FakeView, stage: int, source: str | None = None):
    request = Request(0, 0.0, completion(8, 9), 8, 9)
    if source:
        request.kv = SimpleNamespace(source=source, engine=0, num_tokens=8, num_bytes=1.0)
    found = policy.among(request, request.stages[stage], Candidates(views))
    return [view.client_id for view in found]


def test_answers_go_to_the_other_side_where_the_smallest_part_of_memory_is_used():
    policy = FlowingPolicy(tpot=0.1)
    views = [
        replace(view, num_kv_blocks=blocks, num_gpu_blocks=total)
        for view, blocks, total in zip((P0, P1, D2, D3), (5, 4, 9, 8), (10, 10, 10, 8), strict=True)
    ]
    assert among(policy, *views, stage=0) == [0, 1, 2, 3]
    assert among(policy, *views, stage=1, source="client0") == [2]
    assert among(policy, *views, stage=1, source="client1") == [2]
    assert among(policy, *views, stage=1, source="client3") == [1]
    assert among(policy, *views, stage=1) == [2]  # memory is reserved ahead
    assert among(policy, *views[:2], stage=1, source="client0") == [1]  # no other side is there
    assert among(policy, views[0], stage=1, source="client0") == [0]


def test_who_prefills_with_small_chunks_decodes_in_place():
    policy, views = FlowingPolicy(tpot=0.1), Candidates([P0, P1, D2, D3])
    request = Request(0, 0.0, completion(8, 9), 8, 9)
    assert policy.hands_over(request, P0, views)
    assert not policy.hands_over(request, D2, views)
    assert not policy.hands_over(request, P0, Candidates([P0, P1]))
    assert policy.flow("p_heavy") == Backflow(0.1 * 0.96, 2)
    assert policy.flow("d_heavy") == Degradation(0.95)
    assert policy.flow(None) is None


# --- runs -------------------------------------------------------------------------------------


def scenario(**changes: Any) -> Scenario:
    return Scenario.from_dict(said() | changes)


def said() -> dict[str, Any]:
    """Two large and two small clients of little memory, so that answers flow both ways."""

    def client(name: str, role: str | None, chunk: int) -> dict[str, Any]:
        return {
            "name": name,
            "role": role,
            "count": 2,
            "gpu": "a100-sxm-80gb",
            "scheduler": {"max_num_batched_tokens": chunk, "max_num_seqs": 128},
            "kv_cache": {"num_gpu_blocks_override": 1200},
            "async_scheduling": False,
        }

    return {
        "model": "qwen2.5-14b",
        "workload": of_profile(300, "10 /s"),
        "clients": [client("p", "p_heavy", 1024), client("d", "d_heavy", 256)],
        "network": {"bandwidth": "300 GB/s"},
        "hand_over": {"first_token": "decode", "policy": {"type": "flowing", "tpot": "40 ms"}},
        "router": {"type": "length_aware", "ttft": "3 s"},
    }


def test_answers_flow_both_ways_and_nothing_is_lost():
    simulation = build(scenario())
    result = simulation.run()
    moves = result.transfers[result.transfers["kind"] == "hand_over"]
    ways = {(one[0], other[0]) for one, other in zip(moves.source, moves.client, strict=True)}
    assert ways == {("p", "d"), ("d", "p")}
    assert moves["request_id"].value_counts().max() > 2  # one went back and forth
    assert result.summary["completed"] == 300
    asked = {r.request_id: r.num_output_tokens for r in simulation.workload.requests(Streams(0))}
    for row in result.requests.itertuples():
        assert row.num_output_tokens == asked[row.request_id]
        times = result.token_times(row.request_id)
        assert len(times) == row.num_output_tokens
        assert (np.diff(times) > 0).all()
        assert times[0] == row.first_token_at
    for client in simulation.clients:
        for state in client.lane_states:
            assert not [*state.held, *state.coming.loading, *state.coming.moved, *state.waiting]
            assert state.coming.num_promised == state.pool.num_used == 0


def test_layers_of_answers_that_flow_have_not_travelled_before():
    result = simulate(scenario(network={"bandwidth": "10 GB/s", "granularity": "layerwise"}))
    moves = result.transfers[result.transfers["kind"] == "hand_over"]
    seconds, at_least = moves["end"] - moves["start"], moves["num_bytes"] / 10e9
    flows = moves["source"].str.startswith("d")
    assert flows.any()
    assert (seconds[flows] > 0.999 * at_least[flows]).all()
    assert (seconds[~flows] < at_least[~flows]).any()  # those of prompts have


@pytest.mark.parametrize("router", ["round_robin", {"type": "length_aware", "ttft": "0.5 s"}])
def test_clients_of_two_classes_that_are_alike_are_one_class(router):
    """S_D = S_P: without roles nothing flows, and all decode in place."""
    p, d = said()["clients"]
    alike = {key: value for key, value in p.items() if key != "role"}
    both = [alike, {**alike, "name": d["name"]}]
    results = [
        simulate(scenario(clients=clients, router=router, hand_over={}, network=None))
        for clients in (both, [{**alike, "count": 4}])
    ]
    visits = [result.recorder.visits.columns() for result in results]
    for name, column in visits[0].items():
        np.testing.assert_array_equal(column, visits[1][name])
    assert len(set(visits[0]["client_id"])) == 4
    requests, of_one = (result.requests.to_csv() for result in results)
    assert requests == of_one
    for request_id in results[0].requests["request_id"]:
        times = (result.token_times(request_id).tolist() for result in results)
        assert next(times) == next(times)


def test_a_prompt_that_nobody_has_in_time_is_rejected_and_counted():
    router = {"type": "length_aware", "ttft": "0.3 s", "if_none": "reject"}
    result = simulate(scenario(router=router))
    rejected = result.requests[result.requests["status"] == "rejected"]
    assert 0 < len(rejected) == result.summary["num_rejected"]
    assert set(rejected["reason"]) == {"no client has the first token ready within 0.3 s"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hand_over": {}},
            "p-0: role must be left out without hand_over.policy: flowing",
        ),
        (
            {"hand_over": {"policy": {"type": "flowing", "tpot": "0 s"}}},
            "tpot: must be finite and > 0 s, got 0",
        ),
        (
            {"hand_over": {"policy": {"type": "flowing", "tpot": "1 s", "watermark": 1.5}}},
            "watermark: must be > 0 and <= 1, got 1.5",
        ),
        (
            {"hand_over": {"policy": {"type": "flowing", "tpot": "1 s", "max_backflows": -1}}},
            "max_backflows: must be >= 0, or null for no limit, got -1",
        ),
        ({"router": {"type": "length_aware", "ttft": "-1 s"}}, "ttft: must be finite and > 0 s"),
        (
            {"router": {"type": "length_aware", "ttft": "1 s", "estimate_error": -0.5}},
            "estimate_error: must be finite and >= 0, got -0.5",
        ),
        ({"network": None}, "network: is required"),
        ({"view_interval": "1 s"}, "view_interval: must be left out with length_aware"),
    ],
)
def test_what_is_bad_is_said(change, message):
    with pytest.raises(ScenarioError, match=message):
        build(scenario(**change))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("role", "p_heavy", "FlowingPolicy needs a client with role d_heavy"),
        ("scheduler", {"max_num_batched_tokens": 2048}, "of clients with role d_heavy must be <="),
        ("scheduler", "continuous", "scheduler.* must be chunked with role d_heavy"),
        ("scheduler", {"order": "priority"}, "scheduler.* must be fcfs"),
        ("scheduler", {"preemption": "swap"}, "scheduler.* must be recompute"),
        ("pipeline_parallel_size", 2, "pipeline_parallel_size: must be 1 with role d_heavy"),
        ("model", "gemma-3-12b", "role.* must be left out with a model with sliding windows"),
    ],
)
def test_clients_between_which_answers_cannot_flow_are_refused(key, value, message):
    everything = said()
    if key == "model":
        everything[key] = value
    else:
        everything["clients"][1][key] = value
    with pytest.raises(ScenarioError, match=message):
        build(Scenario.from_dict(everything))


def test_clients_between_which_answers_flow_plan_ahead_where_their_version_does():
    everything = said()
    for client in everything["clients"]:
        del client["async_scheduling"]
    headline = imitated(Scenario.from_dict(everything).clients)
    assert headline.startswith("options as in vLLM 0.33 (assumed; versions before 0.14")
    assert all(client.async_scheduling for client in build(Scenario.from_dict(everything)).clients)


def test_prompts_that_no_d_heavy_client_can_hold_are_refused_whatever_p_heavy_ones_hold():
    """Answers begin on d_heavy clients, which have 9 of 10 blocks of 16 tokens to give."""
    everything = said()
    everything["clients"][1]["kv_cache"] = {"num_gpu_blocks_override": 10}
    everything["workload"]["lengths"] = {
        "type": "synthetic",
        "num_requests": 5,
        "prompt": {"type": "fixed", "tokens": 2000},
        "output": {"type": "fixed", "tokens": 100},
    }
    with pytest.raises(ScenarioError, match=r"at most 144 tokens.*\(d-0: 144.*got 2000 or more"):
        build(Scenario.from_dict(everything))


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (("node0", "node1"), "a client in node0 must be one that takes over, got local, with p-0"),
        (
            (["node0", "node1"], "node0"),
            "a client in node1 must be one that takes over, got local, with p-1",
        ),
    ],
)
def test_local_pools_have_both_kinds_of_clients_in_each_node(places, message):
    everything = said()
    for client, place in zip(everything["clients"], places, strict=True):
        client["place"] = place
    everything["hand_over"]["pools"] = "local"
    everything["network"] = {"topology": "hgx-a100", "nodes": 2}
    with pytest.raises(ScenarioError, match=message):
        build(Scenario.from_dict(everything))
