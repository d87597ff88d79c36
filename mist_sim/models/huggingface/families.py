"""Readers of models with layers of different kinds, one function per family of configs.

Source of keys and rules: the configuration and modeling files of the publishers, of the
`transformers` library and of vLLM for each `model_type`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from mist_sim.models.moe import MoeSpec

Fields = dict[str, Any]
"""Keyword arguments of ModelSpec, without `name` and `source`."""

_STATE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_LINEAR, _SPARSE = "linear_attention", "deepseek_sparse_attention"
_FFN_MULTIPLE = 256  # `find_multiple` of NVIDIA's `modeling_decilm.py`
_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}  # of Nemotron-H's pattern
_INDEXED_RATIO = 4  # compressed entries from which an indexer chooses (DeepSeek-V4)


def _fields(
    reader: ConfigReader,
    layers: Iterable[LayerSpec],
    attention: HeadsMixer | tuple[int, int, int],
    moe: MoeSpec | None = None,
    *,
    names: Names | None = None,
    num_predicting: int = 0,
    gated_mlp: bool = True,
    tied: bool = False,
    vectors_outside: int = 0,
) -> Fields:
    """Return a model's fields from its layers and the common keys.

    attention: that of the first layer, or its heads, KV heads and their size. names: a checkpoint's
    names of the matrices. num_predicting: layers after the others that predict further tokens.
    tied: default for tied embeddings. vectors_outside: vector parameters outside the layers and the
    last norm.
    """
    layers = tuple(layers)
    for mixer in mixers_of(layers):
        if mixer.most_ranks > HEADS:
            raise reader.error(f"a layer must have <= {HEADS} heads, got {mixer.most_ranks}")
    hidden = reader.size("hidden_size")
    if isinstance(attention, HeadsMixer):
        attention = attention.num_heads, attention.num_kv_heads, attention.head_dim
    heads, kv_heads, head_dim = attention
    inner = max(layer.mlp_size for layer in layers) or (moe.intermediate_size if moe else 0)
    return {
        "num_layers": len(layers),
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": reader.size("vocab_size"),
        "max_position_embeddings": reader.size("max_position_embeddings"),
        "tie_word_embeddings": reader.flag("tie_word_embeddings", tied),
        "gated_mlp": gated_mlp,
        "dtype_bytes": reader.dtype_bytes(),
        "moe": moe,
        "layers": layers,
        "num_nextn_predict_layers": num_predicting,
        "vector_params_outside_layers": hidden + vectors_outside,
        **read_formats(reader, layers, names or Names()),
    }


def _num_layers(reader: ConfigReader) -> int:
    return reader.size("num_hidden_layers", most=LAYERS)


def _kinds_of(
    reader: ConfigReader, key: str, num_layers: int, known: Iterable[object]
) -> list[Any]:
    """Return the kind of each layer from a list. Raises ScenarioError for bad words."""
    kinds, known = reader.items(key), known if isinstance(known, Sequence) else tuple(known)
    if num_layers > LAYERS:
        raise reader.error(f"{key} must have <= {LAYERS} entries, got {num_layers}")
    if len(kinds) < num_layers:
        raise reader.error(f"{key} must have {num_layers} entries, got {len(kinds)}")
    return [
        kind if kind in known else reader.known_kind(key, kind, known)
        for kind in kinds[:num_layers]
    ]


def _layers(
    reader: ConfigReader,
    mixers: Iterable[Mixer],
    routed: Iterable[int],
    vectors: int,
    *dense: str,
) -> list[LayerSpec]:
    """Return layers with an MLP where `routed` has 0, and experts where it has 1.

    vectors: parameters of a layer's norms. dense: keys of the MLP's inner size.
    """
    copies = reader.count("hc_mult") or 1
    return [
        LayerSpec(
            mixer=mixer,
            mlp_size=0 if has_experts else reader.size(*(dense or ("intermediate_size",))),
            has_experts=bool(has_experts),
            vector_params=vectors,
            copies=copies,
        )
        for mixer, has_experts in zip(mixers, routed, strict=True)
    ]


def _experts(
    reader: ConfigReader, *, bias: bool = False, vectors: int = 0, hidden: str = "", **fields: Any
) -> MoeSpec:
    """Return the experts of a config.

    fields: of `MoeSpec`; where one is text or several, these are keys, asked in this order.
    bias: whether the router corrects each expert's score. vectors: its further parameters. hidden:
    key of the size of the space in which experts work; empty: the model's.
    """
    sizes: dict[str, Any] = {
        name: reader.size(*([said] if isinstance(said, str) else said))
        if isinstance(said, str | tuple)
        else said
        for name, said in fields.items()
    }
    vectors += sizes["num_experts"] if bias else 0
    size = reader.count(hidden) or None if hidden else None
    return MoeSpec(**sizes, router_vector_params=vectors, hidden_size=size)


def _alike(heads: int, kv_heads: int, size: int, **more: Any) -> HeadsMixer:
    """Return attention whose values are as large as its keys."""
    return HeadsMixer(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=size, v_head_dim=size, **more
    )


def _heads(reader: ConfigReader, **more: Any) -> HeadsMixer:
    """Return attention of the sizes under the keys that most configs have."""
    sizes: dict[str, Any] = {
        "num_heads": reader.size("num_attention_heads"),
        "num_kv_heads": reader.size("num_key_value_heads", "num_attention_groups"),
        "head_dim": reader.size("head_dim"),
        "v_head_dim": reader.size("v_head_dim", "head_dim"),
    }
    return HeadsMixer(**sizes | more)


def _hyper_connections(reader: ConfigReader, hidden: int) -> int:
    """Return a layer's parameters of manifold-constrained hyper-connections (arXiv 2512.24880).

    Of `hc_mult` copies of the hidden state, (2 + copies) x copies weights are computed before
    attention and before the FFN: which copies go in, come out, and mix.
    """
    copies = reader.count("hc_mult")
    outputs = (2 + copies) * copies
    return 2 * (outputs * copies * hidden + outputs + 3) if copies else 0


def _dense_layers(reader: ConfigReader, num_layers: int) -> frozenset[int]:
    """Return the layers with an ordinary MLP: from a list, or the first ones."""
    if reader.items("mlp_layer_types"):
        kinds = _kinds_of(reader, "mlp_layer_types", num_layers, ("dense", "sparse"))
        return frozenset(number for number, kind in enumerate(kinds) if kind == "dense")
    return frozenset(range(reader.count("first_k_dense_replace")))


def _minimax_m3(reader: ConfigReader) -> Fields:
    """Read MiniMax-M3: from the fourth layer on, queries see the blocks of keys they chose."""
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    heads, kv_heads = reader.size("num_attention_heads"), reader.size("num_key_value_heads")
    head_dim, table = reader.size("head_dim"), reader.table("sparse_attention_config")
    sparse, indexer = [0] * num_layers, None
    if table is not None and table.flag("use_sparse_attention", True):
        sparse = _kinds_of(table, "sparse_attention_freq", num_layers, (0, 1))
        indexer = BlockIndexer(
            num_heads=table.size("sparse_num_index_heads"),
            head_dim=table.size("sparse_index_dim"),
            num_blocks=table.size("sparse_topk_blocks"),
            block_size=table.size("sparse_block_size"),
        )
    norms = 2 * head_dim if reader.flag("use_qk_norm", False) else 0
    gated = reader.flag("attention_output_gate", False)
    mixers = [
        _alike(heads, kv_heads, head_dim, gated=gated, vector_params=norms, indexer=each)
        for each in (None, indexer)
    ]
    routed = _kinds_of(reader, "moe_layer_freq", num_layers, (0, 1))
    dense = "dense_intermediate_size", "intermediate_size"
    layers = _layers(reader, [mixers[each] for each in sparse], routed, 2 * hidden, *dense)
    moe = _experts(
        reader,
        num_experts="num_local_experts",
        num_experts_per_token="num_experts_per_tok",
        intermediate_size=("moe_intermediate_size", "intermediate_size"),
        shared_intermediate_size=reader.count("shared_intermediate_size"),
        bias=reader.flag("use_routing_bias", True),
    )
    predicting = reader.count("num_nextn_predict_layers") or reader.count("num_mtp_modules")
    return _fields(reader, layers, (heads, kv_heads, head_dim), moe, num_predicting=predicting)


def _nemotron_nas(reader: ConfigReader) -> Fields:
    """Read a model that a search made of Llama: each layer has heads and an MLP of its own."""
    hidden, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    layers, blocks = [], reader.items("block_configs")
    if len(blocks) > LAYERS:
        raise reader.error(f"block_configs must have <= {LAYERS} entries, got {len(blocks)}")
    for number, said in enumerate(blocks):
        if not isinstance(said, dict):
            raise reader.error("block_configs must be a list of tables")
        block = reader.part(said, f"{reader.where}: block_configs: {number}")
        attention, ffn = block.table("attention"), block.table("ffn")
        if attention is None or ffn is None:
            raise block.error("must have attention and ffn")
        for part in (attention, ffn):
            if part.flag("replace_with_linear", False):
                part.leave_out("replace_with_linear is not simulated yet", "replace_with_linear")
        mixer = None
        if not attention.flag("no_op", False):
            groups = attention.size("n_heads_in_group")
            mixer = _alike(heads, heads // groups, hidden // heads)
        inner = 0 if ffn.flag("no_op", False) else _inner(ffn, hidden)
        vectors = hidden * ((mixer is not None) + (inner > 0))
        layers.append(LayerSpec(mixer=mixer, mlp_size=inner, vector_params=vectors))
    first = next((layer.mixer for layer in layers if layer.mixer), None)
    if not isinstance(first, HeadsMixer):
        raise reader.error("block_configs must have a layer with attention")
    return _fields(reader, layers, first)


def _inner(ffn: ConfigReader, hidden: int) -> int:
    """Return the inner size that `ffn_mult` stands for: two thirds of it, in whole multiples."""
    times = ffn.config.get("ffn_mult")
    if not isinstance(times, int | float) or isinstance(times, bool) or not 0 < times < 100:
        raise ffn.error(f"ffn_mult must be a number in (0, 100), got {times!r:.40}")
    return ceil(int(2 * times * hidden / 3) / _FFN_MULTIPLE) * _FFN_MULTIPLE


def _state_bytes(reader: ConfigReader, key: str) -> int:
    """Return the bytes of a value of the states; by default those of activations."""
    given = reader.config.get(key) or "bfloat16"
    if given not in _STATE_BYTES:
        raise reader.error(f"{key} must be one of {', '.join(_STATE_BYTES)}, got {brief(given)}")
    return _STATE_BYTES[str(given)]


def _qwen_next(reader: ConfigReader) -> Fields:
    """Read a model of three layers with Gated DeltaNet to one with gated attention."""
    hidden, num_layers = reader.size("hidden_size"), _num_layers(reader)
    heads, head_dim = reader.size("num_attention_heads"), reader.size("head_dim")
    full = _alike(
        heads,
        reader.size("num_key_value_heads"),
        head_dim,
        gated=reader.flag("attn_output_gate", True),
        vector_params=2 * head_dim,
    )
    linear = LinearMixer(
        kind="gdn",
        key_heads=reader.size("linear_num_key_heads"),
        value_heads=reader.size("linear_num_value_heads"),
        key_dim=reader.size("linear_key_head_dim"),
        value_dim=reader.size("linear_value_head_dim"),
        conv_kernel=reader.size("linear_conv_kernel_dim"),
        state_value_bytes=_state_bytes(reader, "mamba_ssm_dtype"),
    )
    mixers: dict[str, Mixer] = {_FULL: full, _LINEAR: linear}
    if reader.items("layer_types"):
        kinds = _kinds_of(reader, "layer_types", num_layers, mixers)
    else:
        every = reader.size("full_attention_interval", default=4)
        kinds = [(_FULL, _LINEAR)[(layer + 1) % every > 0] for layer in range(num_layers)]
    moe = None
    if reader.count("num_experts"):
        moe = _experts(
            reader,
            num_experts="num_experts",
            num_experts_per_token="num_experts_per_tok",
            intermediate_size="moe_intermediate_size",
            shared_intermediate_size="shared_expert_intermediate_size",
            vectors=hidden,  # shared_expert_gate
        )
    listed, step = reader.items("mlp_only_layers"), reader.size("decoder_sparse_step", default=1)
    routed = [
        moe is not None and number not in listed and (number + 1) % step == 0
        for number in range(num_layers)
    ]
    return _fields(
        reader,
        _layers(reader, [mixers[kind] for kind in kinds], routed, 2 * hidden),
        full,
        moe,
        num_predicting=reader.count("mtp_num_hidden_layers"),
        names=Names(linear="linear_attn"),
    )


def _kda_mixer(reader: ConfigReader) -> LinearMixer:
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


def _kimi_linear(reader: ConfigReader) -> Fields:
    """Read a model of three layers with KDA to one with latent attention; layers count from 1."""
    hidden, num_layers = reader.size("hidden_size"), _num_layers(reader)
    heads, mla = reader.size("num_attention_heads"), mla_of(reader)
    gated = reader.flag("mla_use_output_gate", False)
    latent = LatentMixer(mla=mla, num_heads=heads, gated=gated, vector_params=mla.norm_params)
    table, linear = reader.table("linear_attn_config"), _kda_mixer(reader)
    full_layers = table.items("full_attn_layers") if table else []
    moe = _experts(
        reader,
        intermediate_size="moe_intermediate_size",
        num_experts="num_experts",
        num_experts_per_token="num_experts_per_token",
        shared_intermediate_size=reader.count("num_shared_experts")
        * reader.size("moe_intermediate_size"),
        bias=True,
        hidden="routed_expert_hidden_size",
        vectors=reader.count("routed_expert_hidden_size")
        if reader.flag("latent_moe_use_norm", False)
        else 0,
    )
    first, frequency = reader.count("first_k_dense_replace"), reader.size("moe_layer_freq")
    routed = [number >= first and number % frequency == 0 for number in range(num_layers)]
    mixers = [latent if number + 1 in full_layers else linear for number in range(num_layers)]
    return _fields(
        reader,
        _layers(reader, mixers, routed, 2 * hidden),
        (heads, reader.size("num_key_value_heads", default=heads), mla.qk_head_dim),
        moe,
        num_predicting=reader.count("num_nextn_predict_layers"),
        names=Names(experts="block_sparse_moe.experts", shared="block_sparse_moe.shared_experts"),
    )


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
        state_value_bytes=_state_bytes(reader, "mamba_ssm_cache_dtype"),
        conv_bias=reader.flag(bias, True),
    )


def _nemotron_h(reader: ConfigReader) -> Fields:
    """Read such a model; its MLPs and experts have two matrices (squared ReLU)."""
    kinds = _letters(reader)
    hidden, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    kv_heads = reader.size("num_key_value_heads")
    attention = _alike(heads, kv_heads, reader.size("head_dim", "attention_head_dim"))
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
    moe = None
    if "moe" in kinds:
        shared = reader.count("n_shared_experts")
        moe = _experts(
            reader,
            num_experts="n_routed_experts",
            num_experts_per_token="num_experts_per_tok",
            intermediate_size="moe_intermediate_size",
            shared_intermediate_size=shared * reader.count("moe_shared_expert_intermediate_size"),
            bias=True,
            hidden="moe_latent_size",
        )
    return _fields(
        reader,
        [of_kind[kind] for kind in kinds],
        attention,
        moe,
        gated_mlp=reader.config.get("mlp_hidden_act", "relu2") != "relu2",
        num_predicting=reader.count("num_nextn_predict_layers"),
        names=Names("mixer", "mixer", "mixer", "mixer.experts", "mixer.shared_experts"),
    )


def _letters(reader: ConfigReader) -> list[str]:
    """Return the kind of every layer, from the list of words or the older string of letters."""
    if words := reader.items("layers_block_type"):
        return _kinds_of(reader, "layers_block_type", len(words), _LETTERS.values())
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


def _deepseek_sparse(reader: ConfigReader) -> Fields:
    """Read a model whose latent attention sees entries chosen by an indexer."""
    num_layers = _num_layers(reader)
    if reader.items("layer_types"):
        _kinds_of(reader, "layer_types", num_layers, (_SPARSE,))
    mixers = _sparse_mixers(reader, num_layers)
    return _with_latents(reader, mixers, 2 * reader.size("hidden_size"))


def _glm5_next(reader: ConfigReader) -> Fields:
    """Read a model of three layers with KDA to one with sparse latent attention."""
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    kinds = _kinds_of(reader, "layer_types", num_layers, (_LINEAR, _SPARSE))
    sparse, linear = _sparse_mixers(reader, num_layers), _kda_mixer(reader)
    mixers = [linear if kind == _LINEAR else sparse[at] for at, kind in enumerate(kinds)]
    return _with_latents(reader, mixers, 2 * hidden + _hyper_connections(reader, hidden))


def _with_latents(reader: ConfigReader, mixers: Sequence[Mixer], vectors: int) -> Fields:
    dense = _dense_layers(reader, len(mixers))
    layers = _layers(reader, mixers, [at not in dense for at in range(len(mixers))], vectors)
    heads = reader.size("num_attention_heads")
    return _fields(
        reader,
        layers,
        (heads, reader.size("num_key_value_heads", default=heads), mla_of(reader).qk_head_dim),
        _sparse_experts(reader),
        num_predicting=reader.count("num_nextn_predict_layers"),
    )


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
        kinds = _kinds_of(reader, "indexer_types", num_layers, ("full", "shared"))
    heads, vectors = reader.size("num_attention_heads"), mla.norm_params
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


def _sparse_experts(reader: ConfigReader) -> MoeSpec:
    inner = reader.size("moe_intermediate_size")
    return _experts(
        reader,
        intermediate_size=inner,
        num_experts="n_routed_experts",
        num_experts_per_token="num_experts_per_tok",
        shared_intermediate_size=reader.count("n_shared_experts") * inner,
        bias=True,
    )


def _deepseek_v4(reader: ConfigReader) -> Fields:
    """Read a model whose layers see a window and, in some layers, compressed entries."""
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    ratios = reader.items("compress_ratios")[:num_layers]
    if len(ratios) < num_layers or not all(isinstance(each, int) for each in ratios):
        raise reader.error(f"compress_ratios must have {num_layers} integers, got {len(ratios)}")
    indexer = Indexer(
        num_heads=reader.size("index_n_heads"),
        head_dim=reader.size("index_head_dim"),
        topk=reader.size("index_topk"),
    )
    heads, head_dim = reader.size("num_attention_heads"), reader.size("head_dim")
    vectors = 2 * hidden + _hyper_connections(reader, hidden)
    mixers = [
        CompressedMixer(
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
        for ratio in ratios
    ]
    return _fields(
        reader,
        _layers(reader, mixers, [1] * num_layers, vectors),
        (heads, reader.size("num_key_value_heads"), head_dim),
        _sparse_experts(reader),
        num_predicting=reader.count("num_nextn_predict_layers"),
        names=Names(mixer="attn", experts="ffn.experts", shared="ffn.shared_experts"),
        vectors_outside=reader.count("hc_mult") * hidden * reader.count("hc_mult"),
    )


def _llama4(reader: ConfigReader) -> Fields:
    """Read Llama 4: chunks in three of four layers, all keys without a rotation in the fourth."""
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    full = _heads(reader)
    chunk = reader.size("attention_chunk_size")
    every = reader.size("no_rope_layer_interval", default=4)
    step = reader.size("interleave_moe_layer_step")
    inner = reader.size("intermediate_size")
    if chunk >= reader.size("max_position_embeddings"):
        every = 1
    chunked = _heads(reader, reach=chunk, is_chunked=True)
    numbers = range(1, num_layers + 1)
    mixers = [chunked if number % every else full for number in numbers]
    routed = [number % step == 0 for number in numbers]
    moe = _experts(
        reader,
        num_experts="num_local_experts",
        num_experts_per_token="num_experts_per_tok",
        intermediate_size=inner,
        shared_intermediate_size=inner,
    )
    layers = _layers(reader, mixers, routed, 2 * hidden, "intermediate_size_mlp")
    names = Names(experts="feed_forward.experts", shared="feed_forward.shared_expert")
    return _fields(reader, layers, full, moe, names=names)


def _gemma4(reader: ConfigReader) -> Fields:
    """Read Gemma 4: windows with many KV heads, all keys with few and larger ones."""
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
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
    kinds = _kinds_of(reader, "layer_types", num_layers, mixers)
    moe, inner = None, reader.size("intermediate_size")
    norms = 4 * hidden
    if reader.flag("enable_moe_block", False):  # the MLP is beside the experts, with more norms
        moe = _experts(
            reader,
            num_experts="num_experts",
            num_experts_per_token=("top_k_experts", "num_experts_per_tok"),
            intermediate_size=("moe_intermediate_size", "expert_intermediate_size"),
            shared_intermediate_size=inner,
            bias=True,  # a scale of each expert
            vectors=hidden,  # and of the router
            has_gelu=True,
        )
        norms += 3 * hidden
    routed = [moe is not None] * num_layers
    layers = _layers(reader, [mixers[kind] for kind in kinds], routed, norms)
    names = Names(shared="mlp", experts="experts")
    return _fields(reader, layers, mixers[_FULL], moe, tied=True, names=names)


def _mimo_v2(reader: ConfigReader) -> Fields:
    """Read MiMo-V2-Flash: windows with twice the KV heads and a sink for each head."""
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    heads = reader.size("swa_num_attention_heads", "num_attention_heads")
    sinks = heads if reader.flag("add_swa_attention_sink_bias", False) else 0
    has_sinks = reader.flag("add_full_attention_sink_bias", False)
    full = _heads(reader, vector_params=reader.size("num_attention_heads") if has_sinks else 0)
    sliding = _heads(
        reader,
        num_heads=heads,
        num_kv_heads=reader.size("swa_num_key_value_heads", "num_key_value_heads"),
        head_dim=reader.size("swa_head_dim", "head_dim"),
        v_head_dim=reader.size("swa_v_head_dim", "v_head_dim"),
        reach=reader.size("sliding_window"),
        vector_params=sinks,
    )
    windows = _kinds_of(reader, "hybrid_layer_pattern", num_layers, (0, 1))
    routed = _kinds_of(reader, "moe_layer_freq", num_layers, (0, 1))
    moe = _window_experts(reader)
    layers = _layers(reader, [(full, sliding)[each] for each in windows], routed, 2 * hidden)
    return _fields(reader, layers, full, moe)


def _step3(reader: ConfigReader) -> Fields:
    """Read Step-3.5 and 3.7: a layer that sees all keys before every three with a window.

    Windows may have more query heads. A gate of each head is a product with `hidden` inputs.
    """
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    gate = hidden if reader.flag("use_head_wise_attn_gate", False) else 0
    norms = 2 * reader.size("head_dim")
    heads = reader.size("num_attention_heads")
    other = reader.table("attention_other_setting")
    sliding = other.size("num_attention_heads") if other else heads
    sliding = reader.size("num_sliding_attention_heads", default=sliding)
    mixers = {
        _FULL: _heads(reader, vector_params=norms + gate * heads),
        _SLIDING: _heads(
            reader,
            num_heads=sliding,
            reach=reader.size("sliding_window"),
            vector_params=norms + gate * sliding,
        ),
    }
    kinds = _kinds_of(reader, "layer_types", num_layers, mixers)
    routed = _routed_of_step(reader, num_layers)
    shared = reader.count("share_expert_dim") or reader.count("share_expert_dims")
    moe = _window_experts(reader, shared)
    layers = _layers(reader, [mixers[kind] for kind in kinds], routed, 2 * hidden)
    predicting = reader.count("num_nextn_predict_layers")
    return _fields(reader, layers, mixers[_FULL], moe, num_predicting=predicting)


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


def _window_experts(reader: ConfigReader, shared_size: int | None = None) -> MoeSpec:
    """Return experts. shared_size: of those that see every token; None: of `n_shared_experts`."""
    inner = reader.size("moe_intermediate_size")
    has_bias = reader.config.get("topk_method") == "noaux_tc"
    if shared_size is None:
        shared_size = reader.count("n_shared_experts") * inner
    return _experts(
        reader,
        intermediate_size=inner,
        num_experts=("n_routed_experts", "num_experts", "moe_num_experts"),
        num_experts_per_token=("num_experts_per_tok", "moe_top_k"),
        shared_intermediate_size=shared_size,
        bias=has_bias or reader.flag("use_moe_router_bias", False),
    )


def _granite_hybrid(reader: ConfigReader) -> Fields:
    """Read Granite 4: Mamba-2, attention in a few layers; experts beside an MLP, or that alone."""
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    heads, kv_heads = reader.size("num_attention_heads"), reader.size("num_key_value_heads")
    attention = _alike(heads, kv_heads, reader.size("head_dim", default=hidden // heads))
    mamba = _mamba2(
        reader,
        ("mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv"),
        ("mamba_chunk_size", 256),
        "mamba_conv_bias",
    )
    mixers: dict[str, Mixer] = {"attention": attention, "mamba": mamba}
    if reader.flag("mamba_proj_bias", False):
        reader.leave_out("mamba_proj_bias is not simulated yet", "mamba_proj_bias")
    shared, moe = reader.size("shared_intermediate_size"), None
    if reader.count("num_local_experts"):
        moe = _experts(
            reader,
            num_experts="num_local_experts",
            num_experts_per_token="num_experts_per_tok",
            intermediate_size="intermediate_size",
            shared_intermediate_size=shared,
        )
    kinds = _kinds_of(reader, "layer_types", num_layers, mixers)
    routed = [moe is not None] * num_layers
    layers = _layers(
        reader,
        [mixers[kind] for kind in kinds],
        routed,
        2 * hidden,
        "shared_intermediate_size",
    )
    names = Names(linear="mamba", mlp="shared_mlp", experts="block_sparse_moe", shared="shared_mlp")
    return _fields(reader, layers, attention, moe, names=names)


def _laguna(reader: ConfigReader) -> Fields:
    """Read Laguna: windows with more query heads, an output gate, and experts after the first.

    A gate of each head is a product with `hidden` inputs; one of each value is as large as the
    queries.
    """
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    norms, gating = 2 * reader.size("head_dim"), reader.config.get("gating")
    is_of_heads = str(gating).replace("_", "-") == "per-head"
    if not is_of_heads and gating not in (None, False, True, "per-element"):
        gating = reader.known_kind("gating", gating, ("per-head", "per-element"))
    kinds = [_FULL] * num_layers
    if reader.items("layer_types"):
        kinds = _kinds_of(reader, "layer_types", num_layers, (_FULL, _SLIDING))
    all_heads = [reader.size("num_attention_heads")] * num_layers
    if reader.items("num_attention_heads_per_layer"):
        numbers = range(1, HEADS + 1)
        all_heads = _kinds_of(reader, "num_attention_heads_per_layer", num_layers, numbers)
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
    moe = _experts(
        reader,
        num_experts="num_experts",
        num_experts_per_token="num_experts_per_tok",
        intermediate_size="moe_intermediate_size",
        shared_intermediate_size=reader.count("shared_expert_intermediate_size"),
        bias=True,
    )
    routed = [number not in dense for number in range(num_layers)]
    layers = _layers(reader, mixers, routed, 2 * hidden)
    return _fields(reader, layers, mixers[0], moe, names=Names(shared="mlp.shared_expert"))


def _muse_glimmer(reader: ConfigReader) -> Fields:
    """Read Muse-Glimmer: dense, with an output gate, norms of queries and keys, and windows."""
    num_layers, hidden = _num_layers(reader), reader.size("hidden_size")
    more = {"gated": True, "vector_params": 2 * reader.size("head_dim")}
    mixers = {
        _FULL: _heads(reader, **more),
        _SLIDING: _heads(reader, reach=reader.size("sliding_window"), **more),
    }
    kinds = _kinds_of(reader, "layer_types", num_layers, mixers)
    layers = _layers(reader, [mixers[kind] for kind in kinds], [0] * num_layers, 4 * hidden)
    return _fields(reader, layers, mixers[_FULL])


FAMILIES: Mapping[str, Callable[[ConfigReader], Fields]] = {
    "deepseek_ref": _deepseek_v4,
    "deepseek_v32": _deepseek_sparse,
    "deepseek_v4": _deepseek_v4,
    "gemma4_text": _gemma4,
    "glm5_next_text": _glm5_next,
    "glm_moe_dsa": _deepseek_sparse,
    "granitemoehybrid": _granite_hybrid,
    "kimi_linear": _kimi_linear,
    "laguna": _laguna,
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo_v2,
    "minimax_m3": _minimax_m3,
    "muse_glimmer_text": _muse_glimmer,
    "nemotron-nas": _nemotron_nas,
    "nemotron_h": _nemotron_h,
    "qwen3_5_moe_text": _qwen_next,
    "qwen3_5_text": _qwen_next,
    "qwen3_next": _qwen_next,
    "step3p5": _step3,
    "step3p7": _step3,
}
"""What reads a config, by the `model_type` of its language model."""
