"""Hosts of GPUs that PCIe links: the catalog, spec files, what collectives take there."""

from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mist_sim import Scenario, llm_client, load_gpu, replicate, simulate
from mist_sim.cli import main
from mist_sim.errors import ScenarioError
from mist_sim.hardware import HostSpec, host_from_table, host_names, load_host
from mist_sim.hardware.collectives import all_gather, all_reduce, send
from mist_sim.hardware.devices import bus_rate
from mist_sim.report.comparison import comparison_table
from mist_sim.report.elements import with_warnings
from mist_sim.report.goodput import goodput_table
from mist_sim.report.replications import replications_table
from mist_sim.report.study import study_table
from mist_sim.search.comparison import compare
from mist_sim.search.goodput import GoodputOptions, find_goodput
from mist_sim.studies import study
from tests.refusals import refused
from tests.warned import texts

L40S = load_gpu("l40s").interconnect  # 32 GB/s, of which protocols leave 25.6
PRO = load_gpu("rtx-pro-6000").interconnect  # 64 GB/s, 51.2
KIB, MIB = 2**10, 2**20


def on(host, link=L40S):
    return replace(link, host=load_host(host) if isinstance(host, str) else host)


def spec(**figures):
    return HostSpec(**{"name": "mine", "peer_access": True} | figures)


# --- the catalog and spec files -----------------------------------------------------------------


def test_every_figure_of_the_catalog_has_a_source():
    plain = spec()
    for name in host_names():
        host = load_host(name.upper())
        said = {
            field
            for field in ("pcie_generation", "pcie_lanes", "gpus_per_switch", "efficiency")
            if getattr(host, field) != getattr(plain, field)
        }
        measured = {"bus_bandwidth"} if host.bus_bandwidth else set()
        assert said | measured | {"peer_access"} <= set(host.sources), name


def test_a_spec_file_may_start_from_the_catalog(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('based_on = "pcie-peer"\npcie_lanes = 8\n', "utf-8")
    host = load_host(str(path))
    assert (host.name, host.peer_access, host.pcie_lanes) == ("mine", True, 8)
    assert bus_rate(on(host), 4) == pytest.approx(16e9 * 0.8 * 0.8)


def test_measured_rates_take_the_place_of_a_base_s_efficiency_and_the_other_way_round():
    measured = {"based_on": "host-memory", "bus_bandwidth": {4: "9 GB/s"}}
    assert bus_rate(on(host_from_table(measured, name="x", source="x")), 4) == 9e9
    by_rule = {"based_on": "host-bridge", "efficiency": 0.5}
    assert bus_rate(on(host_from_table(by_rule, name="x", source="x")), 4) == 12.8e9


test_a_wrong_host_is_named = refused(
    lambda table: host_from_table(table, name="x", source="x"),
    ({"based_on": "pcie-per"}, r"x: based_on: no host is named 'pcie-per'; did you mean 'pcie"),
    ({"based_on": "pcie-peer", "lanes": 8}, "x: unknown key 'lanes'; did you mean 'pcie_lanes"),
    ({}, "x: missing peer_access"),
    ({"peer_access": "yes"}, "x: peer_access must be true or false, got 'yes'"),
    ({"peer_access": True, "pcie_lanes": 12}, "pcie_lanes must be 1, 2, 4, 8 or 16, got 12"),
    ({"peer_access": True, "pcie_lanes": 8.0}, "pcie_lanes must be a whole number, got 8.0"),
    ({"peer_access": True, "pcie_generation": 2}, "pcie_generation must be 3 to 7, got 2"),
    ({"peer_access": True, "efficiency": 1.5}, r"efficiency must be in \(0, 1\], got 1.5"),
    ({"peer_access": False, "gpus_per_switch": 0}, "gpus_per_switch must be >= 1, got 0"),
    ({"peer_access": True, "gpus_per_switch": 4}, "gpus_per_switch must be 1 with peer_access"),
    (
        {"peer_access": False, "gpus_per_switch": 4, "bus_bandwidth": {"2": "9 GB/s"}},
        "gpus_per_switch must be 1 with bus_bandwidth",
    ),
    (
        {"peer_access": True, "efficiency": 0.5, "bus_bandwidth": {"2": "9 GB/s"}},
        "efficiency must be left out with bus_bandwidth",
    ),
    ({"peer_access": True, "bus_bandwidth": {"1": "9 GB/s"}}, "must be >= 2, got '1'"),
    ({"peer_access": True, "bus_bandwidth": {"2": 9}}, "bus_bandwidth.2: a bandwidth needs"),
    (
        {"peer_access": True, "bus_bandwidth": {"2": "0 B/s"}},
        "bandwidth.2 must be finite and > 0",
    ),
    (
        {"peer_access": True, "bus_bandwidth": {"2": "9 GB/s", "4": "15 GB/s"}},
        "must not make 4 accelerators faster than 2",
    ),
)


# --- collectives by hand ------------------------------------------------------------------------


def test_the_default_is_the_host_bridge():
    for collective in (all_reduce, all_gather):
        assert collective(L40S, 4)(MIB) == collective(on("host-bridge"), 4)(MIB)


def test_cards_on_pcie_5_have_a_default_of_their_own():
    """15.3 GB/s for two, as measured; for four and eight nearer to it than L40S."""
    assert [bus_rate(PRO, ranks) / 1e9 for ranks in (2, 4, 8)] == [15.3, 11.6, 9.4]
    worth = llm_client("llm", gpu="rtx-pro-6000", tensor_parallel_size=4).traits.times.assumed_host
    assert (worth["host"], "L40S" in worth["measured_with"]) == ("host-bridge-pcie5", False)


def test_a_sum_without_peer_access():
    """16.0 us and 6 hops of 3.5 us, and 1.5 times the tensor at 3.7 GB/s; 0.5 of it when small."""
    time = all_reduce(on("host-bridge"), 4)
    assert time(64 * MIB) == pytest.approx(37e-6 + 1.5 * 64 * MIB / 3.7e9)
    assert time(2 * KIB) == pytest.approx(16.7e-6 + 6 * 1.67e-6 + 1.5 * 2 * KIB / 1.85e9)


def test_two_rtx_pro_6000_without_peer_access():
    """Measured (vLLM 0.19): 20 us for 8 to 16 KiB, 15 to 16 GB/s for large tensors."""
    time = all_reduce(PRO, 2)
    assert time(8 * KIB) == pytest.approx(20.4e-6, rel=0.05)
    assert 2**30 / time(2**30) == pytest.approx(15.3e9, rel=0.01)


def test_two_gpus_with_peer_access_sum_in_one_kernel():
    """4.5 us and the tensor once; NCCL's ring starts at 6.3 us."""
    assert all_reduce(on("pcie-peer"), 2)(8 * KIB) == pytest.approx(4.5e-6 + 8 * KIB / 20.48e9)
    assert all_reduce(on("pcie-peer"), 4)(0.0) == pytest.approx(3.3e-6 + 6 * 1.5e-6)
    assert all_gather(on("pcie-peer"), 2)(0.0) == pytest.approx(3.3e-6 + 1.5e-6)


def test_a_prompt_on_four_l40s():
    """160 sums of 1,024 tokens of Llama-3.1-70B: 1,073 ms with vLLM 0.22, and 320 ms before."""
    tensor = 1024 * 8192 * 2
    assert 160 * all_reduce(L40S, 4)(tensor) == pytest.approx(1.084, rel=0.03)
    before = replace(L40S, all_reduce="host_shared")
    assert 160 * all_reduce(before, 4)(tensor) == pytest.approx(0.3214, rel=1e-3)
    assert 160 * all_reduce(on("pcie-peer"), 4)(tensor) == pytest.approx(0.201, rel=0.01)


def test_slots_limit_cards_and_the_other_way_round():
    assert bus_rate(on(spec(pcie_generation=3)), 2) == pytest.approx(16e9 * 0.64)
    assert bus_rate(on(spec(pcie_generation=5)), 2) == pytest.approx(32e9 * 0.64)
    assert bus_rate(on(spec(pcie_generation=5, pcie_lanes=4)), 2) == pytest.approx(8e9 * 0.64)
    assert bus_rate(on("rtx-pro-6000-pcie5"), 2) == 25.6e9  # 39 measured with cards of 64


def test_gpus_behind_a_switch_share_its_uplink():
    shared = spec(peer_access=False, gpus_per_switch=4)
    rates = [bus_rate(on(shared), ranks) / 20.48e9 for ranks in (2, 3, 4, 8)]
    assert rates == pytest.approx([1 / 2, 1 / 3, 1 / 4, 1 / 4])


def test_measured_rates_between_and_beyond():
    host = spec(bus_bandwidth={"2": 20e9, "8": 10e9})
    assert [bus_rate(on(host), ranks) for ranks in (2, 8, 16)] == [20e9, 10e9, 5e9]
    halfway = (0.5 / 20e9 + 0.875 / 10e9) / 2
    assert bus_rate(on(host), 4) == pytest.approx(0.75 / halfway)


def test_a_pipeline_sends_over_the_host():
    assert send(on("host-bridge"))(MIB) == pytest.approx(19.5e-6 + MIB / 15.3e9)
    assert send(on("pcie-peer"))(KIB) == pytest.approx(4.8e-6 + KIB / 10.24e9)


HOSTS = st.builds(
    spec,
    peer_access=st.booleans(),
    pcie_generation=st.sampled_from([None, 3, 4, 5]),
    pcie_lanes=st.sampled_from([4, 8, 16]),
    efficiency=st.floats(0.1, 0.9),
)
BETTER = st.sampled_from(
    [
        lambda host: replace(host, peer_access=True),
        lambda host: replace(host, pcie_lanes=16),
        lambda host: replace(host, efficiency=host.efficiency * 1.1),
        lambda host: replace(host, pcie_generation=None),
    ]
)


@given(host=HOSTS, better=BETTER, ranks=st.integers(2, 16), size=st.floats(0, 1e12))
def test_a_better_host_is_never_slower(host, better, ranks, size):
    for collective in (all_reduce, all_gather):
        worse = collective(on(host), ranks)(size)
        assert collective(on(better(host)), ranks)(size) <= worse


@given(
    host=st.sampled_from([*host_names(), spec(bus_bandwidth={"2": 9e9, "4": 13e9, "8": 2e9})]),
    ranks=st.integers(2, 31),
    size=st.floats(0, 1e12),
)
def test_more_gpus_are_never_faster(host, ranks, size):
    for collective in (all_reduce, all_gather):
        fewer = collective(on(host), ranks)(size)
        assert fewer <= collective(on(host), ranks + 1)(size) * (1 + 1e-12)


# --- clients ------------------------------------------------------------------------------------

FOUR = {"gpu": "l40s", "tensor_parallel_size": 4}
MEASURED = replace(load_gpu("l40s"), interconnect=replace(L40S, bus_bandwidth={"1 MiB": 20e9}))


test_a_host_that_cannot_be_is_refused = refused(
    lambda options: llm_client("llm", **{"host": "pcie-peer"} | options),
    ({"gpu": "h100-sxm", "tensor_parallel_size": 4}, "host must be null with h100-sxm, whose"),
    ({"gpu": "l40s"}, "host must be null with GPUs that send nothing to one another, got pcie-p"),
    ({"gpu": "l40s", "data_parallel_size": 2}, "null with GPUs that send nothing to one another"),
    (FOUR | {"all_reduce": "ring"}, "null with all_reduce ring, which sets how GPUs sum"),
    (FOUR | {"gpu": "rtx-4090"}, "host must not be pcie-peer, which has peer access: .* of"),
    ({"host": None, "tensor_parallel_size": 2, "all_reduce": "host"}, "not be host with nvlink"),
    (FOUR | {"gpu": MEASURED}, "host must be null with l40s, whose collectives"),
    (FOUR | {"host": "pcie-per"}, r"'pcie-per'; did you mean 'pcie-peer'\? Known: host-b"),
)


def test_measured_collectives_need_no_host():
    assert not llm_client("llm", **FOUR | {"gpu": MEASURED}).traits.times.assumed_host


@pytest.mark.parametrize(
    ("options", "assumes"),
    [
        (FOUR, True),
        ({"gpu": "l40s", "pipeline_parallel_size": 2}, True),
        (FOUR | {"all_reduce": "ring"}, False),
        (FOUR | {"host": "host-bridge"}, False),
        ({"gpu": "l40s"}, False),
        ({"gpu": "h100-sxm", "tensor_parallel_size": 4}, False),
    ],
)
def test_who_assumes_a_host(options, assumes):
    client = llm_client("llm", **options)
    times = client.traits.times
    assert ("host" in times.assumed) == bool(times.assumed_host) == assumes


def test_without_peer_access_the_other_host_has_none():
    worth = llm_client("llm", gpu="rtx-4090", tensor_parallel_size=2).traits.times.assumed_host
    assert worth["other_host"] == "host-memory"
    assert worth["communication_ms"] > worth["other_communication_ms"]


SCENARIO = """
model: llama-3.1-8b
clients: [{name: llm, gpu: l40s, tensor_parallel_size: 4}]
workload:
  lengths:
    type: synthetic
    num_requests: 3
    prompt: {type: fixed, tokens: 99}
    output: {type: fixed, tokens: 9}
  arrivals: {type: poisson, rate: 2 /s}
"""


@pytest.fixture
def loaded(tmp_path):
    """Load the scenario, with some keys changed."""
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, "utf-8")
    return lambda changes=None: Scenario.load(path, overrides=changes)


def shown(summary, table):
    console = Console(width=300, record=True, file=StringIO())
    console.print(with_warnings(summary, table))
    return console.export_text()


def test_what_assumed_host_is_worth_is_said_everywhere(loaded):
    result = simulate(loaded())
    worth = result.summary["assumed_host"]["llm"]
    sums = 64 * all_reduce(L40S, 4)(2048 * 8192)
    assert worth["num_tokens"] == 2048
    assert worth["communication_ms"] == pytest.approx(1e3 * sums)
    peers = 64 * all_reduce(on("pcie-peer"), 4)(2048 * 8192)
    assert worth["other_communication_ms"] == pytest.approx(1e3 * peers)
    assert "host" in result.summary["assumed"]["llm"]
    (line,) = texts(result.summary, "assumed host")
    assert "eight L40S). `nvidia-smi topo -p2p r` tells which is yours" in line
    told = "In a step of 2,048 tokens they spend 437.7 ms on one another; on pcie-peer it would be"
    assert line.endswith(f"{told} 80.5 ms.")
    assert "host: host-bridge (assumed: none is named)" in result.scenario

    named = simulate(loaded({"clients.0.host": "host-bridge"}))
    assert "assumed_host" not in named.summary
    assert named.summary["mean_ttft_ms"] == result.summary["mean_ttft_ms"]
    assert "assumed: none is named" not in named.scenario


@pytest.mark.parametrize(
    ("sizes", "number"),
    [((2, 2, 1), 2), ((2, 1, 2), 2), ((2, 2, 2), 4), ((4, 1, 1), 1), ((1, 4, 1), 1)],
)
def test_groups_that_are_timed_as_if_each_were_alone_are_told(loaded, sizes, number):
    keys = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    said = {f"clients.0.{key}": size for key, size in zip(keys, sizes, strict=True)}
    summary = simulate(loaded(said)).summary
    assert summary["assumed_host"]["llm"]["num_groups"] == number
    (line,) = texts(summary, "assumed host")
    told = (
        f"Its {number} groups of GPUs (pipeline stages, replicas) are timed as if each were alone"
    )
    assert (told in line) == (number > 1)
    assert ("groups" in line) == (number > 1)


def test_comparisons_name_the_scenarios_whose_host_is_assumed(loaded):
    widths = {f"TP {size}": {"clients.0.tensor_parallel_size": size} for size in (1, 2, 4)}
    found = compare({name: loaded(changes) for name, changes in widths.items()}, jobs=1)
    hosts = found.summary["assumed_host"]
    assert list(hosts) == ["TP 2", "TP 4"], "a GPU alone has no use for its host"
    assert hosts["TP 4"]["llm"]["communication_ms"] == pytest.approx(437.7, rel=1e-3)
    text = " ".join(shown(found.summary, comparison_table(found.summary)).split())
    assert "Host of the GPUs assumed: host-bridge, slow and without peer access (rates of" in text
    assert "TP 2: In a step of 2,048 tokens they spend 71.65 ms on one another;" in text
    assert "spend 437.7 ms on one another; on pcie-peer it would be 80.5 ms." in text
    named = loaded({"clients.0.host": "host-bridge"})
    assert "assumed_host" not in compare({"a": named, "b": named}, jobs=1).summary


def test_points_and_replications_say_which_host_is_assumed(loaded):
    found = study(loaded(), vary={"clients.0.tensor_parallel_size": [1, 4]}, jobs=1)
    one, four = found.summary["points"]
    assert "assumed_host" not in one
    assert four["assumed_host"]["llm"]["host"] == "host-bridge"
    again = replicate(loaded({"replications": 2}), jobs=1)
    of_study = shown(found.summary, study_table(found.summary))
    for text in (of_study, shown(again.summary, replications_table(again))):
        assert "Host of the GPUs assumed: host-bridge, slow" in text
    assert "\ntensor_parallel_size=4: Host of the GPUs assumed" in of_study


def test_search_for_goodput_says_which_host_is_assumed(loaded):
    options = GoodputOptions(rates=(1.0, 2.0), as_is=True, tolerance=0.5)
    found = find_goodput(loaded({"slo.ttft": "9 s"}), options, jobs=1)
    assert found.summary["assumed_host"]["llm"]["other_host"] == "pcie-peer"
    text = shown(found.summary, goodput_table(found.summary))
    assert "\nHost of the GPUs assumed: host-bridge.\n" in text
    assert "\n  Host of the GPUs assumed: host-bridge, slow" in text


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("pcie-per", "no host and no file is named 'pcie-per'; did you mean 'pcie-peer'"),
        ("./no.toml", "no file"),
        ([1], r"must be a name, a path or a mapping, got \[1\]"),
        ({"peer_acces": True}, "its mapping: unknown key 'peer_acces'; did you mean 'peer_access'"),
    ],
)
def test_a_scenario_names_what_is_wrong(loaded, host, problem):
    with pytest.raises(ScenarioError, match=rf"clients\.0\.host: {problem}"):
        loaded({"clients.0.host": host})


def test_a_resolved_scenario_keeps_a_mapping(loaded, tmp_path):
    host = {"based_on": "host-memory", "bus_bandwidth": {4: "9 GB/s"}}
    first = simulate(loaded({"clients.0.host": host}))
    again = tmp_path / "again.yaml"
    again.write_text(first.scenario, "utf-8")
    assert simulate(Scenario.load(again)).summary == first.summary


def test_the_list_of_hosts(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["list", "hosts"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in host_names())
    assert "3.7 GB/s" in shown
