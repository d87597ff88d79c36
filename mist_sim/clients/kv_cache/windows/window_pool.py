"""A pool of KV-cache pages for a model with sliding windows."""

from __future__ import annotations

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.models.kv_groups import KvGroups


class WindowPool(BlockPool):
    """Pages that groups of layers share; `num_blocks` counts pages (vLLM's `num_gpu_blocks`).

    A sequence holds a page of every full-attention group for each of its blocks, and of every
    window group for at most as many blocks as a window can overlap. That is the peak between two
    blocks: vLLM returns a page as soon as the window has left it, a few steps before it takes the
    next. Pages beyond the window, held while a prompt is computed, are not counted.

    num_extra_slots: additional tokens that a decode keeps memory for (drafts).
    max_window_blocks: most blocks that a sequence holds in a window group.
    """

    groups: KvGroups

    __slots__ = ("_full", "_window", "max_window_blocks")

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
        self.max_window_blocks = groups.max_window_blocks(block_size, num_extra_slots)

    @property
    def name(self) -> str:
        if self.num_in_all == self.num_blocks:
            return f"the KV cache of {self.num_blocks} blocks"
        blocks = f"{self.num_blocks} of {self.num_in_all} blocks"
        return f"the part of the KV cache that a lane of the pipeline has, {blocks}"

    def blocks_for(self, num_tokens: int) -> int:
        """Pages that a sequence of `num_tokens` tokens holds."""
        num_blocks = -(-num_tokens // self.block_size)
        return self._full * num_blocks + self._window * min(num_blocks, self.max_window_blocks)

    def blocks_alone(self, num_tokens: int) -> int:
        return self.blocks_for(num_tokens)

    def blocks_in(self, num_pages: int) -> tuple[int, int]:
        """Return the blocks of either kind that a sequence with so many pages holds.

        The first number, of blocks with pages for full attention, is 0 if no layer has full
        attention.
        """
        most = self.max_window_blocks
        if num_pages <= (self._full + self._window) * most:
            num_blocks = num_pages // (self._full + self._window)
            return (num_blocks if self._full else 0), num_blocks
        return (num_pages - self._window * most) // self._full, most
