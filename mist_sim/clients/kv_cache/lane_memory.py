"""The KV memory of a lane: its part of the engine's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.moves import SwapSpace
from mist_sim.clients.kv_cache.pages import PagePool, PageRules
from mist_sim.clients.kv_cache.prefix_history import PrefixHistory
from mist_sim.clients.kv_cache.tiers import CacheTier
from mist_sim.eviction import Eviction
from mist_sim.models.adapters import AT_ONCE, AdapterMoves
from mist_sim.models.kv_groups import KvGroups


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
