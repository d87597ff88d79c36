"""Expert parallelism: whole experts on every rank, the busiest of which sets the pace."""

import math

import pytest

from mist_sim import Scenario, ScenarioError, llm_client
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.collectives import all_gather
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import load_model
from mist_sim.scenario.build import build
from tests.reference.scenarios import of_profile
from tests.refusals import refused

QWEN, DENSE = load_model("qwen3-235b-a22b"), load_model("llama-3.1-8b")
H200 = load_gpu("h200")
PROMPT, DECODES = StepBatch(((8192, 0),)), StepBatch((), 16, 16 * 1024)


def roofline(tp=8, dp=1, ep=True, imbalance=1.0, model=QWEN):
    return RooflinePredictor(model, Cluster(H200, tp, dp, ep, imbalance))


def test_spreading_experts_takes_the_memory_of_slicing_them():
    sliced, spread = QWEN.weight_bytes_per_rank(8), QWEN.weight_bytes_per_rank(8, 8)
    assert spread == sliced
    assert QWEN.weight_bytes_per_rank(1, 8) < 1.35 * sliced  # attention is whole on every replica


def test_rank_may_hold_one_expert_more_than_another():
    one = QWEN.num_moe_layers * QWEN.mlp_params(QWEN.moe.intermediate_size) * 2
    # 128 experts over 60 ranks: three on the fullest, against two over 64
    more = QWEN.weight_bytes_per_rank(4, 60) - QWEN.weight_bytes_per_rank(4, 64)
    assert more == one


def test_whole_experts_need_not_be_divisible():
    """vLLM slices the 1,536 of an expert over TP; spread whole, they need no divisor."""
    odd = load_model("qwen3-30b-a3b")  # experts of 768
    with pytest.raises(ScenarioError, match="tensor_parallel_size must"):
        odd.check_tensor_parallel(3)
    odd.check_tensor_parallel(32, 32)


def test_balanced_experts_do_same_work_spread_as_sliced():
    """A rank's rows and the padding of its experts, at the figures of grouped products."""
    kernel, layers = H200.kernels["experts_bf16"], QWEN.num_moe_layers
    h, inner, held = QWEN.hidden_size, QWEN.moe.intermediate_size, 128 / 8
    rows = 8192 * QWEN.moe.num_experts_per_token / 8
    seconds = 2 * kernel.floor + kernel.per_input * rows * (h + inner) / 1e6
    for inputs, outputs in ((h, 2 * inner), (inner, h)):
        flops = 2 * (rows + held * kernel.padding) * inputs * outputs
        moved = 2 * (held * inputs * outputs + rows * (inputs + outputs))
        compute = flops / (kernel.mfu * H200.flops["bf16"])
        seconds += math.hypot(compute, moved / (kernel.mbu * H200.memory_bandwidth))
    spread, sliced = (roofline(ep=ep)._prefill.experts.time(8192) for ep in (True, False))
    assert spread == pytest.approx(layers * seconds)
    assert spread < sliced < 2.5 * spread  # a slice takes inputs and outputs of whole experts


def test_the_busiest_rank_sets_the_pace_of_prompts():
    """Products of prompts wait for compute: they take as much longer as the imbalance says."""
    even, uneven = roofline(), roofline(imbalance=1.5)
    experts = even._prefill.experts.time(8192)
    longer = uneven.step_time(PROMPT) - even.step_time(PROMPT)
    assert 0.4 * experts < longer < 0.5 * experts  # weights and padding stay
    assert experts > 0.2 * even.step_time(PROMPT)


def test_few_decodes_hardly_feel_the_imbalance():
    """They wait for the weights of the experts that they touch."""
    even, uneven = roofline().step_time(DECODES), roofline(imbalance=1.5).step_time(DECODES)
    assert even < uneven < 1.01 * even


def test_experts_see_the_tokens_of_all_replicas():
    alone, shared = roofline(tp=1, dp=1, ep=False), roofline(tp=1, dp=8)
    found = shared._decode.experts
    assert (shared._decode.num_replicas, found.num_ranks) == (8, 8)
    # of 8 times the tokens, a rank gets an eighth, and the experts that those touch
    touched = QWEN.moe.distinct_experts(8 * 16) / 8
    assert touched < QWEN.moe.distinct_experts(16)
    assert found.time(8 * 16) < alone._decode.experts.time(16)


def test_replicas_gather_and_scatter_the_hidden_states():
    spread = roofline(tp=2, dp=4)
    communication = spread._prefill.communication
    size = 1000 * QWEN.hidden_size * 2
    cluster = spread.cluster
    expected = 2 * QWEN.num_layers * cluster.all_reduce_time(size)
    gather = all_gather(cluster.gpu.interconnect, 4)
    expected += 2 * QWEN.num_moe_layers * gather(4 * size)
    assert communication.time(1000, 4000) == pytest.approx(expected)
    assert roofline(tp=1, dp=4, ep=False)._prefill.communication is None


test_a_wrong_cluster_is_refused = refused(
    lambda make: make(),
    (lambda: Cluster(H200, 8, expert_load_imbalance=1.2), "must be 1 without enable_expert"),
    (lambda: Cluster(H200, 8, 1, True, 0.9), "expert_load_imbalance must be finite and >= 1"),
    (lambda: Cluster(H200, 8, all2all_backend="pplx"), "must be allgather_reducescatter with"),
    (lambda: Cluster(H200, data_parallel_size=0), "data_parallel_size must be >= 1, got 0"),
    error=ValueError,
)


def test_what_has_no_experts_cannot_spread_them():
    with pytest.raises(ScenarioError, match="must be false for llama-3.1-8b, which has no experts"):
        roofline(model=DENSE)
    with pytest.raises(ScenarioError, match="an expert for each of 16 ranks, and mixtral-8x7b"):
        roofline(tp=8, dp=2, model=load_model("mixtral-8x7b"))


def scenario(**client: object) -> Scenario:
    return Scenario.from_dict(
        {
            "model": "qwen3-235b-a22b",
            "workload": of_profile(5, "all_at_once"),
            "clients": [{"name": "llm", "gpu": "h200", "tensor_parallel_size": 8, **client}],
        }
    )


def test_the_options_of_a_scenario():
    spread = {"enable_expert_parallel": True, "expert_load_imbalance": 1.3}
    client = build(scenario(**spread)).clients[0]
    cluster = client.predictor.ranks[0].predictor.cluster
    assert (cluster.enable_expert_parallel, cluster.expert_load_imbalance) == (True, 1.3)
    same = llm_client("llm", model=QWEN, gpu=H200, tensor_parallel_size=8, **spread)
    assert same.num_gpu_blocks == client.num_gpu_blocks
    with pytest.raises(ScenarioError, match=r"clients\.0\.expert_load_imbalance: must be 1 w"):
        build(scenario(expert_load_imbalance=1.3))
    with pytest.raises(ScenarioError, match=r"clients\.0\.enable_expert_parallel: must be fa"):
        build(scenario(model="llama-3.1-8b", enable_expert_parallel=True))
