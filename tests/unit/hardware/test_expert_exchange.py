"""Exchanges between replicas that share experts, by back end."""

from dataclasses import replace
from itertools import combinations
from typing import get_args

import pytest

from mist_sim import ScenarioError, llm_client
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.cluster import GATHERS, All2AllBackend
from mist_sim.hardware.collectives import Span, Spans, all_gather
from mist_sim.hardware.expert_exchange import (
    LOW_LATENCY,
    exchange_of,
    exchange_warnings,
    reached,
    traffic_ratio,
)
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.explained import explained
from mist_sim.models import load_model

V3 = load_model("deepseek-v3")
QWEN = load_model("qwen3-30b-a3b")
H800, H200, GB200 = load_gpu("h800"), load_gpu("h200"), load_gpu("gb200")
BACKENDS = get_args(All2AllBackend)


def cluster(ranks, backend=GATHERS, gpu=H800, tp=1, nic=None, node=8):
    """Return so many expert-parallel ranks. nic: bytes/s of each; None: all in one node."""
    of_node = node // tp
    nodes = ranks // node
    spans = Spans(replicas=Span(nodes * (of_node,), of_node * nic, 0.0)) if nic else Spans()
    return Cluster(gpu, tp, ranks // tp, True, spans=spans, all2all_backend=backend)


def microseconds(ranks, backend, tokens, nic=50e9):
    """Return the time of a layer's two ways, with so many tokens on each rank."""
    found = exchange_of(V3, cluster(ranks, backend, nic=nic if ranks > 8 else None))
    return 1e6 * found.seconds(tokens, ranks * tokens) / V3.num_moe_layers


@pytest.mark.parametrize(
    ("ranks", "there", "back"),
    [
        (8, 77, 114),
        (16, 118, 195),
        (32, 155, 273),
        (64, 173, 314),
        (128, 192, 369),
        (256, 194, 360),
    ],
)
def test_low_latency_takes_as_long_as_deepep_publishes(ranks, there, back):
    """Page legacy of DeepEP: H800s, 128 tokens a rank."""
    found = microseconds(ranks, "deepep_low_latency", 128)
    assert found == pytest.approx(there + back, rel=0.06)


@pytest.mark.parametrize(("ranks", "gigabytes"), [(8, None), (32, (58, 57)), (64, (51, 50))])
def test_high_throughput_has_the_bandwidth_that_deepep_publishes(ranks, gigabytes):
    """Page legacy of DeepEP: bytes to all nodes, or ranks of one, that a token reaches."""
    tokens, parts = 4096, ranks // 8 if gigabytes else ranks
    rates = gigabytes or (153, 158)
    sizes = 7168 * (1 + 4 / 128), 7168 * 2
    # as published, with what stays on the node; groups would let a token reach four nodes at most
    expected = sum(
        tokens * reached(V3.moe, parts) * size / rate / 1e3
        for size, rate in zip(sizes, rates, strict=True)
    )
    assert microseconds(ranks, "deepep_high_throughput", tokens) == pytest.approx(
        expected, rel=0.07
    )


def test_ranks_that_a_token_reaches():
    """Against all choices of 3 experts out of 12."""
    moe = replace(QWEN.moe, num_experts=12, num_experts_per_token=3)
    chosen = list(combinations(range(12), 3))
    for parts in (1, 2, 3, 4, 6, 12):
        mean = sum(len({e * parts // 12 for e in each}) for each in chosen) / len(chosen)
        assert reached(moe, parts) == pytest.approx(mean)


def test_the_default_gathers():
    here = cluster(8, gpu=H200)
    gather = all_gather(H200.interconnect, 8)(8 * 100 * V3.hidden_size * 2)
    assert exchange_of(V3, here).seconds(100, 800) == 2 * V3.num_moe_layers * gather
    assert exchange_of(V3, Cluster(H200, 8, enable_expert_parallel=True)) is None


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != GATHERS])
def test_an_all_to_all_sends_less_on_rack(backend):
    """30.6 GB by gathering 256 tokens of each of 72 ranks, a twelfth by an all-to-all."""
    gathers, other = cluster(72, gpu=GB200), cluster(72, backend, gpu=GB200)
    assert traffic_ratio(V3, V3.moe, gathers) == pytest.approx(12.5, abs=0.5)
    slow, fast = (exchange_of(V3, each).seconds(256, 72 * 256) for each in (gathers, other))
    assert 7 < slow / fast < 10
    name = {each.name for each in explained(RooflinePredictor(V3, other), decodes(256, 72))}
    assert name & {"all_to_all", "all_gather"} == {"all_to_all"}


def decodes(number, ranks):
    return StepBatch((), number, 1000 * number, replicas=(number,) * ranks)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_add_up_to_the_step(backend):
    for tp in (1, 2):
        predictor = RooflinePredictor(QWEN, cluster(8, backend, gpu=H200, tp=tp))
        batch = StepBatch(((700, 100),), 33, 33_000)
        total = sum(each.seconds for each in explained(predictor, batch))
        assert total == pytest.approx(predictor.step_time(batch))


def test_the_outputs_of_other_replicas_are_summed_only_where_all_are_gathered():
    seconds = {}
    for backend in (GATHERS, "deepep_v2"):
        predictor = RooflinePredictor(V3, cluster(72, backend, gpu=GB200))
        found = {each.name: each.seconds for each in explained(predictor, decodes(256, 72))}
        seconds[backend] = found["combine"]
    assert seconds[GATHERS] > 30 * seconds["deepep_v2"]


def test_the_fullest_rank_sets_the_pace():
    """The one that sends most, or the one whose experts get most."""
    even = exchange_of(V3, cluster(8, "deepep_v2")).seconds
    skewed = Cluster(H800, 1, 8, True, 1.5, all2all_backend="deepep_v2")
    assert even(100, 800) < exchange_of(V3, skewed).seconds(100, 800)
    assert even(100, 800) == even(100, 300) < even(200, 300)


def test_the_network_is_slower_than_links_inside():
    for backend in sorted(LOW_LATENCY | {"deepep_high_throughput"}):
        inside = exchange_of(V3, cluster(64, backend)).seconds(256, 64 * 256)
        assert exchange_of(V3, cluster(64, backend, nic=50e9)).seconds(256, 64 * 256) > inside


def told(client):
    return [each for each in client.traits.times.warnings if each.kind.name == "expert exchange"]


def test_results_say_how_experts_are_exchanged():
    options = {"model": "qwen3-30b-a3b", "gpu": "h200", "enable_expert_parallel": True}
    (found,) = told(llm_client("llm", **options, data_parallel_size=16))
    assert "sends all tokens to each of 16 ranks, 2.43 times the bytes of" in found.text
    assert not told(llm_client("llm", **options, data_parallel_size=4))  # hardly more bytes
    by_pairs = llm_client("llm", **options, data_parallel_size=4, all2all_backend="deepep_v2")
    assert "no run with an all-to-all was compared" in told(by_pairs)[0].text
    bar = by_pairs.traits.times.settings["tpot"]
    assert "an all-to-all; none was measured" in bar.why
    wide = llm_client("llm", **options, data_parallel_size=16).traits.times.settings["tpot"]
    assert wide.why == "not known: experts over 16 ranks; at most 8 were measured"
    assert not told(llm_client("llm", **options, tensor_parallel_size=4))
    whole = cluster(8, "deepep_v2")
    (found,) = exchange_warnings(V3, whole, is_timed=False)
    assert "are not timed: the predictor has those of its own" in found.text
    assert not [*exchange_warnings(V3, cluster(8), is_timed=False)]


def test_a_backend_without_spread_experts_is_refused():
    with pytest.raises(ScenarioError, match="all2all_backend must be allgather_reducescatter with"):
        llm_client("llm", model="qwen3-30b-a3b", gpu="h200", all2all_backend="deepep_v2")
