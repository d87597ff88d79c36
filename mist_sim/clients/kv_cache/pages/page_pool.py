"""Pages of a model with windows or states, of which a request takes those of each piece."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.pages.state_pieces import StateRules
from mist_sim.models.kv_groups import KvGroups


class DraftRules(NamedTuple):
    """How pages are counted with drafts, of which states have none ahead of the model itself.

    num_ahead: tokens that a drafting model writes ahead of a step (`num_lookahead_tokens`).
    num_ahead_first: those for which the first piece of a prompt has memory.
    names_verified: whether the tokens that a step verified have names before pages come back
        (`EngineRules.caches_verified`).
    """

    num_ahead: int = 0
    num_ahead_first: int = 0
    names_verified: bool = False


class PageRules(NamedTuple):
    """How a version counts pages.

    most_beside: tokens beside a window for which the admission of a whole prompt counts pages, and
        no more; None: it counts the pages of all its tokens (see `EngineRules.caps_windows`).
    lags: whether a page is returned only when no step in flight sees it
        (`EngineRules.returns_unseen`).
    num_again: last blocks of a hit that a drafting layer computes again. num_again_full: blocks of
        full attention that it loses before windows are asked. None: all of it
        (`EngineRules.hybrid_drops`).
    states: where states are kept for others, with a prefix cache.
    drafts: what drafts change about these.
    """

    most_beside: int | None = None
    lags: bool = False
    num_again: int = 0
    num_again_full: int | None = 0
    states: StateRules = StateRules()
    drafts: DraftRules = DraftRules()


class PagePool(BlockPool):
    """Pages that groups of layers share; `num_blocks` counts pages (vLLM's `num_gpu_blocks`).

    A block of tokens takes a page in every group of full attention and every window group. A
    request returns its pages in window groups when the window has left them, and never those of
    full attention. A state takes one page from the first token on, and one more for each draft.
    Where states are kept for others, it takes a page for a block, or for a piece, and returns all
    but that of the last token.
    """

    groups: KvGroups

    __slots__ = ("_most_window_blocks", "_window", "num_drafts", "num_state_pages", "states")

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
        self.states = rules.states._replace(saves_inside=groups.saves_inside)
        self.num_drafts = num_drafts
        num_standing = groups.num_state_groups - groups.num_kept_states
        self.num_state_pages = num_standing * (1 + num_drafts)
        self._window = groups.sliding_window or 1
        self._most_window_blocks: int | None = None
        if rules.most_beside is not None:
            most = self._window - 1 + rules.most_beside
            self._most_window_blocks = -(-most // block_size) + 1

    @property
    def name(self) -> str:
        """The cache in words, for messages; on a pipeline's lane with its part of the blocks."""
        if self.num_in_all == self.num_blocks:
            return f"the KV cache of {self.num_blocks} blocks"
        blocks = f"{self.num_blocks} of {self.num_in_all} blocks"
        return f"the part of the KV cache that a lane of the pipeline has, {blocks}"

    def blocks_for(self, num_tokens: int) -> int:
        """Pages of so many tokens, none of which has been returned."""
        num_blocks = -(-num_tokens // self.block_size)
        return self.groups.num_groups * num_blocks + self.num_state_pages

    def blocks_of(self, num_tokens: int) -> int:
        """Pages that a sequence holds in all groups; windows hold only those within their reach."""
        groups, num_blocks = self.groups, -(-num_tokens // self.block_size)
        num_pages = groups.num_full_groups * num_blocks + self.num_state_pages
        num_pages += groups.num_window_groups * (num_blocks - self.num_skipped(num_tokens))
        return num_pages + groups.num_kept_states * (1 + self.num_drafts if num_blocks else 0)

    def more_for(self, num_here: int, num_tokens: int, *, in_pieces: bool = False) -> int:
        """Pages of all groups that it takes beside those of its first `num_here` tokens."""
        groups, num_skipped = self.groups, self.num_skipped(num_here)
        before, after = -(-num_here // self.block_size), -(-num_tokens // self.block_size)
        in_window = after - before
        if in_pieces:
            in_window = max(0, self.counted(after - num_skipped) - (before - num_skipped))
        num_pages = groups.num_full_groups * (after - before) + groups.num_window_groups * in_window
        return num_pages + groups.num_kept_states * self.states_of(after - before)

    def blocks_alone(self, num_tokens: int) -> int:
        """Pages of all groups that must be free at once for a sequence that is alone."""
        num_blocks, groups = -(-num_tokens // self.block_size), self.groups
        in_window = groups.num_window_groups * self.counted(num_blocks)
        num_pages = groups.num_full_groups * num_blocks + in_window + self.num_state_pages
        if not groups.num_kept_states:
            return num_pages
        num_states = num_blocks if self.is_dense else min(num_blocks, 2 + self.states.saves_inside)
        return num_pages + groups.num_kept_states * (num_states + self.num_drafts)

    @property
    def is_dense(self) -> bool:
        """Whether the state of every block is kept, rather than those at the ends of pieces."""
        return self.groups.state_cache == "all"

    def states_of(self, num_blocks: int) -> int:
        """Pages of a state that so many blocks more take in one piece."""
        return num_blocks if self.is_dense else min(num_blocks, 1)

    def counted(self, num_blocks: int) -> int:
        """Blocks in a window group that the admission of a whole prompt counts, of so many."""
        most = self._most_window_blocks
        return num_blocks if most is None else min(num_blocks, most)

    def num_skipped(self, num_tokens: int) -> int:
        """First blocks of a window group that no query behind so many tokens sees.

        Source: `SlidingWindowManager.get_num_skipped_tokens` in
        `vllm/v1/core/single_type_kv_cache_manager.py`.
        """
        return max(0, num_tokens - self._window + 1) // self.block_size

    def num_skipped_states(self, num_tokens: int) -> int:
        """First blocks whose states the token behind so many tokens does not continue from.

        Source: `MambaManager.get_num_skipped_tokens`.
        """
        return max(0, num_tokens - 1) // self.block_size
