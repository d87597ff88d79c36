"""Checkpoints of modelopt and others that quantize some kinds of matrices only."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.operators import token_operators
from mist_sim.models.quantization import LAYER_PARTS
from tests.unit.models.test_architectures import COMMON, DEEPSEEK, MIXTRAL, compressed, read

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
FLOAT4 = {"num_bits": 4, "type": "float", "group_size": 16}
EXPERTS = {"routed_experts"}


def dense(**quantization: object) -> ModelSpec:
    return read(COMMON, model_type="llama", quantization_config=quantization)


# ------------------------------------------------------------------ formats


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (NVFP4, ("nvfp4", 0.5625, "fp4")),
        ({**NVFP4, "quant_method": "modelopt_fp4"}, ("nvfp4", 0.5625, "fp4")),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ("fp8", 1, "fp8")),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, ("fp8", 1, "fp8")),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, ("fp8", 1, "fp8")),
        (compressed(FLOAT4, FLOAT4), ("nvfp4", 0.5625, "fp4")),
        (compressed(FLOAT4, None), ("nvfp4", 0.5625, "bf16")),
    ],
)
def test_formats(config, expected):
    quantization = dense(**config).quantization
    assert (quantization.name, quantization.bytes_per_param, quantization.compute) == expected
    assert quantization.parts == LAYER_PARTS


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({}, "auto"),
        ({"kv_cache_quant_algo": None}, "auto"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
    ],
)
def test_kv_cache_of_modelopt(keys, dtype):
    assert dense(**NVFP4, **keys).kv_cache_dtype == dtype


def test_fp8_of_model_optimizer_is_told_from_others():
    """ModelOptFp8Config asks for other GPUs than Fp8Config, and than Model Optimizer's MXFP8."""
    for algorithm, is_fp8 in (("FP8", True), ("FP8_PER_CHANNEL_PER_TOKEN", True), ("MXFP8", False)):
        quantization = dense(quant_method="modelopt", quant_algo=algorithm).quantization
        assert quantization.by_modelopt is is_fp8
    assert not dense(quant_method="fp8").quantization.by_modelopt


def test_formats_beside_the_config(tmp_path: Path):
    """Older modelopt checkpoints keep them in hf_quant_config.json only; once read as 16 bits."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(COMMON | {"model_type": "llama"}), "utf-8")
    assert load_model(str(config)).quantization is None
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside), "utf-8")
    for path in (config, tmp_path):
        quantization = load_model(str(path)).quantization
        assert quantization is not None
        assert quantization.name == "nvfp4"


# ------------------------------------------------------------------ matrices that stay in 16 bits


@pytest.mark.parametrize(
    ("base", "ignored", "parts"),
    [
        (MIXTRAL, ["lm_head", "model.layers.*.block_sparse_moe.gate"], LAYER_PARTS),
        (MIXTRAL, ["re:.*self_attn.*"], LAYER_PARTS - {"attention", "attention_output"}),
        (MIXTRAL, ["self_attn"], LAYER_PARTS - {"attention", "attention_output"}),
        (
            MIXTRAL,
            [f"model.layers.{layer}.self_attn*" for layer in range(4)],
            LAYER_PARTS - {"attention", "attention_output"},
        ),
        (DEEPSEEK, ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.up_proj.*"], None),
        (
            DEEPSEEK,
            ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|down)_proj.*"],
            EXPERTS,
        ),
        (
            DEEPSEEK,
            [
                *(f"language_model.model.layers.{layer}.self_attn*" for layer in range(4)),
                "language_model.model.layers.0*",
                *(f"language_model.model.layers.{n}.mlp.shared_experts*" for n in (1, 2, 3)),
                "model.layers.4*",
                "vision_tower*",
                "mm_projector*",
                "",
            ],
            EXPERTS,
        ),
        (
            DEEPSEEK,
            [
                f"model.layers.*.self_attn.{name}"
                for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
            ],
            LAYER_PARTS - {"attention"},
        ),
        (MIXTRAL, ["model.layers.0.self_attn*"], None),
        (MIXTRAL, ["model.layers.*.self_attn.q_proj"], None),
        (MIXTRAL, ["model.layers.1.block_sparse_moe.experts.3.w1"], None),
        (MIXTRAL, ["re:.*experts.*w1"], None),
    ],
)
def test_whole_kinds_may_stay_plain(base, ignored, parts):
    if parts is None:
        with pytest.raises(ScenarioError, match="where all of one kind are plain in every layer"):
            read(base, quantization_config={**NVFP4, "ignore": ignored})
    else:
        model = read(base, quantization_config={**NVFP4, "ignore": ignored})
        assert model.quantization.parts == parts


def test_all_plain_is_not_quantized():
    names = ["re:.*"]
    assert read(MIXTRAL, quantization_config={**NVFP4, "ignore": names}).quantization is None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({**NVFP4, "quant_algo": "MIXED_PRECISION"}, "quant_algo 'MIXED_PRECISION' is not"),
        ({**NVFP4, "quant_algo": ["NVFP4"]}, "quant_algo .* is not simulated yet. Known: FP8"),
        ({**NVFP4, "kv_cache_quant_algo": "NVFP4"}, "must be FP8 or absent, got 'NVFP4'"),
        ({**NVFP4, "ignore": ["re:(self_attn"]}, r"'re:\(self_attn' is no regular expression"),
        ({**NVFP4, "ignore": ["x" * 201]}, "a name must have <= 200 characters, got 201"),
        ({**NVFP4, "ignore": ["x"] * 5000}, "ignore must have <= 4096 names, got 5000"),
        ({**NVFP4, "ignore": ["model.layers.0.attn"]}, "names 'model.layers.0.attn', which is no"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "must be two integers > 0"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "must be two integers > 0"),
        (compressed({**FLOAT4, "group_size": 64}, None), "type 'float' of 4 bits is not"),
    ],
)
def test_what_is_not_simulated_is_refused(config, problem):
    with pytest.raises(ScenarioError, match=f"^tiny/config.json: .*{problem}"):
        dense(**config)


def test_parts_that_stay_plain_keep_bytes_and_type():
    ignored = ["re:.*self_attn.*", "re:.*shared_experts.*"]
    model = read(DEEPSEEK, quantization_config={**NVFP4, "ignore": ignored})
    plain = read(DEEPSEEK)
    dense_mlp, experts = 3 * 64 * 96, 3 * 16 * 3 * 64 * 32
    saved = (2 - 0.5625) * (dense_mlp + experts)
    assert plain.weight_bytes_per_rank(1) - model.weight_bytes_per_rank(1) == saved
    types = {op.name: op.dtype for _, ops in token_operators(model, 8, 1, True) for op in ops}
    assert (types["o_proj"], types["shared_up_proj"], types["up_proj"]) == ("bf16", "bf16", "fp4")


# ------------------------------------------------------------------ published sizes


@pytest.mark.parametrize(
    ("name", "gigabytes", "tolerance"),
    [
        ("gpt-oss-20b", 12.8 * 2**30 / 1e9, 0.05),  # arXiv 2508.10925, table 1: 12.8 GiB
        ("kimi-k2.5", 595, 1),  # Kimi-K2-Thinking's files: 594 GB
        ("minimax-m2", 230, 0.5),  # MiniMax-M2's files: 230 GB
    ],
)
def test_weights_are_as_large_as_the_checkpoint(name, gigabytes, tolerance):
    weights = load_model(name).weight_bytes_per_rank(1) / 1e9
    assert weights == pytest.approx(gigabytes, abs=tolerance)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("qwen3-235b-a22b-nvfp4", LAYER_PARTS),
        ("deepseek-v3.1-nvfp4", LAYER_PARTS - {"attention"}),
        ("minimax-m2-nvfp4", LAYER_PARTS - {"attention", "attention_output"}),
        ("kimi-k2.5", frozenset(EXPERTS)),
        ("gpt-oss-20b", frozenset(EXPERTS)),
        ("llama-3.1-70b-fp8", LAYER_PARTS),
    ],
)
def test_parts_of_catalog_checkpoints(name, parts):
    model = load_model(name)
    assert model.quantization is not None
    assert model.quantization.parts == parts


def test_four_bits_multiply_faster_only_where_gpu_can():
    """vLLM widens NVFP4 weights to 16 bits on GPUs without a rate for them (Marlin)."""
    model = load_model("qwen3-235b-a22b-nvfp4")
    prompt = StepBatch(((4096, 0),))
    times = {
        gpu: RooflinePredictor(model, Cluster(load_gpu(gpu), 4)).step_time(prompt)
        for gpu in ("h200", "b200")
    }
    assert model.quantization is not None
    widened = replace(model.quantization, compute="bf16")
    for gpu, same in (("h200", True), ("b200", False)):
        slow = RooflinePredictor(
            model.with_dtypes(weights=widened), Cluster(load_gpu(gpu), 4)
        ).step_time(prompt)
        assert (times[gpu] == slow) == same
        assert times[gpu] <= slow
