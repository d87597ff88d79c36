"""Decode context parallelism: vLLM's rules, memory, and laws of step times."""

from __future__ import annotations

import pytest

import mist_sim as mist
from mist_sim import Simulation, Workload
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.collectives import all_gather
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.analytic.context_parallel import _with_exchange
from mist_sim.models import load_model
from mist_sim.testing import check_predictor
from tests.refusals import refused

NAME = "decode_context_parallel_size"
LATENT = load_model("deepseek-v3")
GROUPED = load_model("qwen3-235b-a22b")  # 64 heads on 4 KV heads


def predictor(model, size):
    cluster = Cluster(load_gpu("h200"), 8, decode_context_parallel_size=size)
    rank = RooflinePredictor(model, cluster)
    return rank if size == 1 else _with_exchange(rank)


def client(model, size, **options):
    return mist.llm_client(
        "llm", model=model, gpu="h200", tensor_parallel_size=8, **{NAME: size}, **options
    )


@pytest.mark.parametrize(("model", "size"), [(LATENT, 8), (LATENT, 2), (GROUPED, 2)])
def test_contexts_are_shared_out(model, size):
    """As many blocks, each of `size` times as many tokens: vLLM multiplies the block size."""
    whole, parts = client(model, 1), client(model, size)
    assert parts.memory.block_size == size * whole.memory.block_size
    assert parts.memory.num_blocks == pytest.approx(whole.memory.num_blocks, abs=1)
    per_token = whole.kv_block_bytes / whole.memory.block_size
    assert parts.kv_block_bytes == pytest.approx(size * whole.kv_block_bytes / size)
    assert parts.kv_block_bytes / parts.memory.block_size == pytest.approx(per_token / size)


test_what_vllm_does_not_share_out_is_refused = refused(
    client,
    (LATENT, 3, "must divide tensor_parallel_size 8"),
    (LATENT, 16, "be <= 8"),
    (GROUPED, 4, "be <= 2, the ranks that hold the same of the 4 KV heads"),
    (load_model("llama-3.1-8b"), 2, "be <= 1"),
    (load_model("gpt-oss-120b"), 2, "must be 1 with gpt-oss-120b: contexts of models with"),
    (load_model("qwen3.5-397b-a17b"), 2, "whose layers differ"),
)


test_what_is_not_simulated_together_is_refused = refused(
    lambda options: client(GROUPED, 2, **options),
    ({"role": "prefill"}, "role must be left out with decode_context_parallel_size 2"),
    ({"predictor": predictor(GROUPED, 2)}, "predictor must be roofline"),
)


@pytest.mark.parametrize(("model", "size"), [(LATENT, 8), (GROUPED, 2)])
def test_long_contexts_gain_and_short_ones_lose(model, size):
    """The exchange grows with queries alone, what is read with the keys that ranks hold."""
    short, long = (StepBatch((), 8, 8 * context) for context in (128, 131_072))
    whole, parts = predictor(model, 1), predictor(model, size)
    assert parts.step_time(short) > whole.step_time(short)
    assert parts.step_time(long) < whole.step_time(long)
    growth = [each.step_time(long) - each.step_time(short) for each in (whole, parts)]
    if not model.mla:  # reading keys takes all of the time
        assert growth[0] / growth[1] == pytest.approx(size, rel=1e-9)


def test_the_exchange_by_hand():
    """Of 8 queries: 16 heads of a pair of ranks, their query, sum and output in each layer."""
    cluster = Cluster(load_gpu("h200"), 8, decode_context_parallel_size=2)
    exchange = _with_exchange(RooflinePredictor(GROUPED, cluster))
    gather = all_gather(cluster.gpu.interconnect, 2)
    sizes = [8 * 16 * 128 * 2, 8 * 16 * 4, 8 * 16 * 128 * 2]
    expected = 94 * sum(gather(size) for size in sizes)
    assert exchange.seconds(StepBatch((), 8, 800)) == expected
    assert exchange.seconds(StepBatch(((8, 0),))) == expected


def test_prompts_gather_the_latents_of_their_contexts():
    cluster = Cluster(load_gpu("h200"), 8, decode_context_parallel_size=8)
    exchange = _with_exchange(RooflinePredictor(LATENT, cluster))
    gather = all_gather(cluster.gpu.interconnect, 8)
    assert exchange.seconds(StepBatch(((512, 0),))) == 0
    found = exchange.seconds(StepBatch(((512, 4096), (8, 1000))))
    assert found == 61 * gather(5096 * 576 * 2)


@pytest.mark.parametrize("model", [LATENT, GROUPED])
def test_runs_are_single_steps_to_the_bit(model):
    check_predictor(lambda: predictor(model, 2))


def test_results_have_no_error_bar():
    workload = Workload.from_lists([4096] * 4, [16] * 4, [0.0] * 4)
    summary = Simulation(clients=[client(GROUPED, 2)], workload=workload).run().summary
    assert summary["completed"] == 4
    assert all(bar["low"] is None for bar in summary["expected_errors"]["llm"].values())


def test_the_flag_of_vllm(mist):
    code, out, _ = mist("from-vllm", "vllm serve deepseek-v3 -tp 8 -dcp 4", "--gpu", "h200")
    assert code == 0
    assert f"{NAME}: 4" in out
