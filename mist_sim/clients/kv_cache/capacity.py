"""The number of KV-cache blocks of an engine: memory left by weights and activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mist_sim.checks import NotNegative, Positive, Range, Share, check_fields
from mist_sim.clients.kv_cache.moves import SwapSpace
from mist_sim.clients.kv_cache.profile_run import NEWEST, Needs
from mist_sim.clients.kv_cache.tiers import CacheTier
from mist_sim.errors import ScenarioError
from mist_sim.eviction import LRU, Eviction, check_eviction
from mist_sim.hardware.cluster import GPU_MEMORY_UTILIZATION, Cluster
from mist_sim.hardware.devices import MemoryTier
from mist_sim.hardware.drafter import Drafter, shared_groups
from mist_sim.models.kv_groups import StateCache
from mist_sim.models.quantization import KvCacheDtype
from mist_sim.models.spec import ModelSpec, rank_part
from mist_sim.units import Bytes

_GIB = 2.0**30
NULL_BLOCKS = 1  # that no request gets: `BlockPool.null_block` in vllm/v1/core/block_pool.py
_SWAP_SPACE = 4 * _GIB  # bytes a GPU: `CacheConfig.swap_space` of vLLM v0 (vllm/config.py)

NO_ROOM = "does not fit on"  # behind the model, in messages
_LARGEST_BLOCK = 2**20  # tokens; longer than any context
_BLOCKS = Range("[2, inf)", "one block is vLLM's null block, which no request gets")


class NoRoomError(ScenarioError):
    """A model does not fit on its GPUs."""


def gib(num_bytes: Bytes) -> str:
    """Return bytes in GiB a GPU, at least 0.1."""
    return f"{max(num_bytes / _GIB, 0.1):.1f} GiB a GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheConfig:
    """Paged KV-cache memory of one engine; names and defaults as vLLM's.

    block_size: tokens per block (>= 1).
    gpu_memory_utilization: share of each GPU's memory that the engine may use, in (0, 1]. None: the
        default of the `engine` version, 0.9 up to vLLM 0.19 and 0.92 from 0.20 on.
    kv_cache_dtype: dtype of keys and values; "auto": the model's.
    num_gpu_blocks_override: block count of a real engine (>= 2), of which requests get all but
        vLLM's null block; None computes it from gpu_memory_utilization.
    context_memory: bytes a rank needs beside weights, activations, graphs and cache (CUDA context,
        buffers of collectives), as vLLM logs them: "non-torch memory". None: what engines of this
        version have logged, 0.25 GiB for one rank and 2.1 for several on H100s.
    watermark: share of the blocks that admissions leave free for running requests, in [0, 1)
        (vLLM's name from 0.24 on; v0 kept 0.01 free).
    enable_prefix_caching: whether full blocks are kept for later requests that begin with the same
        tokens.
    mamba_cache_mode: which states are kept for these requests, of layers that have a state in place
        of entries (vLLM's name): none, align (those at the ends of prompts' pieces) or all (those
        of every block, Mamba-2 up to vLLM 0.24). None: align from vLLM 0.33 on, none before.
    eviction: which of these blocks go first where there is no room.
    tiers: memory below the GPU's that also keeps these blocks, the nearest first.
    swap_space: bytes of host memory a GPU for the blocks of preempted requests, with
        `preemption: swap` only (vLLM v0's name). None: 4 GiB, its default.
    """

    block_size: Annotated[int, Range(f"[1, {_LARGEST_BLOCK}]")] = 16
    gpu_memory_utilization: Share | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    num_gpu_blocks_override: Annotated[int, _BLOCKS] | None = None
    context_memory: NotNegative[Bytes] | None = None
    watermark: Annotated[float, Range("[0, 1)")] = 0.0
    enable_prefix_caching: bool = True
    mamba_cache_mode: StateCache | None = None
    eviction: Eviction = LRU
    tiers: tuple[MemoryTier, ...] = ()
    swap_space: Positive[Bytes] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_eviction(self.eviction)
        _check_mode(self.mamba_cache_mode, is_on=self.enable_prefix_caching)
        for name in ("gpu_memory_utilization", "context_memory"):
            default = type(self).__dataclass_fields__[name].default
            if self.num_gpu_blocks_override is not None and getattr(self, name) != default:
                raise ValueError(
                    f"{name} must be left out where num_gpu_blocks_override gives the number of "
                    f"blocks, got {getattr(self, name)}"
                )
        self._check_tiers()

    def _check_tiers(self) -> None:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ValueError(f"tiers must have different names, got {', '.join(names)}")
        in_step = dict.fromkeys(tier.loads_in_step for tier in self.tiers)
        if len(in_step) > 1:
            said = " and ".join("null" if each is None else str(each).lower() for each in in_step)
            raise ValueError(
                f"tiers must have the same loads_in_step, got {said} in {', '.join(names)}"
            )
        for tier in self.tiers[:-1]:
            if tier.shared:
                raise ValueError(f"tiers must have the shared one last, got {', '.join(names)}")


def _check_mode(mode: str | None, *, is_on: bool) -> None:
    """Raise ValueError for a `mamba_cache_mode` without a prefix cache."""
    if mode is None:
        return
    if mode != "none" and not is_on:
        raise ValueError(
            f"mamba_cache_mode must be none without a prefix cache, got {mode}; "
            "enable_prefix_caching: true keeps states"
        )


def kv_block_bytes(config: KvCacheConfig, model: ModelSpec, cluster: Cluster) -> float:
    """Return the size of a block over all layers and GPUs of an engine, in bytes.

    With sliding windows or states a block holds one group of layers.
    """
    ranks = cluster.tensor_parallel_size
    if model.layers:
        return model.cache_layout(ranks).page_bytes_per_token * config.block_size * ranks
    in_all = model.kv_bytes_per_token_per_rank(ranks) * ranks
    token_bytes = in_all / cluster.decode_context_parallel_size
    share = model.kv_groups.layers_per_group / model.num_layers
    return token_bytes * config.block_size * share


def cache_tiers(config: KvCacheConfig, model: ModelSpec, cluster: Cluster) -> list[CacheTier]:
    """Return the tiers of one engine in blocks of all its layers and ranks.

    Raises ScenarioError for a tier without room for a block.
    """
    ranks, block_bytes = cluster.tensor_parallel_size, kv_block_bytes(config, model, cluster)
    num_gpus, tiers = ranks * cluster.pipeline_parallel_size, []
    for tier in config.tiers:
        if tier.capacity < block_bytes:
            raise ScenarioError(
                f"tier {tier.name} has {tier.capacity:,.0f} bytes, less than a block of "
                f"{block_bytes:,.0f} bytes; raise its capacity"
            )
        bandwidth = tier.read_bandwidth or cluster.gpu.from_host * num_gpus
        seconds = tier.read_time(block_bytes, bandwidth) - tier.latency
        blocks = int(tier.capacity // block_bytes)
        writes_back = tier.write_policy == "write_back"
        more = tier.at or "host", tier.read_bandwidth, tier.shared, bool(tier.loads_in_step)
        sizes = tier.name, blocks, tier.latency, seconds
        tiers.append(CacheTier(*sizes, writes_back, *more, tier.eviction))
    return tiers


def swap_space(config: KvCacheConfig, model: ModelSpec, cluster: Cluster) -> SwapSpace:
    """Return the swap space of one engine in blocks of all its ranks.

    Every rank copies its part over its own host link (vLLM v0's `CacheEngine.swap_out`).
    Raises ScenarioError when it has no room for a block.
    """
    ranks, block_bytes = cluster.tensor_parallel_size, kv_block_bytes(config, model, cluster)
    num_gpus = ranks * cluster.pipeline_parallel_size
    num_bytes = num_gpus * (config.swap_space or _SWAP_SPACE)
    if num_bytes < block_bytes:
        raise ScenarioError(
            f"swap_space has {num_bytes:,.0f} bytes on {num_gpus} GPUs, less than a block of "
            f"{block_bytes:,.0f} bytes; raise it"
        )
    seconds = block_bytes / (cluster.gpu.from_host * num_gpus)
    return SwapSpace(int(num_bytes // block_bytes), seconds)


def num_gpu_blocks(
    config: KvCacheConfig,
    model: ModelSpec,
    cluster: Cluster,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    drafter: Drafter | None = None,
    needs: Needs = NEWEST,
) -> int:
    """Return the KV-cache blocks that the requests of one engine share (the same on all its GPUs).

    One block less than there are: vLLM's null block holds the place of blocks that a window left.
    A block holds `block_size` tokens of all layers; with sliding windows, of one group of layers
    (see `KvGroups`). In a pipeline the rank with the least room decides.
    gpu_memory_utilization x memory - weights - activations - graphs - context, in whole blocks.
    drafter: a model that drafts; its weights lie beside the target's on the last rank, and every
        block has room for its entries there, since both have the same block table (vLLM).
    needs: what the engine's version takes beside weights and cache.
    Raises NoRoomError when not even one block is left.
    """
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override - NULL_BLOCKS
    size = cluster.pipeline_parallel_size
    sizes = (max_num_batched_tokens, max_num_seqs)
    parts = [rank_part(model, rank, size) for rank in range(size)]
    drafters = [*[None] * (size - 1), drafter]
    kept = _token_bytes(model, parts, drafter, cluster.tensor_parallel_size)
    kept = [each / cluster.decode_context_parallel_size for each in kept]
    return min(
        _blocks_on_rank(config, part, token_bytes, cluster, *sizes, drafts, needs)
        for part, token_bytes, drafts in zip(parts, kept, drafters, strict=True)
    )


def _token_bytes(
    model: ModelSpec, parts: list[ModelSpec], drafter: Drafter | None, ranks: int
) -> list[float]:
    """Return the bytes of a page on each rank of a pipeline, over the tokens of a block."""
    if model.layers:
        page = model.cache_layout(ranks).page_bytes_per_token
        return [page * part.num_layers / model.num_layers for part in parts]
    kept = _layers_kept(model, parts, drafter)
    return [
        part.kv_bytes_per_token_per_rank(ranks) // part.num_layers * number
        for part, number in zip(parts, kept, strict=True)
    ]


def _layers_kept(model: ModelSpec, parts: list[ModelSpec], drafter: Drafter | None) -> list[int]:
    """Return of how many layers a block has entries on each rank.

    Every group of layers is spread over the ranks as the layers are; a layer that drafts is one
    of the last rank's.
    """
    per_group = shared_groups(model, drafter).layers_per_group
    layers = [part.num_layers for part in parts]
    layers[-1] += drafter.num_layers_in_groups if drafter else 0
    return [-(-per_group * number // sum(layers)) for number in layers]


def _blocks_on_rank(
    config: KvCacheConfig,
    part: ModelSpec,
    token_bytes: float,
    cluster: Cluster,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    drafter: Drafter | None,
    needs: Needs,
) -> int:
    """Return the number of blocks that fit on a rank with one part of the model.

    token_bytes: bytes of a block there, divided by its tokens. drafter: the drafting model on that
        rank.
    """
    tp = cluster.tensor_parallel_size
    said = config.gpu_memory_utilization
    share = GPU_MEMORY_UTILIZATION if said is None else said
    budget = share * cluster.gpu.memory
    weights = needs.weights(part, cluster)
    weights += drafter.weight_bytes_per_rank if drafter else 0
    activations = needs.activations(part, cluster, max_num_batched_tokens, max_num_seqs)
    graphs = needs.profile.graphs(needs.num_graphs)
    context = needs.context(config.context_memory, cluster)
    cache = budget - weights - activations - graphs - context
    if drafter and not drafter.num_layers_in_groups:
        token_bytes += drafter.kv_bytes_per_token_per_rank
    num_blocks = int(cache // (token_bytes * config.block_size))
    if num_blocks <= NULL_BLOCKS:
        num_gpus = tp * cluster.pipeline_parallel_size
        missing = (NULL_BLOCKS + 1) * token_bytes * config.block_size - cache
        engines = cluster.num_sharing_replicas
        each = f" in each of {engines} engines that share experts" if engines > 1 else ""
        of_graphs = f"CUDA graphs {graphs / _GIB:.1f} GiB, " if graphs else ""
        raise NoRoomError(
            f"{part.name} {NO_ROOM} {num_gpus} x {cluster.gpu.name}{each}: of "
            f"{cluster.gpu.memory / _GIB:.1f} GiB a GPU, gpu_memory_utilization="
            f"{share} gives {budget / _GIB:.1f} GiB; weights take "
            f"{weights / _GIB:.1f} GiB, activations {activations / _GIB:.1f} GiB, {of_graphs}"
            f"context {context / _GIB:.1f} GiB, so {gib(missing)} are missing for one "
            f"KV-cache block"
        )
    return num_blocks - NULL_BLOCKS
