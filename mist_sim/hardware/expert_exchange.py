"""Exchanges of hidden states between the replicas that share experts, by back end.

vLLM's default gathers the tokens of all replicas on every rank, and sums and scatters what the
experts return. An all-to-all sends a token only to ranks that have one of its experts: the low
latency kind once for each of its k experts, the high throughput kind once for each rank, over the
network once for each node, from which it is forwarded. With E experts on R ranks, g of these on a
node, and any k of the experts as likely as any others:

    ranks reached   R (1 - prod over i < k of (1 - (E / R) / (E - i))); nodes likewise
    low latency     k (g - 1) / R copies inside a node, k (R - g) / R over the network
    high throughput (g - 1) / g copies for each rank reached inside, and the other nodes reached

A copy is a hidden state, with one byte a value and a scale for each 128 of them on the way to
experts that multiply FP8, else 16 bits, and 16 bits on the way back. Both links are busy at once.

Constants: DeepEP, its page legacy (V1; H800s with 200 GB/s of NVLink and 50 GB/s of network each,
DeepSeek-V3's sizes). The low latency ones fit its twelve latencies, 77 us (8 ranks) to 369 us (128)
with 128 tokens a rank, within 5.4 %. Those of high throughput are its bandwidths less what stays on
the rank or node: 153 GB/s over NVLink of 8 ranks, 58 and 51 GB/s over the network of 32 and 64. On
16 ranks it says 43 GB/s, of which half crosses: times here are too short there. V2 says 726 GB/s on
Blackwell (README.md), 5 % more than these. No latency is published of it: that of the other kind
is taken. Others than DeepEP publish no such figures, and count as DeepEP's of their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from mist_sim.core.result_warnings import EXPERT_EXCHANGE, ResultWarning
from mist_sim.hardware.cluster import GATHERS, Cluster
from mist_sim.hardware.collectives import all_gather, inside_rate
from mist_sim.models import operators
from mist_sim.models.moe import MoeSpec
from mist_sim.models.spec import ModelSpec

LOW_LATENCY = frozenset({"deepep_low_latency", "mori_low_latency", "nixl_ep", "pplx"})
"""Back ends that send a token to each of its experts; the others send it to each rank."""

_LATENCY = 23e-6  # seconds of one way
_SCALED = 128  # values of a scale
_SCALE = 4  # bytes
_TOLD = 1.5  # times the bytes of an all-to-all, from which on gathering is told


class Shares(NamedTuple):
    """Shares of the bandwidth that a collective reaches inside a node, and of the network's."""

    inside: float
    network: float


_OF_LOW_LATENCY = Shares(132 / 160, 42 / 50)
_OF_HIGH_THROUGHPUT = Shares(153 * 7 / 8 / 160, 58 * 3 / 4 / 50)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchanges of all layers of a step, there and back.

    name: of the operator. count: exchanges, two a layer. seconds: of all, from the tokens of this
    replica and those of all.
    """

    name: str
    count: int
    seconds: Callable[[float, float], float]


def exchange_of(model: ModelSpec, cluster: Cluster) -> Exchange | None:
    """Return the exchanges of replicas that share experts; None for one, or without experts."""
    replicas, moe = cluster.num_sharing_replicas, model.moe
    if replicas == 1 or moe is None:
        return None
    layers = model.num_moe_layers
    if cluster.all2all_backend == GATHERS:
        gather = all_gather(cluster.gpu.interconnect, replicas, cluster.spans.replicas)
        size, count = model.hidden_size * model.dtype_bytes, 2 * layers
        return Exchange("all_gather", count, lambda _, shared: count * gather(shared * size))
    ways = _ways(model, moe, cluster)
    ranks, t = cluster.expert_parallel_size, cluster.tensor_parallel_size
    imbalance = cluster.expert_load_imbalance

    def seconds(num_tokens: float, shared: float) -> float:
        """Return the time of the rank that sends most, or of the one that gets most."""
        most = max(num_tokens / t, shared * imbalance / ranks)
        return layers * sum([_LATENCY + most * each for each in ways])

    return Exchange("all_to_all", 2 * layers, seconds)


def _ways(model: ModelSpec, moe: MoeSpec, cluster: Cluster) -> list[float]:
    """Return the seconds that a token takes to its experts, and back, beyond the latency."""
    link, span = cluster.gpu.interconnect, cluster.spans.replicas
    ranks = cluster.expert_parallel_size
    here = ranks if span is None else min(ranks, span.most * cluster.tensor_parallel_size)
    network = None if span is None else span.bandwidth / span.fewest
    is_direct = cluster.all2all_backend in LOW_LATENCY
    shares = _OF_LOW_LATENCY if is_direct else _OF_HIGH_THROUGHPUT
    inside, between = _copies(moe, ranks, here, is_direct=is_direct)
    seconds = inside / inside_rate(link, here) / shares.inside
    if network is not None:
        seconds = max(seconds, between / network / shares.network)
    return [seconds * size for size in _sizes(model, moe)]


def _copies(moe: MoeSpec, ranks: int, here: int, *, is_direct: bool) -> tuple[float, float]:
    """Return the copies of a token that leave it inside a node, and over the network.

    here: ranks of a node. is_direct: whether each expert gets a copy of its own.
    """
    k = moe.num_experts_per_token
    if is_direct:
        return k * (here - 1) / ranks, k * (ranks - here) / ranks
    nodes = -(-ranks // here)
    return (
        reached(moe, ranks) * (here - 1) / here,
        reached(moe, nodes) * (nodes - 1) / nodes,
    )


def reached(moe: MoeSpec, parts: int) -> float:
    """Return in how many of equal parts a token's experts lie, on average."""
    experts = moe.num_experts
    missed = prod(
        max(0.0, 1 - experts / parts / (experts - each))
        for each in range(moe.num_experts_per_token)
    )
    return parts * (1 - missed)


def _sizes(model: ModelSpec, moe: MoeSpec) -> tuple[float, float]:
    """Return the bytes of a token on the way to an expert, and on the way back."""
    width = moe.hidden_size or model.hidden_size
    product = operators.routed_experts(model, moe, 1, 1, 1)[0]
    there = width + width / _SCALED * _SCALE if product.dtype == "fp8" else 2 * width
    return float(there), float(2 * width)


def exchange_warnings(
    model: ModelSpec, cluster: Cluster, *, is_timed: bool
) -> Iterator[ResultWarning]:
    """Yield how experts are exchanged, where replicas share them.

    is_timed: whether the predictor times the exchange by links, rather than have it in its times.
    """
    moe, ranks, backend = model.moe, cluster.expert_parallel_size, cluster.all2all_backend
    if moe is None or cluster.num_sharing_replicas == 1:
        return
    if not is_timed:
        if backend != GATHERS:
            yield ResultWarning(
                EXPERT_EXCHANGE,
                f"Exchanges of experts by {backend} (all2all_backend) are not timed: the predictor "
                "has those of its own.",
                brief=f"Exchange of experts by {backend} not timed.",
            )
        return
    if backend != GATHERS:
        yield ResultWarning(
            EXPERT_EXCHANGE,
            f"Experts are exchanged by {backend}, timed by bytes at the shares of bandwidth "
            "that DeepEP publishes for H800s; no run with an all-to-all was compared.",
            brief=f"Exchange of experts by {backend}: not compared with measurements.",
        )
        return
    times = traffic_ratio(model, moe, cluster)
    if times < _TOLD:
        return
    yield ResultWarning(
        EXPERT_EXCHANGE,
        f"The default exchange of experts in vLLM ({GATHERS}) sends all tokens to each of {ranks} "
        f"ranks, {times:.3g} times the bytes of an all-to-all, which sends a token to the ranks of "
        f"its {moe.num_experts_per_token} experts. Say yours: all2all_backend (vLLM's "
        "--all2all-backend), such as deepep_high_throughput.",
        brief=f"Exchange of experts by {GATHERS}, {times:.3g} times the bytes of an all-to-all.",
    )


def traffic_ratio(model: ModelSpec, moe: MoeSpec, cluster: Cluster) -> float:
    """Return the bytes that a rank gets by gathering over those by an all-to-all to each rank."""
    ranks, t = cluster.expert_parallel_size, cluster.tensor_parallel_size
    gathered = 2 * (cluster.num_sharing_replicas - 1) * model.hidden_size * model.dtype_bytes
    sent = reached(moe, ranks) * (ranks - 1) / ranks / t * sum(_sizes(model, moe))
    return gathered / sent
