"""Block pools, and how many blocks an engine has."""

import pytest

from mist_sim.clients.engine.lanes import lane_memory
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import BlockPool, EngineMemory, KvCacheConfig, num_gpu_blocks
from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.clients.kv_cache.profile_run import NEWEST, Needs, ProfileRun, num_graphs
from mist_sim.clients.options.engine_config import EngineConfig
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.models import load_model
from mist_sim.scenario import llm_client

GIB = 2.0**30


V0 = ProfileRun(sampler_bytes=41, keeps_buffers=False, counts_graphs=False)


def blocks(config, model="llama-3.1-8b", gpu="h100-sxm", tp=1, tokens=8192, seqs=256, needs=NEWEST):
    return num_gpu_blocks(
        config,
        load_model(model),
        Cluster(load_gpu(gpu), tp),
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        needs=needs,
    )


def test_pool_counts_are_exact():
    pool = BlockPool(10, 16)
    assert [pool.blocks_for(n) for n in (1, 16, 17)] == [1, 1, 2]
    pool.allocate(7)
    assert (pool.num_free, pool.num_used, pool.num_token_slots) == (3, 7, 160)
    with pytest.raises(InvariantError, match="4 blocks asked of a pool with 3 free"):
        pool.allocate(4)
    pool.release(7)
    with pytest.raises(InvariantError, match="11 of 10 blocks are free"):
        pool.release(1)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (1, 0)])
def test_pool_refuses_nonsense(num_blocks, block_size):
    with pytest.raises(ValueError, match="must be >= 1"):
        BlockPool(num_blocks, block_size)


@pytest.mark.parametrize("tp", [1, 2])
def test_capacity_agrees_with_a_vllm_log(tp):
    """vllm-project/vllm#10511: Llama-3-8B on an 80 GB GPU, memory by memory, on 1 and 2 ranks.

    71.29 GiB to use, 14.96 (7.48) weights, 1.79 (3.58) beside torch, 1.26 activations, so
    53.29 GiB (58.97) are left for the cache.
    """
    config = KvCacheConfig(gpu_memory_utilization=0.9, context_memory=1.79 * tp * GIB)
    expected = {1: 53.29, 2: 71.29 - 7.48 - 3.58 - 1.26}[tp]
    cache = (
        blocks(config, tp=tp, needs=Needs(profile=V0))
        * 16
        * load_model("llama-3.1-8b").kv_bytes_per_token
        / tp
    )
    assert cache / GIB == pytest.approx(expected, rel=0.01)


def test_weights_of_a_mixture_of_experts_agree_with_a_vllm_log():
    """vllm-project/vllm#17327: Qwen3-30B-A3B on 4 ranks, "Model loading took 14.2474 GiB".

    The log counts buffers such as the rotary table (40,960 x 128 values, 0.010 GiB) as well.
    """
    weights = load_model("qwen3-30b-a3b").weight_bytes_per_rank(4)
    assert weights / GIB == pytest.approx(14.2474, rel=0.001)
    assert weights / GIB < 14.2474


def test_fp8_weights_with_latent_attention_agree_with_a_log():
    """HabanaAI/vllm-fork#809: DeepSeek-R1, FP8, on 8 ranks, 79.41 GiB before loading is done.

    That fork does not keep vLLM's 16-bit copy of the up-projections (0.24 GiB a rank).
    """
    model = load_model("deepseek-r1")
    copies = 2 * model.num_layers * model.mla.kv_up_params(128 // 8)
    assert (model.weight_bytes_per_rank(8) - copies) / GIB == pytest.approx(79.41, rel=0.002)


def test_kv_bytes_of_a_mixture_of_experts_agree_with_a_vllm_log():
    """vllm-project/vllm#21348: Qwen3-235B-A22B-FP8 on 4 ranks, 8.11 GiB hold 178,880 tokens.

    The tokens are those of the rank with the least room, the GiB those of any, hence 1.2 %.
    """
    model = load_model("qwen3-235b-a22b").with_dtypes(weights="fp8")
    cached = 178_880 * model.kv_bytes_per_token_per_rank(4)
    assert cached / GIB == pytest.approx(8.11, rel=0.012)


def test_quantized_weights_and_caches_leave_room_for_more():
    plain = load_model("qwen3-30b-a3b")
    config = KvCacheConfig()

    def count(model, tp=1):
        cluster = Cluster(load_gpu("h100-sxm"), tp)
        return num_gpu_blocks(config, model, cluster, max_num_batched_tokens=8192, max_num_seqs=256)

    fp8 = plain.with_dtypes(weights="fp8")
    int4 = plain.with_dtypes(weights="int4")
    both = fp8.with_dtypes(kv_cache="fp8")
    assert count(plain) < count(fp8) < count(int4)
    assert count(both) + 1 == pytest.approx(2 * (count(fp8) + 1), abs=1)  # with the null block
    with pytest.raises(ScenarioError, match="does not fit"):
        count(load_model("deepseek-v3"), 8)


def test_experts_have_buffers_for_each_of_a_tokens_experts():
    """Per token 4 x 2048 of hidden state; older versions share a buffer between two products.

    8 experts x (max(2 x 768, 2048) + 768) values then, and 8 x (2048 + 2048) now.
    """
    model, cluster = load_model("qwen3-30b-a3b"), Cluster(load_gpu("h100-sxm"))
    now = NEWEST.activations(model, cluster, 16_384, 1)
    before = Needs(profile=V0).activations(model, cluster, 16_384, 1)
    assert now == 16_384 * (4 * 2048 + 8 * (2048 + 2048)) * 2
    assert before == 16_384 * (4 * 2048 + 8 * (2048 + 768)) * 2


def test_buffers_of_experts_stay_while_tokens_are_sampled():
    """llm-d-planner, vLLM 0.19: Qwen1.5-MoE-A2.7B has 2.47 GiB of activations, Qwen3-30B-A3B 2.68.

    1,024 sequences of 151,936 words are 2.22 GiB; the buffers of 8 experts and 8,192 tokens 0.5.
    """
    model, cluster = load_model("qwen3-30b-a3b"), Cluster(load_gpu("h100-sxm"))
    found = NEWEST.activations(model, cluster, 8_192, 1_024)
    assert found / GIB == pytest.approx(2.68, rel=0.02)


def test_graphs_are_of_both_kinds_where_decodes_alone_can_fill_them():
    """LMCache/LMCache#3430: "PIECEWISE=51 (largest=512), FULL=35 (largest=256)"."""
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    assert len(sizes) == 51
    assert num_graphs(sizes, 256) == 51 + 35
    assert num_graphs(sizes, 1_024) == 102
    assert num_graphs((), 256) == 0
    assert ProfileRun().graphs(0) == 0.0
    assert ProfileRun(counts_graphs=False).graphs(102) == 0.0


def test_requests_get_all_blocks_of_a_real_engine_but_the_null_block():
    """`BlockPool.null_block` in vllm/v1/core/block_pool.py."""
    assert blocks(KvCacheConfig(num_gpu_blocks_override=77), "llama-3.1-405b") == 76
    with pytest.raises(ValueError, match="must be >= 2, got 1; one block is vLLM's null block"):
        KvCacheConfig(num_gpu_blocks_override=1)


def test_of_the_blocks_that_fit_in_memory_one_is_the_null_block():
    """So the GPU's memory holds one block more than requests get."""
    model, config = load_model("llama-3.1-8b"), KvCacheConfig(gpu_memory_utilization=0.5)
    free = 0.5 * load_gpu("h100-sxm").memory - model.weight_bytes_per_rank(1)
    cluster = Cluster(load_gpu("h100-sxm"))
    free -= NEWEST.activations(model, cluster, 8192, 256) + NEWEST.context(None, cluster)
    assert blocks(config) == int(free // (16 * model.kv_bytes_per_token)) - 1


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"gpu_memory_utilization": 0.95}, True),
        ({"block_size": 8}, True),
        ({"context_memory": 4 * GIB}, False),
    ],
)
def test_every_parameter_changes_the_count(change, more):
    assert (blocks(KvCacheConfig(**change)) > blocks(KvCacheConfig())) == more


def test_larger_batches_leave_less():
    assert blocks(KvCacheConfig(), tokens=65536) < blocks(KvCacheConfig())
    assert blocks(KvCacheConfig(), seqs=2048) < blocks(KvCacheConfig())


def test_a_model_that_does_not_fit_says_what_takes_the_memory():
    with pytest.raises(ScenarioError, match=r"llama-3.1-70b does not fit on 1 x h100-sxm.*weights"):
        blocks(KvCacheConfig(), "llama-3.1-70b")


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 0},
        {"gpu_memory_utilization": 1.2},
        {"num_gpu_blocks_override": 0},
        {"context_memory": -1.0},
    ],
)
def test_config_refuses_nonsense(change):
    (name,) = change
    with pytest.raises(ValueError, match=name):
        KvCacheConfig(**change)


@pytest.mark.parametrize(
    ("num_blocks", "watermark", "num_reserved"),
    [(1_000, 0.01, 10), (1_000, 0.0, 0), (99, 0.01, 0), (2, 0.9, 0), (3, 0.99, 1)],
)
def test_the_watermark_is_a_share_of_all_blocks(num_blocks, watermark, num_reserved):
    """The null block is one of them: `KVCacheManager.watermark_blocks` in vllm/v1/core, 0.24."""
    config = EngineConfig(kv_cache=KvCacheConfig(watermark=watermark))
    memory = EngineMemory(num_gpu_blocks=num_blocks - NULL_BLOCKS)
    lane = lane_memory(config, EngineRules(), memory, None)
    assert lane.pool().num_reserved == num_reserved


def test_the_kernel_of_mxfp4_experts_says_how_much_room_is_left():
    own = llm_client("llm", model="gpt-oss-20b", moe_backend="triton")
    assert own.num_gpu_blocks == llm_client("llm", model="gpt-oss-20b").num_gpu_blocks
    other = llm_client("llm", model="gpt-oss-20b", moe_backend="marlin")
    assert other.num_gpu_blocks < own.num_gpu_blocks
