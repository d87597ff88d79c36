"""FLOPs and bytes of every operator of a transformer layer, in one place.

Two readings of the same model. `eager_*` are BestServe's tables: a framework that runs every
operator by itself. The others are the kernels of today's serving engines: one for QKV, flash
attention, fused norms and activations, grouped products of experts, so that only real memory
traffic counts. All figures are for one tensor-parallel rank and, unless noted otherwise, one layer.
"""

from mist_sim.models.operators.attends import Attends, StateWork, attends, states
from mist_sim.models.operators.attention import attention, expand_context
from mist_sim.models.operators.base import Number, Operator, product
from mist_sim.models.operators.eager import (
    eager_decode_attention,
    eager_mlp,
    eager_norm,
    eager_prefill_attention,
    eager_projections,
)
from mist_sim.models.operators.experts import routed_experts
from mist_sim.models.operators.step_operators import logits, token_operators

__all__ = [
    "Attends",
    "Number",
    "Operator",
    "StateWork",
    "attends",
    "attention",
    "eager_decode_attention",
    "eager_mlp",
    "eager_norm",
    "eager_prefill_attention",
    "eager_projections",
    "expand_context",
    "logits",
    "product",
    "routed_experts",
    "states",
    "token_operators",
]
