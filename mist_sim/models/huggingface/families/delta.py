"""Qwen3-Next, Qwen3.5 to 3.8 (Gated DeltaNet) and Kimi-Linear, Kimi-K3 (KDA)."""

from __future__ import annotations

from dataclasses import replace

from mist_sim.bounds import LAYERS
from mist_sim.models.huggingface.config_experts import mla_of
from mist_sim.models.huggingface.config_formats import Names
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.huggingface.families.base import (
    Family,
    Fields,
    fields_of,
    kinds_of,
    latent_norms,
    state_bytes,
)
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import HeadsMixer, LatentMixer, LinearMixer, Mixer
from mist_sim.models.moe import MoeSpec


def qwen_next(reader: ConfigReader) -> Fields:
    """Read a model of three layers with Gated DeltaNet to one with gated attention."""
    hidden, num_layers = reader.size("hidden_size"), reader.size("num_hidden_layers", most=LAYERS)
    heads, head_dim = reader.size("num_attention_heads"), reader.size("head_dim")
    kv_heads = reader.size("num_key_value_heads")
    mixers: dict[str, Mixer] = {
        "full_attention": HeadsMixer(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim,
            gated=reader.flag("attn_output_gate", True),
            vector_params=2 * head_dim,
        ),
        "linear_attention": LinearMixer(
            kind="gdn",
            key_heads=reader.size("linear_num_key_heads"),
            value_heads=reader.size("linear_num_value_heads"),
            key_dim=reader.size("linear_key_head_dim"),
            value_dim=reader.size("linear_value_head_dim"),
            conv_kernel=reader.size("linear_conv_kernel_dim"),
            state_value_bytes=state_bytes(reader, "mamba_ssm_dtype"),
        ),
    }
    if reader.items("layer_types"):
        kinds = kinds_of(reader, "layer_types", num_layers, tuple(mixers))
    else:
        every = reader.size("full_attention_interval", default=4)
        names = ("full_attention", "linear_attention")
        kinds = [names[(layer + 1) % every > 0] for layer in range(num_layers)]
    moe = _qwen_experts(reader, hidden)
    listed, step = reader.items("mlp_only_layers"), reader.size("decoder_sparse_step", default=1)
    layers = []
    for number, kind in enumerate(kinds):
        has_experts = moe is not None and number not in listed and (number + 1) % step == 0
        layers.append(
            LayerSpec(
                mixer=mixers[kind],
                mlp_size=0 if has_experts else reader.size("intermediate_size"),
                has_experts=has_experts,
                vector_params=2 * hidden,
            )
        )
    family = Family(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        moe=moe,
        num_predicting=reader.count("mtp_num_hidden_layers"),
        names=Names(linear="linear_attn"),
    )
    return fields_of(reader, family)


def _qwen_experts(reader: ConfigReader, hidden: int) -> MoeSpec | None:
    if not reader.count("num_experts"):
        return None
    return MoeSpec(
        num_experts=reader.size("num_experts"),
        num_experts_per_token=reader.size("num_experts_per_tok"),
        intermediate_size=reader.size("moe_intermediate_size"),
        shared_intermediate_size=reader.size("shared_expert_intermediate_size"),
        router_vector_params=hidden,  # shared_expert_gate
    )


def kda_mixer(reader: ConfigReader) -> LinearMixer:
    """Return the Kimi Delta Attention of a `linear_attn_config`."""
    table = reader.table("linear_attn_config")
    if table is None:
        raise reader.error("linear_attn_config is missing")
    heads, size = table.size("num_heads"), table.size("head_dim")
    return LinearMixer(
        kind="kda",
        key_heads=heads,
        value_heads=heads,
        key_dim=size,
        value_dim=size,
        conv_kernel=table.size("short_conv_kernel_size"),
        full_gate=table.flag("use_full_rank_gate", False),
    )


def kimi_linear(reader: ConfigReader) -> Fields:
    """Read a model of three layers with KDA to one with latent attention; layers count from 1."""
    hidden, num_layers = reader.size("hidden_size"), reader.size("num_hidden_layers", most=LAYERS)
    heads, mla, table = reader.size("num_attention_heads"), mla_of(reader), None
    gated = reader.flag("mla_use_output_gate", False)
    latent = LatentMixer(mla=mla, num_heads=heads, gated=gated, vector_params=latent_norms(mla))
    table, linear = reader.table("linear_attn_config"), kda_mixer(reader)
    full_layers = table.items("full_attn_layers") if table else []
    moe = _kimi_experts(reader)
    first, frequency = reader.count("first_k_dense_replace"), reader.size("moe_layer_freq")
    layers = []
    for number in range(num_layers):
        has_experts = number >= first and number % frequency == 0
        layers.append(
            LayerSpec(
                mixer=latent if number + 1 in full_layers else linear,
                mlp_size=0 if has_experts else reader.size("intermediate_size"),
                has_experts=has_experts,
                vector_params=2 * hidden,
            )
        )
    if moe.hidden_size and reader.flag("latent_moe_use_norm", False):
        moe = replace(moe, router_vector_params=moe.router_vector_params + moe.hidden_size)
    family = Family(
        layers=layers,
        heads=heads,
        kv_heads=reader.size("num_key_value_heads", default=heads),
        head_dim=mla.qk_head_dim,
        moe=moe,
        num_predicting=reader.count("num_nextn_predict_layers"),
        names=Names(experts="block_sparse_moe.experts", shared="block_sparse_moe.shared_experts"),
    )
    return fields_of(reader, family)


def _kimi_experts(reader: ConfigReader) -> MoeSpec:
    inner, num_experts = reader.size("moe_intermediate_size"), reader.size("num_experts")
    return MoeSpec(
        num_experts=num_experts,
        num_experts_per_token=reader.size("num_experts_per_token"),
        intermediate_size=inner,
        shared_intermediate_size=reader.count("num_shared_experts") * inner,
        router_vector_params=num_experts,  # a bias of each expert's score
        hidden_size=reader.count("routed_expert_hidden_size") or None,
    )
