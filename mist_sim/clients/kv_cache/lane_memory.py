"""The KV memory of a lane: its part of the engine's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS, KvCacheConfig
from mist_sim.clients.kv_cache.moves import SwapSpace
from mist_sim.clients.kv_cache.pages import PagePool, PageRules
from mist_sim.clients.kv_cache.prefix_history import PrefixHistory
from mist_sim.clients.kv_cache.tiers import CacheTier
from mist_sim.errors import ScenarioError
from mist_sim.eviction import LRU, Eviction
from mist_sim.models.adapters import AT_ONCE, AdapterMoves
from mist_sim.models.kv_groups import KvGroups
from mist_sim.models.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMemory:
    """The KV memory of each lane of an engine.

    num_blocks, block_size: blocks on the GPUs, and tokens in each.
    num_in_all: blocks of all lanes of the engine.
    num_reserved: blocks that admissions leave free for running decodes (vLLM's watermark).
    groups: how the layers of a model with windows or states share the blocks; None without.
    page_rules: how their pages are counted. num_drafts: tokens that each decode verifies in a step.
    num_recomputed: last blocks of a hit that are computed again, for drafts. hashes_ahead: whether
        a block is found by the token behind it, too, instead.
    caches_prefixes: whether full blocks are kept for later requests with equal tokens.
    uncached_first: whether free blocks that are not are used before all others.
    eviction: which free blocks go first. tiers: memory below the GPU, the nearest first.
    swap_space: of preempted sequences; None where they are computed again.
    """

    num_blocks: int
    num_in_all: int
    block_size: int
    num_reserved: int
    groups: KvGroups | None
    page_rules: PageRules
    num_drafts: int
    num_recomputed: int
    hashes_ahead: bool
    caches_prefixes: bool
    uncached_first: bool
    eviction: Eviction
    tiers: tuple[CacheTier, ...]
    swap_space: SwapSpace | None

    @property
    def num_tokens(self) -> int:
        """Tokens that have entries in the blocks of a lane, where no layer has a window."""
        return self.num_blocks * self.block_size

    def pool(self) -> BlockPool:
        """Return the blocks of a lane; all are free."""
        sizes, groups = (self.num_blocks, self.block_size, self.num_reserved), self.groups
        pool = BlockPool(*sizes)
        if groups:
            pool = PagePool(*sizes, groups, self.page_rules, self.num_drafts)
        pool.num_in_all = self.num_in_all
        return pool

    def history(self) -> PrefixHistory | None:
        """Return the history of prompts, for hit estimates; None without prefix caching."""
        if not self.caches_prefixes:
            return None
        return PrefixHistory(self.block_size, self.num_recomputed)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """The KV memory of one engine: what its model and its GPUs make of a `KvCacheConfig`.

    num_gpu_blocks: blocks on the GPUs (see `num_gpu_blocks`), of which each lane has an equal part
        (vLLM v0 divides by pipeline_parallel_size as well).
    kv_groups: how the layers of a model with sliding windows share the blocks; None without
        windows.
    cache_tiers: memory below the GPU that the prefix cache is written to, the nearest first. The
        lanes of a pipeline have equal parts of it and share the links.
    swap_space: keeps the blocks of preempted sequences, for a scheduler whose `preemption` is
        "swap"; the lanes have equal parts of it.
    kv_block_bytes: size of a block over all GPUs of the engine; None: entries of other clients
        cannot come here.
    num_layers: layers that are computed, and may be sent, one after the other.
    adapter_moves: how long it takes until a LoRA adapter is on the GPUs.
    kv_entries: how keys and values are stored (`ModelSpec.kv_entries`); empty: unknown.
    """

    num_gpu_blocks: int
    kv_groups: KvGroups | None = None
    cache_tiers: Sequence[CacheTier] = ()
    swap_space: SwapSpace | None = None
    kv_block_bytes: float | None = None
    num_layers: int = 1
    adapter_moves: AdapterMoves = AT_ONCE
    kv_entries: str = ""


def lane_memory(
    memory: EngineMemory,
    config: KvCacheConfig,
    num_lanes: int,
    *,
    drafting: SpeculativeConfig | None,
    swaps: bool,
    swaps_overlap: bool = False,
    uncached_first: bool = False,
    hashes_ahead: bool = False,
    page_rules: PageRules | None = None,
) -> LaneMemory:
    """Divide an engine's memory among its lanes.

    drafting: how it drafts tokens. swaps: whether its scheduler preempts by swapping.
    swaps_overlap: whether it computes steps meanwhile.
    uncached_first, hashes_ahead: of its `EngineRules`. page_rules: how its version counts pages.
    Raises ScenarioError for too few blocks and for parts that do not go together.
    """
    if memory.num_gpu_blocks < num_lanes:
        raise ScenarioError(
            f"num_gpu_blocks must be >= pipeline_parallel_size ({num_lanes}), "
            f"got {memory.num_gpu_blocks}; every lane of the pipeline has its own"
        )
    if memory.cache_tiers and memory.kv_groups:
        raise ScenarioError(
            "tiers must be empty for a model with sliding windows or states; that combination is "
            "not simulated"
        )
    if config.eviction != LRU and (memory.kv_groups or not config.enable_prefix_caching):
        where = (
            "for a model with sliding windows or states; that combination is not simulated"
            if memory.kv_groups
            else "without enable_prefix_caching, which keeps no blocks"
        )
        raise ScenarioError(f"kv_cache.eviction must be lru {where}, got {config.eviction}")
    if memory.cache_tiers and not config.enable_prefix_caching:
        raise ScenarioError("tiers must be empty without a prefix cache")
    _check_swap_space(memory.swap_space, swaps, memory.cache_tiers)
    if swaps_overlap and (drafting or memory.kv_groups):
        what = "speculative_config" if drafting else "a model with sliding windows or states"
        raise ScenarioError(
            f"scheduler must not have preemption: async_swap with {what}; that combination is "
            "not simulated"
        )
    num_blocks = memory.num_gpu_blocks // num_lanes
    num_recomputed = drafting.num_recomputed_blocks if drafting else 0
    hashes_ahead = hashes_ahead and num_recomputed > 0 and not memory.cache_tiers
    return LaneMemory(
        num_blocks=num_blocks,
        num_in_all=memory.num_gpu_blocks,
        block_size=config.block_size,
        num_reserved=_reserve(config.watermark, num_blocks),
        groups=memory.kv_groups,
        page_rules=page_rules or PageRules(),
        num_drafts=drafting.num_speculative_tokens if drafting else 0,
        num_recomputed=0 if hashes_ahead else num_recomputed,
        hashes_ahead=hashes_ahead,
        caches_prefixes=config.enable_prefix_caching,
        uncached_first=uncached_first,
        eviction=config.eviction,
        tiers=tuple(tier.divided_by(num_lanes) for tier in memory.cache_tiers),
        swap_space=memory.swap_space.divided_by(num_lanes) if memory.swap_space else None,
    )


def _reserve(watermark: float, num_blocks: int) -> int:
    """Return the blocks that admissions leave free, at most all but one.

    A share of all blocks, the null block among them (`watermark_blocks` in
    `vllm/v1/core/kv_cache_manager.py`, 0.24).
    """
    return min(int(watermark * (num_blocks + NULL_BLOCKS)), num_blocks - 1)


def _check_swap_space(space: SwapSpace | None, swaps: bool, tiers: Sequence[CacheTier]) -> None:
    """Raise ScenarioError unless there is a swap space when, and only when, it is used."""
    if not swaps:
        if space:
            raise ScenarioError(
                "swap_space must be null unless scheduler.preemption is swap or async_swap"
            )
    elif tiers:
        raise ScenarioError(
            "scheduler must have preemption: recompute with tiers, from which preempted "
            "requests are loaded back"
        )
    elif space is None:
        raise ScenarioError("swap_space is required when scheduler.preemption is swap")
