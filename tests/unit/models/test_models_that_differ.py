"""Models whose layers differ: published parameters, bytes by hand, and laws of their times.

Figures of configs are facts of the publishers; sums stand beside them in the comments.
"""

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import mist_sim as mist
from conformance.pages import asked
from mist_sim import Simulation, Workload
from mist_sim.clients.kv_cache.pages import PagePool, PageRules
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import ModelSpec, load_model, model_names
from mist_sim.models.cache_layout import cache_layout
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import HeadsMixer, LinearMixer
from mist_sim.models.spec import rank_part
from tests.effort import examples

PUBLISHED = yaml.safe_load((Path(__file__).parents[1] / "data/models_of_2026.yaml").read_text())
DIFFERING = [name for name in model_names() if load_model(name).layers]


@cache
def roofline(name: str, ranks: int = 8) -> RooflinePredictor:
    return RooflinePredictor(load_model(name), Cluster(load_gpu("b300"), ranks))


def seconds(name: str, context: int, number: int = 1) -> float:
    return roofline(name).step_time(StepBatch((), number, number * context))


@pytest.mark.parametrize("known", PUBLISHED, ids=lambda known: known["name"])
def test_parameters_are_the_published_ones_within_a_percent(known):
    billions = load_model(known["name"]).num_parameters / 1e9
    assert billions == pytest.approx(known["billions"], rel=0.01)


def test_step_as_published_is_the_catalogs():
    """Keys of its config.json, whose lists have an entry for each layer that drafts, too."""
    model, kinds = load_model("step-3.5-flash"), ["full_attention", *["sliding_attention"] * 3]
    config = {
        "model_type": "step3p7",
        "text_config": {
            "model_type": "step3p5",
            "hidden_size": 4096,
            "intermediate_size": 11264,
            "num_hidden_layers": 45,
            "num_attention_heads": 64,
            "num_attention_groups": 8,
            "head_dim": 128,
            "attention_other_setting": {
                "attention_type": "sliding_attention",
                "num_attention_heads": 96,
                "num_attention_groups": 8,
                "head_dim": 128,
            },
            "use_head_wise_attn_gate": True,
            "layer_types": kinds * 12,
            "sliding_window": 512,
            "moe_layers_enum": ",".join(map(str, range(3, 45))),
            "moe_num_experts": 288,
            "moe_top_k": 8,
            "moe_intermediate_size": 1280,
            "share_expert_dim": 1280,
            "use_moe_router_bias": True,
            "num_nextn_predict_layers": 3,
            "vocab_size": 128896,
            "max_position_embeddings": 262144,
        },
    }
    found = ModelSpec.from_config(config, name=model.name, source=model.source)
    assert found == replace(model, architecture="step3p5", unsized_towers=())
    assert [layer.mixer.num_heads for layer in found.layers[:5]] == [64, 96, 96, 96, 64]
    config["text_config"]["moe_layers_enum"] = "3, four"
    with pytest.raises(ScenarioError, match="moe_layers_enum must list layers, as in 3,4,5"):
        ModelSpec.from_config(config, name="x", source="x")


ATTENTION_OF_EIGHT = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000}
GRANITE = ATTENTION_OF_EIGHT | {
    "model_type": "granitemoehybrid",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "shared_intermediate_size": 256,
    "num_hidden_layers": 4,
    "layer_types": [*["mamba"] * 3, "attention"],
    "mamba_d_conv": 4,
    "mamba_d_head": 128,
    "mamba_d_state": 64,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
    "max_position_embeddings": 4096,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": True,
}
_MAMBA = 512 * (1024 + (1024 + 2 * 64) + 8) + (1024 + 2 * 64) * 5 + 3 * 8 + 1024 + 1024 * 512
_MIXERS = 3 * _MAMBA + 4 * 512**2
_REST = 512 * 1000 + 512 + 4 * (2 * 512 + 3 * 512 * 256)


@pytest.mark.parametrize(
    ("experts", "ffn"), [(6, 4 * (6 * 3 * 512 * 1024 + 6 * 512)), (0, 0)], ids=["moe", "dense"]
)
def test_granite_hybrids_have_their_mlp_beside_experts_or_alone(experts, ffn):
    found = ModelSpec.from_config(GRANITE | {"num_local_experts": experts}, name="g", source="")
    assert found.num_parameters == _MIXERS + _REST + ffn
    assert found.kv_bytes_per_token == 2 * 8 * 64 * 2
    state = 3 * (1024 * 64 + (1024 + 2 * 64) * 3) * 2
    assert found.state_bytes_per_sequence == state


def laguna(**more: object) -> ModelSpec:
    experts = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128}
    config = {
        "model_type": "laguna",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_attention_heads_per_layer": [4, 8, 8, 8],
        "num_key_value_heads": 2,
        "head_dim": 64,
        "layer_types": ["full_attention", *["sliding_attention"] * 3],
        "sliding_window": 512,
        "gating": "per-head",
        "mlp_only_layers": [0],
        "shared_expert_intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    }
    return ModelSpec.from_config(config | experts | more, name="l", source="l")


def test_laguna_has_heads_of_each_layer_and_gates():
    heads, norms = 4 + 3 * 8, 4 * (2 * 64 + 2 * 256)
    attention = 2 * 256 * 64 * heads + 4 * 2 * 256 * 2 * 64
    ffn = 3 * 256 * 512 + 3 * (3 * 256 * 128 * 17 + 16 * 256 + 16)
    plain = 2 * 1000 * 256 + 256 + norms + attention + ffn
    assert laguna().num_parameters == plain + 256 * heads
    assert laguna(gating=True).num_parameters == plain + 256 * 64 * heads
    assert laguna(gating=None, mlp_only_layers=[], mlp_layer_types=["dense", *["sparse"] * 3])
    assert [layer.mixer.window for layer in laguna().layers] == [None, 512, 512, 512]
    with pytest.raises(ScenarioError, match="num_attention_heads_per_layer must have 4 entries"):
        laguna(num_attention_heads_per_layer=[4])
    with pytest.raises(ScenarioError, match="gating"):
        laguna(gating="per-token")


def test_float_blocks_of_compressed_tensors_are_blocks():
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"dynamic": True}}
    plain = ["lm_head", "re:.*self_attn.*", "re:.*\\.mlp\\.(gate|up|down)_proj$"]
    table = {"quant_method": "compressed-tensors", "config_groups": {"g": group}, "ignore": plain}
    found = laguna(quantization_config=table).quantization
    assert found is not None
    assert found.block == (128, 128)
    assert found.bytes_per_param == 1 + 4 / 128**2


def test_exaone_norms_queries_and_keys_and_its_tower_shares_keys():
    text = ATTENTION_OF_EIGHT | {
        "model_type": "exaone4_5_text",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
        "sliding_window": 64,
        "sliding_window_pattern": "LLLG",
        "max_position_embeddings": 4096,
    }
    tower = {"depth": 2, "hidden_size": 128, "intermediate_size": 256, "hidden_act": "silu"}
    config = {"model_type": "exaone4_5", "text_config": text, "vision_config": tower}
    found = ModelSpec.from_config(config, name="e", source="")
    layer = 4 * 512**2 + 3 * 512 * 1024 + 2 * 512 + 2 * 64
    assert found.num_parameters == 2 * 512 * 1000 + 4 * layer + 512
    assert found.window_layers == frozenset({0, 1, 2})
    config["vision_config"] = tower | {"num_heads": 8, "num_key_value_heads": 2}
    shared = ModelSpec.from_config(config, name="e", source="")
    assert found.tower_parameters - shared.tower_parameters == 2 * 2 * 128 * 96


def test_catalog_has_over_forty_of_them_with_sources():
    assert len(DIFFERING) >= 48
    for name in DIFFERING:
        assert "Hugging Face" in load_model(name).source


@pytest.mark.parametrize(
    ("name", "kv_bytes", "state_bytes", "block_size"),
    [
        # 15 layers x 2 x 2 heads x 256 x 2 bytes; 45 x (64 x 128 x 128 x 4 + 12,288 x 3 x 2);
        # a state of 4,268,032 bytes over 2,048 a token is 2,084.0, in 16s 2,096
        ("qwen3.5-397b-a17b", 30_720, 192_061_440, 2_096),
        # 12 x 2,048; 36 layers of the same state
        ("qwen3.5-122b-a10b", 24_576, 153_649_152, 2_096),
        # 16 x 2 x 4 x 256 x 2; 48 x (48 x 65,536 + 10,240 x 6): 3,207,168 over 4,096 is 783.0
        ("qwen3.5-27b", 65_536, 153_944_064, 784),
        # 23 x 2 x 4 x 256 x 2; 69 x (128 x 65,536 + 20,480 x 6): 8,511,488 over 4,096 is 2,078.0
        ("qwen3.8-2.4t-a95b", 94_208, 587_292_672, 2_080),
        # 6 x 2 x 2 x 128 x 2; 23 x (64 x 64 x 128 x 4 + 6,144 x 6): 2,134,016 over 1,024 is 2,084
        ("nemotron-3-nano-30b-a3b-bf16", 6_144, 49_082_368, 2_096),
        # 10 x 2 x 8 x 128 x 2; 54 x (256 x 64 x 256 x 2 + (16,384 + 4,096) x 6): 8,511,488 / 4,096
        ("nemotron-h-56b-base-8k", 40_960, 459_620_352, 2_080),
        # 24 x 576 x 2; 69 x (96 x 128 x 128 x 4 + 3 x 12,288 x 6): 6,512,640 over 1,152 is 5,653.3,
        # and latent attention takes blocks of 128s
        ("kimi-k3", 27_648, 449_372_160, 5_760),
        # 61 x (576 x 2 + 128 + 4)
        ("deepseek-v3.2", 78_324, 0, 1),
        # 78 x 1,152, and 132 in the 21 layers with an indexer of their own
        ("glm-5.2", 92_628, 0, 1),
        # 60 x 2 x 4 x 128 x 2, and 57 index keys of 128 x 2
        ("minimax-m3", 137_472, 0, 1),
        # 9 x 4 x 320 x 2 and, while the window holds it, 39 x 8 x 320 x 2
        ("mimo-v2-flash", 222_720, 0, 1),
        # 5 x 2 x 1,024 x 2 and 25 x 8 x 512 x 2
        ("gemma-4-26b-a4b", 225_280, 0, 1),
        # 49 layers with 8 KV heads of 128
        ("llama-3.3-nemotron-super-49b-v1", 49 * 4_096, 0, 1),
    ],
)
def test_bytes_by_hand(name, kv_bytes, state_bytes, block_size):
    model = load_model(name)
    assert model.kv_bytes_per_token == kv_bytes
    assert model.state_bytes_per_sequence == state_bytes
    assert model.cache_layout(1).block_size == block_size


def test_entries_and_states_have_vllms_bytes():
    """Of 13 models on 1, 2 and 8 ranks, to the byte."""
    path = Path(__file__).parents[1] / "data/vllm_pages.csv"
    known = list(csv.DictReader(path.read_text("utf-8").splitlines()[1:]))
    found = [(each.model, str(each.ranks), each.bytes_here) for each in asked()]
    assert found == [(row["model"], row["ranks"], float(row["bytes"])) for row in known]
    assert len({row["model"] for row in known}) == 13


def test_parameters_and_bytes_are_those_of_transformers():
    """Of 17 models tensor by tensor; DeepSeek-V4-Flash to a third of a millionth.

    12 of them are in 16 bits: a rank that holds all has twice as many bytes.
    """
    path = Path(__file__).parents[1] / "data/parameters_of_transformers.csv"
    rows = csv.DictReader(path.read_text("utf-8").splitlines()[1:])
    known = {row["model"]: int(row["parameters"]) for row in rows}
    models = {name: load_model(name) for name in known}
    here = {name: model.num_parameters for name, model in models.items()}
    last = "deepseek-v4-flash"
    assert here.pop(last) == pytest.approx(known.pop(last), rel=4e-7)
    assert here == known
    plain = [name for name in known if models[name].quantization is None]
    assert len(plain) == 12
    assert {name: models[name].weight_bytes_per_rank(1) for name in plain} == {
        name: 2 * known[name] for name in plain
    }


def test_blocks_are_as_long_as_vllm_says():
    """32 value heads of 128 x 128 in 32 bits beside 4 KV heads of 256 (vllm-project/vllm#37467).

    Its log: "Setting attention block size to 528 tokens", "Padding mamba page size by 0.76%".
    """
    attention = HeadsMixer(num_heads=16, num_kv_heads=4, head_dim=256, v_head_dim=256)
    state = LinearMixer(kind="gdn", key_heads=16, value_heads=32, key_dim=128, value_dim=128)
    layers = (*[LayerSpec(mixer=state)] * 3, LayerSpec(mixer=attention))
    layout = cache_layout(layers, 1, 2)
    assert layout.block_size == 528
    page = layout.block_size * attention.token_bytes(1, 2)
    assert page / state.state_bytes(1, 2) - 1 == pytest.approx(0.0076, abs=5e-5)
    assert (layout.groups.num_full_groups, layout.groups.num_state_groups) == (1, 3)


@pytest.mark.parametrize("name", DIFFERING)
def test_a_sequence_grows_by_what_keeps_entries_alone(name):
    """From 4,096 to 131,072 tokens: states and windows stay, entries grow by whole blocks."""
    layout = load_model(name).cache_layout(8)
    if not layout.has_groups:
        return
    size = max(16, layout.block_size)
    pool = PagePool(10**7, size, 0, layout.groups, PageRules())
    blocks = -(-131_072 // size) - -(-4_096 // size)
    full = layout.groups.num_full_groups * blocks
    grown_by = pool.blocks_of(131_072) - pool.blocks_of(4_096)
    most = -(-(layout.groups.sliding_window or 0) // size) + 1
    assert 0 <= grown_by - full <= layout.groups.num_window_groups * most
    if layout.has_states:
        assert grown_by == full


@pytest.mark.parametrize("name", DIFFERING)
def test_ranks_of_a_pipeline_hold_the_whole_model(name):
    model = load_model(name)
    parts = [rank_part(model, rank, 4) for rank in range(4)]
    again = model.embedding_params if model.tie_word_embeddings else 0  # first and last rank
    assert sum(part.num_parameters for part in parts) == model.num_parameters + again
    assert sum(part.state_bytes_per_sequence for part in parts) == model.state_bytes_per_sequence


@pytest.mark.parametrize("name", DIFFERING)
def test_one_rank_holds_every_parameter_once(name):
    model = load_model(name).with_dtypes(weights="bf16")
    assert model.weight_bytes_per_rank(1) == 2 * model.num_parameters


@examples(60)
@given(
    name=st.sampled_from(DIFFERING),
    chunks=st.lists(st.tuples(st.integers(1, 9_000), st.integers(0, 200_000)), max_size=3),
    number=st.integers(0, 300),
    context=st.integers(0, 150_000),
    windows=st.booleans(),
)
def test_runs_are_their_single_steps_to_the_bit(name, chunks, number, context, windows):
    predictor = roofline(name)
    seen = number * min(context, 100) if windows else None
    batch = StepBatch(tuple(chunks), number, number * context, seen)
    growth = StepGrowth(number, number // 2 if windows else 0)
    found = predictor.run(batch, growth, 7)
    single = [predictor.step_time(grown(batch, growth, ahead)) for ahead in range(7)]
    assert found.tolist() == single


@pytest.mark.parametrize("name", DIFFERING)
def test_operators_add_up_to_the_step(name):
    predictor = roofline(name)
    batch = StepBatch(((700, 3_000), (50, 0)), 12, 40_000)
    parts = predictor.explain(batch)
    assert sum(part.seconds for part in parts) == pytest.approx(predictor.step_time(batch))
    assert {part.layers for part in parts} <= set(range(1, 2 * load_model(name).num_layers + 200))


def test_states_take_the_same_time_at_every_length():
    """Only the 15 of 60 layers with attention see a longer context."""
    predictor = roofline("qwen3.5-397b-a17b")
    short, long = (
        {part.name: part.seconds for part in predictor.explain(StepBatch((), 8, 8 * context))}
        for context in (4_096, 131_072)
    )
    assert {name for name in short if short[name] != long[name]} == {"decode_attention"}


def test_sparse_attention_stops_growing_and_its_indexer_does_not():
    predictor = roofline("deepseek-v3.2")
    of = [
        {part.name: part.seconds for part in predictor.explain(StepBatch((), 8, 8 * context))}
        for context in (1_000, 4_096, 131_072)
    ]
    sparse, index = "decode_attention_top_2048", "decode_index"
    assert of[0][sparse] < of[1][sparse] == of[2][sparse]
    assert of[0][index] < of[1][index] < of[2][index]


def test_chunked_layers_see_half_a_chunk_beyond_first():
    full = seconds("llama-4-scout-17b-16e-instruct", 131_072) - seconds(
        "llama-4-scout-17b-16e-instruct", 65_536
    )
    plain = replace(
        load_model("llama-4-scout-17b-16e-instruct"),
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, reach=None, is_chunked=False))
            for layer in load_model("llama-4-scout-17b-16e-instruct").layers
        ),
    )
    whole = RooflinePredictor(plain, Cluster(load_gpu("b300"), 8))
    grown_by = whole.step_time(StepBatch((), 1, 131_072)) - whole.step_time(
        StepBatch((), 1, 65_536)
    )
    assert full == pytest.approx(grown_by / 4)  # 12 of the 48 layers


def test_prompts_in_pieces_see_the_keys_of_whole():
    """Chunks of a context, whatever they begin with, have its pairs together."""
    from mist_sim.hardware.predictors.analytic.roofline import Reach

    for reach in (Reach(), Reach(2_048), Reach(8_192, is_chunked=True)):
        _, whole = reach.of_prompt(50_000, np.zeros(1))
        pairs = 0.0
        for start in range(0, 50_000, 1_250):
            pairs += reach.of_prompt(1_250, np.full(1, float(start)))[1][0]
        assert pairs == whole[0]
    seen = sum(min(at % 8_192, 10**9) + 1 for at in range(50_000))
    assert Reach(8_192, is_chunked=True).of_prompt(50_000, np.zeros(1))[1][0] == seen


def test_engines_say_what_they_take_for_granted():
    client = mist.llm_client("llm", model="qwen3.5-35b-a3b", gpu="h200", engine="vllm-0.24")
    assert client.config.kv_cache.block_size == 1_056
    workload = Workload.from_lists([5_000] * 4, [40] * 4, [0.0] * 4)
    result = Simulation(clients=[client], workload=workload).run()
    assert "kv_cache.mamba_cache_mode" in result.summary["assumed"]["llm"]
    assert result.summary["completed"] == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types must have 4 entries, got 1"),
        ({"layer_types": ["hyena"] * 4}, "layer_types names 'hyena'"),
        ({"linear_num_value_heads": None}, "linear_num_value_heads is missing"),
        ({"mamba_ssm_dtype": "int3"}, "mamba_ssm_dtype must be one of"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers must be <= 10000"),
        ({"linear_num_value_heads": 10**7}, "a layer must have <= 100000 heads"),
    ],
)
def test_wrong_configs_are_refused_by_name(changes, said):
    config = {**QWEN, **changes}
    with pytest.raises(ScenarioError, match=said):
        ModelSpec.from_config(config, name="tiny", source="tiny/config.json")


QWEN = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 96,
    "vocab_size": 101,
    "max_position_embeddings": 4096,
}


def test_formats_of_parts_are_read_one_by_one():
    """FP8 mixers and NVFP4 MLPs, the first layer's plain: bytes are the mean, layer by layer."""
    layers = {f"model.layers.{n}.mlp": {"quant_algo": "NVFP4"} for n in (1, 2, 3)}
    layers |= {f"model.layers.{n}.linear_attn": {"quant_algo": "FP8"} for n in (0, 1, 2)}
    table = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
    }
    model = ModelSpec.from_config({**QWEN, "quantization_config": table}, name="tiny", source="")
    assert model.bytes_per_param("mlp") == (2 + 3 * 0.5625) / 4
    assert model.bytes_per_param("linear_attention") == 1
    assert model.bytes_per_param("attention") == 2
    assert model.quantization_of("mlp").compute == "fp4"


def _run(path: str) -> None:
    """Serve four requests with a model on as many GPUs as it takes."""
    workload = Workload.from_lists([4_096] * 4, [16] * 4, [0.0] * 4)
    for size in (1, 2, 4):
        try:
            options = {"tensor_parallel_size": 8, "pipeline_parallel_size": size}
            client = mist.llm_client("llm", model=path, gpu="b300", **options)
        except ScenarioError as error:
            if "does not fit" not in str(error) or size == 4:
                raise
            continue
        assert Simulation(clients=[client], workload=workload).run().summary["completed"] == 4
        return


UNKNOWN = {
    "model_type": "hyena9",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "bos_token_id": 1,
}


EXTRAS = {
    "hub": {"license": "mit", "tags": ["chat"], "base_model": "a/b", "unsloth_version": "2025.3"},
    "code": {"auto_map": {"AutoConfig": "c.C"}, "_name_or_path": "x/y", "trust_remote_code": True},
    "training": {"gradient_checkpointing": True, "lora_alpha": 32, "peft_config": {"r": 8}},
    "lengths": {"model_max_length": 4096, "max_seq_len": 4096, "use_flash_attn": True},
    "rope": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "partial_rotary_factor": 0.5},
    "gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
    "fp8": {"quantization_config": {"quant_method": "fp8"}},
}
COMMUNITY = {
    "phi3": {"full_attn_mod": 1, "resid_pdrop": 0.1, "sliding_window": 2047},
    "gemma": {"head_dim": 16, "gated_mlp": True, "hidden_activation": "gelu_pytorch_tanh"},
    "olmo": {"clip_qkv": 8.0},
    "olmo2": {"attention_bias": False},
    "Yi": {"pretraining_tp": 1},
    "internlm2": {"bias": True, "attn_implementation": "eager"},
    "internlm3": {"qkv_bias": True, "head_dim": 16},
    "baichuan": {"z_loss_weight": 0.1, "model_max_length": 4096},
    "stablelm": {"use_qkv_bias": True, "use_parallel_residual": True},
    "cohere": {"logit_scale": 0.06, "use_parallel_embedding": True, "use_qk_norm": True},
    "cohere2": {"layer_switch": 4, "order_of_interleaved_layers": "local_attn_first"},
    "granite": {"attention_multiplier": 0.01, "residual_multiplier": 0.22},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4},
    "ernie4_5": {"compression_ratio": 1.0, "use_bias": False},
    "minicpm": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "num_experts": 0},
    "exaone4": {"reorder_and_norm": True, "sliding_window_pattern": "LLLG"},
    "seed_oss": {"attention_out_bias": False, "residual_dropout": 0.1},
}


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("model_type", COMMUNITY)
def test_fine_tunes_of_dense_decoders_are_read_as_they_are(model_type, extra):
    """As version 3da3e6c read them, which looked at no other keys."""
    config = UNKNOWN | {"model_type": model_type}
    plain = ModelSpec.from_config(config | {"gated_mlp": True}, name="tiny", source="")
    found = ModelSpec.from_config(
        config | COMMUNITY[model_type] | EXTRAS[extra], name="tiny", source=""
    )
    assert found.num_layers == plain.num_layers
    assert found.kv_bytes_per_token == plain.kv_bytes_per_token
    assert found.num_parameters == pytest.approx(plain.num_parameters, rel=0.01)  # biases
    assert not found.approximated


def test_keys_of_a_dense_decoder_that_are_not_understood_are_named():
    config = UNKNOWN | {"model_type": "falcon", "multi_query": True, "new_decoder": 1}
    found = ModelSpec.from_config(config, name="tiny", source="")
    assert found.approximated == ("falcon as llama", "multi_query", "new_decoder")


@pytest.mark.parametrize(
    "key",
    ["new_block", "moe_topk", "mamba_d_state", "num_shared_experts", "index_heads", "conv_kernel"],
)
def test_keys_of_other_layers_are_refused(key):
    with pytest.raises(ScenarioError, match=f"may change what it computes: {key}"):
        ModelSpec.from_config(UNKNOWN | {key: 3}, name="tiny", source="")
