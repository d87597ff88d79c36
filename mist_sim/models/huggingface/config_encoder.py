"""Reads encoders: models that read a text in one pass, without a causal mask, and emit nothing.

BERT, RoBERTa, XLM-RoBERTa, CamemBERT and DPR have the same layers: multi-head attention and an MLP
of two matrices, with biases, and a LayerNorm behind each. Positions are learned, so that no
rotation comes with them. All other encoders are refused.

Source: the configuration and modeling files of the `transformers` library for each `model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.models.huggingface.config_reader import ConfigReader

ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "dpr"})
"""Values of `model_type` that are simulated."""

_OTHERS = frozenset(
    {
        "albert",
        "big_bird",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "eurobert",
        "funnel",
        "longformer",
        "modernbert",
        "mpnet",
        "new",
        "nomic_bert",
        "xlm-roberta-xl",
    }
)
_PADDED = frozenset({"roberta", "xlm-roberta", "camembert"})
"""Their positions are numbered from behind that of padding on (`create_position_ids_from_input_ids`
of `modeling_roberta.py`): 514 of them read 512 tokens."""
_PADDING = 1  # if the config has no value (`RobertaConfig.pad_token_id`)
_LABELS = 2  # of a classifier, if the config has no value (`PretrainedConfig.num_labels`)


def is_encoder(reader: ConfigReader) -> bool:
    """Tell whether a config describes an encoder.

    Raises ScenarioError for an encoder that is not simulated, and for BERT's layers used as a
    decoder.
    """
    model_type = reader.config.get("model_type")
    if model_type in _OTHERS:
        raise reader.error(
            f"model_type {model_type} is an encoder that is not simulated yet. Known: "
            f"{', '.join(sorted(ENCODERS))}"
        )
    if model_type not in ENCODERS:
        return False
    for key in ("is_decoder", "add_cross_attention"):
        if reader.flag(key, False):
            raise reader.error(f"{key} must be false with model_type {model_type}, got true")
    return True


def encoder_fields(reader: ConfigReader, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoder's fields that replace a decoder's norms, biases and head."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    biases = 4 * hidden + (2 if sizes["gated_mlp"] else 1) * inner + hidden
    positions = sizes["max_position_embeddings"] + reader.size("type_vocab_size", default=2)
    norm, longest = 2 * hidden, sizes["max_position_embeddings"]
    if reader.config.get("model_type") in _PADDED:
        is_given = reader.config.get("pad_token_id") is not None
        longest -= (reader.count("pad_token_id") if is_given else _PADDING) + 1
    if longest < 1:
        raise reader.error(
            "max_position_embeddings must be > pad_token_id + 1, since the first positions are of "
            f"padding, got {sizes['max_position_embeddings']}"
        )
    return {
        "max_position_embeddings": longest,
        "is_encoder": True,
        "has_head": False,
        "tie_word_embeddings": False,
        "vector_params_per_layer": 2 * norm + biases,
        "vector_params_outside_layers": positions * hidden + norm + _top_params(reader, hidden),
    }


def _top_params(reader: ConfigReader, hidden: int) -> int:
    """Parameters behind the layers: a pooler, or the classifier of a re-ranker, or a projection."""
    if reader.config.get("model_type") == "dpr":
        projection = reader.count("projection_dim")
        return projection * (hidden + 1)
    pooler = hidden * (hidden + 1)
    if not any("SequenceClassification" in str(name) for name in reader.items("architectures")):
        return pooler
    named = reader.config.get("id2label")
    labels = len(named) if isinstance(named, dict) else reader.size("num_labels", default=_LABELS)
    return pooler + labels * (hidden + 1)
