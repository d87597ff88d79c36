"""What a bundle's workers send one another, over the links of a topology."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim.clients import AfdClient
from mist_sim.clients.afd import linked
from mist_sim.environment import Environment
from mist_sim.network import Fabric, Seat, Tenant
from mist_sim.network.transfers import Flow, Transfers
from tests.effort import examples
from tests.reference.scenarios import of_profile
from tests.refusals import refused

SIX = {"alpha_a": 1, "beta_a": 10, "alpha_f": 3, "beta_f": 5}  # us
PIPELINE = mist.template([mist.Prefill, mist.Decode])


def bundle(**options):
    plain = {"model": "llama-3.1-8b", "attention_workers": 4, "slots": 2, "cycle_s": 1e-6}
    return AfdClient("bundle", **(plain | SIX | {"communication": "topology"} | options))


def served(client, network):
    """Serve a request on a bundle in two nodes, the prefill client being in the second."""
    prefill = mist.llm_client("prefill", model="llama-3.1-8b", gpu="h100-sxm", role="prefill")
    prefill.place = "node1/gpu7"
    rows = [mist.TraceRow(100, 5)]
    workload = mist.Workload(mist.Rows(rows), mist.AllAtOnce(), PIPELINE)
    simulation = mist.Simulation(clients=[prefill, client], workload=workload, network=network)
    return simulation.run()


def test_in_one_node_over_nvlink():
    """Four GPUs to one, whose link has all to carry: 4,096 bytes there, 8,192 back, 32 layers."""
    client = bundle()
    served(client, Fabric(topology="hgx-h100", nodes=2))
    c = client.config.coefficients
    assert c.alpha_c == pytest.approx(32 * 12_288 / 450e9)
    assert c.beta_c == pytest.approx(32 * 2 * 0.6e-6)


def test_to_another_node():
    """The FFN worker's NIC has all to carry; with beta_c in cycles on top of the latencies."""
    near, far = bundle(beta_c=3), bundle(beta_c=3, ffn_place="node1")
    runs = [served(client, Fabric(topology="hgx-h100", nodes=2)) for client in (near, far)]
    c = far.config.coefficients
    assert c.alpha_c == pytest.approx(32 * 12_288 / 50e9)
    assert c.beta_c == pytest.approx(3e-6 + 32 * 2 * (4 * 0.5e-6 + 2 * 0.35e-6))
    gaps = [run.token_times(0)[3] - run.token_times(0)[2] for run in runs]
    longer = c.communication_time(8) - near.config.coefficients.communication_time(8)
    assert gaps[1] - gaps[0] == pytest.approx(longer)


def test_ffn_workers_with_several_gpus_share_what_comes():
    """Four NICs for two workers with two GPUs each: each carries a quarter."""
    client = bundle(ffn_workers=2, ffn_gpus=2, ffn_place="node1")
    served(client, Fabric(topology="hgx-h100", nodes=2))
    per_request = 32 * 12_288 / 50e9 / 4  # of both workers
    assert client.config.coefficients.alpha_c == pytest.approx(2 * per_request)


def test_a_bundle_across_nodes():
    """Two of four attention workers are beside the FFN worker; its NIC carries half."""
    prefill_first = {"place": "node0/gpu6", "ffn_place": "node1/gpu6"}
    client = bundle(**prefill_first)
    served(client, Fabric(topology="hgx-h100", nodes=2, spans_nodes=True))
    assert client.config.coefficients.alpha_c == pytest.approx(32 * 12_288 / 50e9 / 2)


def test_every_expert_gets_a_copy():
    model = mist.load_model("mixtral-8x7b")
    client = bundle(model="mixtral-8x7b")
    fabric = Fabric(topology="hgx-h100", nodes=2)
    fabric.admit(client.tenants(takes=False))
    found = linked(client.config.coefficients, fabric, *client.tenants(takes=False), model)
    expected = model.num_layers * 3 * 2 * model.hidden_size / 450e9
    assert found.alpha_c == pytest.approx(expected)


@examples(40)
@given(
    attention=st.integers(1, 6),
    ffn=st.integers(1, 4),
    places=st.sampled_from([("node0", "node1"), ("node0/gpu5", "node1/gpu4"), ("node1", "node0")]),
    oversubscription=st.sampled_from([1.0, 5.0]),
)
def test_an_exchange_takes_as_long_as_its_transfers(attention, ffn, places, oversubscription):
    fabric = Fabric(
        topology="hgx-h100",
        nodes=2,
        nodes_per_rack=1,
        oversubscription=oversubscription,
        spans_nodes=True,
    )
    tenants = [Tenant("b", attention, 1, 1, places[0]), Tenant("b", ffn, 1, 1, places[1], first=9)]
    fabric.admit(tenants)
    sources, destinations = tenants[0].seats, tenants[1].seats
    found = fabric.exchange(sources, destinations)
    routes = [
        fabric.routes.between(one, other)
        for one in fabric._gpus(sources)
        for other in fabric._gpus(destinations)
    ]
    env, transfers = Environment(), Transfers(fabric._capacities)
    transfers.start(env)
    env.run(until=transfers.send([Flow(r.path, 1e9 / len(routes), 0.0) for r in routes]))
    assert found.seconds_per_byte * 1e9 == pytest.approx(env.now)
    assert found.latency == max(r.latency for r in routes)


test_options_that_are_refused = refused(
    lambda options: bundle(**options),
    ({"alpha_c": 1.0}, "alpha_c must not be set with communication: topology"),
    ({"communication": "links"}, "communication has no .links.. Known: coefficients, topology"),
    ({"ffn_gpus": 0}, "ffn_gpus must be in [1, 10000], got 0"),
    ({"attention_gpus": -1}, "attention_gpus must be in [1, 10000], got -1"),
    error=ValueError,
)


def test_a_network_without_a_topology_is_refused():
    with pytest.raises(mist.ScenarioError, match="communication must be coefficients where"):
        served(bundle(), mist.Link(bandwidth=1e9))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("communication", "topology"),
        ("place", "node0"),
        ("ffn_place", "node0"),
        ("attention_gpus", 2),
        ("ffn_gpus", 2),
    ],
)
def test_a_scenario_without_a_topology_is_refused(key, value):
    client = {"name": "b", "type": "afd", "attention_workers": 2, "slots": 8, "cycle_s": "10 us"}
    client |= {"coefficients": "deepseek-v3-ascend-910c"}
    client |= {key: value}
    scenario = {
        "model": "llama-3.1-8b",
        "workload": of_profile(20, "5 /s"),
        "clients": [{"name": "prefill", "gpu": "h100-sxm", "role": "prefill"}, client],
        "network": {"bandwidth": "400 Gb/s"},
    }
    with pytest.raises(mist.ScenarioError, match=f"clients.1.{key}: .*no topology"):
        mist.Scenario.from_dict(scenario)
    scenario["network"] = {"topology": "hgx-h100"}
    assert mist.simulate(mist.Scenario.from_dict(scenario)).summary["completed"] == 20


def test_seats_of_client_with_engines_of_two_sizes():
    ffn = Tenant("b", 2, 1, 4, first=3, what="FFN workers")
    assert ffn.seats == [Seat("b", 3), Seat("b", 4)]
    assert ffn.title == "b, FFN workers"
