"""Levels of KV storage, and the expected time of a retrieval from them (MIST §IV-A3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import inf

from mist_sim.clients.retrieval.measured import MeasuredTimes, measured_times
from mist_sim.units import Bytes, BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLevel:
    """One level: a client's own memory, a store shared by several, or one in another rack.

    name: unique among the levels of a client.
    read_bandwidth: bytes/s to one client, on all of the way to the engine. MIST takes 150 GB/s
        for eight channels of DDR4-2666 and 7 GB/s for an NVMe disk.
    latency: seconds until the first byte comes, the look-up included. MIST takes 80 ns for DDR4,
        50 us for NVMe, and about 20 ms to another rack.
    hit_rate: share of the look-ups reaching this level that it answers, in [0, 1]. With `hits:
        stored` it follows from the content.
    capacity: bytes that it holds, with `hits: stored`. capacity_tokens: the same in tokens, in
        place of bytes. Without both it holds everything.
    shared: whether all clients that name such a level share its content and its `total_bandwidth`.
        It outlives each of them.
    total_bandwidth: bytes/s to all clients together, shared equally by simultaneous reads. Without
        it reads do not delay one another, as in MIST's table of storage architectures.
    at: place of a topology where it lies, such as remote/storage or node8/host. Its bytes share the
        links from there to the client's place with all other transfers; `read_bandwidth` is left
        out.
    measured: a CSV file of measured reads with the columns num_bytes and seconds, in place of
        `latency` and `read_bandwidth`. Times between two sizes are interpolated linearly.
    Raises ValueError for values outside these ranges, or that contradict one another.
    """

    name: str
    read_bandwidth: BytesPerSecond | None = None
    latency: Seconds = 0.0
    hit_rate: float | None = None
    capacity: Bytes | None = None
    capacity_tokens: int | None = None
    shared: bool = False
    total_bandwidth: BytesPerSecond | None = None
    at: str | None = None
    measured: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.hit_rate is not None and not 0 <= self.hit_rate <= 1:
            raise ValueError(f"hit_rate must be in [0, 1], got {self.hit_rate}")
        if not 0 <= self.latency < inf:
            raise ValueError(f"latency must be finite and >= 0 s, got {self.latency}")
        for name in ("read_bandwidth", "total_bandwidth", "capacity"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise ValueError(f"{name} must be finite and > 0, got {value}")
        if self.capacity_tokens is not None and self.capacity_tokens < 1:
            raise ValueError(f"capacity_tokens must be >= 1, got {self.capacity_tokens}")
        if None not in (self.capacity, self.capacity_tokens):
            raise ValueError("capacity_tokens must be left out with capacity, got both")
        self._check_way()

    def _check_way(self) -> None:
        """Raise ValueError unless exactly one option gives the time of its bytes."""
        if self.total_bandwidth is not None and not self.shared:
            raise ValueError("total_bandwidth must be left out without shared: true")
        timed = [self.read_bandwidth or self.total_bandwidth, self.at, self.measured]
        if sum(each is not None for each in timed) != 1:
            raise ValueError(
                "read_bandwidth must be given, or one in place of it: total_bandwidth of a shared "
                "level, at, or measured; no two of these"
            )
        if self.measured is not None and self.latency:
            raise ValueError("latency must be left out with measured, which has it")

    @property
    def times(self) -> MeasuredTimes | None:
        """The measured reads. Raises ScenarioError for a file of another form."""
        return None if self.measured is None else measured_times(self.measured)

    def read_time(self, num_bytes: float) -> float:
        """Return the seconds of an undisturbed read: T + S / BW, or as measured.

        Raises ValueError for a level in a topology, whose links determine the time.
        """
        if (times := self.times) is not None:
            return times.seconds(num_bytes)
        speeds = [each for each in (self.read_bandwidth, self.total_bandwidth) if each is not None]
        if not speeds:
            raise ValueError(f"{self.name}: the links of the topology give the time of a read")
        return self.latency + num_bytes / min(speeds)


def expected_time(
    num_bytes: float, levels: Sequence[StorageLevel], recomputation: float = 0.0
) -> float:
    """Return the expected seconds in which the entries of a context are there.

    f(S, C_n) = H_n (T_n + S / BW_n) + (1 - H_n) f(S, C_n+1)

    recomputation: seconds in which an engine computes them, which is f behind the last level. The
    paper leaves that open, and says that a miss may need it. Source: MIST §IV-A3.
    """
    if not levels:
        return recomputation
    here, *below = levels
    rate = _hit_rate(here)
    missed = 0.0 if rate == 1 else (1 - rate) * expected_time(num_bytes, below, recomputation)
    return (rate * here.read_time(num_bytes) if rate else 0.0) + missed


def shares(levels: Sequence[StorageLevel]) -> list[float]:
    """Return the share of retrievals that each level answers: H_n times the misses of those above.

    The shares and the misses of all levels sum to 1.
    """
    found, missed = [], 1.0
    for level in levels:
        rate = _hit_rate(level)
        found.append(missed * rate)
        missed *= 1 - rate
    return found


def _hit_rate(level: StorageLevel) -> float:
    if level.hit_rate is None:
        raise ValueError(f"{level.name}: hit_rate is required, since no other option gives it")
    return level.hit_rate


def check_levels(levels: Sequence[StorageLevel], hits: str) -> None:
    """Raise ValueError unless levels are in order and have the options of their kind of hits."""
    if not levels:
        raise ValueError("levels must have at least one entry, got none")
    names = [level.name for level in levels]
    if len({*names}) < len(names):
        raise ValueError(f"levels must have names that differ, got {', '.join(names)}")
    for level in levels:
        for problem in _problems(level, hits):
            raise ValueError(f"levels: {level.name}: {problem}")
    for nearer, further in pairwise(levels):
        _check_order(nearer, further)


def _problems(level: StorageLevel, hits: str) -> list[str]:
    """Return the options that a level lacks, and those without effect, for a kind of hits."""
    if hits != "stored":
        useless = [name for name in ("capacity", "capacity_tokens") if getattr(level, name)]
        found = [f"{name} must be left out with hits: {hits}" for name in useless]
        if level.hit_rate is None:
            found.append(f"hit_rate must be given with hits: {hits}")
        if level.shared and level.total_bandwidth is None:
            found.append(f"shared must be left out with hits: {hits} and no total_bandwidth")
        return found
    if level.hit_rate is not None:
        return ["hit_rate must be left out with hits: stored, of which it is an outcome"]
    return []


def _check_order(nearer: StorageLevel, further: StorageLevel) -> None:
    """Raise ValueError where a level behind another is no later, no slower, and not equal."""
    speeds = nearer.read_bandwidth, further.read_bandwidth
    if speeds[0] is None or speeds[1] is None:
        return
    here, there = (nearer.latency, -speeds[0]), (further.latency, -speeds[1])
    if here != there and all(b <= a for a, b in zip(here, there, strict=True)):
        raise ValueError(
            f"levels must go from the nearest to the furthest, got {further.name} "
            f"({further.latency:g} s, {speeds[1]:g} B/s) behind {nearer.name} "
            f"({nearer.latency:g} s, {speeds[0]:g} B/s); put it in front"
        )


def described(level: StorageLevel) -> dict[str, object]:
    """Return the description of a shared level on which all its clients must agree."""
    said = {field.name: getattr(level, field.name) for field in fields(level)}
    del said["hit_rate"], said["name"]
    return said
