"""The throughput of a layout: the largest batch, T_stage, and equations 1 and 2 of Seesaw."""

from __future__ import annotations

from mist_sim.hardware.resharding.device import Device
from mist_sim.hardware.resharding.resharded_layout import Layout
from mist_sim.hardware.resharding.resharding_times import FP16, LayerTimes, params_per_layer
from mist_sim.models.spec import ModelSpec


def weight_bytes(model: ModelSpec) -> float:
    """Return 2 L W: bytes of the layers' matrices, once."""
    return float(FP16 * model.num_layers * params_per_layer(model))


def kv_bytes(model: ModelSpec) -> float:
    """Return 4 L h_kv d: bytes of the KV entries of a token."""
    return 2.0 * FP16 * model.num_layers * model.num_key_value_heads * model.head_dim


def kv_memory(model: ModelSpec, device: Device, layout: Layout) -> float:
    """Return M_kv over all devices: bytes that the weights leave; below 0 they do not fit."""
    return device.memory * layout.num_devices - layout.data * weight_bytes(model)


def most_requests(model: ModelSpec, device: Device, layout: Layout, num_tokens: float) -> float:
    """Return b_max: requests of so many tokens each that memory holds. A real number, may be < 1.

    Source: Seesaw A.3.
    """
    return max(0.0, kv_memory(model, device, layout)) / (kv_bytes(model) * num_tokens)


def stage_time(times: LayerTimes, num_layers: int, layout: Layout) -> float:
    """Return T_stage: seconds until the last stage has finished the next micro-batch.

    times: of a layer, for the global batch. Source: Seesaw A.3.
    """
    return num_layers / layout.pipeline * _divided(times, layout)


def time_per_request(times: LayerTimes, num_layers: int, batch: float, layout: Layout) -> float:
    """Return 1 / throughput of eq. 1: seconds a request, for one pass of the global batch."""
    return stage_time(times, num_layers, layout) / (batch / layout.pipeline)


def additive_time(times: LayerTimes, num_layers: int, batch: float, layout: Layout) -> float:
    """Return eq. 2: the same, where memory and compute add up instead of hiding each other."""
    shared = times.linear + times.entries + times.attention
    layer = (
        times.weights / layout.tensor
        + shared / layout.num_devices
        + times.network / (layout.pipeline * layout.data)
    )
    return num_layers / batch * layer


def _divided(times: LayerTimes, layout: Layout) -> float:
    """Return the seconds of a layer on one device, with the micro-batch of one stage."""
    devices = layout.num_devices
    return (
        max(times.weights / layout.tensor, times.linear / devices)
        + max(times.entries, times.attention) / devices
        + times.network / (layout.pipeline * layout.data)
    )
