"""Paged KV-cache memory: the number of blocks, their holders, and the content kept in them."""

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.capacity import (
    KvCacheConfig,
    cache_tiers,
    kv_block_bytes,
    num_gpu_blocks,
    swap_space,
)
from mist_sim.clients.kv_cache.lane_memory import EngineMemory, LaneMemory
from mist_sim.clients.kv_cache.moves import SerialLink, SwapSpace
from mist_sim.clients.kv_cache.prefix_history import ContentHistory, PrefixHistory
from mist_sim.clients.kv_cache.tiers import CacheTier

__all__ = [
    "BlockPool",
    "CacheTier",
    "ContentHistory",
    "EngineMemory",
    "KvCacheConfig",
    "LaneMemory",
    "PrefixHistory",
    "SerialLink",
    "SwapSpace",
    "cache_tiers",
    "kv_block_bytes",
    "num_gpu_blocks",
    "swap_space",
]
