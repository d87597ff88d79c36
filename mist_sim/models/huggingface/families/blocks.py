"""MiniMax-M3 (blocks of keys that an indexer chooses) and Nemotron NAS (blocks one by one)."""

from __future__ import annotations

from math import ceil

from mist_sim.bounds import LAYERS
from mist_sim.models.huggingface.config_reader import ConfigReader
from mist_sim.models.huggingface.families.base import Family, Fields, fields_of, kinds_of
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import BlockIndexer, HeadsMixer
from mist_sim.models.moe import MoeSpec

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
