"""The operators of one engine step, layer by layer."""

from __future__ import annotations

from collections import Counter

from mist_sim.models.layers import mixers_of, mlp_sizes
from mist_sim.models.operators.attention import projections
from mist_sim.models.operators.base import Operator, norm, product
from mist_sim.models.operators.experts import moe_layer
from mist_sim.models.operators.mixers import hyper_connections, mixer_operators
from mist_sim.models.operators.mlp import mlp
from mist_sim.models.spec import ModelSpec


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
