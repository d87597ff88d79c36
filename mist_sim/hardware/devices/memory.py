"""Memory below that of the accelerators, where an engine can keep keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from mist_sim.errors import brief, did_you_mean
from mist_sim.units import Bytes, BytesPerSecond, Seconds

WritePolicy = Literal["write_through", "write_back"]
WRITE_POLICIES: tuple[str, ...] = get_args(WritePolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """One tier: host memory, a disk, a store in the network.

    name: unique among the tiers of an engine, such as "cpu".
    capacity: bytes for the cache of one engine; a client has data_parallel_size engines.
    read_bandwidth: bytes/s to all accelerators of the engine together; None: that of their
        host links (`GpuSpec.host_bandwidth`) side by side, as for host memory, at their full rate,
        which results list as assumed.
    latency: seconds before the first byte of a load. The default is that of DDR4 memory in MIST
        §IV-B: 80 ns; there an NVMe disk has 50 us and 7 GB/s.
    at: its place on a network with a topology: "host" or "storage", that of the node of each GPU,
        or a place such as "remote/storage". Loads share the links from there to the GPUs with all
        other traffic, and `read_bandwidth` is the tier's own limit. None: "host".
    shared: whether all engines that name such a tier share its content, so that it outlives each of
        them; `capacity` is then for all. It must be the last tier, write through, and have a
        `read_bandwidth`, or with a topology a place outside the nodes. A block is written when its
        prompt has been computed, or its request leaves.
    loads_in_step: whether the step that admits a request waits for its blocks, as with LMCache's
        defaults, and not the request, while steps go on, as with vLLM's `OffloadingConnector`. All
        tiers of an engine must have the same. null: the step, where that is simulated.
    write_policy: "write_through" writes a block when it is computed, "write_back" when the memory
        above gives it up (the names are SGLang's `--hicache-write-policy`).
    """

    name: str
    capacity: Bytes
    read_bandwidth: BytesPerSecond | None = None
    latency: Seconds = 80e-9
    at: str | None = None
    shared: bool = False
    write_policy: WritePolicy = "write_through"
    loads_in_step: bool | None = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if not 0 < self.capacity < math.inf:
            raise ValueError(f"capacity must be > 0 and finite, got {self.capacity}")
        if self.read_bandwidth is not None and not 0 < self.read_bandwidth < math.inf:
            raise ValueError(f"read_bandwidth must be > 0 and finite, got {self.read_bandwidth}")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be >= 0 s and finite, got {self.latency}")
        if self.write_policy not in WRITE_POLICIES:
            known = ", ".join(WRITE_POLICIES)
            hint = did_you_mean(self.write_policy, WRITE_POLICIES)
            raise ValueError(f"write_policy has no {brief(self.write_policy)}{hint} Known: {known}")
        if self.shared:
            self._check_shared()

    def _check_shared(self) -> None:
        if self.write_policy != "write_through":
            raise ValueError(
                f"write_policy must be write_through with shared, got {self.write_policy}"
            )
        if self.at in ("host", "storage"):
            raise ValueError(
                f"at must be a place that all reach with shared, such as remote/storage, "
                f"got {self.at}, which is each node's own"
            )
        if self.at is None and self.read_bandwidth is None:
            raise ValueError(
                "read_bandwidth must be given with shared, or at, got neither; host memory is an "
                "engine's own"
            )

    def read_time(self, num_bytes: float, host_bandwidth: float) -> float:
        """Seconds of an undisturbed load (MIST eq. for T_retrieval with a hit: T + S / BW)."""
        return self.latency + num_bytes / (self.read_bandwidth or host_bandwidth)
