"""Seesaw's performance model: the time of a layer, and layouts of a model over equal devices.

Su et al., "Seesaw: High-throughput LLM Inference via Model Re-sharding" (2025), appendix A:
`docs/background/seesaw.md`.
"""

from mist_sim.hardware.resharding.device import Device, device_of
from mist_sim.hardware.resharding.resharded_layout import Layout, layouts_of
from mist_sim.hardware.resharding.resharding_times import LayerTimes, decode_layer, prefill_layer
from mist_sim.hardware.resharding.throughput import (
    additive_time,
    most_requests,
    stage_time,
    time_per_request,
)

__all__ = [
    "Device",
    "LayerTimes",
    "Layout",
    "additive_time",
    "decode_layer",
    "device_of",
    "layouts_of",
    "most_requests",
    "prefill_layer",
    "stage_time",
    "time_per_request",
]
