"""Readers of models with layers of different kinds, a module per family of configs.

Source of keys and rules: the configuration and modeling files of the publishers, of the
`transformers` library and of vLLM for each `model_type`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from mist_sim.bounds import HEADS, LAYERS
from mist_sim.errors import brief
from mist_sim.models.huggingface.config_experts import mla_of
from mist_sim.models.huggingface.config_quantization import Names, read_formats
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.layers import LayerSpec, mixers_of
from mist_sim.models.mixers import (
    BlockIndexer,
    CompressedMixer,
    HeadsMixer,
    Indexer,
    LatentMixer,
    LinearMixer,
    Mixer,
)
from mist_sim.models.mla import MlaSpec
from mist_sim.models.moe import MoeSpec

__all__ = ["FAMILIES", "Fields"]


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


_FFN_MULTIPLE = 256  # `find_multiple` of NVIDIA's `modeling_decilm.py`


def minimax_m3(reader: ConfigReader) -> Fields:
    """Read MiniMax-M3: from the fourth layer on, queries see the blocks of keys they chose."""
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    heads, kv_heads = reader.size("num_attention_heads"), reader.size("num_key_value_heads")
    head_dim, table = reader.size("head_dim"), reader.table("sparse_attention_config")
    sparse, indexer = [0] * num_layers, None
    if table is not None and table.flag("use_sparse_attention", True):
        sparse = kinds_of(table, "sparse_attention_freq", num_layers, (0, 1))
        indexer = BlockIndexer(
            num_heads=table.size("sparse_num_index_heads"),
            head_dim=table.size("sparse_index_dim"),
            num_blocks=table.size("sparse_topk_blocks"),
            block_size=table.size("sparse_block_size"),
        )
    norms = 2 * head_dim if reader.flag("use_qk_norm", False) else 0
    mixers = [
        HeadsMixer(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim,
            gated=reader.flag("attention_output_gate", False),
            vector_params=norms,
            indexer=each,
        )
        for each in (None, indexer)
    ]
    routed = kinds_of(reader, "moe_layer_freq", num_layers, (0, 1))
    dense = reader.size("dense_intermediate_size", "intermediate_size")
    layers = [
        LayerSpec(
            mixer=mixers[is_sparse],
            mlp_size=0 if has_experts else dense,
            has_experts=bool(has_experts),
            vector_params=2 * hidden,
        )
        for is_sparse, has_experts in zip(sparse, routed, strict=True)
    ]
    num_experts = reader.size("num_local_experts")
    moe = MoeSpec(
        num_experts=num_experts,
        num_experts_per_token=reader.size("num_experts_per_tok"),
        intermediate_size=reader.size("moe_intermediate_size", "intermediate_size"),
        shared_intermediate_size=reader.count("shared_intermediate_size"),
        router_vector_params=num_experts if reader.flag("use_routing_bias", True) else 0,
    )
    family = Family(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        moe=moe,
        num_predicting=reader.count("num_nextn_predict_layers") or reader.count("num_mtp_modules"),
    )
    return fields_of(reader, family)


def nemotron_nas(reader: ConfigReader) -> Fields:
    """Read a model that a search made of Llama: each layer has heads and an MLP of its own."""
    hidden, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    size = hidden // heads
    layers = []
    num_blocks = len(reader.items("block_configs"))
    if num_blocks > LAYERS:
        raise reader.error(f"block_configs must have <= {LAYERS} entries, got {num_blocks}")
    for number in range(num_blocks):
        block = _block(reader, number)
        attention, ffn = block.table("attention"), block.table("ffn")
        if attention is None or ffn is None:
            raise block.error("must have attention and ffn")
        for part in (attention, ffn):
            if part.flag("replace_with_linear", False):
                part.leave_out("replace_with_linear is not simulated yet", "replace_with_linear")
        mixer = None
        if not attention.flag("no_op", False):
            groups = attention.size("n_heads_in_group")
            mixer = HeadsMixer(
                num_heads=heads, num_kv_heads=heads // groups, head_dim=size, v_head_dim=size
            )
        inner = 0 if ffn.flag("no_op", False) else _inner(ffn, hidden)
        vectors = hidden * ((mixer is not None) + (inner > 0))
        layers.append(LayerSpec(mixer=mixer, mlp_size=inner, vector_params=vectors))
    first = next((layer.mixer for layer in layers if layer.mixer), None)
    if not isinstance(first, HeadsMixer):
        raise reader.error("block_configs must have a layer with attention")
    family = Family(layers=layers, heads=heads, kv_heads=first.num_kv_heads, head_dim=size)
    return fields_of(reader, family)


def _block(reader: ConfigReader, number: int) -> ConfigReader:
    block = reader.items("block_configs")[number]
    if not isinstance(block, dict):
        raise reader.error("block_configs must be a list of tables")
    return reader.part(block, f"{reader.where}: block_configs: {number}")


def _inner(ffn: ConfigReader, hidden: int) -> int:
    """Return the inner size that `ffn_mult` stands for: two thirds of it, in whole multiples."""
    times = ffn.config.get("ffn_mult")
    if not isinstance(times, int | float) or isinstance(times, bool) or not 0 < times < 100:
        raise ffn.error(f"ffn_mult must be a number in (0, 100), got {times!r:.40}")
    return ceil(int(2 * times * hidden / 3) / _FFN_MULTIPLE) * _FFN_MULTIPLE


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


_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def _mamba2(
    reader: ConfigReader, sizes: tuple[str, str, str, str, str], chunk: tuple[str, int], bias: str
) -> LinearMixer:
    """Return a Mamba-2 mixer of a config's keys.

    sizes: keys of the groups, heads, state, head's size and convolution. chunk: key of its tokens,
    and how many without it. bias: key that tells whether the convolution has one.
    """
    groups, heads, state, head, convolution = map(reader.size, sizes)
    return LinearMixer(
        kind="mamba2",
        key_heads=groups,
        value_heads=heads,
        key_dim=state,
        value_dim=head,
        conv_kernel=convolution,
        chunk_size=reader.size(chunk[0], default=chunk[1]),
        state_value_bytes=state_bytes(reader, "mamba_ssm_cache_dtype"),
        conv_bias=reader.flag(bias, True),
    )


def nemotron_h(reader: ConfigReader) -> Fields:
    """Read such a model; its MLPs and experts have two matrices (squared ReLU)."""
    kinds = _kinds(reader)
    hidden, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    kv_heads = reader.size("num_key_value_heads")
    head_dim = reader.size("head_dim", "attention_head_dim")
    attention = HeadsMixer(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
    )
    mamba = _mamba2(
        reader,
        ("n_groups", "mamba_num_heads", "ssm_state_size", "mamba_head_dim", "conv_kernel"),
        ("chunk_size", 128),
        "use_conv_bias",
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
        moe=_mamba_experts(reader) if "moe" in kinds else None,
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


def _mamba_experts(reader: ConfigReader) -> MoeSpec:
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
        moe=_sparse_experts(reader),
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


def _sparse_experts(reader: ConfigReader) -> MoeSpec:
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
        moe=_sparse_experts(reader),
        num_predicting=reader.count("num_nextn_predict_layers"),
        names=Names(mixer="attn", experts="ffn.experts", shared="ffn.shared_experts"),
        vectors_outside=reader.count("hc_mult") * hidden * reader.count("hc_mult"),
    )
    return fields_of(reader, family)


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
    moe = _window_experts(reader, reader.count("n_shared_experts"))
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
    moe = _window_experts(
        reader, 0, reader.count("share_expert_dim") or reader.count("share_expert_dims")
    )
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


def granite_hybrid(reader: ConfigReader) -> Fields:
    """Read Granite 4: Mamba-2, attention in a few layers; experts beside an MLP, or that alone."""
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    heads, kv_heads = reader.size("num_attention_heads"), reader.size("num_key_value_heads")
    head_dim = reader.size("head_dim", default=hidden // heads)
    mixers: dict[str, Mixer] = {
        "attention": HeadsMixer(
            num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
        ),
        "mamba": _mamba2(
            reader,
            ("mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv"),
            ("mamba_chunk_size", 256),
            "mamba_conv_bias",
        ),
    }
    if reader.flag("mamba_proj_bias", False):
        reader.leave_out("mamba_proj_bias is not simulated yet", "mamba_proj_bias")
    shared, moe = reader.size("shared_intermediate_size"), None
    if reader.count("num_local_experts"):
        moe = MoeSpec(
            num_experts=reader.size("num_local_experts"),
            num_experts_per_token=reader.size("num_experts_per_tok"),
            intermediate_size=reader.size("intermediate_size"),
            shared_intermediate_size=shared,
        )
    layers = [
        LayerSpec(
            mixer=mixers[kind],
            mlp_size=0 if moe else shared,
            has_experts=moe is not None,
            vector_params=2 * hidden,
        )
        for kind in kinds_of(reader, "layer_types", num_layers, tuple(mixers))
    ]
    family = Family(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        moe=moe,
        names=Names(
            linear="mamba", mlp="shared_mlp", experts="block_sparse_moe", shared="shared_mlp"
        ),
    )
    return fields_of(reader, family)


def laguna(reader: ConfigReader) -> Fields:
    """Read Laguna: windows with more query heads, an output gate, and experts after the first.

    A gate of each head is a product with `hidden` inputs; one of each value is as large as the
    queries.
    """
    num_layers, hidden = reader.size("num_hidden_layers", most=LAYERS), reader.size("hidden_size")
    norms, gating = 2 * reader.size("head_dim"), reader.config.get("gating")
    is_of_heads = str(gating).replace("_", "-") == "per-head"
    if not is_of_heads and gating not in (None, False, True, "per-element"):
        gating = reader.known_kind("gating", gating, ("per-head", "per-element"))
    kinds = [_FULL] * num_layers
    if reader.items("layer_types"):
        kinds = kinds_of(reader, "layer_types", num_layers, (_FULL, _SLIDING))
    all_heads = [reader.size("num_attention_heads")] * num_layers
    if reader.items("num_attention_heads_per_layer"):
        all_heads = kinds_of(
            reader, "num_attention_heads_per_layer", num_layers, range(1, HEADS + 1)
        )
    mixers = [
        _heads(
            reader,
            num_heads=heads,
            reach=reader.size("sliding_window") if kind == _SLIDING else None,
            gated=bool(gating) and not is_of_heads,
            vector_params=norms + (hidden * heads if is_of_heads else 0),
        )
        for kind, heads in zip(kinds, all_heads, strict=True)
    ]
    dense = _dense_layers(reader, num_layers) | set(reader.items("mlp_only_layers"))
    num_experts = reader.size("num_experts")
    moe = MoeSpec(
        num_experts=num_experts,
        num_experts_per_token=reader.size("num_experts_per_tok"),
        intermediate_size=reader.size("moe_intermediate_size"),
        shared_intermediate_size=reader.count("shared_expert_intermediate_size"),
        router_vector_params=num_experts,  # a bias of each expert's score
    )
    routed = [int(number not in dense) for number in range(num_layers)]
    layers = _layers(reader, mixers, routed, 2 * hidden)
    names = Names(shared="mlp.shared_expert")
    return fields_of(reader, _family(mixers[0], layers, moe, names=names))


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


def _window_experts(reader: ConfigReader, num_shared: int, shared_size: int = 0) -> MoeSpec:
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


FAMILIES: Mapping[str, Callable[[ConfigReader], Fields]] = {
    "deepseek_ref": deepseek_v4,
    "deepseek_v32": deepseek_sparse,
    "deepseek_v4": deepseek_v4,
    "gemma4_text": gemma4,
    "glm5_next_text": glm5_next,
    "glm_moe_dsa": deepseek_sparse,
    "granitemoehybrid": granite_hybrid,
    "kimi_linear": kimi_linear,
    "laguna": laguna,
    "llama4_text": llama4,
    "mimo_v2_flash": mimo_v2,
    "minimax_m3": minimax_m3,
    "muse_glimmer_text": muse_glimmer,
    "nemotron-nas": nemotron_nas,
    "nemotron_h": nemotron_h,
    "qwen3_5_moe_text": qwen_next,
    "qwen3_5_text": qwen_next,
    "qwen3_next": qwen_next,
    "step3p5": step3,
    "step3p7": step3,
}
"""What reads a config, by the `model_type` of its language model."""
