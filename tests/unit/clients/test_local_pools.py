"""Pairs of prefill and decode within a node: who takes over, and what is refused."""

from typing import Any

from mist_sim import Scenario, simulate
from tests.reference.scenarios import changed, of_profile
from tests.refusals import refused

DATA: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": of_profile(200, "20 /s"),
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


def test_global_pools_leave_their_node_and_take_longer():
    everywhere, here = (
        simulate(changed(DATA, hand_over__pools=pools)) for pools in ("global", "local")
    )
    moves = everywhere.transfers
    assert len(set(zip(moves["source"], moves["client"], strict=True))) == 8
    assert everywhere.summary["mean_hand_over_ms"] > 2 * here.summary["mean_hand_over_ms"]


test_what_does_not_go_together_is_refused_before_a_run = refused(
    lambda changes: simulate(changed(DATA, **changes)),
    ({"clients__1__place": "node1"}, "a client in node0 must be one that takes over, got local"),
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
)


# --- several models -----------------------------------------------------------------------------

LLAMA, QWEN = "llama-3.1-8b", "qwen2.5-7b"


def of_two_models(*clients: tuple[str, str, str, str], **changes: Any) -> Scenario:
    """Return a scenario with clients of (name, role, model, place)."""
    data = {key: value for key, value in DATA.items() if key not in ("model", "clients")}
    data["workload"] = DATA["workload"] | {"models": {LLAMA: 1, QWEN: 1}}
    keys = ("name", "role", "model", "place")
    data["clients"] = [
        {"gpu": "h100-sxm"} | dict(zip(keys, client, strict=True)) for client in clients
    ]
    return Scenario.from_dict(data, {key.replace("__", "."): v for key, v in changes.items()})


test_a_model_needs_both_sides = refused(
    lambda clients, pools: simulate(of_two_models(*clients, hand_over__pools=pools)),
    (
        [
            ("pl", "prefill", LLAMA, "node0"),
            ("dl", "decode", LLAMA, "node1"),
            ("pq", "prefill", QWEN, "node1"),
            ("dq", "decode", QWEN, "node0"),
        ],
        "local",
        (
            "a client of llama-3.1-8b in node0 must be one that takes over, got local, with pl "
            "there and such clients in node1 only"
        ),
    ),
    (
        [
            ("pl", "prefill", LLAMA, "node0"),
            ("dl", "decode", LLAMA, "node0"),
            ("pq", "prefill", QWEN, "node0"),
        ],
        "global",
        (
            "clients: pq hands over answers of qwen2.5-7b, and no client takes over any of "
            "that model; give one the model qwen2.5-7b, or leave pq out"
        ),
    ),
    (
        [
            ("pl", "prefill", LLAMA, "node0"),
            ("dl", "decode", LLAMA, "node0"),
            ("dq", "decode", QWEN, "node0"),
        ],
        "global",
        "clients: dq takes over answers of qwen2.5-7b, and no client hands over any of that",
    ),
)


def test_clients_without_a_role_need_nobody():
    alone = ("alone", None, QWEN, "node0")
    clients = [("pl", "prefill", LLAMA, "node0"), ("dl", "decode", LLAMA, "node0"), alone]
    result = simulate(of_two_models(*clients, hand_over__pools="global"))
    assert result.summary["completed"] == 200


def test_turns_of_pools_are_their_own():
    """Prompts come to the nodes in turn; in each node the decode clients have turns."""
    moves = simulate(changed(DATA, router="round_robin")).transfers
    assert moves["client"].value_counts().to_dict() == {f"d-{k}": 50 for k in range(4)}
    for _, mine in moves.sort_values(["start", "request_id"]).groupby("source"):
        assert mine["client"].nunique() == 2
