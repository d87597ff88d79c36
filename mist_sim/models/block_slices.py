"""Slices of matrices whose values share scales in blocks: which of them end inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mist_sim.models import layers as layered
from mist_sim.models.quantization import Part
from mist_sim.models.spec import ModelSpec


class BlockSlice(NamedTuple):
    """A dimension of a matrix that ranks slice.

    what: of whose. size: of it, in values of the whole matrix. slice: of a rank. block: values of
    it that share a scale.
    """

    what: str
    size: int
    slice: int
    block: int

    @property
    def is_whole(self) -> bool:
        """Whether a slice ends where a block does."""
        return self.slice % self.block == 0


def input_slices(model: ModelSpec, ranks: int) -> Iterator[BlockSlice]:
    """Yield the sliced inputs of matrices whose outputs are summed over the ranks.

    Attention's output, where layers are alike, and the second matrix of MLPs and shared experts.
    """
    if ranks == 1:
        return
    sizes: list[tuple[Part, str, int]] = []
    if not model.layers:
        values = model.mla.v_head_dim if model.mla else model.head_dim
        sizes.append(("attention_output", "attention", model.num_attention_heads * values))
    sizes += [("mlp", "MLP", size) for size in _mlp_sizes(model)]
    if model.moe and model.moe.shared_intermediate_size:
        sizes.append(("shared_experts", "shared experts", model.moe.shared_intermediate_size))
    for part, what, size in sizes:
        if block := _block(model, part):
            yield BlockSlice(what, size, size // ranks, block[1])


def output_slices(model: ModelSpec, ranks: int) -> Iterator[BlockSlice]:
    """Yield the sliced outputs of matrices that stand alone: those to the heads of a latent."""
    block = _block(model, "attention")
    if model.mla is None or model.layers or block is None or ranks == 1:
        return
    mla, heads = model.mla, model.num_attention_heads
    for each in (mla.qk_head_dim, mla.qk_nope_head_dim + mla.v_head_dim):
        yield BlockSlice("attention", heads * each, heads // ranks * each, block[0])


def merged_slices(model: ModelSpec, ranks: int) -> Iterator[BlockSlice]:
    """Yield the sliced outputs of matrices that are multiplied as one: Q, K and V; gate and up."""
    block = _block(model, "attention")
    if block and model.mla is None and not model.layers:
        for heads, here in (
            (model.num_attention_heads, model.num_attention_heads // ranks),
            (model.num_key_value_heads, model.kv_heads_per_rank(ranks)),
        ):
            yield BlockSlice("attention", heads * model.head_dim, here * model.head_dim, block[0])
    if model.gated_mlp and (block := _block(model, "mlp")):
        for size in _mlp_sizes(model):
            yield BlockSlice("MLP", size, size // ranks, block[0])


def expert_slices(model: ModelSpec, ranks: int) -> Iterator[BlockSlice]:
    """Yield the sliced dimensions of the matrices of routed experts, each sliced over the ranks."""
    block = _block(model, "routed_experts")
    if model.moe is None or block is None:
        return
    size = model.moe.intermediate_size
    for side in dict.fromkeys(block if ranks > 1 else block[:1]):
        yield BlockSlice("experts", size, size // ranks, side)


def _mlp_sizes(model: ModelSpec) -> list[int]:
    if model.layers:
        return list(layered.mlp_sizes(model.layers))
    return [model.intermediate_size] if model.num_dense_layers else []


def _block(model: ModelSpec, part: Part) -> tuple[int, int] | None:
    stored = model.quantization_of(part)
    return stored.block if stored else None
