"""Nemotron-H and Nemotron-3: layers of Mamba-2, of attention, of an MLP or of experts alone."""

from __future__ import annotations

from mist_sim.bounds import LAYERS
from mist_sim.errors import brief
from mist_sim.models.huggingface.config_formats import Names
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.huggingface.families.base import (
    Family,
    Fields,
    fields_of,
    kinds_of,
    state_bytes,
)
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import HeadsMixer, LinearMixer
from mist_sim.models.moe import MoeSpec

_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def nemotron_h(reader: ConfigReader) -> Fields:
    """Read such a model; its MLPs and experts have two matrices (squared ReLU)."""
    kinds = _kinds(reader)
    hidden, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    kv_heads = reader.size("num_key_value_heads")
    head_dim = reader.size("head_dim", "attention_head_dim")
    attention = HeadsMixer(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
    )
    mamba = LinearMixer(
        kind="mamba2",
        key_heads=reader.size("n_groups"),
        value_heads=reader.size("mamba_num_heads"),
        key_dim=reader.size("ssm_state_size"),
        value_dim=reader.size("mamba_head_dim"),
        conv_kernel=reader.size("conv_kernel"),
        chunk_size=reader.size("chunk_size", default=128),
        state_value_bytes=state_bytes(reader, "mamba_ssm_cache_dtype"),
        conv_bias=reader.flag("use_conv_bias", True),
    )
    of_kind = {
        "mamba": LayerSpec(mixer=mamba, vector_params=hidden),
        "attention": LayerSpec(mixer=attention, vector_params=hidden),
        "moe": LayerSpec(has_experts=True, vector_params=hidden),
        "mlp": LayerSpec(mlp_size=reader.size("intermediate_size"), vector_params=hidden),
    }
    family = Family(
        layers=[of_kind[kind] for kind in kinds],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        moe=_experts(reader) if "moe" in kinds else None,
        gated_mlp=reader.config.get("mlp_hidden_act", "relu2") != "relu2",
        num_predicting=reader.count("num_nextn_predict_layers"),
        names=Names(
            mixer="mixer",
            linear="mixer",
            mlp="mixer",
            experts="mixer.experts",
            shared="mixer.shared_experts",
        ),
    )
    return fields_of(reader, family)


def _kinds(reader: ConfigReader) -> list[str]:
    """Return the kind of every layer, from the list of words or the older string of letters."""
    words = tuple(_LETTERS.values())
    if reader.items("layers_block_type"):
        number = len(reader.items("layers_block_type"))
        return kinds_of(reader, "layers_block_type", number, words)
    pattern = reader.config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not set(pattern) <= set(_LETTERS) or not pattern:
        raise reader.error(
            f"hybrid_override_pattern must be of the letters {' '.join(_LETTERS)}, "
            f"got {brief(pattern)}"
        )
    if len(pattern) > LAYERS:
        raise reader.error(
            f"hybrid_override_pattern must have <= {LAYERS} letters, got {len(pattern)}"
        )
    return [_LETTERS[letter] for letter in pattern]


def _experts(reader: ConfigReader) -> MoeSpec:
    num_experts = reader.size("n_routed_experts")
    shared = reader.count("n_shared_experts")
    return MoeSpec(
        num_experts=num_experts,
        num_experts_per_token=reader.size("num_experts_per_tok"),
        intermediate_size=reader.size("moe_intermediate_size"),
        shared_intermediate_size=shared * reader.count("moe_shared_expert_intermediate_size"),
        router_vector_params=num_experts,  # a bias of each expert's score
        hidden_size=reader.count("moe_latent_size") or None,
    )
