"""Mixers' work that is linear in tokens, all but attention and states, as in serving engines."""

from __future__ import annotations

from dataclasses import replace

from mist_sim.models.mixers import (
    CompressedMixer,
    HeadsMixer,
    LatentMixer,
    LinearMixer,
    Mixer,
)
from mist_sim.models.operators.attention import projections
from mist_sim.models.operators.base import Operator, matrix, norm, product
from mist_sim.models.spec import ModelSpec


def mixer_operators(
    model: ModelSpec, mixer: Mixer, n: float, t: int, prefill: bool
) -> list[Operator]:
    """Return norm, projections, convolution and cache write of n tokens on one of t ranks."""
    if isinstance(mixer, HeadsMixer):
        return [norm(model, n), *_heads(model, mixer, n, t)]
    if isinstance(mixer, LatentMixer):
        return _latent(model, mixer, n, t, prefill)
    if isinstance(mixer, LinearMixer):
        return [norm(model, n), *_linear(model, mixer, n, t)]
    if isinstance(mixer, CompressedMixer):
        return [norm(model, n), *_compressed(model, mixer, n, t)]
    raise TypeError(f"no operators of {type(mixer).__name__}")


def hyper_connections(model: ModelSpec, copies: int, n: float) -> list[Operator]:
    """Return the mixing of copies of the hidden state, before and behind both parts of a layer.

    Each time all copies are read, and all written behind; their weights are a product from all
    copies to (2 + copies) x copies values.
    """
    if copies == 1:
        return []
    width, outputs = copies * model.hidden_size, (2 + copies) * copies
    mixed = Operator("hyper_connections", 4 * n * copies * width, 6 * n * width * model.dtype_bytes)
    weights = product(model, "hyper_weights", n, width, outputs, model.dtype_bytes)
    return [mixed, weights, mixed, weights]


def view(model: ModelSpec, mixer: LatentMixer) -> ModelSpec:
    """Return a model of one layer with plain latent attention of the mixer's sizes."""
    return replace(
        model,
        layers=(),
        num_layers=1,
        moe=None,
        mla=mixer.mla,
        num_attention_heads=mixer.num_heads,
        num_key_value_heads=mixer.num_heads,
        head_dim=mixer.mla.qk_head_dim,
    )


def _heads(model: ModelSpec, mixer: HeadsMixer, n: float, t: int) -> list[Operator]:
    h, width = model.hidden_size, model.dtype_bytes
    queries, kv = mixer.num_heads * mixer.head_dim / t, mixer.kv_heads(t)
    values = mixer.num_heads * mixer.v_head_dim / t
    keys = kv * (mixer.head_dim + mixer.v_head_dim)
    moved = n * (2 * queries + keys) * width + n * keys * model.kv_entry_bytes
    index = mixer.index_width
    gate = [Operator("output_gate", 4 * n * values, 3 * n * values * width)] if mixer.gated else []
    return [
        matrix(model, "attention", "qkv_proj", n, h, mixer.input_width(t) + index),
        Operator("rope_and_cache", 3 * n * (queries + keys), moved + 2 * n * index * width),
        *gate,
        matrix(model, "attention_output", "o_proj", n, values, h),
    ]


def _latent(
    model: ModelSpec, mixer: LatentMixer, n: float, t: int, prefill: bool
) -> list[Operator]:
    """Sparse attention takes the absorbed form for prompts, too (vLLM's FlashMLA-sparse backend).

    The indexer's matrices lie whole on every rank.
    """
    is_expanded = prefill and mixer.topk is None
    found = projections(view(model, mixer), n, t, is_expanded)
    h, indexer = model.hidden_size, mixer.indexer
    if indexer is not None:
        queries = indexer.num_heads * indexer.head_dim
        inputs = mixer.mla.q_lora_rank or h
        found += [
            matrix(model, "attention", "index_q_proj", n, inputs, queries),
            matrix(model, "attention", "index_k_proj", n, h, indexer.head_dim + indexer.num_heads),
            Operator("index_cache", 6 * n * queries, 2 * n * (queries + indexer.head_dim) * 2),
        ]
    if mixer.gated:
        values = mixer.num_heads * mixer.mla.v_head_dim / t
        found += [
            matrix(model, "attention", "gate_proj", n, h, values),
            Operator("output_gate", 4 * n * values, 3 * n * values * model.dtype_bytes),
        ]
    return found


def _linear(model: ModelSpec, mixer: LinearMixer, n: float, t: int) -> list[Operator]:
    h, width = model.hidden_size, model.dtype_bytes
    channels, values = mixer.conv_width(t), mixer.values / t
    small = []
    if mixer.kind == "kda":
        keys = mixer.keys_on(t) * mixer.key_dim
        small = [matrix(model, "linear_attention", "forget_gate", n, mixer.key_dim, keys)]
        if not mixer.full_gate:
            gate = matrix(model, "linear_attention", "output_gate", n, mixer.value_dim, values)
            small.append(gate)
    conv = 2 * n * channels * mixer.conv_kernel
    return [
        matrix(model, "linear_attention", "in_proj", n, h, mixer.input_width(t)),
        *small,
        Operator("convolution", conv, 2 * n * channels * width),
        Operator("gated_norm", 8 * n * values, 3 * n * values * width),
        matrix(model, "linear_output", "out_proj", n, values, h),
    ]


def _compressed(model: ModelSpec, mixer: CompressedMixer, n: float, t: int) -> list[Operator]:
    h, width, rank = model.hidden_size, model.dtype_bytes, mixer.q_lora_rank
    queries, groups = mixer.num_heads * mixer.head_dim / t, mixer.o_groups / t
    normed = rank + mixer.head_dim
    grouped = matrix(model, "attention_output", "o_a_proj", n, queries / groups, mixer.o_lora_rank)
    rotated = 2 * n * queries * width + n * (mixer.head_dim * width + mixer.entry_bytes)
    pooled = n * mixer.compressor_width
    return [
        matrix(model, "attention", "qkv_a_proj", n, h, mixer.input_width),
        Operator("latent_norm", 4 * n * normed, 2 * n * normed * width),
        matrix(model, "attention", "q_proj", n, rank, mixer.query_width(t)),
        Operator("rope_and_cache", 3 * n * queries, rotated),
        Operator("compress", 8 * pooled, 2 * pooled * 4),
        grouped._replace(
            flops=groups * grouped.flops,
            bytes=groups * grouped.bytes,
            inputs=groups * grouped.inputs,
        ),
        matrix(model, "attention_output", "o_b_proj", n, groups * mixer.o_lora_rank, h),
    ]
