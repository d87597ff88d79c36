"""Serving hardware: accelerators, clusters of them, and the cost of a step there."""

from mist_sim.hardware.cluster import GPU_MEMORY_UTILIZATION, Cluster
from mist_sim.hardware.devices import (
    Efficiency,
    GpuSpec,
    HostSpec,
    Interconnect,
    device_of,
    gpu_from_table,
    gpu_names,
    host_from_table,
    host_names,
    load_gpu,
    load_host,
)

__all__ = [
    "GPU_MEMORY_UTILIZATION",
    "Cluster",
    "Efficiency",
    "GpuSpec",
    "HostSpec",
    "Interconnect",
    "device_of",
    "gpu_from_table",
    "gpu_names",
    "host_from_table",
    "host_names",
    "load_gpu",
    "load_host",
]
