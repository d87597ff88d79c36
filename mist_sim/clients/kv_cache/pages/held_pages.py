"""The pages of one sequence, one by one, with names by which others find them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import islice

from mist_sim.clients.kv_cache.pages.hits import Hit
from mist_sim.clients.kv_cache.pages.holding import Holding
from mist_sim.clients.kv_cache.pages.page_pool import PagePool
from mist_sim.clients.kv_cache.pages.page_table import Page, PageTable
from mist_sim.clients.kv_cache.pages.state_pages import StatePages
from mist_sim.clients.sequence_state import SequenceState

Pages = list[Page | None]
"""The pages of a group, by block; None where a window has left them."""


class HeldPages(Holding):
    """The pages of a sequence group by group, those of full attention first.

    Pages are taken of the first group for all blocks, then of the next; they come back group by
    group, the last block first. states: those that are kept for others come after these; None
    without any. num_named: first blocks that others can find. num_shared_tokens: tokens that full
    attention alone found when it began; a piece ends there (`shared_stop` of `StateRules`).
    """

    __slots__ = (
        "_groups",
        "_names",
        "_num_full",
        "_table",
        "num_named",
        "num_shared_tokens",
        "owner",
        "states",
    )

    def __init__(
        self,
        pool: PagePool,
        table: PageTable,
        owner: SequenceState,
        names: list[Hashable],
        num_skipped: int = 0,
        num_skipped_states: int = 0,
    ) -> None:
        """names: of its first blocks; the blocks behind have names that only `owner` knows.

        num_skipped_states: first blocks whose states it never has.
        """
        super().__init__(pool, num_skipped)
        self._table = table
        self.owner = owner
        self._names = names
        groups = pool.groups
        self._num_full = groups.num_full_groups
        num_groups = groups.num_full_groups + groups.num_window_groups
        self._groups: list[Pages] = [[] for _ in range(num_groups)]
        self.num_named = 0
        self.num_shared_tokens = 0
        self.states: StatePages | None = None
        if groups.num_kept_states:
            self.states = StatePages(pool, table, num_skipped_states)

    def begin_with(self, hit: Hit) -> None:
        """Hold the pages that are found, with others."""
        self.num_skipped = hit.num_skipped
        self.num_blocks = self.num_named = hit.num_blocks
        for number, found in enumerate(hit.groups):
            num_skipped = hit.num_skipped if number >= self._num_full else 0
            pages = self._groups[number]
            pages += [None] * num_skipped
            pages += found[num_skipped:]
            for page in islice(found, num_skipped, None):
                if self._table.hold(page):
                    self._pool.allocate(1)
        if self.states is not None and hit.num_blocks:
            self.states.begin_with(hit.states, hit.num_blocks)

    def leave_behind(self, num_tokens: int) -> None:
        """Give back the pages that windows have left, and all states but the newest."""
        super().leave_behind(num_tokens)
        if self.states is not None:
            self.states.leave_behind(num_tokens)

    def name_until(self, num_tokens: int) -> None:
        """Let others find the blocks that so many tokens fill."""
        num_full = min(num_tokens // self._pool.block_size, self.num_blocks)
        if num_full <= self.num_named:
            return
        name_more(self.owner, self._names, num_full)
        for pages in self._groups:
            for position in range(self.num_named, num_full):
                page = pages[position]
                if page is not None:
                    self._table.call(page, self._names[position])
        if self.states is not None:
            self.states.name(self._names, self.num_named, num_full)
        self.num_named = num_full

    def saved(self, first: int) -> list[Hashable]:
        """Return the names of the blocks from a place on whose states others can find."""
        found = self.states.places(first, self.num_named) if self.states is not None else ()
        return [self._names[place] for place in found]

    def cut(self, num_blocks: int) -> None:
        """Return the pages of all blocks but the first `num_blocks`, and those with names."""
        num_blocks = max(num_blocks, self.num_named)
        super().cut(num_blocks)
        if self.states is not None:
            self.states.cut(num_blocks)

    def end(self) -> None:
        """Give back all pages, those of states included."""
        self.num_named = 0
        super().cut(0)
        if self.states is not None:
            self.states.end()
        self._pool.release(self._pool.num_state_pages)

    def _take(self, first: int, first_window: int, end: int) -> None:
        super()._take(first, first_window, end)
        take = self._table.take
        for number, pages in enumerate(self._groups):
            begin = first if number < self._num_full else first_window
            pages.extend([None] * (begin - first))
            pages.extend([take(number) for _ in range(end - begin)])

    def _return_window(self, first: int, end: int) -> None:
        for pages in self._groups[self._num_full :]:
            self._let_go(reversed(pages[first:end]))
            pages[first:end] = [None] * (end - first)

    def _return_last(self, first: int, first_window: int, end: int) -> None:
        for pages in self._groups:
            self._let_go(reversed(pages[first:]))
            del pages[first:]

    def _let_go(self, pages: Iterable[Page | None]) -> None:
        self._pool.release(self._table.let_go(pages))


def name_more(owner: SequenceState, names: list[Hashable], num_blocks: int) -> None:
    """Name the blocks after the shared ones, up to `num_blocks` in all."""
    names += [(owner, position) for position in range(len(names), num_blocks)]
