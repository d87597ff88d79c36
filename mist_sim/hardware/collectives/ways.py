"""The ways to do a collective: the start-up, time per hop, and bandwidth share of each.

There are two kinds of constants. NCCL's own tuning model (`baseLat`, `hwLat` and the bandwidth
corrections in `src/graph/tuning.cc`, 2.20 to 2.28) has them for each algorithm and protocol.
Constants of real machines were fitted to the collectives measured in aiconfigurator-core 0.12.0,
with NCCL 2.27 to 2.29 and vLLM 0.14 to 0.24, on A100, H100, H200, B200, B300, GB200 and GB300 over
NVLink and on L40S and RTX PRO 6000 over PCIe: `python -m benchmarks.collectives --fit`.
"""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.hardware.devices.hosts import bus_rate, default_host
from mist_sim.hardware.devices.specs import Interconnect


class Line(NamedTuple):
    """One way to do it: fixed seconds, and seconds per byte of the tensor."""

    latency: float
    per_byte: float


class Protocol(NamedTuple):
    """NCCL's constants: seconds to start and a hop by kind of link, share of the bandwidth."""

    base: float
    nvlink_hop: float
    pcie_hop: float
    share: float


# low latency, low latency with 128-byte words, simple
RING = (
    Protocol(6.6e-6, 0.6e-6, 1.0e-6, 0.5),
    Protocol(14.0e-6, 1.9e-6, 2.5e-6, 0.92),
    Protocol(8.4e-6, 3.4e-6, 5.7e-6, 1.0),
)
TREE = (
    Protocol(6.8e-6, 0.6e-6, 1.0e-6, 0.92 / 3.8),
    Protocol(14.0e-6, 1.25e-6, 1.9e-6, 0.92 * 7 / 9),
    Protocol(8.4e-6, 4.0e-6, 4.0e-6, 0.92),
)


class Way(NamedTuple):
    """A fitted way: start-up seconds, seconds per hop, and share of the link's bandwidth.

    flat: the bytes take as long over few ranks as over many (a switch keeps all links busy), which
    makes the share that of endless ranks, and more than 1 possible.
    """

    base: float
    hop: float
    share: float
    flat: bool = False


# H100 and 2 (n - 1) hops; latencies of others are `Interconnect.nccl_latency` times these
SUM_OVER_NVLINK = (
    Way(4.9e-6, 0.81e-6, 0.58, flat=True),
    Way(15.8e-6, 0.90e-6, 0.79),
    Way(7.7e-6, 4.1e-6, 1.27, flat=True),
)
# n - 1 hops
GATHER_OVER_NVLINK = (
    Way(4.9e-6, 0.82e-6, 0.45, flat=True),
    Way(6.3e-6, 5.5e-6, 1.16, flat=True),
    Way(25.7e-6, 0.48e-6, 1.05, flat=True),
)


class Kernels(NamedTuple):
    """vLLM's own all-reduce: every rank reads all tensors, or sums a slice and reads the others'.

    peer_rate: bytes/s at which a rank reads one other rank, independent of the link's speed.
    """

    one_shot: Way
    two_shots: Way
    peer_rate: float


KERNEL_RANKS = (2, 4, 6, 8)
"""Ranks that vLLM's kernels sum: `_SUPPORTED_WORLD_SIZES` of `CustomAllreduce`."""
VLLM_KERNELS = Kernels(Way(4.4e-6, 0.0, 0.60), Way(9.4e-6, 0.0, 0.98, flat=True), 218e9)

# With peer access, as NCCL; shares of the host's bus rate
OVER_PEERS = (Way(3.3e-6, 1.5e-6, 0.5), Way(8.0e-6, 3.5e-6, 1.0))
# Without: 20 us between two RTX PRO 6000 (vLLM 0.19), 40 us between eight RTX 4090
# (NVIDIA/nccl#1530); bandwidth as above
OVER_HOST = (Way(16.7e-6, 1.67e-6, 0.5), Way(16.0e-6, 3.5e-6, 1.0))
PAIR_OVER_PCIE = Way(4.5e-6, 0.0, 1.0)
"""vLLM's own all-reduce between two ranks with peer access; it takes no more over PCIe."""


def tuned_lines(
    link: Interconnect, protocols: tuple[Protocol, ...], hops: int, per_byte: float
) -> tuple[Line, ...]:
    """Return the ways of an algorithm with NCCL's constants. per_byte: seconds without losses."""
    nvlink = link.kind != "pcie"  # other GPUs publish no such figures and count as NVLink
    return tuple(
        Line(p.base + hops * (p.nvlink_hop if nvlink else p.pcie_hop), per_byte / p.share)
        for p in protocols
    )


def sums_over_nvlink(link: Interconnect, ranks: int) -> tuple[Line, ...]:
    """Return the ways of an all-reduce over NVLink: NCCL's and those of vLLM's own kernels.

    Between hosts the kernels that read others' memory do not start (`in_the_same_node_as`). Those
    that sum by multicast do (`SymmMemCommunicator`), and take as long as two shots.
    """
    reach = link.bandwidth * link.efficiency
    kernels = kernel_lines(VLLM_KERNELS, ranks, reach, link.kernel_latency)
    nccl = lines_of(SUM_OVER_NVLINK, 2, ranks, reach, link.nccl_latency)
    if ranks not in KERNEL_RANKS:
        return nccl
    return (*(kernels[1:] if between_hosts(link, ranks) else kernels), *nccl)


def between_hosts(link: Interconnect, ranks: int) -> bool:
    """Whether NVLink joins the ranks of several hosts, and the group is one of these."""
    return link.tray is not None and ranks > link.tray


def gathers_over_nvlink(link: Interconnect, ranks: int) -> tuple[Line, ...]:
    """Return the ways to gather a tensor over NVLink, or to sum and scatter it."""
    reach = link.bandwidth * link.efficiency
    return lines_of(GATHER_OVER_NVLINK, 1, ranks, reach, link.nccl_latency)


def sums_over_pcie(link: Interconnect, ranks: int) -> tuple[Line, ...]:
    """Return the ways to sum a tensor over PCIe on a host."""
    lines = _over_pcie(link, 2, ranks)
    if ranks == 2 and _has_peer_access(link):
        lines += lines_of((PAIR_OVER_PCIE,), 2, 2, bus_rate(link, 2), 1.0)
    return lines


def gathers_over_pcie(link: Interconnect, ranks: int) -> tuple[Line, ...]:
    """Return the ways to gather a tensor over PCIe on a host, or to sum and scatter it."""
    return _over_pcie(link, 1, ranks)


def sends_over_pcie(link: Interconnect) -> tuple[Line, ...]:
    """Return the ways to send a tensor to one other rank over PCIe on a host."""
    rate = bus_rate(link, 2)
    return tuple(Line(way.base + way.hop, 1 / rate / way.share) for way in ways_over_pcie(link))


def _over_pcie(link: Interconnect, rounds: int, ranks: int) -> tuple[Line, ...]:
    return lines_of(ways_over_pcie(link), rounds, ranks, bus_rate(link, ranks), 1.0)


def ways_over_pcie(link: Interconnect) -> tuple[Way, ...]:
    """Return the ways of a collective over PCIe on a host; shares refer to its bus rate."""
    return OVER_PEERS if _has_peer_access(link) else OVER_HOST


def _has_peer_access(link: Interconnect) -> bool:
    return (link.host or default_host(link)).peer_access


def kernel_lines(kernels: Kernels, ranks: int, reach: float, latency: float) -> tuple[Line, ...]:
    """Return the ways of vLLM's own all-reduce. latency: over that of the constants."""
    one, two, peer_rate = kernels
    return (
        Line(latency * one.base, max((ranks - 1) / reach / one.share, 1 / peer_rate)),
        Line(latency * two.base, 2 / reach / two.share),
    )


def lines_of(
    ways: tuple[Way, ...], rounds: int, ranks: int, rate: float, latency: float
) -> tuple[Line, ...]:
    """Return ways that go `rounds` times around a ring. latency: over that of the constants."""
    hops = rounds * (ranks - 1)
    return tuple(
        Line(
            latency * (way.base + hops * way.hop),
            (rounds if way.flat else hops / ranks) / rate / way.share,
        )
        for way in ways
    )
