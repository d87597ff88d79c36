"""DeepSeek-V3.2 and GLM-5 (DSA), GLM-5.3-Flash (DSA and KDA), DeepSeek-V4 (CSA and HCA)."""

from __future__ import annotations

from mist_sim.bounds import LAYERS
from mist_sim.models.huggingface.config_experts import mla_of
from mist_sim.models.huggingface.config_formats import Names
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.huggingface.families.base import (
    Family,
    Fields,
    fields_of,
    hyper_connections,
    kinds_of,
    latent_norms,
)
from mist_sim.models.huggingface.families.delta import kda_mixer
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import CompressedMixer, Indexer, LatentMixer, Mixer
from mist_sim.models.moe import MoeSpec

_INDEXED_RATIO = 4  # compressed entries from which an indexer chooses (DeepSeek-V4)


def deepseek_sparse(reader: ConfigReader) -> Fields:
    """Read a model whose latent attention sees entries chosen by an indexer."""
    num_layers = reader.size("num_hidden_layers", most=LAYERS)
    if reader.items("layer_types"):
        kinds_of(reader, "layer_types", num_layers, ("deepseek_sparse_attention",))
    mixers = _sparse_mixers(reader, num_layers)
    hidden, dense = reader.size("hidden_size"), _dense_layers(reader, num_layers)
    return _with_latents(
        reader,
        [_layer(reader, mixer, number in dense, 2 * hidden) for number, mixer in enumerate(mixers)],
    )


def glm5_next(reader: ConfigReader) -> Fields:
    """Read a model of three layers with KDA to one with sparse latent attention."""
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    known = ("linear_attention", "deepseek_sparse_attention")
    kinds = kinds_of(reader, "layer_types", num_layers, known)
    sparse, linear = _sparse_mixers(reader, num_layers), kda_mixer(reader)
    dense = _dense_layers(reader, num_layers)
    vectors = 2 * hidden + hyper_connections(reader, hidden)
    layers = []
    for number, kind in enumerate(kinds):
        mixer: Mixer = linear if kind == known[0] else sparse[number]
        layers.append(_layer(reader, mixer, number in dense, vectors))
    return _with_latents(reader, layers)


def _layer(reader: ConfigReader, mixer: Mixer, is_dense: bool, vectors: int) -> LayerSpec:
    return LayerSpec(
        mixer=mixer,
        mlp_size=reader.size("intermediate_size") if is_dense else 0,
        has_experts=not is_dense,
        vector_params=vectors,
        copies=reader.count("hc_mult") or 1,
    )


def _with_latents(reader: ConfigReader, layers: list[LayerSpec]) -> Fields:
    heads = reader.size("num_attention_heads")
    family = Family(
        layers=layers,
        heads=heads,
        kv_heads=reader.size("num_key_value_heads", default=heads),
        head_dim=mla_of(reader).qk_head_dim,
        moe=_experts(reader),
        num_predicting=reader.count("num_nextn_predict_layers"),
    )
    return fields_of(reader, family)


def _sparse_mixers(reader: ConfigReader, num_layers: int) -> list[LatentMixer]:
    """Return the attention of every layer; some take the choice of an earlier one (GLM-5.2)."""
    mla, topk = mla_of(reader), reader.size("index_topk")
    indexer = Indexer(
        num_heads=reader.size("index_n_heads"),
        head_dim=reader.size("index_head_dim"),
        topk=topk,
        per_entry=reader.size("index_kpool", default=1),
    )
    kinds = ["full"] * num_layers
    if reader.items("indexer_types"):
        kinds = kinds_of(reader, "indexer_types", num_layers, ("full", "shared"))
    heads, vectors = reader.size("num_attention_heads"), latent_norms(mla)
    return [
        LatentMixer(
            mla=mla,
            num_heads=heads,
            topk=topk,
            indexer=indexer if kind == "full" else None,
            vector_params=vectors + (2 * indexer.head_dim if kind == "full" else 0),
        )
        for kind in kinds
    ]


def _dense_layers(reader: ConfigReader, num_layers: int) -> frozenset[int]:
    """Return the layers with an ordinary MLP: from a list, or the first ones."""
    if reader.items("mlp_layer_types"):
        kinds = kinds_of(reader, "mlp_layer_types", num_layers, ("dense", "sparse"))
        return frozenset(number for number, kind in enumerate(kinds) if kind == "dense")
    return frozenset(range(reader.count("first_k_dense_replace")))


def _experts(reader: ConfigReader) -> MoeSpec:
    inner, num_experts = reader.size("moe_intermediate_size"), reader.size("n_routed_experts")
    return MoeSpec(
        num_experts=num_experts,
        num_experts_per_token=reader.size("num_experts_per_tok"),
        intermediate_size=inner,
        shared_intermediate_size=reader.count("n_shared_experts") * inner,
        router_vector_params=num_experts,  # a bias of each expert's score
    )


def deepseek_v4(reader: ConfigReader) -> Fields:
    """Read a model whose layers see a window and, in some layers, compressed entries."""
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    ratios = reader.items("compress_ratios")[:num_layers]
    if len(ratios) < num_layers or not all(isinstance(each, int) for each in ratios):
        raise reader.error(f"compress_ratios must have {num_layers} integers, got {len(ratios)}")
    indexer = Indexer(
        num_heads=reader.size("index_n_heads"),
        head_dim=reader.size("index_head_dim"),
        topk=reader.size("index_topk"),
    )
    heads, head_dim = reader.size("num_attention_heads"), reader.size("head_dim")
    vectors = 2 * hidden + hyper_connections(reader, hidden)
    layers = []
    for ratio in ratios:
        mixer = CompressedMixer(
            num_heads=heads,
            head_dim=head_dim,
            rope_dim=reader.size("qk_rope_head_dim"),
            q_lora_rank=reader.size("q_lora_rank"),
            o_groups=reader.size("o_groups"),
            o_lora_rank=reader.size("o_lora_rank"),
            sliding_window=reader.size("sliding_window"),
            ratio=int(str(ratio)),
            indexer=indexer if ratio == _INDEXED_RATIO else None,
        )
        layers.append(
            LayerSpec(
                mixer=mixer,
                has_experts=True,
                vector_params=vectors,
                copies=reader.count("hc_mult") or 1,
            )
        )
    family = Family(
        layers=layers,
        heads=heads,
        kv_heads=reader.size("num_key_value_heads"),
        head_dim=head_dim,
        moe=_experts(reader),
        num_predicting=reader.count("num_nextn_predict_layers"),
        names=Names(mixer="attn", experts="ffn.experts", shared="ffn.shared_experts"),
        vectors_outside=reader.count("hc_mult") * hidden * reader.count("hc_mult"),
    )
    return fields_of(reader, family)
