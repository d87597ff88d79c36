"""Pages of a model with windows or states, of which a request takes those of each piece."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.models.kv_groups import KvGroups


class PageRules(NamedTuple):
    """How a version counts pages.

    most_beside: tokens beside a window for which the admission of a whole prompt counts pages, and
        no more; None: it counts the pages of all its tokens (see `EngineRules.caps_windows`).
    lags: whether a page is returned only when no step in flight sees it
        (`EngineRules.returns_unseen`).
    num_again: last blocks of a hit that a drafting layer computes again. num_again_full: blocks of
        full attention that it loses before windows are asked. None: all of it
        (`EngineRules.hybrid_drops`).
    """

    most_beside: int | None = None
    lags: bool = False
    num_again: int = 0
    num_again_full: int | None = 0


class PagePool(BlockPool):
    """Pages that groups of layers share; `num_blocks` counts pages (vLLM's `num_gpu_blocks`).

    A block of tokens takes a page in every group of full attention and every window group. A
    request returns its pages in window groups when the window has left them, and never those of
    full attention. A state takes one page from the first token on, and one more for each draft.
    """

    groups: KvGroups

    __slots__ = ("_most_window_blocks", "_window", "num_state_pages")

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_reserved: int,
        groups: KvGroups,
        rules: PageRules,
        num_drafts: int = 0,
    ) -> None:
        """num_drafts: tokens that each decode verifies in a step."""
        super().__init__(num_blocks, block_size, num_reserved)
        self.groups = groups
        self.num_state_pages = groups.num_state_groups * (1 + num_drafts)
        self._window = groups.sliding_window or 1
        self._most_window_blocks: int | None = None
        if rules.most_beside is not None:
            most = self._window - 1 + rules.most_beside
            self._most_window_blocks = -(-most // block_size) + 1

    @property
    def name(self) -> str:
        if self.num_in_all == self.num_blocks:
            return f"the KV cache of {self.num_blocks} blocks"
        blocks = f"{self.num_blocks} of {self.num_in_all} blocks"
        return f"the part of the KV cache that a lane of the pipeline has, {blocks}"

    def blocks_for(self, num_tokens: int) -> int:
        """Pages of so many tokens, none of which has been returned."""
        num_blocks = -(-num_tokens // self.block_size)
        return self.groups.num_groups * num_blocks + self.num_state_pages

    def blocks_of(self, num_tokens: int) -> int:
        num_returned = self.groups.num_window_groups * self.num_left(num_tokens)
        return self.blocks_for(num_tokens) - num_returned

    def more_for(self, num_here: int, num_tokens: int, *, in_pieces: bool = False) -> int:
        groups, num_left = self.groups, self.num_left(num_here)
        before, after = -(-num_here // self.block_size), -(-num_tokens // self.block_size)
        in_window = after - before
        if in_pieces:
            in_window = max(0, self.counted(after - num_left) - (before - num_left))
        return groups.num_full_groups * (after - before) + groups.num_window_groups * in_window

    def blocks_alone(self, num_tokens: int) -> int:
        num_blocks, groups = -(-num_tokens // self.block_size), self.groups
        in_window = groups.num_window_groups * self.counted(num_blocks)
        return groups.num_full_groups * num_blocks + in_window + self.num_state_pages

    def counted(self, num_blocks: int) -> int:
        """Blocks in a window group that the admission of a whole prompt counts, of so many."""
        most = self._most_window_blocks
        return num_blocks if most is None else min(num_blocks, most)

    def num_left(self, num_tokens: int) -> int:
        """First blocks of a window group that no query behind so many tokens sees.

        Source: `SlidingWindowManager.get_num_skipped_tokens` in
        `vllm/v1/core/single_type_kv_cache_manager.py`.
        """
        return max(0, num_tokens - self._window + 1) // self.block_size
