"""The hardware that serves: accelerators, clusters of them, and what a step costs there."""

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.loading import device_of, gpu_from_table, gpu_names, load_gpu
from mist_sim.hardware.specs import Efficiency, GpuSpec, Interconnect

__all__ = [
    "Cluster",
    "Efficiency",
    "GpuSpec",
    "Interconnect",
    "device_of",
    "gpu_from_table",
    "gpu_names",
    "load_gpu",
]
