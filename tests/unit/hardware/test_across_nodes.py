"""Collectives over ranks on several nodes: closed forms, and what a client's steps make of them."""

from dataclasses import replace
from math import log2
from typing import Any

import pytest

from mist_sim import ScenarioError, Simulation, llm_client
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import load_gpu
from mist_sim.hardware.collectives import Span, all_gather, all_reduce, send
from mist_sim.metrics.assumptions import assumption_warnings
from mist_sim.network import Fabric, Topology
from tests.reference.comparison import workload
from tests.reference.predictors import ConstantPredictor
from tests.reference.stepwise import Job
from tests.warned import texts

H100 = load_gpu("h100-sxm").interconnect
SPAN = Span((8, 8), 400e9, 2.7e-6)
SIZES = [0, 1e3, 64e3, 1e6, 16e6, 256e6, 4e9]
FREE = "on several nodes, timed by the topology, on free links: "


def by(way: str) -> Any:
    return replace(H100, all_reduce=way)


def reach() -> float:
    return H100.bandwidth * H100.efficiency


@pytest.mark.parametrize("num_bytes", SIZES)
def test_a_ring(num_bytes):
    """NCCL's: 28 hops inside and 2 between; 2 · 15/16 of the tensor over the slowest link."""
    volume = 2 * 15 / 16 * num_bytes / min(reach(), 400e9)
    flags = 6.6e-6 + 28 * 1.8 * 0.6e-6 + 2 * 2.7e-6 + volume / 0.5
    words = 14.0e-6 + 28 * 1.9e-6 + 2 * 4.0e-6 + volume / 0.92
    simple = 8.4e-6 + 28 * 3.4e-6 + 2 * 14.0e-6 + volume
    expected = min(flags, words, simple)
    assert all_reduce(by("ring"), 16, SPAN)(num_bytes) == pytest.approx(expected)


@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("num_bytes", SIZES)
def test_a_tree(num_bytes, nodes):
    span = Span((8,) * nodes, 200e9, 2.7e-6)
    volume = num_bytes * max(2 / reach(), (1 if nodes == 2 else 2) / 200e9)
    chain, up = 2 * 7, 2 * log2(nodes)
    flags = 6.8e-6 + chain * 1.8 * 0.6e-6 + up * 5.0e-6 + volume / (0.92 / 3.8)
    words = 14.0e-6 + chain * 1.25e-6 + up * 8.5e-6 + volume / (0.92 * 120 / 128)
    simple = 8.4e-6 + chain * 4.0e-6 + up * 14.0e-6 + volume / 0.92
    expected = min(flags, words, simple)
    assert all_reduce(by("tree"), 8 * nodes, span)(num_bytes) == pytest.approx(expected)


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("num_bytes", SIZES)
def test_a_hierarchy_is_sum_of_its_three_parts(num_bytes, nodes):
    """Scattered and gathered in the node; between, a ring of 1/8 of the tensor on 1/8 of b."""
    span = Span((8,) * nodes, 400e9, 2.7e-6)
    inside = all_gather(by("hierarchical"), 8)(num_bytes)
    slice_bytes, rail = num_bytes / 8, 400e9 / 8
    volume, hops = 2 * (nodes - 1) / nodes * slice_bytes / rail, 2 * (nodes - 1)
    flags = 6.6e-6 + hops * 2.7e-6 + volume / 0.5
    words = 14.0e-6 + hops * 4.0e-6 + volume / 0.92
    simple = 8.4e-6 + hops * 14.0e-6 + volume
    expected = 2 * inside + min(flags, words, simple)
    found = all_reduce(by("hierarchical"), 8 * nodes, span)(num_bytes)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("num_bytes", SIZES)
@pytest.mark.parametrize("gpu", ["h100-sxm", "b200-sxm", "a100-sxm", "l40s", "rtx-4090"])
@pytest.mark.parametrize("way", [None, "ring", "tree", "hierarchical"])
def test_nodes_are_never_faster_than_one(gpu, way, num_bytes):
    link = load_gpu(gpu).interconnect
    link = replace(link, all_reduce=way) if way else link
    span = Span((8, 8), 50e9, 2.7e-6)
    assert all_reduce(link, 16, span)(num_bytes) > all_reduce(link, 8)(num_bytes)
    assert all_gather(link, 16, span)(num_bytes) > all_gather(link, 8)(num_bytes)
    assert send(link, span)(num_bytes) >= send(link)(num_bytes)


def test_auto_is_the_faster_of_ring_and_tree():
    span = Span((8, 8, 8, 8), 100e9, 2.7e-6)
    ring, tree, auto = (
        [all_reduce(by(way), 32, span)(size) for size in SIZES] for way in ("ring", "tree", "auto")
    )
    assert auto == [*map(min, ring, tree)]
    assert auto not in (ring, tree)


# --- on a topology ----------------------------------------------------------------------------

PREFILL = StepBatch(chunks=((2048, 0),))
DECODE = StepBatch(num_decodes=64, context_sum=64 * 1000)
TWO = {"topology": "hgx-h100", "nodes": 2, "spans_nodes": True}
ONE_OF_16 = {"topology": Topology(name="one", gpus=16, pcie=64e9, nvlink=450e9, nic=50e9)}


WORKLOAD = workload([Job(0.0, 100, 5)])


def on(network: dict[str, Any], **options: Any) -> Any:
    """Return a client on a topology, and the network."""
    gpu = {"model": "llama-3.1-70b", "gpu": "h100-sxm"}
    client, fabric = llm_client("llm", **gpu | options), Fabric(**network)
    simulation = Simulation(clients=[client], workload=WORKLOAD, network=fabric)
    return client, fabric, simulation


def step_time(network: dict[str, Any], batch: StepBatch, **options: Any) -> float:
    client, *_ = on(network, **options)
    return float(client.predictor.ranks[0].step_time(batch))


@pytest.mark.parametrize("batch", [PREFILL, DECODE])
@pytest.mark.parametrize("way", [None, "ring", "tree", "hierarchical"])
def test_two_nodes_are_slower_than_an_imagined_one(batch, way):
    inside = step_time(ONE_OF_16, batch, tensor_parallel_size=16)
    across = step_time(TWO, batch, tensor_parallel_size=16, all_reduce=way)
    assert across > inside


@pytest.mark.parametrize("batch", [PREFILL, DECODE])
def test_a_step_is_longer_by_its_collectives_alone(batch):
    """160 sums of 2,048 or 64 tokens' hidden states: what they take more, the step takes more."""
    inside = step_time(ONE_OF_16, batch, tensor_parallel_size=16)
    across = step_time(TWO, batch, tensor_parallel_size=16, all_reduce="hierarchical")
    num_bytes = 2 * 8192 * (batch.num_prefill_tokens + batch.num_decodes)
    sums = all_reduce(by("hierarchical"), 16, SPAN)(num_bytes), all_reduce(H100, 16)(num_bytes)
    assert across - inside == pytest.approx(160 * (sums[0] - sums[1]))


def test_spans_of_a_client():
    _, fabric, _ = on(TWO, tensor_parallel_size=16)
    assert fabric.spans("llm").tensor == Span((8, 8), 8 * 50e9, pytest.approx(2.7e-6))
    assert not on(TWO, tensor_parallel_size=8)[1].spans("llm")


def test_cards_without_nic_of_their_own_share_one():
    """Eight L40S send through one NIC of 50 GB/s."""
    _, fabric, _ = on(TWO | {"topology": "pcie-l40s"}, tensor_parallel_size=16, gpu="l40s")
    assert fabric.spans("llm").tensor == Span((8, 8), pytest.approx(50e9), pytest.approx(2.7e-6))


def test_replicas_on_two_nodes_gather_over_all_nics():
    """Eight rings at once, each over a NIC: the tensor ranks of both replicas are in one node."""
    options = {"model": "qwen3-30b-a3b", "tensor_parallel_size": 8, "data_parallel_size": 2}
    client, fabric, _ = on(TWO, **options, enable_expert_parallel=True)
    spans = fabric.spans("llm")
    assert spans.tensor is None
    assert spans.replicas == Span((1, 1), 50e9, pytest.approx(2.7e-6))
    assert client.collectives.startswith(f"{FREE}gathers of 2 ranks on 2 nodes (1 + 1), 50 GB/s")
    plain, *_ = on(TWO, **options)
    assert not plain.collectives  # without shared experts they send one another nothing


def test_a_pipeline_over_two_nodes():
    options = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    client, fabric, _ = on(TWO, **options)
    assert fabric.spans("llm").stages == Span((8, 8), 8 * 50e9, pytest.approx(2.7e-6))
    inside, *_ = on(ONE_OF_16, **options)
    assert client.predictor.rank_delay(4096) > inside.predictor.rank_delay(4096)


def test_a_result_says_which_way_was_taken():
    *_, simulation = on(TWO, tensor_parallel_size=16)
    result = simulation.run()
    assert result.summary["collectives"] == {
        "llm": f"{FREE}sums of 16 ranks on 2 nodes (8 + 8), 400 GB/s between them: ring or tree, "
        "the faster for each message"
    }
    assert any("llm has GPUs on several" in line for line in texts(result.summary))
    assert "collectives" not in on(TWO, tensor_parallel_size=8)[-1].run().summary


@pytest.mark.parametrize(
    ("ways", "lines"),
    [
        ({"a": "on rings"}, ["a has GPUs on rings."]),
        ({"a0": "on rings", "a1": "on rings"}, ["a0 and 1 other have GPUs on "]),
        (
            {"a0": "rings", "b": "trees", "a1": "rings", "a2": "rings"},
            ["a0 and 2 others have ", "b has "],
        ),
    ],
)
def test_copies_that_take_same_way_are_told_once(ways, lines):
    told = [str(each) for each in assumption_warnings({}, {}, {}, ways)]
    assert [line[: len(said)] for line, said in zip(told, lines, strict=True)] == lines


def test_a_predictor_that_was_given_whole_stays_as_it_is():
    client, *_ = on(TWO, tensor_parallel_size=16, predictor=ConstantPredictor(0.1))
    assert client.predictor.ranks[0].step_time(DECODE) == 0.1
    assert client.collectives.endswith("as in one node, since the predictor was given whole")


def test_a_client_forgets_the_nodes_of_another_run():
    client, _, _ = on(TWO, tensor_parallel_size=16)
    across = client.predictor.ranks[0].step_time(DECODE)
    big = Fabric(topology="hgx-h100", nodes=1, gpus=16)
    Simulation(clients=[client], workload=WORKLOAD, network=big)
    assert client.predictor.ranks[0].step_time(DECODE) < across
    assert not client.collectives


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tensor_parallel_size": 16}, "tensor_parallel_size"),
        (
            {
                "model": "qwen3-30b-a3b",
                "tensor_parallel_size": 4,
                "data_parallel_size": 4,
                "enable_expert_parallel": True,
            },
            "with enable_expert_parallel",
        ),
        ({"gpu": "h100-nvl", "tensor_parallel_size": 4}, "tensor_parallel_size must be <= 2"),
    ],
)
def test_more_ranks_than_a_node_joins_need_network(options, key):
    client = llm_client("llm", **options)
    with pytest.raises(ScenarioError, match=rf"llm: .*{key}.*, the GPUs that nvlink joins"):
        Simulation(clients=[client], workload=WORKLOAD)


def test_a_rack_joins_more_than_a_board():
    client = llm_client("llm", gpu="gb200", tensor_parallel_size=16)
    result = Simulation(clients=[client], workload=WORKLOAD).run()
    assert result.requests["status"].tolist() == ["finished"]


@pytest.mark.parametrize(
    ("ranks", "way"), [(4, ""), (8, "multicast kernels or NCCL"), (16, "NCCL alone")]
)
@pytest.mark.parametrize("network", [None, Fabric(topology="nvl72")])
def test_sums_between_trays_are_told(ranks, way, network):
    client = llm_client("llm", gpu="gb200", model="llama-3.1-70b", tensor_parallel_size=ranks)
    result = Simulation(clients=[client], workload=WORKLOAD, network=network).run()
    told = result.summary.get("collectives", {"llm": ""})["llm"]
    assert way in told
    assert (
        bool(told)
        == bool(way)
        == any("on several trays of one NVLink domain" in each for each in texts(result.summary))
    )
    bar = result.summary["expected_errors"]["llm"]["tpot"]["like"]
    assert ("several trays" in bar) == bool(way)
    assert "several nodes" not in bar


@pytest.mark.parametrize("network", [TWO, None])
def test_a_hierarchy_needs_several_nodes(network):
    client = llm_client("llm", tensor_parallel_size=2, all_reduce="hierarchical")
    fabric = Fabric(**network) if network else None
    with pytest.raises(ScenarioError, match="llm: all_reduce must not be hierarchical"):
        Simulation(clients=[client], workload=WORKLOAD, network=fabric)
