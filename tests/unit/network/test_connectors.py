"""What a transfer costs beside its bytes: by hand, on a link and between ranks."""

from typing import Any

import pandas as pd
import pytest

from mist_sim import Fabric, Link, Scenario
from mist_sim.environment import Environment
from mist_sim.network import Connector, Message, MooncakeConnector, NixlConnector, Seat, Tenant
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TraceArrivals, Workload
from tests.reference.apart import engine
from tests.refusals import refused
from tests.unit.clients.test_hand_over import THREE, served, simulation
from tests.unit.scenario.test_roles import DATA

P, D = Seat("p"), Seat("d")
FULL = Connector(start=1.0, per_descriptor=0.25, post_processing=0.5, efficiency=0.5)


def seconds(network: Any, message: Message) -> float:
    env = Environment()
    network.start(env)
    env.run(until=network.send(message))
    return env.now + network.post_processing(message)


@pytest.mark.parametrize(
    ("descriptors", "number"), [("block_and_layer", 24), ("block", 3), ("layer", 8)]
)
def test_transfer_has_start_descriptors_bytes_and_post_processing(descriptors, number):
    """400 bytes at half of 100 bytes/s, three blocks of eight layers."""
    connector = Connector(
        start=1.0, per_descriptor=0.25, descriptors=descriptors, post_processing=0.5, efficiency=0.5
    )
    link = Link(bandwidth=100.0, latency=2.0, connector=connector)
    message = Message(P, D, 400.0, 8, 0.0, 3)
    assert seconds(link, message) == 2.0 + 1.0 + 0.75 * number + 8.0


def test_no_blocks_have_no_descriptors():
    link = Link(bandwidth=100.0, connector=FULL)
    assert seconds(link, Message(P, D, 0.0, 8, 0.0, 0)) == 1.0


def test_ranks_post_descriptors_of_their_own_layers_side_by_side():
    """Four layers a rank on one side, two on the other: two at most between a pair of ranks."""
    one_descriptor = Connector(per_descriptor=1.0, post_processing=0.5)
    network = Fabric(topology="hgx-h100", nodes=2, connector=one_descriptor)
    network.admit(
        [Tenant("p", 1, 2, 2, "node0", sends=True), Tenant("d", 1, 4, 1, "node1", takes=True)]
    )
    assert seconds(network, Message(P, D, 1.0, 8, 0.0, 3)) == pytest.approx(3 * 2 * 1.5, abs=1e-4)


def test_efficiency_is_of_every_link():
    whole, half = (
        Fabric(topology="hgx-h100", nodes=2, connector=Connector(efficiency=share))
        for share in (1.0, 0.5)
    )
    for network in (whole, half):
        network.admit(
            [Tenant("p", 1, 1, 1, "node0", sends=True), Tenant("d", 1, 1, 1, "node1", takes=True)]
        )
    message = Message(P, D, 50e9)
    assert seconds(half, message) == pytest.approx(2 * seconds(whole, message), rel=1e-5)


def test_a_public_log_of_nixl_is_what_its_descriptors_cost():
    """200 MB in 12,700 descriptors over the NVLink of A100s took 45 ms."""
    network = Fabric(topology="hgx-a100", connector=NixlConnector())
    network.admit([Tenant("p", 1, 1, 1, sends=True), Tenant("d", 1, 1, 1, takes=True)])
    message = Message(P, D, 200e6, 1, 0.0, 12_700)
    assert seconds(network, message) == pytest.approx(45e-3, rel=0.02)


def test_a_hand_over_waits_for_post_processing_and_its_source_does_not():
    """As three requests by hand, with 1/64 s for each of two blocks when they have come.

    The source's two blocks are free at 0.1640625 s, when a prompt that waits for them starts.
    """
    late = Link(bandwidth=64_000.0, latency=1 / 128, connector=Connector(post_processing=1 / 64))
    base = simulation(THREE[:1])
    rows = [THREE[0], THREE[0]._replace(arrival_time=0.01)]
    result = Simulation(
        clients=[engine("prefill", num_gpu_blocks=2), engine("decode")],
        workload=Workload(Rows(rows), TraceArrivals()),
        network=late,
    ).run()
    assert base.run().token_times(0).tolist()[1] == 0.1640625 + 1 / 32
    assert result.token_times(0).tolist()[1] == 0.1640625 + 2 / 64 + 1 / 32
    assert result.transfers["end"].tolist()[0] == 0.1640625 + 2 / 64
    prefills = result.stages[result.stages["stage"] == "prefill"]
    assert prefills["started_at"].tolist() == [0.0, 0.1640625]


def test_a_plain_connector_changes_nothing():
    plain = Link(bandwidth=64_000.0, latency=1 / 128, connector=Connector())
    result = simulation(THREE)
    result.network = plain
    assert result.run().summary == served(THREE).summary


test_what_is_bad_is_said = refused(
    lambda connector: Scenario.from_dict(DATA, {"network.connector": connector}),
    ({"efficiency": 1.5}, r"connector.efficiency: must be in \(0, 1\], got 1.5"),
    ({"efficiency": 0.0}, r"connector.efficiency: must be in \(0, 1\], got 0.0"),
    ({"per_descriptor": "-1 us"}, "connector.per_descriptor: must be finite and >= 0 s"),
    ({"post_processing": "-1 us"}, "connector.post_processing: must be finite and >= 0 s"),
    ({"descriptors": "page"}, "connector.descriptors: must be 'block_and_layer', 'block' or"),
    ("nixel", "no connector named 'nixel'; did you mean 'nixl'"),
    ({"type": "nixl", "begin": "1 ms"}, "network.connector.begin: unknown key"),
)


@pytest.mark.parametrize(
    ("file", "layers", "heads"),
    [
        ("kv-transfer-mooncake-vllm/vllm_qwen3-8b_h800_roce.csv", 36, 8),
        ("kv-transfer-mooncake-sglang/transfers.csv", 94, 2 * 4),
    ],
)
def test_mooncake_starts_layer_by_layer(shared, file, layers, heads):
    """Measured transfers of 128 to 32,768 tokens; four KV heads lie twice on eight ranks."""
    rows = pd.read_csv(shared(f"measurements/{file}")).rename(columns={"prompt_tokens": "tokens"})
    a_token = layers * 2 * heads * 128 * 2
    connector = MooncakeConnector()
    bandwidth = 200e9 * connector.efficiency
    found = connector.before(1, layers) + rows["tokens"] * a_token / bandwidth
    measured = rows["transfer_ms"] / 1e3
    assert (found - measured).abs().le(0.3e-3 + 0.1 * measured).all()


def test_the_resolved_scenario_says_what_a_connector_costs():
    scenario = Scenario.from_dict(DATA, {"network.connector": "mooncake"})
    assert "efficiency: 0.772" in scenario.resolved()
    assert Scenario.from_yaml(scenario.resolved()) == scenario
