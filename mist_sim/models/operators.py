"""FLOPs and bytes of every operator of a transformer layer, in one place.

Two readings of the same model. `eager_*` are BestServe's tables: a framework that runs every
operator by itself. The others are the kernels of today's serving engines: one for QKV, flash
attention, fused norms and activations, grouped products of experts, so that only real memory
traffic counts. All figures are for one tensor-parallel rank and, unless noted otherwise, one layer.

Attention as serving engines launch it: with KV heads (MHA, GQA) and with latents (MLA).

Latent attention has two forms of the same product. A decode absorbs the up-projections into
query and output and attends to the latents themselves, as one KV head for all query heads. A
prompt expands the latents of all its tokens, those of its context again, to keys and values of
every head.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C; which phase takes which form,
and the names, from vLLM, `vllm/v1/attention/backends/mla/common.py` (`_forward_prefill`,
`_forward_decode`, `_compute_prefill_context`).

The work of mixers: attention and indexers over entries, and the recurrences of states.

Entries are cached values of one token, or of several if compressed or pooled.

Source of the forms of chunked prompts: Gated DeltaNet (arXiv 2412.06464, section 3.3) and Mamba-2
(arXiv 2405.21060, section 6), as the kernels of flash-linear-attention and mamba_ssm launch them.

BestServe's tables 6, 7 and 10 to 13: a framework that runs every operator by itself.

Dense models, 2 bytes a value. Symbols: n new tokens, t ranks, h hidden size, h0 intermediate
size, a = query heads x head size (h in LLaMa), r = KV heads / query heads.

A mixture of experts as serving engines launch it: router, grouped products, combination.

Source: the three buffers and four kernels of vLLM's
`model_executor/layers/fused_moe/fused_moe.py` (`fused_experts_impl`): each token is copied to its
k experts in the first product, and their outputs are summed in `moe_sum`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.models.layers import linear_mixers, mixers_of, mlp_sizes
from mist_sim.models.mixers import CompressedMixer, HeadsMixer, LatentMixer, LinearMixer, Mixer
from mist_sim.models.mla import MlaSpec
from mist_sim.models.moe import MoeSpec
from mist_sim.models.quantization import Part, Quantization
from mist_sim.models.spec import ModelSpec

Number = float | NDArray[np.float64]
"""Token counts may be floats or arrays; both are computed with the same operations."""


class Operator(NamedTuple):
    """Work (FLOPs) and memory traffic (bytes) of one operator on one rank.

    dtype: the type it is computed in, which picks the FLOP rate of the GPU.
    kernel: the kind of kernels that compute it (`mist_sim.hardware.devices`).
    depth: inputs of a matrix, which a block sums up one after the other.
    inputs: values put into a product.
    """

    name: str
    flops: Number
    bytes: Number
    dtype: str = "bf16"
    kernel: str = "vector"
    depth: float = 0.0
    inputs: Number = 0.0


def norm(model: ModelSpec, n: float) -> Operator:
    """RMSNorm of n tokens, with the residual: reads and writes both."""
    h = model.hidden_size
    return Operator("norm", 6 * n * h, 4 * n * h * model.dtype_bytes)


def matrix(
    model: ModelSpec, part: Part, name: str, n: float, inputs: float, outputs: float
) -> Operator:
    """Apply a matrix of that part, inputs x outputs, to n tokens; activations have 16 bits."""
    quantization = model.quantization_of(part)
    compute = quantization.compute if quantization else "bf16"
    size = model.bytes_per_param(part)
    plain = product(model, name, n, inputs, outputs, size)
    return plain._replace(dtype=compute, kernel=kernel_format(quantization))


def kernel_format(quantization: Quantization | None) -> str:
    """Return the format that picks the kernels of a product."""
    return quantization.kernel if quantization else "bf16"


def product(
    model: ModelSpec, name: str, n: float, inputs: float, outputs: float, weight_bytes: float
) -> Operator:
    """Apply a matrix of `weight_bytes` a parameter, computed in 16 bits."""
    traffic = inputs * outputs * weight_bytes + n * (inputs + outputs) * model.dtype_bytes
    flops = 2 * n * inputs * outputs
    return Operator(name, flops, traffic, "bf16", "bf16", inputs, n * inputs)


def projections(model: ModelSpec, n: float, t: int, prefill: bool) -> list[Operator]:
    """Norm, projections, rotary embedding and cache write of n tokens; attention is left out.

    Encoders add the position to the token once, and write no cache.
    """
    if model.mla:
        return _latent_projections(model, model.mla, n, t, prefill)
    h, width, kv_width = model.hidden_size, model.dtype_bytes, model.kv_entry_bytes
    a = model.num_attention_heads * model.head_dim / t
    kv = model.kv_heads_per_rank(t) * model.head_dim
    rotated = n * (2 * a + 2 * kv) * width + 2 * n * kv * kv_width
    between = [Operator("rope_and_cache", 3 * n * (a + kv), rotated)]
    return [
        norm(model, n),
        matrix(model, "attention", "qkv_proj", n, h, a + 2 * kv),
        *([] if model.is_encoder else between),
        matrix(model, "attention_output", "o_proj", n, a, h),
    ]


def _latent_projections(
    model: ModelSpec, mla: MlaSpec, n: float, t: int, prefill: bool
) -> list[Operator]:
    """The same for latent attention; down-projections and latent lie whole on every rank."""
    h, width = model.hidden_size, model.dtype_bytes
    heads = model.num_attention_heads / t
    latent, rank = mla.latent_size, mla.kv_lora_rank
    query = mla.q_lora_rank or 0
    normed = query + rank
    rotated = (heads + 1) * mla.qk_rope_head_dim
    cached = n * latent * (width + model.kv_entry_bytes)
    operators = [
        norm(model, n),
        matrix(model, "attention", "qkv_a_proj", n, h, query + latent),
        Operator("latent_norm", 4 * n * normed, 2 * n * normed * width),
        matrix(model, "attention", "q_proj", n, query or h, heads * mla.qk_head_dim),
        Operator("rope_and_cache", 3 * n * rotated, 2 * n * rotated * width + cached),
    ]
    if prefill:
        up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        operators.append(matrix(model, "attention", "kv_up_proj", n, rank, up))
    else:
        operators += [
            _per_head(model, "absorb_query", n, heads, mla.qk_nope_head_dim, rank),
            _per_head(model, "value_up", n, heads, rank, mla.v_head_dim),
        ]
    return [*operators, matrix(model, "attention_output", "o_proj", n, heads * mla.v_head_dim, h)]


def _per_head(
    model: ModelSpec, name: str, n: float, heads: float, inputs: int, outputs: int
) -> Operator:
    """One 16-bit matrix a head (a batched product): vLLM's `W_UK_T` and `W_UV`."""
    one = product(model, name, n, inputs, outputs, model.dtype_bytes)
    return one._replace(flops=heads * one.flops, bytes=heads * one.bytes)


def attention(
    model: ModelSpec, queries: Number, keys: Number, pairs: Number, t: int, prefill: bool
) -> Operator:
    """Flash attention: scores stay on chip, each key and value is read once.

    queries: new tokens. keys: tokens whose keys and values are read. pairs: (query, key) pairs
        allowed by the causal mask. Linear in all three: a chunk of n tokens after a context of c
        has keys c + n and pairs n (c + (n + 1) / 2); a decode reads its whole context. A text of n
        tokens in an encoder has n^2 pairs.
    """
    width = model.dtype_bytes
    if not model.mla:
        a = model.num_attention_heads * model.head_dim / t
        kv = 2 * model.kv_heads_per_rank(t) * model.head_dim
        traffic = kv * keys * model.kv_entry_bytes + 2 * a * queries * width
        return Operator("attention", 4 * a * pairs, traffic)
    mla, heads = model.mla, model.num_attention_heads / t
    if prefill:  # every head's keys are put together (read and written), then read with values
        kept = 2 * mla.qk_head_dim + mla.qk_nope_head_dim + mla.v_head_dim
        sizes = mla.qk_head_dim + mla.v_head_dim
        traffic = heads * (kept * keys + sizes * queries) * width
    else:  # the latent is read once for all heads
        sizes = mla.latent_size + mla.kv_lora_rank
        traffic = mla.latent_size * keys * model.kv_entry_bytes + heads * sizes * queries * width
    return Operator("attention", 2 * heads * sizes * pairs, traffic)


def expand_context(model: ModelSpec, num_cached: float, t: int) -> list[Operator]:
    """A prompt's work per cached token before attention; only MLA has any.

    vLLM gathers the latents into a workspace and projects them up again in every chunk. The
    projection's weights are read with those of the new tokens, so they add no cost here.
    """
    if not model.mla:
        return []
    mla, heads = model.mla, model.num_attention_heads / t
    moved = mla.latent_size * (model.kv_entry_bytes + model.dtype_bytes)
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    project = matrix(model, "attention", "kv_up_proj", num_cached, mla.kv_lora_rank, up)
    weights = matrix(model, "attention", "kv_up_proj", 0, mla.kv_lora_rank, up).bytes
    return [
        Operator("gather_latent", 0.0, num_cached * moved),
        project._replace(bytes=project.bytes - weights),
    ]


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


_HEADS_PADDED = 64
"""Query heads that sparse kernels compute of a prompt at least (`FlashMLASparseImpl` in vLLM's
`v1/attention/backends/mla/flashmla_sparse.py` pads to so many)."""

Work = Callable[[Number, Number, Number, bool], Operator]
"""Work of (queries, entries read, (query, entry) pairs, whether they are of a prompt)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attends:
    """Attention, or an indexer, of some layers on one rank.

    name: for tables. layers: that run it.
    kernel: "attention", "latent", "sparse", "compressed", "blocks", "index" or "block_index".
    shares_kernel: it runs in the kernel of the one before, which alone has a least time.
    heads: query heads of the rank. work: of one layer.
    reach: tokens that a query sees at most, its own included; None: all.
    is_chunked: the reach is the part of the context behind its last multiple.
    per_entry: tokens of an entry.
    expanded: operators for each cached token that a prompt expands first.
    """

    name: str
    layers: int
    kernel: str
    heads: float
    work: Work
    reach: int | None = None
    is_chunked: bool = False
    per_entry: int = 1
    expanded: tuple[Operator, ...] = ()
    shares_kernel: bool = False


def attends(model: ModelSpec, t: int) -> list[Attends]:
    """Return all attention of a model with layers of different kinds, on one of t ranks."""
    found: list[Attends] = []
    for mixer, layers in mixers_of(model.layers).items():
        if isinstance(mixer, HeadsMixer):
            found += _heads_attend(model, mixer, layers, t)
        elif isinstance(mixer, LatentMixer):
            found += _latent_attends(model, mixer, layers, t)
        elif isinstance(mixer, CompressedMixer):
            found += _compressed_attends(model, mixer, layers, t)
    return found


def _heads_attend(model: ModelSpec, mixer: HeadsMixer, layers: int, t: int) -> Iterator[Attends]:
    heads, sizes = mixer.num_heads / t, mixer.head_dim + mixer.v_head_dim
    key_bytes = mixer.kv_heads(t) * sizes * model.kv_entry_bytes

    def work(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        traffic = key_bytes * keys + heads * sizes * queries * model.dtype_bytes
        return Operator("attention", 2 * heads * sizes * pairs, traffic)

    indexer, reach = mixer.indexer, mixer.reach
    if indexer is not None:
        reach = indexer.reach
        sizes_of_index = indexer.num_heads, indexer.head_dim, indexer.key_bytes
        yield _index("block_index", *sizes_of_index, layers, "bf16")
    name = "" if reach is None else f"_{'chunk' if mixer.is_chunked else 'window'}_{reach}"
    yield Attends(
        name=f"attention{name}",
        layers=layers,
        kernel="blocks" if indexer else "attention",
        heads=heads,
        work=work,
        reach=reach,
        is_chunked=mixer.is_chunked,
    )


def _latent_attends(model: ModelSpec, mixer: LatentMixer, layers: int, t: int) -> Iterator[Attends]:
    plain, topk = view(model, mixer), mixer.topk

    def work(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        if topk is None or not prefill:
            return attention(plain, queries, keys, pairs, t, prefill)
        found = attention(plain, queries, keys, pairs, t, prefill=False)
        rows = attention(plain, queries, 0, 0, t, prefill=False).bytes
        padded = _padded(mixer.num_heads / t)
        return found._replace(
            flops=found.flops * padded, bytes=found.bytes + (_moved(padded) - 1) * rows
        )

    indexer = mixer.indexer
    if indexer is not None:
        sizes = indexer.num_heads, indexer.head_dim, indexer.key_bytes
        yield _index("index", *sizes, layers, "fp8", indexer.per_entry)
    yield Attends(
        name="attention" if topk is None else f"attention_top_{topk}",
        layers=layers,
        kernel="latent" if topk is None else "sparse",
        heads=mixer.num_heads / t,
        work=work,
        reach=topk,
        expanded=tuple(expand_context(plain, 1, t)) if topk is None else (),
    )


def _compressed_attends(
    model: ModelSpec, mixer: CompressedMixer, layers: int, t: int
) -> Iterator[Attends]:
    heads, size = mixer.num_heads / t, mixer.head_dim

    def work(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        padded = _padded(heads) if prefill else 1.0
        rows = 2 * heads * size * queries * model.dtype_bytes
        traffic = mixer.entry_bytes * keys + (_moved(padded) if prefill else 1) * rows
        return Operator("attention", 4 * padded * heads * size * pairs, traffic)

    def more(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        return work(0, keys, pairs, prefill)  # queries are read once, with the window

    window = mixer.sliding_window
    yield Attends(
        name=f"attention_window_{window}",
        layers=layers,
        kernel="compressed",
        heads=heads,
        work=work,
        reach=window,
    )
    if not mixer.ratio:
        return
    indexer = mixer.indexer
    if indexer is not None:
        sizes = indexer.num_heads, indexer.head_dim, indexer.key_bytes
        yield _index("index", *sizes, layers, "fp8", mixer.ratio)
    yield Attends(
        name=f"attention_compressed_{mixer.ratio}",
        layers=layers,
        kernel="compressed",
        heads=heads,
        work=more,
        reach=indexer.topk * mixer.ratio if indexer else None,
        per_entry=mixer.ratio,
        shares_kernel=True,
    )


def _padded(heads: float) -> float:
    """Return the work of a sparse kernel over that of the heads that there are."""
    return max(1.0, _HEADS_PADDED / heads)


def _moved(padded: float) -> float:
    """Return the rows of queries and outputs moved by padding, divided by the rows without it.

    Queries are copied to an array with the padded number of heads, and outputs have as many.
    """
    return padded if padded == 1 else padded + (1 + padded) / 2


def _index(
    kernel: str,
    heads: int,
    size: int,
    key_bytes: int,
    layers: int,
    dtype: str,
    per_entry: int = 1,
) -> Attends:
    """Return an indexer: scores of all keys, written and read again to choose from them."""
    score_bytes = 2 * 4

    def work(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        traffic = key_bytes * keys + heads * size * queries + score_bytes * pairs
        return Operator("index", 2 * heads * size * pairs, traffic, dtype)

    return Attends(
        name=kernel,
        layers=layers,
        kernel=kernel,
        heads=0.0,
        work=work,
        per_entry=per_entry,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWork:
    """The recurrence of some layers on one rank, of one layer.

    kind: "gdn", "kda" or "mamba2". layers: layers that run it.
    of_token: work of a new prompt token. of_prompt: bytes that a prompt reads and writes once.
    of_decode: work of a decode, which reads and writes its state.
    """

    kind: str
    layers: int
    of_token: Operator
    of_prompt: Operator
    of_decode: Operator


def states(model: ModelSpec, t: int) -> list[StateWork]:
    """Return the recurrences of a model with layers of different kinds, on one of t ranks."""
    return [_state(model, mixer, layers, t) for mixer, layers in linear_mixers(model.layers)]


def _state(model: ModelSpec, mixer: LinearMixer, layers: int, t: int) -> StateWork:
    width, chunk = model.dtype_bytes, mixer.chunk_size
    heads, values = mixer.value_heads / t, mixer.values / t
    keys, size = mixer.key_dim, mixer.value_dim
    state = mixer.recurrent_state_bytes(t)
    through = (mixer.conv_width(t) + values) * width
    if mixer.kind == "mamba2":
        groups = mixer.keys_on(t)
        flops = heads * (4 * keys * size + 2 * chunk * size) + groups * 2 * chunk * keys
    else:
        flops = heads * (6 * keys * size + 2 * chunk * (3 * keys + 2 * size + chunk))
    return StateWork(
        kind=mixer.kind,
        layers=layers,
        of_token=Operator("state", flops, through),
        of_prompt=Operator("state", 0.0, 2.0 * state),
        of_decode=Operator("state", 7.0 * heads * keys * size, 2.0 * state + through),
    )


def eager_norm(model: ModelSpec, n: float) -> list[Operator]:
    """RMSNorm of n tokens; norms are not sharded. Source: BestServe tables 6 and 7."""
    h = model.hidden_size
    return [
        Operator("pow", n * h, 4 * n * h),
        Operator("mean", n * h, 2 * n * h + 2 * n),
        Operator("add", n, 4 * n),
        Operator("rsqrt", n, 4 * n),
        Operator("mul_rsqrt", n * h, 4 * n * h + 2 * n),
        Operator("mul_weight", n * h, 4 * n * h + 2 * h),
    ]


def eager_projections(model: ModelSpec, n: float, t: int, prefill: bool) -> list[Operator]:
    """Q, K, V and O projections and RoPE. Source: BestServe table 10 (prefill) and 11 (decode).

    The tables differ in K_PROJ: its decode work is printed without /t, and kept so here.
    """
    h = model.hidden_size
    a = model.num_attention_heads * model.head_dim
    r = model.num_key_value_heads / model.num_attention_heads
    kv_bytes = 2 * (n * h + h * a * r / t + n * a * r / t)
    q_bytes = 2 * (n * h + n * a + h * a) / t
    o_bytes = 2 * (n * h + n * a / t + (h * a if prefill else h * a / t))
    return [
        Operator("q_proj", 2 * n * h * a / t, q_bytes),
        Operator("k_proj", 2 * n * h * a * r / (t if prefill else 1), kv_bytes),
        Operator("v_proj", 2 * n * h * a * r / t, kv_bytes),
        Operator(
            "rope",
            3.5 * n * a * (1 + r),
            2 * n * a * (8.5 + 8.5 * r + 2 / model.num_attention_heads),
        ),
        Operator("o_proj", 2 * n * h * a / t, o_bytes),
    ]


def eager_prefill_attention(
    model: ModelSpec, new: Number, context: Number, t: int
) -> list[Operator]:
    """Attention of one chunk. Source: BestServe table 10, where s x s is new x (context + new)."""
    heads = model.num_attention_heads
    a = heads * model.head_dim
    length = context + new
    scores = new * length
    return [
        Operator("qk", 2 * scores * a / t, 2 * (new * a + length * a + heads * scores) / t),
        Operator("div", heads * scores / t, 4 * heads * scores / t),
        Operator("mask", heads * scores / t, 2 * (2 * heads * scores / t + scores)),
        Operator("softmax", 3 * heads * scores / t, 4 * heads * scores / t),
        Operator("av", 2 * scores * a / t, 2 * (heads * scores + new * a + length * a) / t),
    ]


def eager_decode_attention(
    model: ModelSpec, n: float, length_sum: Number, t: int
) -> list[Operator]:
    """Attention of n decodes over length_sum tokens, their own included. Source: table 11.

    Updating the cache, repeating KV heads and upcasting (rates kappa in eq. 12) are left out:
    the paper's own figures leave no time for them (see docs/background on BestServe).
    """
    heads = model.num_attention_heads
    a = heads * model.head_dim
    scores = heads * length_sum
    traffic = 2 * (n * a + a * length_sum + scores) / t
    return [
        Operator("qk", 2 * length_sum * a / t, traffic),
        Operator("div", scores / t, 4 * scores / t),
        Operator("mask", scores / t, 2 * (2 * scores / t + length_sum)),
        Operator("softmax", 3 * scores, 4 * scores / t),
        Operator("av", 2 * length_sum * a / t, traffic),
    ]


def eager_mlp(model: ModelSpec, n: float, t: int, prefill: bool) -> list[Operator]:
    """Gated MLP. Source: BestServe tables 12 (prefill) and 13 (decode).

    The prefill figure of table 3 is the sum without the `mul` row, the decode figure with it
    and b in the place of the printed bs.
    """
    h, h0 = model.hidden_size, model.intermediate_size
    matrix = Operator("proj", 2 * n * h * h0 / t, 2 * (n * (h + h0) + h * h0) / t)
    operators = [
        matrix._replace(name="gate_proj"),
        Operator("silu", 5 * n * h0 / t, 4 * n * h0 / t),
        matrix._replace(name="up_proj"),
        matrix._replace(name="down_proj"),
        Operator("add", n * h / t, 4 * n * h0 / t),
    ]
    if not prefill:
        operators.insert(3, Operator("mul", n * h0 / t, 6 * n * h0 / t))
    return operators


def mlp(model: ModelSpec, part: Part, intermediate_size: int, n: float, t: int) -> list[Operator]:
    """An MLP of that inner size, of dense layers or of shared experts, for n tokens."""
    prefix = "shared_" if part == "shared_experts" else ""
    h, inner = model.hidden_size, intermediate_size / t
    up = (2 if model.gated_mlp else 1) * inner
    return [
        matrix(model, part, f"{prefix}up_proj", n, h, up),
        Operator(f"{prefix}activation", 4 * n * inner, n * (up + inner) * model.dtype_bytes),
        matrix(model, part, f"{prefix}down_proj", n, inner, h),
    ]


def moe_layer(
    model: ModelSpec, moe: MoeSpec, n: float, t: int, num_replicas: float = 1
) -> list[Operator]:
    """All of an MoE layer but the routed experts' products, which are not linear in n.

    num_replicas: tokens of all replicas that share the experts, over the n of this one; a rank sums
        its experts' outputs for the tokens of all.
    """
    hidden, width, k = model.hidden_size, model.dtype_bytes, moe.num_experts_per_token
    h = moe.hidden_size or hidden
    inner = moe.intermediate_size / t
    up = (2 if model.gated_mlp else 1) * inner
    shared = moe.shared_intermediate_size
    summed = num_replicas * (k + 1) * h
    added = 3 * hidden if shared else 0  # the output of the shared experts
    operators = [
        norm(model, n),
        product(model, "router", n, hidden, moe.num_experts, width),  # whole on every rank
        Operator("expert_activation", 4 * n * k * inner, n * k * (up + inner) * width),
        Operator("combine", 2 * n * num_replicas * k * h, n * (summed + added) * width),
    ]
    if moe.hidden_size:  # to the size of the experts and back, whole on every rank
        operators += [
            matrix(model, "shared_experts", "experts_latent_down", n, hidden, h),
            matrix(model, "shared_experts", "experts_latent_up", n, h, hidden),
        ]
    return [*operators, *mlp(model, "shared_experts", shared, n, t)] if shared else operators


def routed_experts(
    model: ModelSpec,
    moe: MoeSpec,
    n: float,
    distinct: float,
    t: int,
    expert_ranks: int = 1,
    load_imbalance: float = 1.0,
) -> list[Operator]:
    """The two grouped products of n tokens that use `distinct` experts on a rank.

    Linear in n and in distinct, each alone. Only the weights of used experts are read.

    expert_ranks: ranks over which whole experts are spread; 1: every rank holds a slice of each.
    load_imbalance: load of the busiest of those ranks over the mean (>= 1). With slices all
        ranks carry the same load.
    """
    if load_imbalance < 1:
        raise ValueError(f"load_imbalance must be >= 1, got {load_imbalance}")
    rows = n * moe.num_experts_per_token * load_imbalance / expert_ranks
    inner = moe.intermediate_size / (t if expert_ranks == 1 else 1)
    up = (2 if model.gated_mlp else 1) * inner
    h = moe.hidden_size or model.hidden_size
    return [
        _grouped(model, "experts_up", rows, distinct, h, up),
        _grouped(model, "experts_down", rows, distinct, inner, h),
    ]


def _grouped(
    model: ModelSpec, name: str, rows: float, distinct: float, inputs: float, outputs: float
) -> Operator:
    weights = distinct * inputs * outputs * model.bytes_per_param("routed_experts")
    quantization = model.quantization_of("routed_experts")
    compute = quantization.compute if quantization else "bf16"
    moved = rows * (inputs + outputs) * model.dtype_bytes
    kernel = f"experts_{kernel_format(quantization)}"
    flops = 2 * rows * inputs * outputs
    return Operator(name, flops, weights + moved, compute, kernel, inputs, rows * inputs)


def token_operators(
    model: ModelSpec, n: float, t: int, prefill: bool, num_replicas: float = 1
) -> list[tuple[int, list[Operator]]]:
    """The operators that are linear in a step's n tokens, as (layers that run them, operators).

    All but attention, routed experts and logits. prefill: latent attention projects a prompt
    in another way than decodes. num_replicas: as in `moe_layer`.
    """
    h, width = model.hidden_size, model.dtype_bytes
    if model.layers:
        parts = _differing(model, n, t, prefill)
    else:
        parts = [(model.num_layers, projections(model, n, t, prefill))]
        if model.num_dense_layers:
            dense = [norm(model, n), *mlp(model, "mlp", model.intermediate_size, n, t)]
            parts.append((model.num_dense_layers, dense))
    if model.moe:
        parts.append((model.num_moe_layers, moe_layer(model, model.moe, n, t, num_replicas)))
    ends = [Operator("embedding", 0.0, 2 * n * h * width)] if model.has_embedding else []
    ends += [norm(model, n)] if model.has_head or model.is_encoder else []
    return [*parts, (1, ends)]


def _differing(
    model: ModelSpec, n: float, t: int, prefill: bool
) -> list[tuple[int, list[Operator]]]:
    """Return mixers, residual connections and MLPs of layers that differ."""
    parts = [
        (number, mixer_operators(model, mixer, n, t, prefill))
        for mixer, number in mixers_of(model.layers).items()
    ]
    copied = Counter(layer.copies for layer in model.layers)
    parts += [(number, hyper_connections(model, each, n)) for each, number in copied.items()]
    for size, number in mlp_sizes(model.layers).items():
        parts.append((number, [norm(model, n), *mlp(model, "mlp", size, n, t)]))
    return [part for part in parts if part[1]]


def logits(model: ModelSpec, n: float, t: int) -> list[Operator]:
    """Once a step: logits of the n sequences that a step samples (vLLM: all of its batch)."""
    if not model.has_head:
        return []
    weight_bytes = model.bytes_per_param("lm_head")
    return [product(model, "lm_head", n, model.hidden_size, model.vocab_size / t, weight_bytes)]
