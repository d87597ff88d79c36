"""The language model in the config of a multimodal one."""

from dataclasses import replace

import pytest

from mist_sim.clients.kv_cache.profile_run import NEWEST
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.huggingface.config_text import LANGUAGE_KEYS
from mist_sim.models.model_loading import _catalog

VISION = {"depth": 24, "hidden_size": 1024}
# As in the config.json of Mistral-Small-3.1-24B-Instruct-2503, shortened.
MISTRAL3 = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "mistral",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "vocab_size": 131072,
    },
    "vision_config": VISION,
}
# As in that of Qwen3-VL-30B-A3B-Instruct: the outer table says whether the vocabulary is tied.
QWEN3_VL = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe",
    "text_config": {
        "model_type": "qwen3_vl_moe_text",
        "decoder_sparse_step": 1,
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": False,
    "vision_config": VISION,
}
# As in that of Qwen2.5-VL-7B-Instruct, which has no table for the text.
QWEN25_VL = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vision_config": VISION,
    "vocab_size": 152064,
}


def read(config: dict[str, object]) -> ModelSpec:
    return ModelSpec.from_config(config, name="vl", source="vl/config.json")


def text(config: dict[str, object], **changes: object) -> dict[str, object]:
    part = {**config["text_config"], **changes}
    return {**config, "text_config": {key: part[key] for key in part if part[key] is not ...}}


@pytest.mark.parametrize(
    ("config", "same_as"),
    [(MISTRAL3, "mistral-small-24b"), (QWEN3_VL, "qwen3-30b-a3b"), (QWEN25_VL, "qwen2.5-7b")],
)
def test_text_parts_have_the_parameters_of_plain_model(config, same_as):
    model, plain = read(config), load_model(same_as)
    assert model.num_parameters == plain.num_parameters
    assert model.kv_bytes_per_token == plain.kv_bytes_per_token
    assert model.tie_word_embeddings == plain.tie_word_embeddings


# The key and the type of the language model in eleven configs of images and sound, as published.
PUBLISHED = [
    ("internvl_chat", "llm_config", "qwen2"),  # InternVL3
    ("internvl_chat", "llm_config", "internlm2"),  # InternVL2-8B
    ("ovis", "llm_config", "qwen2"),
    ("deepseek_vl_v2", "language_config", "deepseek_v2"),
    ("multi_modality", "language_config", "llama"),  # Janus-Pro
    ("qwen2_5_omni", "thinker_config.text_config", "qwen2_5_omni_text"),
    ("qwen3_omni_moe", "thinker_config.text_config", "qwen3_omni_moe_text"),
    ("qwen3_asr", "thinker_config.text_config", "qwen3"),
    ("llava_llama", "llm_cfg", "llama"),  # VILA
    ("vibevoice", "decoder_config", "qwen2"),
    ("voxtral", "text_config", "llama"),
]


@pytest.mark.parametrize(("whole", "keys", "model_type"), PUBLISHED)
def test_language_models_are_found_under_published_keys(whole, keys, model_type):
    base = QWEN3_VL if "moe" in model_type else MISTRAL3
    inner = {**base["text_config"], "model_type": model_type}
    plain = read(text({**base, "model_type": "llava"}, model_type=model_type))
    for key in reversed(keys.split(".")):
        inner = {key: inner}
    outer = {"model_type": whole, "torch_dtype": "bfloat16", "vision_config": VISION}
    found = read(outer | {"tie_word_embeddings": base.get("tie_word_embeddings")} | inner)
    assert found.num_parameters == plain.num_parameters > 1e9
    assert found.kv_bytes_per_token == plain.kv_bytes_per_token
    assert found.architecture == model_type
    assert tuple(keys.split(".")) in LANGUAGE_KEYS


def test_plain_model_of_catalog_is_same_inside_another():
    """GLM-4.5V has the language model of GLM-4.5-Air, InternVL3.5-20B that of gpt-oss."""
    pairs = (("glm-4.5-air", "glm4v_moe_text"), ("gpt-oss-20b", "gpt_oss"))
    for name, model_type in pairs:
        inner = {**_catalog()[name], "model_type": model_type}
        found = read({"model_type": "internvl_chat", "llm_config": inner})
        assert found.num_parameters == load_model(name).num_parameters
        assert found.moe == load_model(name).moe


def test_all_sizes_that_are_missing_are_named_at_once():
    """As llava-hf/llava-1.5-7b-hf, whose config leaves them to the library's defaults."""
    part = {"_name_or_path": "lmsys/vicuna-7b-v1.5", "model_type": "llama", "vocab_size": 32064}
    config = {"model_type": "llava", "text_config": part}
    with pytest.raises(ScenarioError) as caught:
        read(config)
    assert str(caught.value) == (
        "vl/config.json: text_config: hidden_size, num_attention_heads, num_hidden_layers, "
        "intermediate_size, num_key_value_heads, max_position_embeddings are missing; copy them "
        "from the config.json of 'lmsys/vicuna-7b-v1.5'"
    )
    with pytest.raises(ScenarioError, match="hidden_size, num_attention_heads, .* are missing"):
        ModelSpec.from_config(config, name="vl", source="vl", is_nearest=True)


def test_the_outer_table_says_what_holds_for_whole():
    assert read({**QWEN3_VL, "tie_word_embeddings": True}).tie_word_embeddings
    assert read(text({**QWEN3_VL, "tie_word_embeddings": False}, tie_word_embeddings=True)) == read(
        {**QWEN3_VL, "tie_word_embeddings": True}
    )
    quantized = read({**MISTRAL3, "quantization_config": {"quant_method": "fp8"}})
    assert quantized.quantization is not None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (text(MISTRAL3, model_type="t5"), "text_config: model_type 't5' is not known"),
        (text(MISTRAL3, model_type=...), "text_config: model_type is missing"),
        (text(MISTRAL3, num_key_value_heads=...), "text_config: num_key_value_heads is missing"),
        (text(MISTRAL3, hidden_size=...), r"text_config: hidden_size \(or n_embed, n_embd\) is"),
        ({**MISTRAL3, "text_config": [1]}, "text_config must be a table"),
        (
            {"is_encoder_decoder": True, "decoder_config": {"model_type": "dia_decoder"}},
            "decoder_config: is_encoder_decoder means an encoder-decoder model",
        ),
    ],
)
def test_what_text_part_leaves_out_is_not_guessed(config, problem):
    with pytest.raises(ScenarioError, match=f"^vl/config.json: .*{problem}"):
        read(config)


INTERN_VIT = {
    "hidden_size": 3200,
    "intermediate_size": 12800,
    "num_hidden_layers": 45,
    "patch_size": 14,
    "image_size": 448,
}
QWEN2_VL = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "patch_size": 14}
WHISPER = {"d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120}


@pytest.mark.parametrize(
    ("towers", "parameters", "unsized"),
    [
        ({"vision_config": INTERN_VIT}, 5.57e9, ()),  # 5.54 B (arXiv 2404.16821), and a projector
        ({"vision_config": QWEN2_VL}, 0.66e9, ()),  # 675 M (arXiv 2409.12191)
        ({"audio_config": WHISPER}, 0.66e9, ()),  # 635 M in the encoder of Whisper-large
        ({"vision_config": {"hidden_size": 1024}}, 0, ("vision_config",)),
        ({"vision_config": {**INTERN_VIT, "hidden_size": "big"}}, 0, ("vision_config",)),
        ({}, 0, ()),
    ],
)
def test_loaded_towers_are_counted_apart(towers, parameters, unsized):
    found = read({"text_config": MISTRAL3["text_config"], **towers})
    assert found.tower_parameters == pytest.approx(parameters, rel=0.05)
    assert found.unsized_towers == unsized
    assert found.num_parameters == read(MISTRAL3).num_parameters


def test_towers_take_room_of_the_cache():
    model = replace(load_model("qwen3-8b"), tower_parameters=5_000_000_000)
    cluster = Cluster(load_gpu("h100-sxm"), tensor_parallel_size=2)
    weights, without = (NEWEST.weights(each, cluster) for each in (model, load_model("qwen3-8b")))
    assert weights == without + 5e9
