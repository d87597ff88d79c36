"""Attention as serving engines launch it: with KV heads (MHA, GQA) and with latents (MLA).

Latent attention has two forms of the same product. A decode absorbs the up-projections into
query and output and attends to the latents themselves, as one KV head for all query heads. A
prompt expands the latents of all its tokens, those of its context again, to keys and values of
every head.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C; which phase takes which form,
and the names, from vLLM, `vllm/v1/attention/backends/mla/common.py` (`_forward_prefill`,
`_forward_decode`, `_compute_prefill_context`).
"""

from __future__ import annotations

from mist_sim.models.mla import MlaSpec
from mist_sim.models.operators.base import Number, Operator, matrix, norm, product
from mist_sim.models.spec import ModelSpec


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
