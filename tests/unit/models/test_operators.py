"""Operators of serving engines: FLOPs and bytes of small layers, worked out by hand."""

from dataclasses import replace

import pytest

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.predictors import BestServePredictor, RooflinePredictor
from mist_sim.models import MlaSpec, ModelSpec, MoeSpec, load_model, operators
from mist_sim.models.operators import moe_layer, projections

MOE = MoeSpec(num_experts=8, num_experts_per_token=2, intermediate_size=32)
MLA = MlaSpec(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)


def model(moe: MoeSpec | None = None, mla: MlaSpec | None = None) -> ModelSpec:
    return ModelSpec(
        name="tiny",
        num_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=100,
        max_position_embeddings=128,
        moe=moe,
        mla=mla,
    )


def figures(parts: list[operators.Operator]) -> dict[str, tuple[object, object]]:
    return {part.name: (part.flops, part.bytes) for part in parts}


# ------------------------------------------------------------------ grouped queries


def test_grouped_query_attention():
    """4 query and 2 KV heads of 16; two ranks have 2 and 1. 3 tokens after a context of 2."""
    parts = figures(projections(model(), 3, 2, prefill=True))
    assert parts["qkv_proj"] == (2 * 3 * 64 * 64, 2 * (64 * 64 + 3 * 128))
    assert parts["rope_and_cache"] == (3 * 3 * 48, 2 * 3 * 64 * 2)
    assert parts["o_proj"] == (2 * 3 * 32 * 64, 2 * (32 * 64 + 3 * 96))
    core = operators.attention(model(), 3, 5, 12, 2, prefill=True)
    assert core[1:3] == (4 * 32 * 12, 2 * (32 * 5 + 64 * 3))
    assert operators.expand_context(model(), 2, 2) == []


def test_cached_entries_are_moved_in_their_own_type():
    fp8 = model().with_dtypes(kv_cache="fp8")
    assert operators.attention(fp8, 3, 5, 12, 2, prefill=True).bytes == 32 * 5 + 2 * 64 * 3
    written = figures(projections(fp8, 3, 2, prefill=True))["rope_and_cache"]
    assert written[1] == 2 * 3 * 64 * 2 - 3 * 32


# ------------------------------------------------------------------ experts


def test_distinct_experts():
    assert [MOE.distinct_experts(n) for n in (0, 1, 2, 3)] == [0, 2, 3.5, 4.625]
    assert MOE.distinct_experts(10_000) == 8


def test_routed_experts():
    """3 tokens, 2 of 8 experts each, touch 4.625; two ranks hold 16 of the 32 inner columns."""
    parts = figures(operators.routed_experts(model(MOE), MOE, 3, 4.625, 2))
    assert parts["experts_up"] == (2 * 6 * 64 * 32, 4.625 * 64 * 32 * 2 + 6 * (64 + 32) * 2)
    assert parts["experts_down"] == (2 * 6 * 16 * 64, 4.625 * 16 * 64 * 2 + 6 * (16 + 64) * 2)


def test_load_imbalance_is_the_busiest_ranks_load():
    mean = operators.routed_experts(model(MOE), MOE, 3, 0, 1)
    busiest = operators.routed_experts(model(MOE), MOE, 3, 0, 1, load_imbalance=1.5)
    for one, other in zip(mean, busiest, strict=True):
        assert (other.flops, other.bytes) == (1.5 * one.flops, 1.5 * one.bytes)
    with pytest.raises(ValueError, match="load_imbalance must be >= 1, got 0.5"):
        operators.routed_experts(model(MOE), MOE, 3, 0, 1, load_imbalance=0.5)


def test_the_rest_of_a_layer_with_experts():
    parts = figures(moe_layer(model(MOE), MOE, 3, 2))
    assert list(parts) == ["norm", "router", "expert_activation", "combine"]
    assert parts["router"] == (2 * 3 * 64 * 8, 2 * (64 * 8 + 3 * 72))
    assert parts["expert_activation"] == (4 * 3 * 2 * 16, 3 * 2 * (32 + 16) * 2)
    assert parts["combine"] == (2 * 3 * 2 * 64, 3 * (2 + 1) * 64 * 2)


def test_shared_experts_see_every_token():
    moe = MoeSpec(
        num_experts=8, num_experts_per_token=2, intermediate_size=32, shared_intermediate_size=48
    )
    parts = figures(moe_layer(model(moe), moe, 3, 2))
    assert parts["shared_up_proj"] == (2 * 3 * 64 * 48, 2 * (64 * 48 + 3 * 112))
    assert parts["shared_down_proj"] == (2 * 3 * 24 * 64, 2 * (24 * 64 + 3 * 88))
    assert parts["combine"][1] == 3 * (2 + 1 + 3) * 64 * 2


def test_dense_layers_have_an_ordinary_mlp():
    mixed = MoeSpec(
        num_experts=8, num_experts_per_token=2, intermediate_size=32, dense_layers=frozenset({0})
    )
    parts = operators.token_operators(model(mixed), 3, 1, prefill=True)
    assert [(layers, len(group)) for layers, group in parts] == [(2, 4), (1, 4), (1, 4), (1, 2)]
    assert [layers for layers, _ in operators.token_operators(model(), 3, 1, True)] == [2, 2, 1]
    assert [layers for layers, _ in operators.token_operators(model(MOE), 3, 1, True)] == [2, 2, 1]


# ------------------------------------------------------------------ latents


def test_projections_of_latent_attention():
    """4 heads, 2 on each of two ranks; 3 tokens."""
    parts = figures(projections(model(mla=MLA), 3, 2, prefill=True))
    assert parts["qkv_a_proj"] == (2 * 3 * 64 * 44, 2 * (64 * 44 + 3 * 108))
    assert parts["latent_norm"] == (4 * 3 * 40, 2 * 3 * 40 * 2)
    assert parts["q_proj"] == (2 * 3 * 24 * 24, 2 * (24 * 24 + 3 * 48))
    assert parts["rope_and_cache"] == (3 * 3 * 12, 2 * 3 * 12 * 2 + 3 * 20 * 4)
    assert parts["kv_up_proj"] == (2 * 3 * 16 * 32, 2 * (16 * 32 + 3 * 48))
    assert parts["o_proj"] == (2 * 3 * 16 * 64, 2 * (16 * 64 + 3 * 80))


def test_absorbed_projections_of_a_decode_do_the_work_of_the_expanded_ones():
    expanded = figures(projections(model(mla=MLA), 3, 2, prefill=True))
    absorbed = figures(projections(model(mla=MLA), 3, 2, prefill=False))
    assert absorbed["absorb_query"] == (2 * 2 * 3 * 8 * 16, 2 * 2 * (8 * 16 + 3 * 24))
    assert absorbed["value_up"] == absorbed["absorb_query"]
    work = absorbed.pop("absorb_query")[0] + absorbed.pop("value_up")[0]
    assert work == expanded.pop("kv_up_proj")[0]
    assert absorbed == expanded


def test_a_decode_attends_to_the_latents():
    """3 decodes with 10 tokens in all; 2 heads; keys of 16 + 4, values of 16."""
    core = operators.attention(model(mla=MLA), 3, 10, 10, 2, prefill=False)
    assert core[1:3] == (2 * 2 * (20 + 16) * 10, 2 * (20 * 10 + 2 * 36 * 3))
    fp8 = model(mla=MLA).with_dtypes(kv_cache="fp8")
    assert operators.attention(fp8, 0, 10, 10, 2, prefill=False).bytes == 20 * 10


def test_a_prompt_attends_to_expanded_heads():
    """3 tokens after a context of 2; 2 heads; keys of 12, values of 8."""
    core = operators.attention(model(mla=MLA), 3, 5, 12, 2, prefill=True)
    put_together, read_and_written = 5 * (8 + 12), 5 * (12 + 8) + 3 * (12 + 8)
    assert core[1:3] == (2 * 2 * 20 * 12, 2 * 2 * (put_together + read_and_written))
    gather, project = operators.expand_context(model(mla=MLA), 2, 2)
    assert gather[1:3] == (0, 2 * 20 * (2 + 2))
    assert project[1:3] == (2 * 2 * 16 * 32, 2 * 2 * (16 + 32))


# ------------------------------------------------------------------ number formats


def test_only_matrices_are_stored_and_multiplied_in_fp8():
    fp8 = load_model("mixtral-8x7b").with_dtypes(weights="fp8")
    parts = [part for _, group in operators.token_operators(fp8, 1, 1, True) for part in group]
    parts += operators.routed_experts(fp8, fp8.moe, 1, 2, 1) + operators.logits(fp8, 1, 1)
    in_fp8 = {part.name for part in parts if part.dtype == "fp8"}
    assert in_fp8 == {"qkv_proj", "o_proj", "experts_up", "experts_down"}
    weights = {part.name: part.bytes for part in operators.routed_experts(fp8, fp8.moe, 0, 1, 1)}
    assert weights["experts_up"] == 4096 * 2 * 14_336


PROMPT, DECODE = StepBatch(((8192, 0),)), StepBatch((), 1, 100)


def bare(gpu: str) -> GpuSpec:
    """Return a GPU whose kernels reach the shares of a phase from the first moment on."""
    return replace(load_gpu(gpu), kernels={})


def seconds(weights: str, gpu: str, batch: StepBatch) -> float:
    served = load_model("llama-3.1-8b").with_dtypes(weights=weights)
    return RooflinePredictor(served, Cluster(bare(gpu))).step_time(batch)


def test_long_prompts_run_at_rate_of_computed_type():
    plain = seconds("bf16", "h100-sxm", PROMPT)
    assert 0.5 < seconds("fp8", "h100-sxm", PROMPT) / plain < 0.65
    assert 0.5 < seconds("int8", "h100-sxm", PROMPT) / plain < 0.65
    assert seconds("int4", "h100-sxm", PROMPT) == pytest.approx(plain, rel=5e-3)
    # Ampere has no FP8 units
    on_ampere = seconds("fp8", "a100-80gb-sxm", PROMPT)
    assert on_ampere == pytest.approx(seconds("bf16", "a100-80gb-sxm", PROMPT), rel=5e-3)


def test_decodes_wait_for_the_bytes_of_the_weights():
    """8.03 B parameters, 1.05 B of them in the vocabulary: half of it, read, keeps 16 bits."""
    read = 8.03 - 0.525
    for weights, size in (("fp8", 1), ("int4", 0.5 + 2 / 128)):
        expected = (size * (read - 0.525) + 2 * 0.525) / (2 * read)
        measured = seconds(weights, "h100-sxm", DECODE) / seconds("bf16", "h100-sxm", DECODE)
        assert measured == pytest.approx(expected, rel=0.01)


# ------------------------------------------------------------------ step times


def test_decodes_of_a_mixture_of_experts_touch_ever_more_of_it():
    """One decode reads the active parameters, many read nearly all."""
    gpu, served = bare("h200"), load_model("mixtral-8x7b")
    step_time = RooflinePredictor(served, Cluster(gpu)).step_time
    bandwidth = gpu.decode.mbu * gpu.memory_bandwidth
    one = step_time(StepBatch((), 1, 100))
    assert one == pytest.approx(2 * served.num_active_parameters / bandwidth, rel=0.03)
    many = step_time(StepBatch((), 32, 3_200))
    assert many == pytest.approx(2 * served.num_parameters / bandwidth, rel=0.03)


def test_a_context_of_latents_is_expanded_again_for_every_chunk():
    step_time = RooflinePredictor(load_model("deepseek-v3"), Cluster(load_gpu("h200"), 8)).step_time
    whole = step_time(StepBatch(((8192, 0),)))
    halves = step_time(StepBatch(((4096, 0),))) + step_time(StepBatch(((4096, 4096),)))
    assert halves > whole


def test_bestserve_has_tables_for_dense_models_in_sixteen_bits_only():
    cluster = Cluster(load_gpu("ascend-910b3"), 4)
    quantized = load_model("codellama-34b").with_dtypes(weights="int4")
    for served in (load_model("mixtral-8x7b"), load_model("deepseek-v3"), quantized):
        with pytest.raises(ScenarioError, match="bestserve has tables for dense models"):
            BestServePredictor(served, cluster)
