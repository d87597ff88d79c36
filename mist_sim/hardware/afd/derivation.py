"""The latency coefficients of a bundle from the sizes of its model and the figures of its cards.

All times are seconds of one layer with experts; a step of all layers takes `num_layers` times as
long. Equation numbers are those of arXiv 2601.21351v3, appendix B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd.bundle_coefficients import AfdCoefficients
from mist_sim.hardware.devices.specs import GpuSpec
from mist_sim.models import ModelSpec, MoeSpec

_BYTES_IN, _BYTES_OUT = 1, 2  # of an activation: INT8 to the experts, BF16 back (eq. 27)


@dataclass(frozen=True, kw_only=True)
class FfnCards:
    """The cards of one FFN worker, over which the experts are spread.

    num_cards: >= 1. network_bandwidth: bytes/s at which activations reach one of them (> 0).
    expert_load_imbalance: tokens of the busiest card over the mean (from 1 to num_cards); all wait
        for it.
    Raises ValueError for values outside these ranges.
    """

    gpu: GpuSpec
    num_cards: int
    network_bandwidth: float
    expert_load_imbalance: float = 1.0

    def __post_init__(self) -> None:
        if self.num_cards < 1:
            raise ValueError(f"num_cards must be >= 1, got {self.num_cards}")
        if not 0 < self.network_bandwidth < math.inf:
            raise ValueError(
                f"network_bandwidth must be finite and > 0 B/s, got {self.network_bandwidth}"
            )
        if not 1 <= self.expert_load_imbalance <= self.num_cards:
            raise ValueError(
                f"expert_load_imbalance must be from 1 to the {self.num_cards} cards, "
                f"got {self.expert_load_imbalance}"
            )


def activation_bytes(model: ModelSpec, mtp_depth: int = 0) -> tuple[int, int]:
    """Return the bytes of a request that go to the FFN of a layer, and that come back (27).

    Each of the experts of a token gets its activations; a model without experts sends one copy.
    """
    copies = (model.moe.num_experts_per_token if model.moe else 1) * (1 + mtp_depth)
    return _BYTES_IN * model.hidden_size * copies, _BYTES_OUT * model.hidden_size * copies


def derive_coefficients(
    model: ModelSpec,
    attention_gpu: GpuSpec,
    ffn: FfnCards,
    *,
    communication_base: float = 0.0,
    ffn_base: float | None = None,
    attention_base: float | None = None,
    mtp_depth: int = 0,
) -> AfdCoefficients:
    """Return the coefficients of one layer, in seconds.

    Attention is bound by memory, experts by compute. Bandwidths and rates are those reached in
    decode. Shared experts are not counted, as in the paper.

    attention_base, ffn_base: seconds of a layer's attention beyond the KV cache, and of an FFN card
        beyond its FLOPs; None: the time to read the weights of the projections, and of the card's
        experts. communication_base: start-up of transfers, seconds. Times not explained by any
        size, such as dispatch, must be measured.
    mtp_depth: further tokens that a request has in a step (multi-token prediction, >= 0).
    Raises ScenarioError for a model without experts, experts that do not fit, and a GPU without
    the data type of the experts; ValueError for numbers outside their ranges.
    """
    if model.moe is None:
        raise ScenarioError(f"model must have experts, on which the FFN is based; got {model.name}")
    if model.layers:
        raise ScenarioError(
            f"model must have layers that are alike, for which the paper has formulas; those of "
            f"{model.name} differ"
        )
    if mtp_depth < 0:
        raise ValueError(f"mtp_depth must be >= 0, got {mtp_depth}")
    experts_per_card = _experts_per_card(model, model.moe, ffn)
    bandwidth = attention_gpu.memory_bandwidth * attention_gpu.decode.mbu  # (18)
    if attention_base is None:
        weights = model.attention_params_per_layer * model.bytes_per_param("attention")
        attention_base = weights / bandwidth
    if ffn_base is None:
        weights = experts_per_card * _expert_bytes(model, model.moe)
        ffn_base = weights / (ffn.gpu.memory_bandwidth * ffn.gpu.decode.mbu)
    # (24): tokens of an expert per request, with the load of the busiest card
    tokens_per_expert = (
        model.moe.num_experts_per_token * (1 + mtp_depth) / model.moe.num_experts
    ) * ffn.expert_load_imbalance
    expert_flop = 2 * model.mlp_params(model.moe.intermediate_size)  # (20)
    activation_bytes = (_BYTES_IN + _BYTES_OUT) * model.hidden_size  # (27)
    return AfdCoefficients(
        alpha_a=model.kv_bytes_per_token / model.num_layers / bandwidth,  # (17), (19)
        beta_a=attention_base,
        alpha_f=experts_per_card * expert_flop / _rate(model, ffn.gpu) * tokens_per_expert,  # (26)
        beta_f=ffn_base,
        alpha_c=experts_per_card * activation_bytes / ffn.network_bandwidth * tokens_per_expert,
        beta_c=communication_base,
    )


def _rate(model: ModelSpec, gpu: GpuSpec) -> float:
    """Return the FLOP/s that experts reach on a GPU (21)."""
    quantization = model.quantization_of("routed_experts")
    dtype = quantization.compute if quantization else "bf16"
    if dtype not in gpu.flops:
        raise ScenarioError(
            f"gpu must have a rate for {dtype}, in which the experts of {model.name} are computed; "
            f"{gpu.name} has {', '.join(gpu.flops)}"
        )
    return gpu.flops[dtype] * gpu.decode.mfu


def _experts_per_card(model: ModelSpec, moe: MoeSpec, ffn: FfnCards) -> int:
    """Return the experts of a layer on one card. Raises ScenarioError where they do not fit."""
    held = math.ceil(moe.num_experts / ffn.num_cards)
    needed = held * model.num_moe_layers * _expert_bytes(model, moe)
    if needed > ffn.gpu.memory:
        least = math.ceil(moe.num_experts / max(1, held * ffn.gpu.memory // needed))
        raise ScenarioError(
            f"num_cards must be >= {least}: {held} experts of each of the {model.num_moe_layers} "
            f"layers of {model.name} take {needed / 2**30:.1f} GiB on a card, {ffn.gpu.name} has "
            f"{ffn.gpu.memory / 2**30:.1f} GiB; got {ffn.num_cards}"
        )
    return held


def _expert_bytes(model: ModelSpec, moe: MoeSpec) -> float:
    return model.mlp_params(moe.intermediate_size) * model.bytes_per_param("routed_experts")
