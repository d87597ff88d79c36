"""Pairs of prefill and decode within a node: who takes over, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mist_sim import Scenario, ScenarioError, simulate

DATA: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "num_requests": 200},
        "arrivals": {"type": "poisson", "rate": "20 /s"},
    },
    "clients": [
        {
            "name": "p",
            "role": "prefill",
            "gpu": "h100-sxm",
            "count": 2,
            "place": ["node0", "node1"],
        },
        {
            "name": "d",
            "role": "decode",
            "gpu": "h100-sxm",
            "count": 4,
            "place": ["node0", "node0", "node1", "node1"],
        },
    ],
    "network": {"topology": "hgx-h100", "nodes": 2},
    "hand_over": {"pools": "local"},
}


def scenario(**changes: Any) -> Scenario:
    return Scenario.from_dict(DATA, {key.replace("__", "."): v for key, v in changes.items()})


@pytest.mark.parametrize("transfer", ["pull", "push"])
@pytest.mark.parametrize("router", ["round_robin", "least_outstanding", "random"])
def test_entries_stay_in_their_node(router, transfer):
    result = simulate(scenario(router=router, hand_over__transfer=transfer))
    moves = result.transfers
    pairs = set(zip(moves["source"], moves["client"], strict=True))
    assert pairs <= {("p-0", "d-0"), ("p-0", "d-1"), ("p-1", "d-2"), ("p-1", "d-3")}
    assert {source for source, _ in pairs} == {"p-0", "p-1"}
    assert result.summary["completed"] == 200


def test_global_pools_leave_their_node_and_take_longer():
    everywhere, here = (simulate(scenario(hand_over__pools=pools)) for pools in ("global", "local"))
    moves = everywhere.transfers
    assert len(set(zip(moves["source"], moves["client"], strict=True))) == 8
    assert everywhere.summary["mean_hand_over_ms"] > 2 * here.summary["mean_hand_over_ms"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"clients__1__place": "node1"},
            "a client in node0 must be one that takes over, got local, with p-0 there",
        ),
        (
            {"clients__0__place": "node0", "clients__1__place": ["node0", *["node1"] * 3]},
            "or a client in node1 must be one that hands over, got local, with d-1 there",
        ),
        (
            {
                "network": {"bandwidth": "400 Gb/s"},
                "clients__0__place": None,
                "clients__1__place": None,
            },
            "hand_over.pools must be global, since the network has no topology, got local",
        ),
        ({"hand_over__pools": "rack"}, "hand_over.pools: must be 'global' or 'local', got 'rack'"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_run(changes, message):
    with pytest.raises(ScenarioError, match=message):
        simulate(scenario(**changes))
