"""Finds the language model in the config of a multimodal one (`config_vision` reads its tower).

Source of the types: the configuration files of the `transformers` library. A text part follows
the rules of the plain model that it was made from; what it leaves out is not guessed, except for
Gemma 3, whose configs leave out what equals the defaults of `Gemma3TextConfig`. Source of the keys:
that library, and the config.json of InternVL and Ovis, DeepSeek-VL2 and Janus, Qwen-Omni, VILA,
VibeVoice and VoxCPM.
"""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.models.huggingface.config_experts import MOE_TYPES
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.huggingface.families import FAMILIES

LANGUAGE_KEYS: tuple[tuple[str, ...], ...] = (
    ("text_config",),
    ("llm_config",),
    ("language_config",),
    ("thinker_config", "text_config"),
    ("llm_cfg",),
    ("decoder_config",),
    ("lm_config",),
)
"""Where a config keeps its language model: keys of tables, each inside the one before."""

TEXT_PART = "_is_text_part"
"""Key of a language model's config that was found in another: its KV heads have no default."""

# The plain model with the same layers as a text part, by its model_type.
_TEXT_TYPES: Mapping[str, str] = {
    **{name: name for name in (*FAMILIES, *MOE_TYPES)},
    "exaone4": "exaone4",
    "exaone4_5_text": "exaone4",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3_text",
    "glm4v_moe_text": "glm4_moe",
    "granite": "llama",  # with multipliers, which cost nothing
    "internlm2": "llama",  # Llama with grouped heads (arXiv 2403.17297)
    "llama": "llama",
    "ministral3": "mistral",
    "mistral": "mistral",
    "phi3": "mistral",  # its matrices are stored as one
    "qwen2": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3": "qwen3",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
# Of the text part of a whole model, where the part itself has no model_type.
_OF_WHOLE = {"minimax_m3_vl": "minimax_m3"}
_FLAT = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2"}  # older configs, without a table for the text
_GEMMA3_TEXT: Mapping[str, object] = {
    "model_type": "gemma3_text",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
}
_OF_THE_WHOLE = (
    "dtype",
    "torch_dtype",
    "tie_word_embeddings",
    "quantization_config",
    "is_encoder_decoder",
)


def language_keys(config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keys that lead to the language model of a multimodal config; empty: it is one."""
    for keys in LANGUAGE_KEYS:
        inner: object = config
        for key in keys:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if inner:
            return keys
    return ()


def language_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the written config of the language model alone; of a text model, the whole config."""
    inner: object = config
    for key in language_keys(config):
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, Mapping) else config


def text_part(reader: ConfigReader) -> ConfigReader:
    """Return a reader of the language model's config: the whole config if it has no parts.

    An unknown text part keeps its `model_type`, or has none. A known one must say its KV heads,
    since the defaults of the text part and of the plain model may differ.
    """
    keys, model_type = language_keys(reader.config), str(reader.config.get("model_type"))
    if not keys and model_type not in _FLAT:
        return reader
    if not keys:
        return ConfigReader({**reader.config, "model_type": _FLAT[model_type]}, reader.where)
    config: dict[str, object] = {}
    text: ConfigReader | None = reader
    for key in keys:
        if text is not None:
            config |= {key: text.config[key] for key in _OF_THE_WHOLE if key in text.config}
            text = text.table(key)
    if text is None:
        return reader
    defaults = _GEMMA3_TEXT if model_type == "gemma3" else {}
    config |= {**defaults, **text.config, TEXT_PART: True}
    text_type = str(config.get("model_type") or _OF_WHOLE.get(model_type, ""))
    if text_type:
        config["model_type"] = _TEXT_TYPES.get(text_type, text_type)
    return ConfigReader(config, text.where)
