"""TaiChi: Algorithm 1 line by line on states made by hand, and runs in which it matters."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.clients.engine.flowing import next_pace
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
from tests.reference.engines import assert_all_is_free
from tests.reference.scenarios import of_profile
from tests.refusals import refused

# --- Algorithm 1 ------------------------------------------------------------------------------


def test_the_pace_of_who_leaves():
    """A slow answer counts as new at the next client, and a long one goes on as it was."""
    request = Request(0, 0.0, completion(8, 60), 8, 60)
    kv = HeldKv(
        "elsewhere",
        lambda: None,
        num_tokens=17,
        num_prompt_tokens=8,
        num_output_tokens=10,
        last_token_at=1.0,
        pace=Pace(1.0, 1, 2),
    )
    slow = SequenceState(Visit(request, request.stages[1:], 0.0, kv), 8, 60)
    slow.num_tokens += 10
    assert next_pace(Backflow(0.1), slow, 3.0) == Pace(3.0, 10, 3)
    assert next_pace(Degradation(0.9), slow, 3.0) == Pace(1.0, 1, 2)


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
        assert_all_is_free(client)


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


test_what_is_bad_is_said = refused(
    lambda change: build(scenario(**change)),
    ({"hand_over": {}}, "p-0: role must be left out without hand_over.policy: flowing"),
    ({"hand_over": {"policy": {"type": "flowing", "tpot": "0 s"}}}, "tpot: must be finite and > 0"),
    (
        {"hand_over": {"policy": {"type": "flowing", "tpot": "1 s", "watermark": 1.5}}},
        "watermark: must be in (0, 1], got 1.5",
    ),
    (
        {"hand_over": {"policy": {"type": "flowing", "tpot": "1 s", "max_backflows": -1}}},
        "max_backflows: must be >= 0, got -1; null is no limit",
    ),
    ({"router": {"type": "length_aware", "ttft": "-1 s"}}, "ttft: must be finite and > 0 s"),
    (
        {"router": {"type": "length_aware", "ttft": "1 s", "estimate_error": -0.5}},
        "estimate_error: must be finite and >= 0, got -0.5",
    ),
    ({"network": None}, "network: is required"),
    ({"view_interval": "1 s"}, "view_interval: must be left out with length_aware"),
)


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
        ((["node0", "node1"], "node0"), "a client in node1 must be one that takes over, got"),
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
