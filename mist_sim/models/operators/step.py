"""The operators of one engine step, layer by layer."""

from __future__ import annotations

from mist_sim.models.operators.attention import projections
from mist_sim.models.operators.base import Operator, norm, product
from mist_sim.models.operators.experts import moe_layer
from mist_sim.models.operators.mlp import mlp
from mist_sim.models.spec import ModelSpec


def token_operators(
    model: ModelSpec, n: float, t: int, prefill: bool, num_replicas: int = 1
) -> list[tuple[int, list[Operator]]]:
    """The operators that are linear in a step's n tokens, as (layers that run them, operators).

    All but attention, routed experts and logits. prefill: latent attention projects a prompt
    in another way than decodes. num_replicas: replicas that share the experts (see `moe_layer`).
    """
    h, width = model.hidden_size, model.dtype_bytes
    parts = [(model.num_layers, projections(model, n, t, prefill))]
    if model.num_dense_layers:
        dense = [norm(model, n), *mlp(model, "mlp", model.intermediate_size, n, t)]
        parts.append((model.num_dense_layers, dense))
    if model.moe:
        parts.append((model.num_moe_layers, moe_layer(model, model.moe, n, t, num_replicas)))
    ends = [Operator("embedding", 0.0, 2 * n * h * width)] if model.has_embedding else []
    ends += [norm(model, n)] if model.has_head or model.is_encoder else []
    return [*parts, (1, ends)]


def logits(model: ModelSpec, n: float, t: int) -> list[Operator]:
    """Once a step: logits of the n sequences that a step samples (vLLM: all of its batch)."""
    if not model.has_head:
        return []
    weight_bytes = model.bytes_per_param("lm_head")
    return [product(model, "lm_head", n, model.hidden_size, model.vocab_size / t, weight_bytes)]
