"""The pages of one sequence, counted."""

from __future__ import annotations

from mist_sim.clients.kv_cache.pages.page_pool import PagePool


class Holding:
    """The pages of a pool that a sequence holds: of its states, and of blocks of tokens.

    num_blocks: blocks that have, or had, a page in every group. num_skipped: first ones whose pages
    in window groups have been returned, or never taken.
    plan: the latest plan that had it. num_before, num_new: its computed tokens before the latest
    step of that plan, and the tokens of that step.
    """

    __slots__ = ("_pool", "num_before", "num_blocks", "num_new", "num_skipped", "plan")

    def __init__(self, pool: PagePool, num_skipped: int = 0) -> None:
        pool.allocate(pool.num_state_pages)
        self._pool = pool
        self.num_blocks = 0
        self.num_skipped = num_skipped
        self.plan = self.num_before = self.num_new = 0

    def extend(self, num_tokens: int) -> None:
        """Take pages for so many tokens; none for blocks that windows have left."""
        num_blocks, before = -(-num_tokens // self._pool.block_size), self.num_blocks
        if num_blocks > before:
            self._take(before, max(before, min(self.num_skipped, num_blocks)), num_blocks)
            self.num_blocks = num_blocks

    def leave_behind(self, num_tokens: int) -> None:
        """Return the pages that windows have left after so many computed tokens."""
        num_skipped = self._pool.num_skipped(num_tokens)
        if num_skipped > self.num_skipped:
            end = min(num_skipped, self.num_blocks)
            if self.num_skipped < end:
                self._return_window(self.num_skipped, end)
            self.num_skipped = num_skipped

    def cut(self, num_blocks: int) -> None:
        """Return the pages of all blocks but the first `num_blocks`."""
        end = self.num_blocks
        if num_blocks < end:
            self._return_last(num_blocks, max(num_blocks, min(self.num_skipped, end)), end)
            self.num_blocks = num_blocks

    def end(self) -> None:
        """Return all pages."""
        self.cut(0)
        self._pool.release(self._pool.num_state_pages)

    def name_until(self, num_tokens: int) -> None:
        """Let others find the blocks that so many tokens fill: nothing, without a prefix cache."""

    def _take(self, first: int, first_window: int, end: int) -> None:
        """Take pages of blocks up to `end`, from `first_window` on in window groups."""
        groups = self._pool.groups
        num_full = groups.num_full_groups * (end - first)
        self._pool.allocate(num_full + groups.num_window_groups * (end - first_window))

    def _return_window(self, first: int, end: int) -> None:
        """Return the pages of blocks [first, end) in window groups."""
        self._pool.release(self._pool.groups.num_window_groups * (end - first))

    def _return_last(self, first: int, first_window: int, end: int) -> None:
        """Return the pages of blocks up to `end`, from `first_window` on in window groups."""
        groups = self._pool.groups
        num_full = groups.num_full_groups * (end - first)
        self._pool.release(num_full + groups.num_window_groups * (end - first_window))
