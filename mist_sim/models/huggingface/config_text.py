"""Finds the language model in the config of a multimodal one (`config_vision` reads its tower).

Source of the types: the configuration files of the `transformers` library. A text part follows
the rules of the plain model that it was made from; what it leaves out is not guessed, except for
Gemma 3, whose configs leave out what equals the defaults of `Gemma3TextConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.models.huggingface.config_reader import NEAREST_HINT, ConfigReader
from mist_sim.models.huggingface.families import FAMILIES

# The plain model with the same layers as a text part, by its model_type.
_TEXT_TYPES: Mapping[str, str] = {
    **{name: name for name in FAMILIES},
    "deepseek_v3": "deepseek_v3",
    "gemma3_text": "gemma3_text",
    "kimi_k2": "kimi_k2",
    "llama": "llama",
    "ministral3": "mistral",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
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
_OF_THE_WHOLE = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")


def text_part(reader: ConfigReader) -> ConfigReader:
    """Return a reader of the language model's config: the whole config if it has no parts.

    An unknown text part keeps its `model_type`. Raises ScenarioError for one without a type, and
    for a known one that leaves out a key on which the defaults of the text part and of the plain
    model may differ.
    """
    text, model_type = reader.table("text_config"), str(reader.config.get("model_type"))
    if text is None and model_type not in _FLAT:
        return reader
    if text is None:
        return ConfigReader({**reader.config, "model_type": _FLAT[model_type]}, reader.where)
    config = {key: reader.config[key] for key in _OF_THE_WHOLE if key in reader.config}
    defaults = _GEMMA3_TEXT if model_type == "gemma3" else {}
    config |= {**defaults, **text.config}
    text_type = str(config.get("model_type") or _OF_WHOLE.get(model_type, ""))
    if not text_type:
        raise text.error(
            "model_type is missing; this is a multimodal model, and its language model must say "
            f'whose layers it has, such as "qwen3"; {NEAREST_HINT}'
        )
    if text_type not in _TEXT_TYPES:
        return ConfigReader({**config, "model_type": text_type}, text.where)
    if "num_key_value_heads" not in config:
        raise text.error("num_key_value_heads is missing")
    return ConfigReader({**config, "model_type": _TEXT_TYPES[text_type]}, text.where)
