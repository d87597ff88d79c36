"""Llama 4, Gemma 4, MiMo-V2-Flash, Step-3.5 and 3.7, Muse-Glimmer: windows, chunks, all keys."""

from __future__ import annotations

from mist_sim.bounds import LAYERS
from mist_sim.errors import brief
from mist_sim.models.huggingface.config_formats import Names
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.huggingface.families.base import Family, Fields, fields_of, kinds_of
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import HeadsMixer
from mist_sim.models.moe import MoeSpec

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _heads(reader: ConfigReader, **more: object) -> HeadsMixer:
    """Return attention of the sizes under the keys that most configs have."""
    sizes = {
        "num_heads": reader.size("num_attention_heads"),
        "num_kv_heads": reader.size("num_key_value_heads", "num_attention_groups"),
        "head_dim": reader.size("head_dim"),
        "v_head_dim": reader.size("v_head_dim", "head_dim"),
    }
    return HeadsMixer(**{**sizes, **more})  # type: ignore[arg-type]


def _family(
    full: HeadsMixer,
    layers: list[LayerSpec],
    moe: MoeSpec | None = None,
    *,
    tied: bool = False,
    num_predicting: int = 0,
    names: Names | None = None,
) -> Family:
    return Family(
        layers=layers,
        heads=full.num_heads,
        kv_heads=full.num_kv_heads,
        head_dim=full.head_dim,
        moe=moe,
        tied=tied,
        num_predicting=num_predicting,
        names=names or Names(),
    )


def llama4(reader: ConfigReader) -> Fields:
    """Read Llama 4: chunks in three of four layers, all keys without a rotation in the fourth."""
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    full = _heads(reader)
    chunk = reader.size("attention_chunk_size")
    every = reader.size("no_rope_layer_interval", default=4)
    step = reader.size("interleave_moe_layer_step")
    inner = reader.size("intermediate_size")
    layers = []
    for number in range(num_layers):
        has_experts = (number + 1) % step == 0
        is_full = (number + 1) % every == 0 or chunk >= reader.size("max_position_embeddings")
        layers.append(
            LayerSpec(
                mixer=full if is_full else _heads(reader, reach=chunk, is_chunked=True),
                mlp_size=0 if has_experts else reader.size("intermediate_size_mlp"),
                has_experts=has_experts,
                vector_params=2 * hidden,
            )
        )
    moe = MoeSpec(
        num_experts=reader.size("num_local_experts"),
        num_experts_per_token=reader.size("num_experts_per_tok"),
        intermediate_size=inner,
        shared_intermediate_size=inner,
    )
    names = Names(experts="feed_forward.experts", shared="feed_forward.shared_expert")
    return fields_of(reader, _family(full, layers, moe, names=names))


def gemma4(reader: ConfigReader) -> Fields:
    """Read Gemma 4: windows with many KV heads, all keys with few and larger ones."""
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if reader.count(key):
            reader.leave_out(f"{key} must be 0 or absent; it is not simulated yet", key)
    size, large = reader.size("head_dim"), reader.size("global_head_dim")
    window = reader.size("sliding_window")
    mixers = {
        _FULL: _heads(
            reader,
            num_kv_heads=reader.size("num_global_key_value_heads", "num_key_value_heads"),
            head_dim=large,
            v_head_dim=large,
            shares_values=reader.flag("attention_k_eq_v", False),
            vector_params=2 * large,
        ),
        _SLIDING: _heads(reader, reach=window, vector_params=2 * size),
    }
    kinds = kinds_of(reader, "layer_types", num_layers, tuple(mixers))
    moe, inner = None, reader.size("intermediate_size")
    norms = 4 * hidden
    if reader.flag("enable_moe_block", False):  # the MLP is beside the experts, with more norms
        num_experts = reader.size("num_experts")
        moe = MoeSpec(
            num_experts=num_experts,
            num_experts_per_token=reader.size("top_k_experts", "num_experts_per_tok"),
            intermediate_size=reader.size("moe_intermediate_size", "expert_intermediate_size"),
            shared_intermediate_size=inner,
            router_vector_params=num_experts + hidden,  # a scale of each expert, and of the router
            has_gelu=True,
        )
        norms += 3 * hidden
    layers = [
        LayerSpec(
            mixer=mixers[kind],
            mlp_size=0 if moe else inner,
            has_experts=moe is not None,
            vector_params=norms,
        )
        for kind in kinds
    ]
    names = Names(shared="mlp", experts="experts")
    return fields_of(reader, _family(mixers[_FULL], layers, moe, tied=True, names=names))


def mimo_v2(reader: ConfigReader) -> Fields:
    """Read MiMo-V2-Flash: windows with twice the KV heads and a sink for each head."""
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    heads = reader.size("swa_num_attention_heads", "num_attention_heads")
    sinks = heads if reader.flag("add_swa_attention_sink_bias", False) else 0
    full = _heads(
        reader,
        vector_params=reader.size("num_attention_heads")
        if reader.flag("add_full_attention_sink_bias", False)
        else 0,
    )
    sliding = _heads(
        reader,
        num_heads=heads,
        num_kv_heads=reader.size("swa_num_key_value_heads", "num_key_value_heads"),
        head_dim=reader.size("swa_head_dim", "head_dim"),
        v_head_dim=reader.size("swa_v_head_dim", "v_head_dim"),
        reach=reader.size("sliding_window"),
        vector_params=sinks,
    )
    windows = kinds_of(reader, "hybrid_layer_pattern", num_layers, (0, 1))
    routed = kinds_of(reader, "moe_layer_freq", num_layers, (0, 1))
    moe = _experts(reader, reader.count("n_shared_experts"))
    layers = _layers(reader, [(full, sliding)[each] for each in windows], routed, 2 * hidden)
    return fields_of(reader, _family(full, layers, moe))


def step3(reader: ConfigReader) -> Fields:
    """Read Step-3.5 and 3.7: a layer that sees all keys before every three with a window.

    Windows may have more query heads. A gate of each head is a product with `hidden` inputs.
    """
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    is_gated = reader.flag("use_head_wise_attn_gate", False)
    norms = 2 * reader.size("head_dim")

    def vectors(heads: int) -> int:
        return norms + (hidden * heads if is_gated else 0)

    heads = reader.size("num_attention_heads")
    other = reader.table("attention_other_setting") or reader
    sliding = heads
    if other is not reader:
        sliding = other.size("num_attention_heads")
    sliding = reader.size("num_sliding_attention_heads", default=sliding)
    mixers = {
        _FULL: _heads(reader, vector_params=vectors(heads)),
        _SLIDING: _heads(
            reader,
            num_heads=sliding,
            reach=reader.size("sliding_window"),
            vector_params=vectors(sliding),
        ),
    }
    kinds = kinds_of(reader, "layer_types", num_layers, tuple(mixers))
    routed = _routed_of_step(reader, num_layers)
    moe = _experts(reader, 0, reader.count("share_expert_dim") or reader.count("share_expert_dims"))
    layers = _layers(reader, [mixers[kind] for kind in kinds], routed, 2 * hidden)
    family = _family(
        mixers[_FULL], layers, moe, num_predicting=reader.count("num_nextn_predict_layers")
    )
    return fields_of(reader, family)


def _routed_of_step(reader: ConfigReader, num_layers: int) -> list[int]:
    """Return 1 for each layer with experts: those listed, or all but the first ones."""
    listed = reader.config.get("moe_layers_enum")
    if listed is None:
        first = reader.count("first_k_dense_replace")
        return [int(number >= first) for number in range(num_layers)]
    written = listed if isinstance(listed, list) else str(listed).split(",")
    names = {str(each).strip() for each in written}
    if not all(name.isdecimal() for name in names):
        raise reader.error(f"moe_layers_enum must list layers, as in 3,4,5, got {brief(listed)}")
    return [int(str(number) in names) for number in range(num_layers)]


def muse_glimmer(reader: ConfigReader) -> Fields:
    """Read Muse-Glimmer: dense, with an output gate, norms of queries and keys, and windows."""
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    more = {"gated": True, "vector_params": 2 * reader.size("head_dim")}
    mixers = {
        _FULL: _heads(reader, **more),
        _SLIDING: _heads(reader, reach=reader.size("sliding_window"), **more),
    }
    kinds = kinds_of(reader, "layer_types", num_layers, tuple(mixers))
    layers = _layers(reader, [mixers[kind] for kind in kinds], [0] * num_layers, 4 * hidden)
    return fields_of(reader, _family(mixers[_FULL], layers))


def _layers(
    reader: ConfigReader, mixers: list[HeadsMixer], routed: list[int], norms: int
) -> list[LayerSpec]:
    """Return layers with an MLP where `routed` has 0, and experts where it has 1."""
    return [
        LayerSpec(
            mixer=mixer,
            mlp_size=0 if has_experts else reader.size("intermediate_size"),
            has_experts=bool(has_experts),
            vector_params=norms,
        )
        for mixer, has_experts in zip(mixers, routed, strict=True)
    ]


def _experts(reader: ConfigReader, num_shared: int, shared_size: int = 0) -> MoeSpec:
    inner = reader.size("moe_intermediate_size")
    num_experts = reader.size("n_routed_experts", "num_experts", "moe_num_experts")
    has_bias = reader.config.get("topk_method") == "noaux_tc"
    has_bias = has_bias or reader.flag("use_moe_router_bias", False)
    return MoeSpec(
        num_experts=num_experts,
        num_experts_per_token=reader.size("num_experts_per_tok", "moe_top_k"),
        intermediate_size=inner,
        shared_intermediate_size=shared_size or num_shared * inner,
        router_vector_params=num_experts if has_bias else 0,
    )
