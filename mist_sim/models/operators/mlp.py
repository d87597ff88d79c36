"""The MLP as serving engines launch it: two products with a fused activation between them."""

from __future__ import annotations

from mist_sim.models.operators.base import Operator, matrix
from mist_sim.models.quantization import Part
from mist_sim.models.spec import ModelSpec


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
