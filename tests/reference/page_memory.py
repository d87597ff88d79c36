"""KV memory page by page for a model with sliding windows whose prompts take it piece by piece.

A block of tokens has a page in every group of layers, those of full attention first. Rules, beside
those of `memory.py`:

- Who has a turn first gives back the pages before its windows: of every group with windows, the
  last block's first. A window ends with the next token to compute, and has `size` tokens. What a
  step in flight computes is behind it, or, as an option, is computed already.
- Then it takes pages for its new tokens: of the first group for all blocks, then of the next.
- Then blocks are named that its known tokens fill, in each group the page that is there.
- What is found ends where the pages of the windows before that end are there, as many as W - 1
  tokens can lie in (at least one), or all from the beginning; it is the last such end among the
  blocks that all groups with full attention have. Who finds pages holds these, with others, and
  only those that its windows see.
- Where all of a prompt has to fit, its pages in groups with windows count only up to a number of
  blocks, as an option.
- A request that leaves gives back group by group, the last block first.
- Several pages may have a name; the one that has had it for longest is found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from tests.reference.memory import Block, Memory


class PageMemory(Memory):
    """A `live` request has `pages`, a list for every group: None where nothing is any more."""

    def __init__(
        self,
        num_pages: int,
        block_size: int,
        *,
        size: int,
        num_full: int,
        num_groups: int,
        most_counted: float,
        caching: bool,
        uncached_first: bool,
    ) -> None:
        super().__init__(num_pages, block_size, caching, uncached_first=uncached_first)
        self.size = size
        self.num_full = num_full
        self.num_groups = num_groups
        self.most_counted = most_counted
        self.free: deque[Any] = deque(Block() for _ in range(num_pages))
        self.enters_answers = False

    def number(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def behind(self, num_tokens: int) -> int:
        """First blocks none of whose tokens the query behind so many tokens sees."""
        first_seen = num_tokens + 1 - self.size
        return max(0, first_seen) // self.block_size

    # --- what is found ------------------------------------------------------------------------

    def end_of_hit(self, live: Any) -> int:
        if not self.caching:
            return 0
        most = (live.num_known - 1) // self.block_size
        for end in range(most, 0, -1):
            full = [(g, k) for g in range(self.num_full) for k in range(end)]
            first = max(0, end - max(1, self.number(self.size - 1)))
            groups = range(self.num_full, self.num_groups)
            seen = [(g, k) for g in groups for k in range(first, end)]
            if all((g, self.name(live, k)) in self.cached for g, k in full + seen):
                return end
        return 0

    def found_pages(self, live: Any) -> list[list[Any]]:
        """Return the pages that a waiting request would hold, by group."""
        end, groups = self.end_of_hit(live), []
        for group in range(self.num_groups):
            first = 0 if group < self.num_full else self.behind(end * self.block_size)
            pages = [self.cached[group, self.name(live, k)][0] for k in range(first, end)]
            groups.append([None] * first + pages)
        return groups

    def cached_tokens(self, live: Any) -> int:
        return self.end_of_hit(live) * self.block_size

    def num_held(self, live: Any) -> int:
        return 0

    def need(self, live: Any, num_new: int | None) -> int:
        """Pages that must be free for a waiting request: for a first piece, or for all of it."""
        whole, num_tokens = num_new is None, live.num_known
        if num_new is not None:
            num_tokens = min(num_tokens, self.cached_tokens(live) + num_new)
        end, number, need = self.end_of_hit(live), self.number(num_tokens), 0
        for group, pages in enumerate(self.found_pages(live)):
            counted: float = number
            if whole and group >= self.num_full:
                counted = min(number, self.most_counted)
            need += max(0, int(counted) - end)
            need += sum(1 for page in pages if page and not page.holders)
        return need

    # --- the life of a request ----------------------------------------------------------------

    def count(self, live: Any) -> None:
        live.blocks = [page for pages in live.pages for page in pages if page]

    def extend(self, live: Any, num_tokens: int) -> None:
        for pages in live.pages:
            while len(pages) < self.number(num_tokens):
                pages.append(self.new_block())
        self.count(live)

    def missing(self, live: Any, num_tokens: int) -> int:
        return sum(max(0, self.number(num_tokens) - len(pages)) for pages in live.pages)

    def give_behind(self, live: Any, num_tokens: int) -> None:
        for pages in live.pages[self.num_full :]:
            for position in reversed(range(min(self.behind(num_tokens), len(pages)))):
                if page := pages[position]:
                    self.put(page)
                    pages[position] = None
        self.count(live)

    def put(self, page: Any) -> None:
        page.holders -= 1
        if not page.holders:
            if page.name is None and self.uncached_first:
                self.free.appendleft(page)
            else:
                self.free.append(page)

    def admit(self, live: Any, num_blocks: int, loads: bool = False) -> None:
        live.pages = self.found_pages(live)
        live.num_entered = self.end_of_hit(live)
        for page in (page for pages in live.pages for page in pages if page):
            if not page.holders:
                self.free.remove(page)
            page.holders += 1
        self.count(live)

    def enter(self, live: Any, num_tokens: int, private: bool = False) -> None:
        num_full = min(num_tokens // self.block_size, len(live.pages[0]))
        if not self.caching or num_full <= live.num_entered:
            return
        for group, pages in enumerate(live.pages):
            for position in range(live.num_entered, num_full):
                if page := pages[position]:
                    page.name = group, self.name(live, position)
                    self.cached.setdefault(page.name, []).append(page)
        live.num_entered = num_full

    def grow(self, needs: list[tuple[Any, int, int]]) -> None:
        assert not any(number for _, _, number in needs)  # they have had their turn

    def reserve(self, live: Any, num_blocks: int) -> int:
        live.pages = [[] for _ in range(self.num_groups)]
        live.num_entered = 0
        self.extend(live, num_blocks // self.num_groups * self.block_size)
        return num_blocks

    def go_on(self, live: Any, num_slots: int, num_more: int) -> None:
        self.extend(live, num_slots)

    def leave(self, live: Any, num_tokens: int, preempted: bool) -> None:
        self.enter(live, num_tokens)
        self.give_back(live)

    def give_back(self, live: Any, num_full: int = 0) -> None:
        for pages in live.pages:
            for page in reversed(pages):
                if page:
                    self.put(page)
        live.pages, live.blocks = [], []

    def check(self, held: Iterable[list[Any]]) -> None:
        super().check(held)
        assert all(page.name[0] < self.num_groups for page in self.free if page.name)
