"""Shared code of the families of configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mist_sim.bounds import HEADS, LAYERS
from mist_sim.errors import brief
from mist_sim.models.huggingface.config_formats import Names, read_formats
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.layers import LayerSpec, mixers_of
from mist_sim.models.mla import MlaSpec
from mist_sim.models.moe import MoeSpec

Fields = dict[str, Any]
"""Keyword arguments of ModelSpec, without `name` and `source`."""

STATE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a value of a state, by the names of configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The result of a family's reader.

    layers: all layers. heads, kv_heads, head_dim: sizes of the attention, in the first layer if
        they differ.
    names: a checkpoint's names of the matrices. tied: default for tied embeddings.
    num_predicting: layers after the others that predict further tokens.
    latent_moe: whether experts work in a smaller space than the model's.
    vectors_outside: vector parameters outside the layers and the last norm.
    """

    layers: Sequence[LayerSpec]
    heads: int
    kv_heads: int
    head_dim: int
    moe: MoeSpec | None = None
    gated_mlp: bool = True
    tied: bool = False
    num_predicting: int = 0
    names: Names = field(default_factory=Names)
    vectors_outside: int = 0


def fields_of(reader: ConfigReader, family: Family) -> Fields:
    """Return a model's fields from those of its family and the common keys."""
    layers, moe = tuple(family.layers), family.moe
    for mixer in mixers_of(layers):
        if mixer.most_ranks > HEADS:
            raise reader.error(f"a layer must have <= {HEADS} heads, got {mixer.most_ranks}")
    hidden = reader.size("hidden_size")
    sizes = [layer.mlp_size for layer in layers]
    fields: Fields = {
        "num_layers": len(layers),
        "hidden_size": hidden,
        "intermediate_size": max(sizes) or (moe.intermediate_size if moe else 0),
        "num_attention_heads": family.heads,
        "num_key_value_heads": family.kv_heads,
        "head_dim": family.head_dim,
        "vocab_size": reader.size("vocab_size"),
        "max_position_embeddings": reader.size("max_position_embeddings"),
        "tie_word_embeddings": reader.flag("tie_word_embeddings", family.tied),
        "gated_mlp": family.gated_mlp,
        "dtype_bytes": reader.dtype_bytes(),
        "moe": moe,
        "layers": layers,
        "num_nextn_predict_layers": family.num_predicting,
        "vector_params_outside_layers": hidden + family.vectors_outside,
    }
    return fields | read_formats(reader, layers, family.names)


def kinds_of(reader: ConfigReader, key: str, num_layers: int, known: Sequence[object]) -> list[Any]:
    """Return the kind of each layer from a list. Raises ScenarioError for bad words."""
    kinds = reader.items(key)
    if num_layers > LAYERS:
        raise reader.error(f"{key} must have <= {LAYERS} entries, got {num_layers}")
    if len(kinds) < num_layers:
        raise reader.error(f"{key} must have {num_layers} entries, got {len(kinds)}")
    return [
        kind if kind in known else reader.known_kind(key, kind, known)
        for kind in kinds[:num_layers]
    ]


def state_bytes(reader: ConfigReader, *keys: str) -> int:
    """Return the bytes of a value of the states; by default those of activations."""
    given = next((reader.config[key] for key in keys if reader.config.get(key)), "bfloat16")
    if given not in STATE_BYTES:
        raise reader.error(f"{keys[0]} must be one of {', '.join(STATE_BYTES)}, got {brief(given)}")
    return STATE_BYTES[str(given)]


def latent_norms(mla: MlaSpec) -> int:
    """Return the parameters of the norms of the compressed query and of the latent."""
    return (mla.q_lora_rank or 0) + mla.kv_lora_rank


def hyper_connections(reader: ConfigReader, hidden: int) -> int:
    """Return a layer's parameters of manifold-constrained hyper-connections (arXiv 2512.24880).

    Of `hc_mult` copies of the hidden state, (2 + copies) x copies weights are computed before
    attention and before the FFN: which copies go in, come out, and mix.
    """
    copies = reader.count("hc_mult")
    outputs = (2 + copies) * copies
    return 2 * (outputs * copies * hidden + outputs + 3) if copies else 0
