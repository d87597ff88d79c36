"""Reads the sizes of a transformer from the keys of a Hugging Face `config.json`.

Llama, Mistral, Qwen2, Qwen2.5, Qwen3, Gemma 2 and 3 and BLOOM are known, and Mixtral, Qwen2 and
Qwen3 MoE, gpt-oss, MiniMax-M2, GLM-4.5 to 4.7, DeepSeek-V2 and V3 and Kimi-K2 with their experts
and latent attention; any other dense decoder works when it uses the same key names. Encoders are
BERT and what has its layers (see `config_encoder`). Models whose layers differ have readers of
their own (see `families`). Of a multimodal model, the language model is read (see `config_text`).
Models that the simulator would time wrongly are refused: other mixtures of experts, other layers,
other kinds of quantization, and keys of unknown models that tell of other layers.

Source of defaults and bias rules: the configuration and modeling files of the `transformers`
library for each `model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.bounds import HEADS, LAYERS
from mist_sim.errors import ScenarioError, brief
from mist_sim.models.huggingface.config_encoder import ENCODERS, encoder_fields, is_encoder
from mist_sim.models.huggingface.config_experts import MOE_TYPES, read_mla, read_moe
from mist_sim.models.huggingface.config_quantization import read_quantization
from mist_sim.models.huggingface.config_reader import ConfigReader, MissingSizeError
from mist_sim.models.huggingface.config_text import TEXT_PART, language_keys, text_part
from mist_sim.models.huggingface.config_vision import count_towers, read_vision
from mist_sim.models.huggingface.families import FAMILIES
from mist_sim.models.huggingface.nearest import (
    all_missing,
    flattened,
    missing_and_left,
    nearest_type,
    read_nearest,
)
from mist_sim.models.huggingface.unknown import Watched, refusal, tells_other_layers

_GEMMA = {"gemma2", "gemma3_text"}
_GATED = {"exaone4", "llama", "mistral", "qwen2", "qwen3", *_GEMMA, *MOE_TYPES}
_KNOWN = frozenset(_GATED | {"bloom"} | ENCODERS | set(FAMILIES))


def read_config(
    config: Mapping[str, object], where: str, *, is_nearest: bool = False
) -> dict[str, Any]:
    """Return the sizes as keyword arguments of ModelSpec, without `name` and `source`.

    is_nearest: read unknown parts as the nearest known ones, and list them in `approximated`.
    Raises ScenarioError that starts with `where` and names the key.
    """
    vision = read_vision(config, where)
    try:
        fields = _read_as_it_is(config, where)
    except ScenarioError:
        if not is_nearest:
            raise
        fields = read_nearest(config, where, _read, _KNOWN)
    towers = count_towers(config, fields["hidden_size"], has_vision=vision is not None)
    return fields | {"vision": vision, "tower_parameters": towers[0], "unsized_towers": towers[1]}


def _read_as_it_is(config: Mapping[str, object], where: str) -> dict[str, Any]:
    reader = text_part(ConfigReader(config, where))
    _refuse_two_towers(reader)
    try:
        return _read_part(reader, where, is_multimodal=bool(language_keys(config)))
    except MissingSizeError as error:
        raise all_missing(reader, error, _read) from None


def _read_part(reader: ConfigReader, where: str, *, is_multimodal: bool) -> dict[str, Any]:
    if is_encoder(reader) or str(reader.config.get("model_type")) in _KNOWN:
        return _read(reader)
    watched = Watched(reader.config)
    try:
        fields = _read(ConfigReader(watched, where))
    except ScenarioError:
        keys = sorted(watched.not_understood())
        if is_multimodal or tells_other_layers(keys):
            raise _unknown(reader, keys) from None
        raise
    keys = sorted(watched.not_understood())
    if is_multimodal or tells_other_layers(keys):
        raise _unknown(reader, keys)
    taken = f"{watched.get('model_type')} as llama"
    return fields | ({"approximated": (taken, *keys)} if keys else {})


def _unknown(reader: ConfigReader, keys: list[str]) -> ScenarioError:
    flat = flattened(reader.config)
    model_type = nearest_type(flat)
    missing, left = missing_and_left(flat, model_type, _read)
    return refusal(reader, [key for key in keys if key in left], model_type, missing)


def _read(reader: ConfigReader) -> dict[str, Any]:
    config = reader.config
    family = FAMILIES.get(str(config.get("model_type")))
    if family is not None:
        return family(reader)
    _refuse_two_towers(reader)
    check_layer_types(reader)
    encoder = is_encoder(reader)
    model_type = config.get("model_type")
    bloom = model_type == "bloom"
    hidden_size = reader.size("hidden_size", "n_embed", "n_embd")
    heads = reader.size("num_attention_heads", "n_head", most=HEADS)
    default_head_dim = hidden_size // heads if hidden_size % heads == 0 else None
    mla = read_mla(reader)
    num_layers = reader.size("num_hidden_layers", "n_layer", most=LAYERS)
    moe = read_moe(reader, num_layers, hidden_size)
    quantization, kv_cache_dtype = read_quantization(reader, num_layers, moe, mla)
    fields: dict[str, Any] = {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "intermediate_size": reader.size(
            "intermediate_size", "n_inner", default=4 * hidden_size if bloom else None
        ),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.size(
            "num_key_value_heads", default=None if config.get(TEXT_PART) else heads
        ),
        "head_dim": mla.qk_head_dim if mla else reader.size("head_dim", default=default_head_dim),
        "vocab_size": reader.size("vocab_size"),
        "max_position_embeddings": reader.size(
            "max_position_embeddings", "seq_length", default=2048 if bloom else None
        ),
        "tie_word_embeddings": reader.flag(
            "tie_word_embeddings", model_type not in _GATED - _GEMMA
        ),
        "has_head": not _scores(reader),
        "gated_mlp": reader.flag("gated_mlp", False) if encoder else _gated_mlp(reader),
        "dtype_bytes": reader.dtype_bytes(),
        "moe": moe,
        "num_nextn_predict_layers": _predicting_layers(reader),
        "mla": mla,
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
    }
    if encoder:
        return fields | encoder_fields(reader, fields)
    window, layers = read_window(reader, num_layers, fields["max_position_embeddings"])
    fields |= {"sliding_window": window, "window_layers": layers}
    return fields | _vector_params(reader, fields)


def _scores(reader: ConfigReader) -> bool:
    """Whether it scores or classifies with a few labels, and has no logits of the vocabulary."""
    names = reader.config.get("architectures")
    ends = ("RewardModel", "ForSequenceClassification", "ForTokenClassification")
    return isinstance(names, list) and any(str(name).endswith(ends) for name in names)


def _predicting_layers(reader: ConfigReader) -> int:
    """Layers for multi-token prediction; MiniMax counts modules of one layer, and can have none."""
    if not reader.flag("use_mtp", True):
        return 0
    keys = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers")
    return next((number for key in keys if (number := reader.count(key))), 0)


def _gated_mlp(reader: ConfigReader) -> bool:
    model_type, activation = reader.config.get("model_type"), reader.config.get("hidden_act")
    if model_type in _GATED or model_type == "bloom":
        return reader.flag("gated_mlp", model_type != "bloom")
    if activation in {"silu", "swish"} or reader.config.get("gated_mlp") is not None:
        return reader.flag("gated_mlp", True)
    raise reader.error(
        f"cannot tell from model_type {brief(model_type)} and hidden_act {brief(activation)} "
        "whether the MLP has two or three matrices; add "
        '"gated_mlp": true for three or false for two'
    )


def _vector_params(reader: ConfigReader, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Parameters of norms and biases: RMSNorm has a weight, BLOOM's LayerNorm a bias as well."""
    model_type = reader.config.get("model_type")
    bloom = model_type == "bloom"
    hidden, head_dim = sizes["hidden_size"], sizes["head_dim"]
    norm = 2 * hidden if bloom else hidden
    per_layer = (4 if model_type in _GEMMA else 2) * norm  # Gemma norms outputs as well
    normed = model_type in {"exaone4", "qwen3", "qwen3_moe", "gemma3_text"}
    if normed or (model_type == "glm4_moe" and reader.flag("use_qk_norm", False)):
        per_layer += 2 * head_dim
    if model_type == "minimax_m2" and reader.flag("use_qk_norm", True):  # over all heads at once
        per_layer += (sizes["num_attention_heads"] + sizes["num_key_value_heads"]) * head_dim
    mla = sizes["mla"]
    if mla:  # norms of the compressed query and of the latent
        per_layer += mla.norm_params
    if model_type == "gpt_oss":  # attention sinks
        per_layer += sizes["num_attention_heads"]
    attention_bias = reader.flag("attention_bias", bloom or model_type == "gpt_oss")
    if attention_bias or model_type in {"qwen2", "qwen2_moe"}:
        heads = sizes["num_attention_heads"] + 2 * sizes["num_key_value_heads"]
        per_layer += heads * head_dim
    if attention_bias and model_type != "glm4_moe":  # whose output has none
        per_layer += hidden
    if reader.flag("mlp_bias", bloom):
        per_layer += (2 if sizes["gated_mlp"] else 1) * sizes["intermediate_size"] + hidden
    return {
        "vector_params_per_layer": per_layer,
        "vector_params_outside_layers": (2 if bloom else 1) * norm,  # BLOOM norms its embedding
    }


def _refuse_two_towers(reader: ConfigReader) -> None:
    if reader.config.get("is_encoder_decoder"):
        raise reader.error(
            "is_encoder_decoder means an encoder-decoder model, which is not simulated yet"
        )


# Which layers attend to a sliding window only: `layer_types` says it layer by layer; older configs
# have a rule for each `model_type`.
_OFF_BY_DEFAULT = {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}
_KINDS = {"full_attention": False, "sliding_attention": True}
_NAMES = tuple(_KINDS)
# Every n-th layer has full attention, all other layers a window.
_PATTERN = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}


def read_window(
    reader: ConfigReader, num_layers: int, max_context: int
) -> tuple[int | None, frozenset[int]]:
    """Return the window in tokens and its layers; (None, empty) without a window.

    Qwen models set a window and switch it off; a window as long as the context counts as none.
    """
    layers = _window_layers(reader, num_layers)
    if not layers:
        return None, frozenset()
    window = reader.size("sliding_window")
    return (None, frozenset()) if window >= max_context else (window, layers)


def _window_layers(reader: ConfigReader, num_layers: int) -> frozenset[int]:
    config = reader.config
    model_type = config.get("model_type")
    named = config.get("sliding_window") is not None
    if not reader.flag("use_sliding_window", named and model_type not in _OFF_BY_DEFAULT):
        return frozenset()
    kinds = reader.items("layer_types")
    if kinds:
        return _listed(reader, kinds, num_layers)
    if model_type in _OFF_BY_DEFAULT:
        return frozenset(range(reader.size("max_window_layers", default=28), num_layers))
    pattern = _PATTERN.get(str(model_type), 0)
    keys = ("sliding_window_pattern", "_sliding_window_pattern")
    every = reader.size(*keys, default=pattern or num_layers + 1)
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % every)


def _listed(reader: ConfigReader, kinds: list[object], num_layers: int) -> frozenset[int]:
    if len(kinds) != num_layers:
        raise reader.error(f"layer_types must have {num_layers} entries, got {len(kinds)}")
    return frozenset(
        layer
        for layer, kind in enumerate(kinds)
        if _KINDS[str(kind if kind in _KINDS else reader.known_kind("layer_types", kind, _NAMES))]
    )


def check_layer_types(reader: ConfigReader) -> None:
    """Raise ScenarioError for layers that are neither full nor sliding attention."""
    for kind in reader.items("layer_types"):
        if kind not in _KINDS:
            reader.known_kind("layer_types", kind, _NAMES)
