"""KV memory page by page for a model with sliding windows or states.

A block of tokens has a page in every group of layers, those of full attention first. Rules, beside
those of `memory.py`:

- A state of a group has a page from the first token on, and one more for each draft of a step.
- Who has a turn first gives back the pages before its windows: of every group with windows, the
  last block's first. A window ends with the next token to compute, and has `size` tokens. What a
  step in flight computes is behind it, or, as an option, is computed already.
- Then it takes pages for its new tokens: of the first group for all blocks, then of the next.
- Then blocks are named that its known tokens fill, in each group the page that is there.
- Where a layer drafts, what is found loses its last block, and the windows need one more before
  that. As options, the blocks with full attention lose one before, or nothing is left.
- What comes from elsewhere takes pages of its own for all of it, but for those behind the windows.
- What is found ends where the pages of the windows before that end are there, as many as W - 1
  tokens can lie in (at least one), or all from the beginning; it is the last such end among the
  blocks that all groups with full attention have. Who finds pages holds these, with others, and
  only those that its windows see.
- Where all of a prompt has to fit, its pages in groups with windows count only up to a number of
  blocks, as an option.
- A request that leaves gives back group by group, the last block first.
- Several pages may have a name; the one that has had it for longest is found.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.reference.memory import Block, Memory


@dataclass(frozen=True)
class Windows:
    """A window of tokens, and the groups of layers with full attention, the window, and a state."""

    size: int
    num_full_groups: int
    num_window_groups: int
    num_state_groups: int = 0
    kept: Any = None  # how states are kept for others (`state_memory.Kept`); None: they are not

    @property
    def num_groups(self) -> int:
        return self.num_full_groups + self.num_window_groups


class PageMemory(Memory):
    """A `live` request has `pages`, a list for every group: None where nothing is any more.

    And `states`, pages that it has whatever its length.
    """

    def __init__(
        self,
        num_pages: int,
        block_size: int,
        *,
        windows: Windows,
        num_states: int,
        most_counted: float,
        caching: bool,
        uncached_first: bool,
        num_again: int,
        again_full: int | None,
    ) -> None:
        super().__init__(num_pages, block_size, caching, uncached_first=uncached_first)
        self.size = windows.size
        self.num_full = windows.num_full_groups
        self.num_groups = windows.num_groups
        self.num_states = num_states
        self.num_again = num_again
        self.again_full = again_full
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
        end = (live.num_known - 1) // self.block_size
        while end and not self.have(live, range(self.num_full), range(end)):
            end -= 1
        if self.num_again and self.num_full and self.num_full < self.num_groups:
            end = 0 if self.again_full is None else end - self.again_full
        while end > 0:
            first = end - max(1, self.number(self.size - 1)) - self.num_again
            seen = range(max(0, first), end)
            if self.have(live, range(self.num_full, self.num_groups), seen):
                return end - self.num_again
            end -= 1
        return 0

    def have(self, live: Any, groups: Iterable[int], positions: Iterable[int]) -> bool:
        names = [(g, self.name(live, k)) for k in positions for g in groups]
        return all(name in self.cached for name in names)

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

    def need(self, live: Any, num_slots: int | None) -> int:
        """Pages that must be free for a waiting request: for its first tokens, or for all."""
        whole, num_tokens = num_slots is None, live.num_known
        if num_slots is not None:
            num_tokens = num_slots
        end, number, need = self.end_of_hit(live), self.number(num_tokens), 0
        for group, pages in enumerate(self.found_pages(live)):
            counted: float = number
            if whole and group >= self.num_full:
                counted = min(number, self.most_counted)
            need += max(0, int(counted) - end)
            need += sum(1 for page in pages if page and not page.holders)
        return need + self.num_states

    # --- the life of a request ----------------------------------------------------------------

    def count(self, live: Any) -> None:
        live.blocks = [page for pages in live.pages for page in pages if page] + live.states

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
        live.states = [self.new_block() for _ in range(self.num_states)]
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

    def enter_answer(self, live: Any, num_tokens: int) -> None:
        """Nothing: what an answer fills has its name from a turn."""

    def grow(self, needs: list[tuple[Any, int, int]]) -> None:
        assert not any(number for _, _, number in needs)  # they have had their turn

    def reserve(self, live: Any, num_blocks: int) -> int:
        self.begin_alone(live, live.num_elsewhere or live.num_known - 1)
        assert len(live.blocks) == num_blocks
        return num_blocks

    def begin_alone(self, live: Any, num_tokens: int) -> None:
        first = self.behind(num_tokens)
        live.pages = [[] for _ in range(self.num_full)]
        live.pages += [[None] * first for _ in range(self.num_full, self.num_groups)]
        live.states = [self.new_block() for _ in range(self.num_states)]
        live.num_entered = 0
        self.extend(live, num_tokens)

    def swap_in(self, live: Any, num_blocks: int, num_slots: int, num_tokens: int) -> None:
        self.begin_alone(live, num_tokens)
        self.extend(live, num_slots)
        assert len(live.blocks) == num_blocks
        self.enter(live, num_tokens)

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
        for page in live.states:
            self.put(page)
        live.pages, live.states, live.blocks = [], [], []

    def check(self, held: Iterable[list[Any]]) -> None:
        super().check(held)
        assert all(page.name[0] < self.num_groups for page in self.free if page.name)
