"""By how much kernels would change coefficients that are derived from flat shares of the peaks.

Appendix B takes one share of the bandwidth for attention and one of the rate for experts: here
those of a GPU's entry in decode (`decode.mbu`, `decode.mfu`). Engines in a run are timed by the
figures of kernels instead, where the GPU's architecture has some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices.device_loading import architecture_names, kernels_of
from mist_sim.hardware.devices.kernels import Kernel, kernel_of
from mist_sim.hardware.devices.specs import GpuSpec
from mist_sim.hardware.kernel_choice import attention_kinds, experts_kind
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KernelShares:
    """How the coefficient of a part would change with the kernels of its GPU.

    part: "attention" or "experts". share: taken of the peak. low, high: by which the coefficient
    would be multiplied; equal where is_known says that the GPU's own kernels have figures. Sizes
    are large: no kernel is as short as its floor.
    """

    part: str
    gpu: GpuSpec
    share: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether the GPU's own kernels have figures; else these are of all architectures."""
        return bool(self.gpu.kernels)


def attention_shares(model: ModelSpec, gpu: GpuSpec) -> KernelShares:
    """Return what kernels would make of alpha_a, by the bandwidth that they reach."""
    share = gpu.decode.mbu
    kernels = _kernels(gpu, attention_kinds(model)[1])
    factors = [share / (kernel.mbu or share) for kernel in kernels]
    return KernelShares("attention", gpu, share, min(factors), max(factors))


def expert_shares(model: ModelSpec, gpu: GpuSpec) -> KernelShares:
    """Return what kernels would make of alpha_f, by the rate that they reach."""
    share = gpu.decode.mfu
    kernels = _kernels(gpu, experts_kind(model, Cluster(gpu)))
    factors = [share / (kernel.mfu or share) for kernel in kernels]
    return KernelShares("experts", gpu, share, min(factors), max(factors))


def _kernels(gpu: GpuSpec, kind: str) -> list[Kernel]:
    tables: list[Mapping[str, Kernel]] = [gpu.kernels]
    if not gpu.kernels:
        tables = [kernels_of(name) for name in architecture_names()]
    return [kernel_of(table, kind) for table in tables]
