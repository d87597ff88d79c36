"""Laws of what an engine takes of its memory beside the KV cache."""

from hypothesis import given
from hypothesis import strategies as st

from mist_sim import KvCacheConfig, llm_client
from mist_sim.clients.kv_cache.profile_run import Needs, ProfileRun
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import load_model
from mist_sim.models.expert_padding import is_padded, moe_backend_of, padding_bytes

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3")
BACKENDS = ("triton", "marlin", "flashinfer_trtllm", "flashinfer_cutlass")
GPUS = ("h100-sxm", "a100-80gb-sxm", "b200", "l40s")
PROFILES = (ProfileRun(), ProfileRun(sampler_bytes=38.6, keeps_buffers=False, counts_graphs=False))
ranks = st.sampled_from((1, 2, 4, 8))


@given(
    st.sampled_from(MODELS),
    st.sampled_from(GPUS),
    ranks,
    st.booleans(),
    st.sampled_from(PROFILES),
    st.integers(1, 32_768),
    st.integers(1, 2_048),
)
def test_more_tokens_and_sequences_never_need_less(model, gpu, size, ep, profile, tokens, seqs):
    spec = load_model(model)
    cluster = Cluster(load_gpu(gpu), size, enable_expert_parallel=ep and spec.moe is not None)
    needs = Needs(profile=profile)
    found = needs.activations(spec, cluster, tokens, seqs)
    assert 0 < found <= needs.activations(spec, cluster, tokens + 1, seqs)
    assert found <= needs.activations(spec, cluster, tokens, seqs + 1)


@given(st.sampled_from(MODELS), st.sampled_from(BACKENDS), st.sampled_from(GPUS), ranks)
def test_padding_adds_and_never_takes_away(model, backend, gpu, size):
    spec, architecture = load_model(model), load_gpu(gpu).architecture
    added = padding_bytes(spec, backend, architecture, size, 1)
    assert added >= 0.0
    assert (added == 0.0) == (not is_padded(spec))  # 2,880 is a multiple of no kernel's row
    whole = padding_bytes(spec, backend, architecture, size, size)  # with expert parallelism
    assert whole <= added * (1 + 1e-9)  # slices of experts are padded, whole ones once
    own = Needs().weights(spec, Cluster(load_gpu(gpu), size))
    plain = spec.weight_bytes_per_rank(size)
    assert own - plain == padding_bytes(spec, moe_backend_of(architecture), architecture, size, 1)


@given(st.integers(0, 300), st.integers(0, 300))
def test_more_graphs_never_need_less(few, more):
    profile = ProfileRun()
    assert profile.graphs(min(few, more)) <= profile.graphs(max(few, more))


@given(st.sampled_from(("vllm-0.12", "vllm-0.14", "vllm-0.19", "vllm-0.24", "vllm-0.33")))
def test_graphs_take_room_from_the_version_on_that_counts_them(engine):
    kv_cache = KvCacheConfig(gpu_memory_utilization=0.9)

    def eager(model, cluster):
        return RooflinePredictor(model, cluster, enforce_eager=True)

    with_graphs = llm_client("a", engine=engine, kv_cache=kv_cache).num_gpu_blocks
    without = llm_client("a", engine=engine, kv_cache=kv_cache, predictor=eager).num_gpu_blocks
    counts = engine in ("vllm-0.24", "vllm-0.33")
    assert (with_graphs < without) == counts
    assert counts or with_graphs == without
