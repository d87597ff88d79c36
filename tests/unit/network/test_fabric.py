"""Hand-overs in a topology: which GPU sends what to which, and what is left after the prompt."""

from typing import Any

import pytest

from mist_sim import Fabric, Link, Scenario, ScenarioError, simulate
from mist_sim.environment import Environment
from mist_sim.network import Connector, Message, Seat, Tenant
from mist_sim.network.base import bytes_left
from tests.reference.scenarios import changed, of_profile, synthetic
from tests.refusals import refused

P, D = Seat("p"), Seat("d")
MESSAGE = Message(P, D, 8e9)


def fabric(p, d, at="node1", **more):
    """Two nodes; p, on the first, and d, `at` one of them, have (pipeline, tensor) ranks."""
    network = Fabric(topology="hgx-h100", nodes=2, **more)
    network.admit([Tenant("p", 1, *p, "node0", sends=True), Tenant("d", 1, *d, at, takes=True)])
    return network


def seconds(network, message=MESSAGE):
    env = Environment()
    network.start(env)
    end = network.send(message)
    env.run(until=end)
    return env.now


def ways(network):
    return [
        (way.route.places[0][-1], way.route.places[-1][-1], way.share)
        for way in network._between(P, D).ways
    ]


@pytest.mark.parametrize(
    ("p", "d", "expected"),
    [
        ((1, 1), (1, 1), [("0", "0", 1.0)]),
        ((1, 2), (1, 2), [("0", "0", 0.5), ("1", "1", 0.5)]),
        ((1, 2), (1, 1), [("0", "0", 0.5), ("1", "0", 0.5)]),
        ((1, 2), (1, 4), [("0", "0", 0.25), ("0", "1", 0.25), ("1", "2", 0.25), ("1", "3", 0.25)]),
        ((2, 1), (1, 2), [("0", "0", 0.25), ("0", "1", 0.25), ("1", "0", 0.25), ("1", "1", 0.25)]),
        (
            (3, 1),
            (2, 1),
            [("0", "0", 1 / 3), ("1", "0", 1 / 6), ("1", "1", 1 / 6), ("2", "1", 1 / 3)],
        ),
    ],
)
def test_each_rank_sends_what_it_has_of_the_layers_and_heads_of_another(p, d, expected):
    got = ways(fabric(p, d))
    assert got == [(one, other, pytest.approx(share)) for one, other, share in expected]
    assert sum(share for _, _, share in got) == pytest.approx(1.0)


@pytest.mark.parametrize("spans_racks", [False, True])
@pytest.mark.parametrize(
    ("p", "d", "at"),
    [
        ((1, 1), (1, 1), "node1"),
        ((1, 4), (1, 4), "node1"),
        ((1, 2), (1, 1), "node1"),
        ((2, 1), (1, 2), "node1"),
        ((1, 1), (1, 1), "node0"),
    ],
)
def test_reach_is_time_of_message_on_free_network(p, d, at, spans_racks):
    racks = {"nodes_per_rack": 1, "oversubscription": 4.0} if spans_racks else {}
    network = fabric(p, d, at, connector=Connector(start=1e-3), **racks)
    assert network.reach(P, D).time(8e9) == pytest.approx(seconds(network), rel=1e-9)
    link = Link(bandwidth=1e9, latency=0.5)
    assert link.reach(P, D).time(2e9) == pytest.approx(seconds(link, Message(P, D, 2e9)))


def placed(router):
    """Prefill on two nodes, decode on both; return (prefill, decode) client of each request."""
    client = {"gpu": "h100-sxm", "count": 2, "place": ["node0", "node1"]}
    scenario = {
        "model": "llama-3.1-8b",
        "workload": of_profile(60, "20 /s", name="azure-conv-2023"),
        "clients": [
            client | {"name": "p", "role": "prefill"},
            client | {"name": "d", "role": "decode"},
        ],
        "routers": {"decode": router},
        "network": {"topology": "hgx-h100", "nodes": 2},
    }
    stages = simulate(Scenario.from_dict(scenario)).stages
    return [tuple(found.client) for _, found in stages.groupby("request_id") if len(found) == 2]


def test_placement_aware_keeps_entries_on_their_node():
    assert set(placed("placement_aware")) == {("p-0", "d-0"), ("p-1", "d-1")}
    assert len(set(placed("random"))) == 4


def test_as_many_nics_as_ranks_send_at_once():
    one, four = (seconds(fabric((1, n), (1, n))) for n in (1, 4))
    latency = 4 * 0.5e-6 + 2 * 0.35e-6
    assert one == pytest.approx(latency + 8e9 / 50e9, rel=1e-12)
    assert four == pytest.approx(latency + 2e9 / 50e9, rel=1e-12)


def test_two_ranks_that_send_to_one_share_its_nic():
    assert seconds(fabric((1, 2), (1, 1))) == pytest.approx(2.7e-6 + 8e9 / 50e9, rel=1e-9)


def test_in_a_node_entries_take_nvlink():
    network = fabric((1, 1), (1, 1), at="node0")
    assert seconds(network) == pytest.approx(0.6e-6 + 8e9 / 450e9, rel=1e-12)


def test_the_overhead_of_a_transfer_comes_on_top():
    assert seconds(fabric((1, 1), (1, 1), connector=Connector(start=0.25))) == pytest.approx(
        0.4100027, rel=1e-12
    )


def test_clients_without_gpus_send_nothing():
    with pytest.raises(ScenarioError, match="tool has no GPUs in hgx-h100"):
        seconds(fabric((1, 1), (1, 1)), Message(Seat("tool"), D, 1.0))


# --- layer by layer ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute_time", "left"),
    [
        (0.0, 800.0),  # nothing is hidden
        (4.0, 800.0 - 4.0 * 100.0 * 7 / 8),  # the way is slower than the GPU
        (8.0, 100.0),  # as fast: the last layer
        (80.0, 100.0),
    ],
)
def test_layers_travel_while_the_next_ones_are_computed(compute_time, left):
    """800 bytes of eight layers, 100 bytes/s."""
    message = Message(P, D, 800.0, 8, compute_time)
    assert bytes_left(message, 100.0, "layerwise") == left
    assert bytes_left(message, 100.0, "full") == 800.0


@pytest.mark.parametrize("compute_time", [0.0, 1.0, 4.0, 8.0, 20.0])
def test_what_is_left_is_what_a_pipeline_of_layers_leaves(compute_time):
    """Layer by layer: each is sent when it is computed and the one before it has left."""
    layers, size, bandwidth, sent = 8, 100.0, 100.0, 0.0
    for layer in range(1, layers + 1):
        sent = max(sent, layer * compute_time / layers) + size / bandwidth
    message = Message(P, D, layers * size, layers, compute_time)
    tail = bytes_left(message, bandwidth, "layerwise") / bandwidth
    assert compute_time + tail == pytest.approx(sent, rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 4])
def test_layer_by_layer_ranks_share_the_links_that_they_have_in_common(ranks):
    """Eight GPUs behind one NIC of 12.5 GB/s, which carries 3.125 GB while layer 2 is computed.

    However many ranks send: they are one transfer, which cannot hide more than the NIC carries.
    """
    network = Fabric(topology="pcie-l4", nodes=2, granularity="layerwise")
    network.admit(
        [
            Tenant("p", 1, 1, ranks, "node0", sends=True),
            Tenant("d", 1, 1, ranks, "node1", takes=True),
        ]
    )
    took = seconds(network, Message(P, D, 10e9, num_layers=2, compute_time=0.5))
    assert took == pytest.approx(2.7e-6 + (10e9 - 3.125e9) / 12.5e9, rel=1e-9)


@pytest.mark.parametrize("topology", [True, False])
def test_prompts_that_are_done_together_hide_no_more_than_their_link_carries(topology):
    """Four of 10 GB, computed in one second: 12.5 GB less a layer at most have left by then."""
    if topology:
        network = Fabric(topology="pcie-l4", nodes=2, granularity="layerwise")
        network.admit(
            [Tenant("p", 4, 1, 1, "node0", sends=True), Tenant("d", 4, 1, 1, "node1", takes=True)]
        )
    else:
        network = Link(bandwidth=12.5e9, granularity="layerwise")
    env = Environment()
    network.start(env)
    env.run(until=1.0)
    layers = 1000
    messages = [Message(Seat("p", k), Seat("d", k), 10e9, layers, 1.0) for k in range(4)]
    ends = [network.send(message) for message in messages]
    env.run(until=env.all_of(ends))
    assert env.now - 1.0 == pytest.approx((40e9 - 12.5e9) / 12.5e9, rel=2e-3)


def test_a_link_that_was_free_hides_as_much_as_before():
    """The second prompt is done a second later, when the first one's entries have long left."""
    network = Link(bandwidth=10e9, granularity="layerwise")
    env = Environment()
    network.start(env)
    for now in (1.0, 2.0):
        env.run(until=now)
        env.run(until=network.send(Message(P, D, 8e9, 8, 1.0)))
        assert env.now == pytest.approx(now + 0.1, rel=1e-9)


DATA: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": synthetic(20, 1600, 5, {"type": "constant", "rate": "1 /s"}),
    "clients": [
        {"name": "p", "role": "prefill", "gpu": "h100-sxm"},
        {"name": "d", "role": "decode", "gpu": "h100-sxm", "place": "node1/gpu3"},
    ],
    "network": {"topology": "hgx-h100", "nodes": 2},
}


def hand_over_seconds(**changes):
    moves = simulate(changed(DATA, **changes)).transfers
    assert len(moves) == 20
    assert moves["num_bytes"].tolist() == [100 * 16 * 131_072.0] * 20
    return (moves["end"] - moves["start"]).tolist()


def test_a_scenario_hands_over_between_nodes():
    expected = 2.7e-6 + 100 * 16 * 131_072 / 50e9
    assert hand_over_seconds() == pytest.approx([expected] * 20, rel=1e-9)


def test_layer_by_layer_one_of_32_layers_is_left():
    """The prompt takes longer to compute than its entries to travel."""
    expected = 2.7e-6 + 100 * 16 * 131_072 / 50e9 / 32
    got = hand_over_seconds(network__granularity="layerwise")
    assert got == pytest.approx([expected] * 20, rel=1e-9)


def test_link_can_send_layer_by_layer_as_well():
    link = {"bandwidth": "400 Gb/s", "granularity": "layerwise"}
    got = hand_over_seconds(network=link, clients__1__place=None)
    assert got == pytest.approx([100 * 16 * 131_072 / 50e9 / 32] * 20, rel=1e-9)


SHARED = {
    "workload__lengths": {
        "type": "prefix_repetition",
        "num_requests": 20,
        "prefix_len": 800,
        "suffix": {"type": "fixed", "tokens": 800},
        "output": {"type": "fixed", "tokens": 5},
        "num_prefixes": 1,
    },
    "clients__0__kv_cache": {"enable_prefix_caching": True},
    "clients__1__kv_cache": {"enable_prefix_caching": True},
}


@pytest.mark.parametrize("whole", [False, True])
def test_blocks_that_destination_has_travel_only_if_told(whole):
    """All but the first prompt find 50 of their 100 blocks there."""
    changes = {"network__destination_missing": not whole}
    moves = simulate(changed(DATA, **SHARED, **changes)).transfers
    blocks = (moves["num_bytes"] / (16 * 131_072)).tolist()
    assert blocks == [100.0] + [100.0 if whole else 50.0] * 19
    assert moves["num_tokens"].tolist() == [1600] + [800] * 19


def test_the_resolved_scenario_says_the_same():
    first = changed(DATA, network__oversubscription=2.0)
    again = Scenario.from_yaml(first.resolved())
    assert first == again
    assert simulate(first).summary == simulate(again).summary


test_what_is_bad_is_said_with_its_place = refused(
    lambda changes: simulate(changed(DATA, **changes)),
    ({"clients__1__place": "node2"}, "network: d: hgx-h100 has no place 'node2'; did you mean"),
    ({"network__nics": 0}, "network: hgx-h100 has no route from node0/gpu0 to node1/gpu3"),
    ({"clients__0__place": "node1/gpu3"}, "d: place node1/gpu3 must not be taken, and p has"),
    ({"clients__0__tensor_parallel_size": 16}, "p: needs 16 GPUs and a node of hgx-h100 has 8"),
    ({"network__nic": "0 Gb/s"}, "network.nic: must be finite and > 0 B/s, got 0"),
    ({"network__nodes": 0}, "network.nodes: must be >= 1, got 0"),
    ({"network__connector": {"start": "-1 s"}}, "network.connector.start: must be finite and >= 0"),
    ({"network__granularity": "half"}, "network.granularity: must be 'full' or 'layerwise'"),
    ({"network__topology": "hgx-h1"}, "network.topology: no topology and no file is named"),
    ({"network__topology": 3}, "network.topology: must be text, got 3"),
    ({"network__racks": 3}, "network.racks: unknown key"),
    ({"network": {"bandwidth": "1 GB/s"}}, "clients.1.place: has no effect: the network has no"),
    ({"clients__1__place": ["node0", "node1"]}, "must have a place for each of 1 copies, got 2"),
)


def test_copies_may_have_a_place_each():
    changes = {"clients__1__count": 2, "clients__1__place": ["node1", "node0"]}
    result = simulate(changed(DATA, **changes))
    seconds = (result.transfers["end"] - result.transfers["start"]).round(4)
    assert set(zip(result.transfers["client"], seconds, strict=True)) == {
        ("d-0", 0.0042),
        ("d-1", 0.0005),
    }


def test_a_network_in_python_may_be_either():
    assert Fabric(topology="hgx-h100", nodes=3).resolved.nodes == 3
    assert Link(bandwidth=1.0).granularity == "full"


def test_each_worker_of_a_bundle_has_a_gpu():
    """Seven GPUs are left beside the prefill client; the bundle has three, and one for the FFN."""
    bundle = {
        "name": "d",
        "type": "afd",
        "attention_workers": 3,
        "slots": 4,
        "cycle_s": "1 us",
        "coefficients": "deepseek-v3-ascend-910c",
    }
    changes = {"clients__1": bundle, "network__nodes": 1}
    moves = simulate(changed(DATA, **changes)).transfers
    expected = 0.6e-6 + 1600 * 131_072 / 450e9
    assert (moves["end"] - moves["start"]).tolist() == pytest.approx([expected] * 20, rel=1e-6)
    for more, needed in (
        ({"attention_workers": 8}, r"d: needs 8 GPUs, and no node .* \(7 in all\)"),
        ({"ffn_gpus": 5}, r"d, FFN workers: needs 5 GPUs, and no node .* \(4 in all\)"),
        ({"ffn_place": "node0/gpu7", "ffn_gpus": 2}, "d, FFN workers: place node0/gpu7 must have"),
    ):
        changes["clients__1"] = bundle | more
        with pytest.raises(ScenarioError, match=needed):
            simulate(changed(DATA, **changes))
