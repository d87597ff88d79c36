"""A mixture of experts as serving engines launch it: router, grouped products, combination.

Source: the three buffers and four kernels of vLLM's
`model_executor/layers/fused_moe/fused_moe.py` (`fused_experts_impl`): each token is copied to its
k experts in the first product, and their outputs are summed in `moe_sum`.
"""

from __future__ import annotations

from mist_sim.models.moe import MoeSpec
from mist_sim.models.operators.base import Operator, kernel_format, matrix, norm, product
from mist_sim.models.operators.mlp import mlp
from mist_sim.models.spec import ModelSpec


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
