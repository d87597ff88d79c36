"""BestServe's tables 6, 7 and 10 to 13: a framework that runs every operator by itself.

Dense models, 2 bytes a value. Symbols: n new tokens, t ranks, h hidden size, h0 intermediate
size, a = query heads x head size (h in LLaMa), r = KV heads / query heads.
"""

from __future__ import annotations

from mist_sim.models.operators.base import Number, Operator
from mist_sim.models.spec import ModelSpec


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
