"""Seconds of the parts of one layer in a forward pass (Seesaw, table 3)."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.errors import ScenarioError
from mist_sim.hardware.resharding.device import Device
from mist_sim.models.spec import ModelSpec

FP16 = 2  # bytes of a number; "we assume the data type is float16" (Seesaw, appendix A)


class LayerTimes(NamedTuple):
    """Seconds of one layer, undivided: of a global batch on one device.

    weights: T_dm^linear. linear: T_comp^linear. entries: T_dm^attn. attention: T_comp^attn.
    network: T_nw(TP), the all-reduces.
    """

    weights: float
    linear: float
    entries: float
    attention: float
    network: float

    @property
    def roofline(self) -> float:
        """T_L of appendix A.1: the slower of memory and compute, in both parts, and the network."""
        return max(self.weights, self.linear) + max(self.entries, self.attention) + self.network


def check_model(model: ModelSpec) -> None:
    """Raise ScenarioError for a model that table 3 has no formulas for."""
    is_plain = model.quantization is None and model.kv_entry_bytes == FP16
    if model.moe or model.mla or model.sliding_window or model.layers or not is_plain:
        raise ScenarioError(
            "Seesaw's appendix A has formulas for dense models in 16 bits without sliding windows "
            f"only, not for {model.name}; simulate it: clients with resharding take any predictor"
        )


def params_per_layer(model: ModelSpec) -> int:
    """Return W: parameters of the matrices of one layer."""
    return model.attention_params_per_layer + model.mlp_params_per_layer


def prefill_layer(
    model: ModelSpec, device: Device, batch: float, num_tokens: float, tensor_parallel_size: int
) -> LayerTimes:
    """Return the times of a batch of prompts of so many tokens each.

    Source: Seesaw table 3, prefill. T_comp^attn is printed with d squared; queries times keys and
    scores times values take 2 d FLOPs each a pair of tokens, of which causal attention has half.
    """
    tokens = batch * num_tokens
    heads, kv_heads, d = _heads(model)
    return LayerTimes(
        FP16 * params_per_layer(model) / device.memory_bandwidth,
        2 * tokens * params_per_layer(model) / device.flops,
        FP16 * tokens * (heads + 2 * kv_heads) * d / device.memory_bandwidth,
        2 * tokens * heads * num_tokens * d / device.flops,
        _network(model, device, tokens, tensor_parallel_size),
    )


def decode_layer(
    model: ModelSpec, device: Device, batch: float, context: float, tensor_parallel_size: int
) -> LayerTimes:
    """Return the times of one token of each of a batch of answers with so many tokens of context.

    Source: Seesaw table 3, decode. T_comp^attn is printed with s and d squared, which would be
    0.15 s a layer and request on an A10; one query reads s keys and s values, 4 d FLOPs each.
    """
    heads, kv_heads, d = _heads(model)
    return LayerTimes(
        FP16 * params_per_layer(model) / device.memory_bandwidth,
        2 * batch * params_per_layer(model) / device.flops,
        2 * FP16 * batch * context * kv_heads * d / device.memory_bandwidth,
        4 * batch * heads * context * d / device.flops,
        _network(model, device, batch, tensor_parallel_size),
    )


def _heads(model: ModelSpec) -> tuple[int, int, int]:
    return model.num_attention_heads, model.num_key_value_heads, model.head_dim


def _network(model: ModelSpec, device: Device, num_tokens: float, ranks: int) -> float:
    """Return T_nw(TP): two all-reduces of the activations, h_q d numbers a token."""
    width = model.num_attention_heads * model.head_dim
    return 2 * FP16 * num_tokens * width / device.all_reduce_bandwidth(ranks)
