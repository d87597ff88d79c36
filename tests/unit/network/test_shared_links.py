"""Memory below the GPUs inside a topology: loads of KV tiers and of weights share its links."""

from dataclasses import replace
from typing import Any

import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.cli.listings.catalogs import drawing
from mist_sim.environment import Environment
from mist_sim.lifecycle import StartUp
from mist_sim.network import Fabric, MooncakeConnector, Seat, Store, Tenant, Topology
from mist_sim.scenario.build import build
from mist_sim.scenario.loading import as_data
from tests.reference.scenarios import synthetic
from tests.refusals import refused
from tests.unit.clients.test_memory_tiers import CPU, SSD, scenario

GB = 1e9
LINK = 64 * GB
PAIRS = Topology(
    name="pairs",
    gpus=4,
    pcie=LINK,
    gpus_per_switch=2,
    nics=2,
    nic=50 * GB,
    storage=7 * GB,
    remote_storage=20 * GB,
    nodes=2,
)
"""GPUs 0 and 1 have one link to the host, GPUs 2 and 3 another one."""


def one_gpu(name: str, place: str, *stores: tuple[str, Store]) -> Tenant:
    return Tenant(name, 1, 1, 1, place, stores=stores)


def ends(*reads: tuple[str, Store, float, float], **network: Any) -> list[float]:
    """Return when reads end. Each: client at the GPU of that number, store, bytes, begin."""
    gpus = {name: f"node0/gpu{name}" for name, *_ in reads}
    fabric = Fabric(topology=PAIRS, **network)
    stores = {name: [("a", s) for n, s, *_ in reads if n == name] for name in gpus}
    fabric.admit([one_gpu(name, place, *stores[name]) for name, place in gpus.items()])
    env = Environment()
    fabric.start(env)
    found = [0.0] * len(reads)

    def begin(k: int, name: str, store: Store, num_bytes: float, at: float) -> Any:
        yield env.timeout(at)
        yield fabric.read([Seat(name)], store, num_bytes, 0.0)
        found[k] = env.now

    for k, (name, store, num_bytes, at) in enumerate(reads):
        env.process(begin(k, name, store, num_bytes, at))
    env.run()
    return found


HOST = Store()


def test_two_on_one_link_have_half_of_it_each():
    """While both load each has half; who is left then has all of it."""
    first, second = ends(("0", HOST, 6.4 * GB, 0.0), ("1", HOST, 12.8 * GB, 0.0))
    assert first == pytest.approx(6.4 * 2 / 64)
    assert second == pytest.approx((6.4 + 12.8) / 64)


def test_a_slow_store_leaves_the_others_more():
    """Max-min: one gets the 10 GB/s that its store gives, the other one 54 of 64."""
    slow = Store(bandwidth=10 * GB)
    first, second = ends(("0", slow, 10 * GB, 0.0), ("1", HOST, 5.4 * GB, 0.0))
    assert (first, second) == (pytest.approx(1.0), pytest.approx(0.1))


def test_drives_of_a_node_and_a_store_at_the_leaf_are_shared_by_all():
    drives, remote = Store("storage"), Store("remote/storage")
    assert ends(("0", drives, 7 * GB, 0.0), ("2", drives, 7 * GB, 0.0)) == [2.0, 2.0]
    both = ends(("0", remote, 20 * GB, 0.0), ("2", remote, 20 * GB, 0.0))
    assert both == [pytest.approx(2.0)] * 2
    elsewhere = Store("node1/host")  # over a NIC of 50 GB/s
    assert ends(("0", elsewhere, 50 * GB, 0.0)) == [pytest.approx(1.0)]


def test_a_connector_plays_no_part():
    assert ends(("0", HOST, 6.4 * GB, 0.0), connector=MooncakeConnector()) == [pytest.approx(0.1)]


def test_a_store_of_all_is_at_the_top():
    several = replace(PAIRS, nodes_per_rack=1, uplink=50 * GB)
    assert "remote/storage  20 GB/s" in drawing(several)
    assert several.graph().has_edge("remote/storage", "spine")
    assert drawing(PAIRS).splitlines()[1:3] == ["rack0/leaf", "├─ remote/storage  20 GB/s"]
    assert PAIRS.graph().has_edge("rack0/leaf", "remote/storage")


# --- engines ----------------------------------------------------------------------------------


def inside(*tiers: dict[str, Any], **network: Any) -> Scenario:
    return scenario(*tiers, network={"topology": "hgx-h100", **network})


@pytest.mark.parametrize("tier", [CPU, SSD, CPU | {"latency": "5 ms"}])
def test_a_tier_that_is_alone_takes_what_it_takes_without_a_topology(tier):
    plain, there = simulate(scenario(tier)).transfers, simulate(inside(tier)).transfers
    assert len(plain) == len(there) > 0
    alone = plain.drop_duplicates("start")  # the others wait for those before them
    times = (plain["end"] - plain["start"]).loc[alone.index].min()
    assert (there["end"] - there["start"]).min() == pytest.approx(times, rel=1e-9)


def test_a_place_changes_how_long_a_load_takes():
    near = simulate(inside(CPU)).summary
    drives = simulate(inside(CPU | {"at": "storage"}, storage="2 GB/s")).summary
    remote = simulate(inside(CPU | {"at": "remote/storage"}, remote_storage="1 GB/s")).summary
    assert near["mean_ttft_ms"] < drives["mean_ttft_ms"] < remote["mean_ttft_ms"]


test_a_tier_that_lies_nowhere = refused(
    lambda tier, network: build(inside(CPU | tier, **network)),
    ({"at": "storage"}, {}, "tier cpu: at must be a place of hgx-h100, got 'storage'; set"),
    ({"at": "remote/storage"}, {}, "set network.remote_storage"),
    ({"at": "hots"}, {}, "got 'hots'; did you mean 'host'?"),
)


def test_a_place_without_a_topology_has_no_effect():
    with pytest.raises(ScenarioError, match="at: has no effect: the network has no topology"):
        scenario(CPU | {"at": "host"})


# --- weights ----------------------------------------------------------------------------------


FAST = {"compilation": "0 s", "graph_capture": "0 s"}


def starting(start_up: dict[str, Any], network: Any = "hgx-h100") -> Scenario:
    """One of two clients fails at 1 s and starts anew at 2 s."""
    client = {"gpu": "h100-sxm", "kv_cache": {"num_gpu_blocks_override": 1_600}}
    failure = {"clients": "a", "at": "1 s", "repair": "1 s"}
    return scenario(
        network={"topology": network} if network else None,
        clients=[{"name": "a", **client}, {"name": "b", **client}],
        lifecycle={"failures": [failure], "start_up": FAST | start_up},
    )


def seconds_to_start(it: Scenario) -> float:
    states = simulate(it).client_states
    start = states[states["state"] == "starting"].iloc[0]
    return float(start["end"] - start["start"])


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ({}, {}),
        ({"format": "sllm"}, {"format": "sllm"}),
        ({"storage": "3 GB/s"}, {"storage": 3e9}),
        ({"format": "sllm", "storage": "9 GB/s"}, {"format": "sllm", "storage": 9e9}),
    ],
)
def test_a_start_that_is_alone_takes_what_it_takes_without_a_topology(written, options):
    seconds = seconds_to_start(starting(written))
    assert seconds == pytest.approx(seconds_to_start(starting(written, None)))
    machine = build(starting(written)).clients[0].traits.machine
    assert machine is not None
    own = StartUp(compilation=0.0, graph_capture=0.0, **options)
    assert seconds == pytest.approx(own.seconds(machine, "a"))


def test_weights_that_lie_nowhere():
    with pytest.raises(ScenarioError, match="start_up.weights_at must be a place of hgx-h100"):
        build(starting({"weights_at": "storage"}))


def test_weights_at_a_place_without_a_topology():
    with pytest.raises(ScenarioError, match="weights_at: has no effect"):
        starting({"weights_at": "storage"}, None)


def test_weights_from_drives_take_longer():
    from_drives = scenario(
        network={"topology": "hgx-h100", "storage": "1 GB/s"},
        lifecycle={
            "failures": [{"clients": "llm", "at": "1 s", "repair": "1 s"}],
            "start_up": FAST | {"weights_at": "storage"},
        },
    )
    assert seconds_to_start(from_drives) == pytest.approx(16.06 + 4.97, rel=1e-3)


# --- KV retrieval -----------------------------------------------------------------------------


def retrieving(num_workers: int = 2, **client: Any) -> Scenario:
    """Two requests at time 0 whose 1,000 tokens of 1 MB each come from the remote store."""
    fetch = {"source": "remote/storage", "destination": "node0/host", "bytes_per_token": "1 MB"}
    return Scenario.from_dict(
        {
            "model": "llama-3.1-8b",
            "workload": synthetic(
                2,
                10,
                1,
                {"type": "all_at_once"},
                pipeline=[{"type": "kv_retrieval", "num_tokens": 1000}, "prefill", "decode"],
            ),
            "network": {"topology": "hgx-h100", "remote_storage": "1 GB/s"},
            "clients": [
                {
                    "name": "store",
                    "type": "sequential",
                    "serves": ["kv_retrieval"],
                    "num_workers": num_workers,
                    "fetch": fetch | client,
                },
                {"name": "llm", "gpu": "h100-sxm"},
            ],
        }
    )


def times_of_retrieval(it: Scenario) -> list[float]:
    stages = simulate(it).stages
    mine = stages[stages["client"] == "store"]
    return sorted(mine["finished_at"] - mine["started_at"])


def test_entries_for_two_clients_cross_each_link_once():
    """One GB over the store's 1 GB/s, to two nodes at once and not to one after the other."""
    both = retrieving(1, destination=["node0/host", "node1/host"])
    both = Scenario.from_dict(as_data(both), {"network.nodes": 2})
    assert times_of_retrieval(both) == pytest.approx([1.0, 1.0], rel=1e-5)


def test_what_goes_to_several_places_waits_for_a_cable_of_its_tree():
    both = as_data(retrieving(1, destination=["node0/host", "node1/host"]))
    fabric = Fabric(topology="hgx-h100", nodes=2, remote_storage=1e9)
    fabric.admit([])
    path = fabric.routes.between("remote/storage", "node1/host").places
    down = {"link": list(path[-3:-1]), "at": "0.5 s", "repair": "4 s"}
    both["network"]["nodes"] = 2
    both["lifecycle"] = {"failures": [down]}
    assert times_of_retrieval(Scenario.from_dict(both)) == pytest.approx([1.0, 5.0], rel=1e-5)


test_places_that_cannot_be_fetched_to_are_refused = refused(
    lambda destination: build(retrieving(destination=destination)),
    (["node0/host", "remote/storage"], "destination.*must not be the source"),
    ([], "destination.*must be one place, or several that differ"),
    (["node0/host", "node0/host"], "destination.*must be one place, or several that differ"),
    (["node0/host", "node7/host"], "fetch: .*node7/host"),
)


def test_two_retrievals_share_the_store():
    """1 GB each over 1 GB/s: both take 2 s together, and 1 s each one after the other."""
    assert times_of_retrieval(retrieving()) == pytest.approx([2.0, 2.0], rel=1e-5)
    assert times_of_retrieval(retrieving(1)) == pytest.approx([1.0, 1.0], rel=1e-5)


test_bytes_without_a_way = refused(
    lambda fetch: build(retrieving(**fetch)),
    ({"source": "nowhere"}, "store: fetch: hgx-h100 has no place 'nowhere'"),
    ({"bytes_per_token": "0 B"}, "fetch.bytes_per_token: must be finite and > 0 B"),
    ({"destination": "remote/storage"}, "fetch.destination: must not be the source"),
)


def test_retrieval_over_no_topology():
    plain = {"network": None}
    with pytest.raises(ScenarioError, match="fetch: must be left out, since the network has no"):
        Scenario.from_yaml(retrieving().resolved(), plain)
