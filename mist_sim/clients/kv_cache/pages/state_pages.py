"""The pages of a sequence's states, which a prefix cache keeps at some blocks' ends."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mist_sim.clients.kv_cache.pages.page_pool import PagePool
from mist_sim.clients.kv_cache.pages.page_table import Page, PageTable


class StatePages:
    """The pages of each state group, by block; None where no state is, or none any more.

    The page of a block has the state after its last token, or the newest one. A piece of a prompt
    takes that of its last block alone, unless all states are kept. With drafts there are as many
    pages behind it, which become those of the next blocks.

    Source: `MambaManager` in `vllm/v1/core/single_type_kv_cache_manager.py`.
    """

    __slots__ = ("_begun", "_first", "_groups", "_num_skipped", "_pool", "_table")

    def __init__(self, pool: PagePool, table: PageTable, num_skipped: int = 0) -> None:
        """num_skipped: first blocks whose states are not needed, and are nowhere."""
        groups = pool.groups
        self._pool = pool
        self._table = table
        self._first = groups.num_full_groups + groups.num_window_groups
        self._num_skipped = num_skipped
        self._begun = False  # whether a step has taken pages
        self._groups: list[list[Page | None]] = [
            [None] * num_skipped for _ in range(groups.num_kept_states)
        ]

    def begin_with(self, found: Sequence[Page], num_blocks: int) -> None:
        """Hold the pages of the state after so many blocks, with others."""
        self._num_skipped = num_blocks - 1
        for pages, page in zip(self._groups, found, strict=True):
            pages.extend([None] * (num_blocks - 1))
            pages.append(page)
            if self._table.hold(page):
                self._pool.allocate(1)

    def num_lacking(self, end: int, saved: int | None = None) -> int:
        """Pages that a step takes which ends after so many tokens; `saved`: of `take`."""
        return len(self._groups) * self._num_new(end, saved)

    def _num_new(self, end: int, saved: int | None) -> int:
        held, drafts = len(self._groups[0]), self._pool.num_drafts
        needed = -(-end // self._pool.block_size) + drafts
        if self._pool.is_dense:
            return max(0, needed - held)
        if needed <= held:
            return 0
        most = 1 + (saved is not None) + (0 if self._begun else drafts)
        return min(needed - held, most)

    def take(self, end: int, saved: int | None = None) -> None:
        """Take pages for a step that ends after so many tokens.

        saved: block whose state the step saves beside that of its last one.
        """
        num_new = self._num_new(end, saved)
        self._pool.allocate(num_new * len(self._groups))
        for number, pages in enumerate(self._groups, self._first):
            if num_new and not self._pool.is_dense:
                self._make_room(pages, end, saved)
            pages.extend([self._table.take(number) for _ in range(num_new)])
        self._begun = True

    def _make_room(self, pages: list[Page | None], end: int, saved: int | None) -> None:
        """Leave out the blocks that the step passes; pages for drafts there go to the end."""
        before, drafts = len(pages), self._pool.num_drafts
        last = -(-end // self._pool.block_size) - 1
        first_new = last if saved is None else saved
        pages.extend([None] * (first_new - before))
        if self._begun:
            for block in range(before - drafts, min(before, first_new)):
                pages.append(pages[block])
                pages[block] = None

    def leave_behind(self, num_tokens: int) -> None:
        """Return the pages of all states but the newest of so many computed tokens."""
        num_skipped = self._pool.num_skipped_states(num_tokens)
        if num_skipped <= self._num_skipped:
            return
        for pages in self._groups:
            gone = pages[self._num_skipped : num_skipped]
            self._pool.release(self._table.let_go(reversed(gone)))
            pages[self._num_skipped : num_skipped] = [None] * len(gone)
        self._num_skipped = num_skipped

    def name(self, names: Sequence[Hashable], first: int, end: int) -> None:
        """Name the pages of blocks [first, end)."""
        for pages in self._groups:
            for position in range(first, min(end, len(pages))):
                page = pages[position]
                if page is not None:
                    self._table.call(page, names[position])

    def places(self, first: int, end: int) -> list[int]:
        """Return which of the blocks [first, end) have a state."""
        pages = self._groups[0]
        return [place for place in range(first, min(end, len(pages))) if pages[place]]

    def cut(self, num_blocks: int) -> None:
        """Return the pages of all blocks but the first `num_blocks`, and those of drafts."""
        for pages in self._groups:
            end = max(num_blocks, len(pages) - self._pool.num_drafts)
            self._pool.release(self._table.let_go(reversed(pages[num_blocks:end])))
            del pages[num_blocks:end]

    def end(self) -> None:
        """Return all pages, the last one first."""
        for pages in self._groups:
            self._pool.release(self._table.let_go(reversed(pages)))
            pages.clear()
