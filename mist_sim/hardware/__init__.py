"""Serving hardware: accelerators, clusters of them, and the cost of a step there."""

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices.device_loading import device_of, gpu_from_table, gpu_names, load_gpu
from mist_sim.hardware.devices.hosts import host_from_table, host_names, load_host
from mist_sim.hardware.devices.specs import Efficiency, GpuSpec, HostSpec, Interconnect

__all__ = [
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
