"""Experts, latent attention and number formats: sizes, bytes, and how a config names them."""

import pytest

from mist_sim.errors import ScenarioError
from mist_sim.models import MlaSpec, ModelSpec, MoeSpec, Quantization, load_model
from mist_sim.models.quantization import LAYER_PARTS
from tests.refusals import refused

COMMON = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = COMMON | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN = COMMON | {
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DEEPSEEK = COMMON | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


def read(base: dict[str, object], **changes: object) -> ModelSpec:
    config = {key: value for key, value in {**base, **changes}.items() if value is not ...}
    return ModelSpec.from_config(config, name="tiny", source="tiny/config.json")


# ------------------------------------------------------------------ published figures


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("mixtral-8x7b", 12.88, 0.005),  # 12.9B: Mixtral of Experts, arXiv 2401.04088
        ("mixtral-8x22b", 39.1, 0.06),  # 39B: mistral.ai/news/mixtral-8x22b
        ("qwen3-30b-a3b", 3.3, 0.06),  # 3.3B: model card
        ("qwen3-235b-a22b", 22, 0.5),  # 22B: model card
        ("qwen3-coder-480b-a35b", 35, 0.5),  # 35B: model card
        ("kimi-k2", 32, 0.9),  # 32B: model card
        ("minimax-m2", 10, 1.1),  # 10B: model card, rounded down
        ("llama-3.1-8b", 8.03, 0.005),  # dense: all of them
    ],
)
def test_active_parameters(name, billions, tolerance):
    assert load_model(name).num_active_parameters / 1e9 == pytest.approx(billions, abs=tolerance)


def test_active_parameters_of_deepseek_v3():
    """README_WEIGHTS.md of DeepSeek-V3: 36.6 B with the output head, without the embedding."""
    model = load_model("deepseek-v3")
    embedding = model.embedding_params // 2
    assert (model.num_active_parameters - embedding) / 1e9 == pytest.approx(36.6, abs=0.05)


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("deepseek-v3", 70_272),  # (512 + 64) x 61 x 2
        ("mixtral-8x7b", 131_072),  # as Llama-3.1-8B: 32 layers, 8 KV heads of 128
        ("mixtral-8x22b", 229_376),
        ("qwen3-30b-a3b", 98_304),
        ("qwen3-235b-a22b", 192_512),
        ("kimi-k2", 70_272),  # as DeepSeek-V3
        ("minimax-m2", 253_952),  # 62 layers, 8 KV heads of 128
    ],
)
def test_kv_bytes_per_token(name, kv_bytes):
    model = load_model(name)
    assert model.kv_bytes_per_token == kv_bytes
    assert model.with_dtypes(kv_cache="fp8").kv_bytes_per_token == kv_bytes // 2
    shared = 1 if model.mla else 4
    assert model.kv_bytes_per_token_per_rank(4) == kv_bytes // shared


def test_a_latent_lies_whole_on_every_rank():
    model = load_model("deepseek-v3")
    assert {model.kv_bytes_per_token_per_rank(ranks) for ranks in (1, 2, 16, 128)} == {70_272}


# ------------------------------------------------------------------ small models, by hand


def test_parameters_of_a_small_mixture_of_experts():
    model = read(MIXTRAL)
    attention, expert, router = 64 * 8 * (16 + 4), 3 * 64 * 96, 64 * 8
    layer = attention + 8 * expert + router + 2 * 64
    assert model.num_parameters == 4 * layer + 2 * 100 * 64 + 64
    assert model.num_active_parameters == model.num_parameters - 4 * 6 * expert
    split = 64 * 8 * 20 // 2 + 8 * expert // 2
    whole = router + 2 * 64
    assert model.weight_bytes_per_rank(2) == 2 * (4 * (split + whole) + 2 * 50 * 64 + 64)


def test_parameters_of_a_small_model_with_latents_and_shared_experts():
    model = read(DEEPSEEK)
    down = 64 * (24 + 16 + 4)
    heads = 24 * 8 * 12 + 16 * 8 * 16 + 8 * 8 * 64
    norms = 2 * 64 + 24 + 16
    dense, expert, router = 3 * 64 * 96, 3 * 64 * 32, 64 * 16 + 16
    assert (model.num_dense_layers, model.num_moe_layers) == (1, 3)
    layers = 4 * (down + heads + norms) + dense + 3 * (18 * expert + router)
    assert model.num_parameters == layers + 2 * 100 * 64 + 64
    assert model.num_active_parameters == model.num_parameters - 3 * 12 * expert
    split = (4 * heads + dense + 3 * 18 * expert) // 2
    whole = 4 * (down + norms) + 3 * router
    assert model.weight_bytes_per_rank(2) == 2 * (split + whole + 2 * 50 * 64 + 64)
    # FP8 halves the matrices; the 16-bit copy of the up-projections is new
    matrices, copy = split + 4 * down, 4 * 16 * 4 * 16
    fp8 = model.with_dtypes(weights="fp8").weight_bytes_per_rank(2)
    assert fp8 == model.weight_bytes_per_rank(2) - matrices + 2 * copy


def test_head_dim_of_a_latent_model_is_that_of_its_queries():
    assert read(DEEPSEEK).head_dim == 12
    assert read(DEEPSEEK, head_dim=4).head_dim == 12


# ------------------------------------------------------------------ reading a config


def test_experts_of_each_family():
    assert read(MIXTRAL).moe == MoeSpec(
        num_experts=8, num_experts_per_token=2, intermediate_size=96
    )
    assert read(DEEPSEEK).moe == MoeSpec(
        num_experts=16,
        num_experts_per_token=4,
        intermediate_size=32,
        shared_intermediate_size=64,
        dense_layers=frozenset({0}),
        router_vector_params=16,
    )
    older = read(QWEN, model_type="qwen2_moe", shared_expert_intermediate_size=48).moe
    assert older is not None
    assert (older.shared_intermediate_size, older.router_vector_params) == (48, 64)
    assert (
        read(DEEPSEEK, model_type="deepseek_v2", topk_method="greedy").moe.router_vector_params == 0
    )
    assert read(DEEPSEEK, topk_method=...).moe.router_vector_params == 16


@pytest.mark.parametrize(
    ("base", "changes", "layers"),
    [
        (QWEN, {}, set()),
        (QWEN, {"mlp_only_layers": [1, 3]}, {1, 3}),
        (QWEN, {"decoder_sparse_step": 2}, {0, 2}),
        (DEEPSEEK, {"first_k_dense_replace": 0}, set()),
        (DEEPSEEK, {"first_k_dense_replace": 2}, {0, 1}),
        (DEEPSEEK, {"moe_layer_freq": 3, "first_k_dense_replace": 0}, {1, 2}),
    ],
)
def test_dense_layers(base, changes, layers):
    model = read(base, **changes)
    assert model.moe.dense_layers == layers
    assert model.num_dense_layers == len(layers)


def test_experts_of_glm4():
    """Its first layer is dense by default, its routers have a bias, its output has none."""
    base = read(DEEPSEEK, model_type="qwen3_moe", kv_lora_rank=..., first_k_dense_replace=1)
    more = {"kv_lora_rank": ..., "first_k_dense_replace": ..., "topk_method": ...}
    plain = read(DEEPSEEK, model_type="glm4_moe", **more)
    assert plain.moe == base.moe
    assert plain.moe.dense_layers == {0}
    normed = read(DEEPSEEK, model_type="glm4_moe", **more, use_qk_norm=True)
    biased = read(DEEPSEEK, model_type="glm4_moe", **more, attention_bias=True)
    head = 64 // 8
    assert normed.num_parameters - plain.num_parameters == 4 * 2 * head
    assert biased.num_parameters - plain.num_parameters == 4 * (8 + 2 * 8) * head
    kinds = ["dense", "dense", "sparse", "sparse"]
    flash = read(DEEPSEEK, model_type="glm4_moe_lite", mlp_layer_types=kinds)
    assert flash.moe.dense_layers == {0, 1}
    assert flash.mla == read(DEEPSEEK).mla
    with pytest.raises(ScenarioError, match="mlp_layer_types must have 4 entries, got 1"):
        read(DEEPSEEK, model_type="glm4_moe_lite", mlp_layer_types=["dense"])


def test_latent_attention():
    assert read(DEEPSEEK).mla == MlaSpec(
        q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8
    )
    assert read(DEEPSEEK, q_lora_rank=None).mla.q_lora_rank is None
    one_matrix = read(DEEPSEEK, q_lora_rank=None).attention_params_per_layer
    assert one_matrix == 64 * 8 * 12 + 64 * 20 + 16 * 8 * 16 + 8 * 8 * 64


def compressed(weights: object, inputs: object, **others: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **others}


INT8, FP8 = {"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", 1 + 4 / 16_384, "fp8")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, ("fp8", 1, "fp8")),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
            ("int4", 0.5 + 2 / 128, "bf16"),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False},
            ("int4", 0.5 + 2.5 / 64, "bf16"),
        ),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("int8", 1, "bf16")),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
            ("int4", 0.5 + 2.5 / 128, "bf16"),
        ),
        (compressed(INT8, INT8), ("int8", 1, "int8")),
        (compressed(INT8, None), ("int8", 1, "bf16")),
        (compressed(FP8, FP8), ("fp8", 1, "fp8")),
        (
            compressed({"num_bits": 4, "type": "int", "group_size": 128}, None),
            ("int4", 0.5 + 2 / 128, "bf16"),
        ),
    ],
)
def test_quantization_of_a_checkpoint(config, expected):
    quantization = read(COMMON, model_type="llama", quantization_config=config).quantization
    assert (quantization.name, quantization.bytes_per_param, quantization.compute) == expected
    assert quantization.parts == LAYER_PARTS


def test_what_checkpoints_leave_plain():
    for modules in (
        ["lm_head"],
        ["re:.*lm_head", "model.layers.0.mlp.gate", "model.layers.0.input_layernorm"],
        ["gate"],
        ["re:.*block_sparse_moe.gate$", "model.embed_tokens", "model.norm"],
    ):
        config = {"quant_method": "fp8", "modules_to_not_convert": modules}
        assert read(MIXTRAL, quantization_config=config).quantization.name == "fp8"


def test_a_quantized_head_counts():
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}
    with_head = read(COMMON, model_type="llama", quantization_config=config)
    without = read(COMMON, model_type="llama", quantization_config=config | {"lm_head": False})
    saved = without.weight_bytes_per_rank(1) - with_head.weight_bytes_per_rank(1)
    assert saved == pytest.approx(100 * 64 * (1.5 - 2 / 128), abs=1)


def test_kv_cache_of_a_checkpoint():
    config = compressed(FP8, FP8, kv_cache_scheme=FP8)
    model = read(COMMON, model_type="llama", quantization_config=config)
    assert (model.kv_cache_dtype, model.kv_entry_bytes) == ("fp8", 1)
    assert model.with_dtypes(kv_cache="auto").kv_entry_bytes == 2


@pytest.mark.parametrize(
    ("base", "changes", "problem"),
    [
        (MIXTRAL, {"model_type": "grok"}, "'grok' is not known.*the nearest known is .*mixtral"),
        (DEEPSEEK, {"sliding_window": 64}, "sliding_window is not simulated with multi-head"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "num_experts_per_token must be from 1 to the 8"),
        (MIXTRAL, {"num_experts_per_tok": ...}, "num_experts_per_tok is missing"),
        (QWEN, {"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
        (QWEN, {"mlp_only_layers": 3}, "mlp_only_layers must be a list, got 3"),
        (QWEN, {"decoder_sparse_step": 9}, "dense_layers must leave one of the 4 layers"),
        (DEEPSEEK, {"v_head_dim": 0}, "v_head_dim must be an integer > 0, got 0"),
        (DEEPSEEK, {"attention_bias": True}, "attention_bias is not simulated with"),
        (DEEPSEEK, {"model_type": "deepseek_v9"}, "'deepseek_v9' is not known.*is .*deepseek_v3"),
    ],
)
def test_what_is_not_simulated(base, changes, problem):
    with pytest.raises(ScenarioError, match=f"^tiny/config.json: .*{problem}"):
        read(base, **changes)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"quant_method": "quark"}, "quant_method 'quark' is not simulated yet. Known: fp8"),
        ("fp8", "quantization_config must be a table, got 'fp8'"),
        ({"quant_method": "awq", "group_size": 128}, r"config: bits \(or w_bit\) is missing"),
        ({"quant_method": "gptq", "bits": 3}, "bits must be 4 or 8, got 3"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size must be an integer"),
        (
            {"quant_method": "fp8", "ignored_layers": ["model.layers.0.self_attn.q_proj"]},
            "ignored_layers names 'model.layers.0.self_attn.q_proj'",
        ),
        (
            {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["mlp.gate_proj"]},
            "modules_to_not_convert names 'mlp.gate_proj'",
        ),
        ({"quant_method": "compressed-tensors"}, "config_groups must hold one group"),
        (compressed({"num_bits": 4, "type": "float"}, None), "type 'float' of 4 bits"),
        (compressed(FP8, FP8, kv_cache_scheme={"num_bits": 4}), "num_bits must be 8, got 4"),
        (compressed(INT8, INT8, sparsity_config={"format": "sparse-24"}), "sparse weights"),
    ],
)
def test_wrong_quantizations(config, problem):
    with pytest.raises(ScenarioError, match=f"^tiny/config.json: .*{problem}"):
        read(COMMON, model_type="llama", quantization_config=config)


def test_dtypes_may_be_chosen():
    model = load_model("llama-3.1-8b")
    assert model.with_dtypes() == model
    assert model.with_dtypes(weights="fp8").with_dtypes(weights="bf16") == model
    own = Quantization(name="int4", bytes_per_param=0.6)
    assert model.with_dtypes(weights=own).bytes_per_param("mlp") == 0.6
    assert model.with_dtypes(kv_cache="fp8_e4m3").kv_entry_bytes == 1
    with pytest.raises(ValueError, match="weights has no 'fp9'; did you mean 'fp8'"):
        model.with_dtypes(weights="fp9")
    with pytest.raises(ValueError, match="kv_cache_dtype has no 'fp4'.* Known: auto, "):
        model.with_dtypes(kv_cache="fp4")


test_specs_made_in_python_are_checked_too = refused(
    lambda make: make(),
    (lambda: Quantization(name="x", bytes_per_param=0), "bytes_per_param must be in"),
    (lambda: Quantization(name="x", bytes_per_param=1, compute="fp9"), "compute has no 'fp9'"),
    (
        lambda: MoeSpec(num_experts=4, num_experts_per_token=2, intermediate_size=0),
        "intermediate_size must be >= 1",
    ),
    (
        lambda: MoeSpec(
            num_experts=4, num_experts_per_token=2, intermediate_size=1, shared_intermediate_size=-1
        ),
        "must be >= 0",
    ),
    (
        lambda: MlaSpec(
            q_lora_rank=None, kv_lora_rank=0, qk_nope_head_dim=1, qk_rope_head_dim=1, v_head_dim=1
        ),
        "kv_lora_rank must be >= 1, got 0",
    ),
    error=ValueError,
)


test_impossible_splits = refused(
    lambda name, ranks: load_model(name).check_tensor_parallel(ranks),
    ("mixtral-8x22b", 12, "KV heads"),
    ("deepseek-v3", 3, "divide the 128 attention heads"),
)


def test_experts_must_split_too():
    with pytest.raises(ScenarioError, match="divide the expert size 36"):
        read(QWEN, moe_intermediate_size=36).check_tensor_parallel(8)
    with pytest.raises(ScenarioError, match="divide the shared experts' size 36"):
        read(
            QWEN, model_type="qwen2_moe", shared_expert_intermediate_size=36
        ).check_tensor_parallel(8)
    read(QWEN, intermediate_size=100).check_tensor_parallel(8)  # no layer has that MLP
