"""Topologies: presets and their sources, routes, places, drawings, and what is refused."""

import cProfile
import pstats

import networkx as nx
import pytest

from mist_sim.cli.listings.catalogs import drawing
from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.network import Tenant, Topology, load_topology, topology_names
from mist_sim.network.fabric import find_places
from mist_sim.network.topology.graph import topology_from_table
from mist_sim.network.ways import Routes
from tests.refusals import refused

FIGURES = {"gpus", "nvlink", "pcie", "gpus_per_switch", "nics", "nic", "nodes", "nodes_per_rack"}
FIGURES |= {"oversubscription", "uplink", "storage", "nvlink_latency", "pcie_latency"}
FIGURES |= {"nic_latency"}


@pytest.mark.parametrize("name", topology_names())
def test_presets_have_a_source_for_each_figure_and_connect_all_gpus(name):
    topology = load_topology(name)
    unset = {"nodes": 1, "oversubscription": 1.0}
    said = {key for key in FIGURES if getattr(topology, key) not in (None, unset.get(key))}
    said -= set() if topology.nvlink else {"nvlink_latency"}
    assert said <= set(topology.sources)
    assert set(topology.sources) <= FIGURES
    graph = topology.graph()
    gpus = [place for place, kind in graph.nodes(data="kind") if kind == "gpu"]
    assert len(gpus) == topology.num_gpus
    assert nx.is_strongly_connected(graph)
    assert sorted(nx.get_edge_attributes(graph, "number").values()) == [
        *range(graph.number_of_edges())
    ]


@pytest.mark.parametrize("name", topology_names())
def test_presets_tell_at_once_that_all_gpus_connect(name):
    graph = load_topology(name).graph()
    gpus = [place for place, kind in graph.nodes(data="kind") if kind == "gpu"]
    assert Routes(graph).surely_connect(gpus)


def test_both_directions_of_a_cable_are_links_of_their_own():
    graph = load_topology("hgx-h100").graph()
    there = graph.edges["node0/gpu0", "node0/nvswitch"]
    back = graph.edges["node0/nvswitch", "node0/gpu0"]
    assert there["bandwidth"] == back["bandwidth"] == 450e9
    assert there["number"] != back["number"]


def route(name, source, destination):
    return Routes(load_topology(name).graph()).between(source, destination)


@pytest.mark.parametrize(("name", "nic"), [("nvl72", 50e9), ("gb300-nvl72", 100e9)])
def test_an_nvl72_joins_all_its_gpus_by_nvlink(name, nic):
    topology = load_topology(name)
    graph = topology.graph()
    away = [graph.edges[f"node0/gpu{k}", "node0/nvswitch"]["bandwidth"] for k in range(72)]
    assert 2 * sum(away) == pytest.approx(130e12, rel=0.005)  # NVIDIA: 130 TB/s both ways
    assert graph.edges["node0/nic71", "rack0/leaf"]["bandwidth"] == nic
    way = route(name, "node0/gpu0", "node0/gpu71")
    assert way.places == ("node0/gpu0", "node0/nvswitch", "node0/gpu71")
    assert way.bandwidth == load_gpu(topology.name.removeprefix("nvl72-")).interconnect.bandwidth


def test_a_graph_costs_the_same_number_of_calls_a_link_however_large_it_is():
    def calls_per_link(nodes):
        topology = Topology(name="large", gpus=1, nodes=nodes, pcie=1e9, nics=1, nic=1e9)
        with cProfile.Profile() as profile:
            links = topology.graph().edges(data="number")
        assert sorted(number for *_, number in links) == list(range(len(links)))
        return pstats.Stats(profile).total_calls / len(links)

    assert calls_per_link(400) == pytest.approx(calls_per_link(100), rel=0.05)


def test_nvlink_beats_pcie():
    way = route("hgx-h100", "node0/gpu0", "node0/gpu5")
    assert way.places == ("node0/gpu0", "node0/nvswitch", "node0/gpu5")
    assert way.bandwidth == 450e9
    assert way.latency == pytest.approx(0.6e-6)


def test_without_nvlink_the_way_leads_over_the_host():
    way = route("pcie-l40s", "node0/gpu0", "node0/gpu5")
    assert way.places == ("node0/gpu0", "node0/host", "node0/gpu5")
    assert way.bandwidth == 32e9


def test_between_racks_each_gpu_takes_nic_beside_it():
    """Five links inside and four outside of nodes: 4 x 0.5 us and 4 x 0.35 us."""
    way = route("racks-h100", "node0/gpu3", "node31/gpu5")
    assert way.places[1:-1] == (
        "node0/pcie3",
        "node0/nic3",
        "rack0/leaf",
        "spine",
        "rack3/leaf",
        "node31/nic5",
        "node31/pcie5",
    )
    assert way.bandwidth == 50e9
    assert way.latency == pytest.approx(4 * 0.5e-6 + 4 * 0.35e-6)


def test_no_way_leads_through_another_gpu():
    """GPU 1 has no NIC beside it; the one of GPU 0 would be near by NVLink."""
    table = {"based_on": "hgx-h100", "nics": 1, "nodes": 2}
    graph = topology_from_table(table, name="few", source="few").graph()
    way = Routes(graph).between("node0/gpu1", "node1/gpu0")
    assert way.places[1:5] == ("node0/pcie1", "node0/host", "node0/pcie0", "node0/nic0")


def test_a_place_to_itself_is_no_way():
    assert route("hgx-h100", "node0/gpu0", "node0/gpu0").path == ()


def test_leaf_switches_send_on_what_oversubscription_leaves():
    table = {"based_on": "hgx-h100", "nodes": 4, "nodes_per_rack": 2, "oversubscription": 4.0}
    topology = topology_from_table(table, name="thin", source="thin")
    assert topology.graph().edges["rack0/leaf", "spine"]["bandwidth"] == 2 * 8 * 50e9 / 4
    assert topology.sources["nodes"] == "thin"
    assert "data sheet" in topology.sources["nic"]


def test_a_file_may_start_from_a_preset(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('based_on = "DGX-H100"\nnic = "200 Gb/s"\n[sources]\nnic = "a bill"\n')
    topology = load_topology(str(path))
    assert (topology.name, topology.nic, topology.nvlink) == ("mine", 25e9, 450e9)
    assert topology.sources["nic"] == "a bill"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('based_on = "hgx-h10"', "based_on: no topology is named 'hgx-h10'; did you mean"),
        ("gpus = 8", "missing pcie, nic"),
        ('based_on = "hgx-h100"\nnick = "1 GB/s"', "unknown key 'nick'; did you mean 'nic'?"),
        ('based_on = "hgx-h100"\nnic = "1"', "nic: a bandwidth needs a number and a unit"),
        ('based_on = "hgx-h100"\nnic = "0 B/s"', "nic must be finite and > 0 B/s, got 0"),
        ('based_on = "hgx-h100"\nnodes = 2.5', "nodes must be a whole number, got 2.5"),
        ('based_on = "hgx-h100"\nnodes = 0', "nodes must be >= 1, got 0"),
        ('based_on = "hgx-h100"\noversubscription = true', "must be a number, got True"),
        ('based_on = "hgx-h100"\nnics = 9', "nics must be <= 8, the number of PCIe switches"),
        ('based_on = "pcie-l4"\nnics = 2', "nics must be <= 1 where they are at the host"),
        ('based_on = "hgx-h100"\nsources = 1', "sources must be a table, got 1"),
        ('based_on = "hgx-h100"\nsources.nic = 1', "sources.nic must be a string, got 1"),
        ('based_on = "hgx-h100"\npcie_latency = "-1 us"', "must be finite and >= 0 s, got -1e-06"),
        ('based_on = "hgx-h100"\nabout = 3', "about must be a string, got 3"),
        ('based_on = "hgx-h100"\nnodes = 10000000', "nodes must have <= .* GPUs in all"),
        ("gpus = ", "not valid TOML"),
    ],
)
def test_bad_specs_say_file_key_and_rule(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=f"{path}: .*{message}"):
        load_topology(str(path))


def test_a_name_that_is_none_is_told_with_those_that_are():
    with pytest.raises(ScenarioError, match="no topology and no file is named 'hgx'.*hgx-a100"):
        load_topology("hgx")


def test_places_that_are_not_there_and_no_way_are_said():
    graph = nx.DiGraph(name="apart")
    graph.add_nodes_from(["a", "b"])
    with pytest.raises(ScenarioError, match="apart has no route from a to b"):
        Routes(graph).between("a", "b")
    with pytest.raises(ScenarioError, match="apart has no place 'c'"):
        Routes(graph).between("a", "c")


# --- places -----------------------------------------------------------------------------------


def tenant(name, gpus, place=None):
    return Tenant(name, 1, 1, gpus, place)


def places(*tenants, nodes=2, **more):
    table = {"based_on": "hgx-h100", "nodes": nodes}
    graph = topology_from_table(table, name="two", source="two").graph()
    found = find_places(graph, tenants, **more)
    return {tenant.name: gpus for tenant, gpus in zip(tenants, found, strict=True)}


def gpus(node, first, end):
    return [f"node{node}/gpu{number}" for number in range(first, end)]


def test_clients_are_packed_in_order_around_those_with_a_place():
    found = places(
        tenant("a", 4),
        tenant("b", 4),
        tenant("c", 2),
        tenant("d", 2, "node0/gpu2"),
        tenant("e", 1, "node1"),
    )
    assert found == {
        "d": gpus(0, 2, 4),
        "e": gpus(1, 0, 1),
        "a": gpus(0, 0, 2) + gpus(0, 4, 6),
        "b": gpus(1, 1, 5),
        "c": gpus(0, 6, 8),
    }


def test_a_client_that_may_span_nodes_does():
    assert places(tenant("a", 12), spans_nodes=True) == {"a": gpus(0, 0, 8) + gpus(1, 0, 4)}
    there = places(tenant("a", 4, "node0/gpu6"), spans_nodes=True)
    assert there == {"a": gpus(0, 6, 8) + gpus(1, 0, 2)}


test_places_that_cannot_be_are_refused = refused(
    lambda tenants: places(*tenants),
    ([tenant("a", 9)], "a: needs 9 GPUs and a node of two has 8; network.spans_nodes: true"),
    ([tenant("a", 1, "node2")], "a: two has no place 'node2'; did you mean .*node0 to node1"),
    ([tenant("a", 1, "node0/gpu8")], "a: two has no place 'node0/gpu8'"),
    ([tenant("a", 1, "node0/nic0")], "a: two has no place 'node0/nic0'"),
    ([tenant("a", 1, "rack0")], "a: two has no place 'rack0'"),
    ([tenant("a", 4, "node0/gpu5")], "a: place node0/gpu5 must have 4 GPUs from there on, got 3"),
    ([tenant("a", 2, "node0/gpu0"), tenant("b", 1, "node0/gpu1")], "b: place node0/gpu1 must not"),
    ([tenant("a", 6, "node0"), tenant("b", 3, "node0")], "b: place node0 must have 3 GPUs left"),
    ([tenant("a", 8), tenant("b", 5), tenant("c", 4)], r"c: needs 4 GPUs, and no node of two has"),
)


# --- drawings ---------------------------------------------------------------------------------


def test_a_drawing_shows_equal_parts_once():
    assert drawing(load_topology("racks-h100")).splitlines()[1:] == [
        "spine",
        "└─ rack0 ... rack3/leaf  128 GB/s",
        "   └─ node0 ... node7",
        "      ├─ nic0 ... nic7  50 GB/s to the leaf",
        "      ├─ nvswitch",
        "      │  └─ gpu0 ... gpu7  450 GB/s",
        "      └─ host",
        "         └─ pcie0 ... pcie7  64 GB/s",
        "            ├─ a gpu  64 GB/s",
        "            └─ a nic  64 GB/s",
    ]


def test_a_drawing_of_a_box_without_switches():
    box = Topology(name="box", gpus=2, pcie=32e9, nic=12.5e9, storage=7e9)
    assert drawing(box).splitlines() == [
        "box",
        "rack0/leaf",
        "└─ node0",
        "   ├─ nic0  12.5 GB/s to the leaf",
        "   └─ host",
        "      ├─ gpu0 ... gpu1  32 GB/s",
        "      └─ storage  7 GB/s",
    ]
    assert nx.is_strongly_connected(box.graph())
