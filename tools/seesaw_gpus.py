"""Table 1 of Seesaw: its GPUs, with the efficiencies with which its figures come out."""

from __future__ import annotations

from dataclasses import replace

from mist_sim.hardware.resharding import Device

_GIB = 2**30
_FLOPS, _MEMORY, _TAKEN = 0.6, 0.8, 0.9
"""Shares of FLOPs, memory bandwidth and memory: assumed; the paper gives none (0.9 is vLLM's
default). With them its figures 1, 13 and 14 have its orders: docs/background/seesaw.md."""
_LINK = 0.8
"""Share of a link that collectives reach: assumed; NCCL's protocols leave about as much (see
`Interconnect.efficiency` of the catalog's entries)."""
_PCIE = 16 * _GIB  # PCIe 4.0 x8 (Seesaw 6.1)
_NVLINK = 300 * _GIB  # 600 GiB/s both ways (Seesaw 6.1)


def _pcie_gpu(name: str, memory: float, bandwidth: float, tera_flops: float) -> Device:
    return Device(
        name=name,
        flops=_FLOPS * tera_flops * 1e12,
        memory_bandwidth=_MEMORY * bandwidth * _GIB,
        memory=_TAKEN * memory * _GIB,
        link_bandwidth=_LINK * _PCIE,
        host_bandwidth=_PCIE,
        all_reduce="host_shared",
    )


A10 = _pcie_gpu("A10", 24, 600, 125)
L4 = _pcie_gpu("L4", 24, 300, 121)
A100_PCIE = _pcie_gpu("A100 PCIe", 40, 1555, 312)
A100_NVLINK = replace(
    A100_PCIE, name="A100 NVLink", link_bandwidth=_LINK * _NVLINK, all_reduce="ring"
)
