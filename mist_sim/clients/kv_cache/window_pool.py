"""A pool of KV-cache pages for a model with sliding windows."""

from __future__ import annotations

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.models.kv_groups import KvGroups


class WindowPool(BlockPool):
    """Pages that groups of layers share; `num_blocks` counts pages (vLLM's `num_gpu_blocks`).

    A sequence holds a page of every full-attention group for each of its blocks, and of every
    window group for at most as many blocks as a window can lie in. That is the peak between two
    of its blocks: vLLM gives a page back when the window has left it, a few steps before it takes
    the next. What a window group holds of a prompt beyond the window, while it is computed, is
    not counted.

    num_extra_slots: tokens that a decode keeps memory for behind its newest one (drafts).
    """

    __slots__ = ("_full", "_max_window_blocks", "_window")

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_reserved: int,
        groups: KvGroups,
        num_extra_slots: int = 0,
    ) -> None:
        super().__init__(num_blocks, block_size, num_reserved)
        self.groups = groups
        self._full, self._window = groups.num_full_groups, groups.num_window_groups
        self._max_window_blocks = groups.max_window_blocks(block_size, num_extra_slots)

    def blocks_for(self, num_tokens: int) -> int:
        """Pages that a sequence of `num_tokens` tokens holds."""
        num_blocks = -(-num_tokens // self.block_size)
        return self._full * num_blocks + self._window * min(num_blocks, self._max_window_blocks)
