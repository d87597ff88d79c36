"""A tensor-parallel group of equal accelerators, and what their collectives cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.hardware.specs import GpuSpec

Amount = TypeVar("Amount", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class Cluster:
    """The accelerators that serve one model together.

    tensor_parallel_size: ranks that each hold a slice of every layer (>= 1).
    """

    gpu: GpuSpec
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise ValueError(f"tensor_parallel_size must be >= 1, got {self.tensor_parallel_size}")

    @property
    def num_gpus(self) -> int:
        """Accelerators in the cluster."""
        return self.tensor_parallel_size

    @property
    def all_reduce_bandwidth(self) -> float:
        """Bytes of an all-reduced tensor per second; infinite on one rank.

        With `reach` = link bandwidth x efficiency and `n` ranks:
        ring         reach n / (2 (n - 1)): each rank sends and receives 2 (n - 1) / n of it.
        host_shared  reach / (n - 1): PCIe without peer access, all through the host bridge.
        bestserve    2 n reach: as much time as one n-th of the elements, counted as one byte
                     each, takes over one link, so two bytes an element.

        Source: Seesaw eq. 1, B_ar (ring, host_shared); BestServe eq. 8 (bestserve).
        """
        ranks, link = self.tensor_parallel_size, self.gpu.interconnect
        reach = link.bandwidth * link.efficiency
        if ranks == 1:
            return math.inf
        if link.all_reduce == "ring":
            return reach * ranks / (2 * (ranks - 1))
        if link.all_reduce == "host_shared":
            return reach / (ranks - 1)
        return 2 * ranks * reach

    def all_reduce_time(self, num_bytes: Amount) -> Amount:
        """Seconds to sum a tensor of `num_bytes` (16-bit elements) over all ranks.

        Takes a number or an array; an element of the array costs the same bits as the number.
        """
        return num_bytes / self.all_reduce_bandwidth
