"""KV memory page by page for a model whose states others find, beside `page_memory.py`.

- A group of states has a list of pages like a window's. The page of a block has the state after
  the block's last token, or the newest state.
- Who has a turn first gives back the states before that of its last computed token.
- Then it takes, in every group, the page of the block in which its step ends, if it has none: the
  blocks before that have no page, but one that the step saves inside, as an option. Where `dense`
  is, each block gets a page.
- With drafts it has as many pages more, behind the newest state. Those in blocks that a step leaves
  become the pages of the blocks behind; only what is missing then is taken.
- What is found ends where all groups have the state of the last block. Only that one is held.
- Who would begin with a state that got its name in the same plan waits for the next one, as an
  option.
- Pieces end at blocks: `end_of_piece`.
"""

from dataclasses import dataclass
from typing import Any

from tests.reference.page_memory import PageMemory


@dataclass(frozen=True)
class Kept:
    """How states are kept. shared: "never", "at_first" or "always". inside: saved in pieces.

    goes_on: pieces may end inside a block, if no step has room for one; most: that a step has.
    """

    dense: bool = False
    waits: bool = False
    shared: str = "never"
    goes_on: bool = False
    inside: bool = False


class StateMemory(PageMemory):
    """`live.shared`: tokens that full attention found, where the states had fewer."""

    def __init__(
        self,
        *args: Any,
        kept: Kept,
        num_state_groups: int,
        most: int,
        num_drafts: int,
        num_ahead_first: int,
        num_unsure: int,
        **more: Any,
    ):
        super().__init__(*args, **more)
        self.num_unsure = num_unsure  # tokens that count as refused where states come back
        self.kept, self.most = kept, most
        self.num_drafts = num_drafts
        self.num_ahead_first = num_ahead_first  # slots of a first piece that need no state
        self.drafting: set[Any] = set()  # who has pages for drafts
        self.first_state = self.num_groups
        self.num_all = self.num_groups + num_state_groups
        self.fresh: set[Any] = set()

    def begin_plan(self) -> None:
        self.fresh.clear()

    def last_state(self, live: Any, end: int) -> bool:
        names = [(g, self.name(live, end - 1)) for g in range(self.first_state, self.num_all)]
        return all(name in self.cached for name in names)

    def longest(self, live: Any) -> int:
        """Blocks that full attention has; where a layer drafts, the most that any kind has."""
        return self.beside_drafts(live)[1] if self.num_again else self.run_of_full(live)

    def run_of_full(self, live: Any) -> int:
        """First blocks that full attention has."""
        end = (live.num_known - 1) // self.block_size
        while end and not self.have(live, range(self.num_full), range(end)):
            end -= 1
        return end

    def in_windows(self, live: Any, most: int, num_again: int) -> int:
        """Blocks of the longest hit in windows, of at most so many, without the last ones."""
        needed = max(1, self.number(self.size - 1)) + num_again
        for end in range(most, 0, -1):
            seen = range(max(0, end - needed), end)
            if self.have(live, range(self.num_full, self.first_state), seen):
                return max(0, end - num_again)
        return 0

    def in_states(self, live: Any, most: int) -> int:
        """The last of so many blocks whose state is cached."""
        return next((end for end in range(most, 0, -1) if self.last_state(live, end)), 0)

    def beside_drafts(self, live: Any) -> tuple[int, int]:
        """Blocks of a hit where a layer drafts, and the most that a kind of layer had."""
        all_blocks = (live.num_known - 1) // self.block_size
        number = most = max(0, self.run_of_full(live) - 1)
        if self.again_full != 0:
            has_windows = self.first_state > self.num_full
            number = 0 if has_windows else self.in_states(live, number)
            return number, number
        goal, extra_windows, extra_states = all_blocks, 1, 1
        while True:
            if self.first_state > self.num_full:
                asked = min(number + extra_windows, all_blocks)
                found = self.in_windows(live, asked, extra_windows)
                if not extra_windows and found < number:
                    extra_windows = extra_states = 1
                else:
                    extra_windows = 0
                number, most = found, max(most, found)
            found = self.in_states(live, min(number + extra_states, all_blocks))
            if not extra_states and found < number:
                extra_windows = extra_states = 1
            else:
                extra_states = 0
            number, most = found, max(most, found)
            if number >= goal or self.first_state == self.num_full:
                return number, most
            goal = number

    def end_of_hit(self, live: Any) -> int:
        if not self.caching:
            return 0
        if self.num_again:
            return self.beside_drafts(live)[0]
        for end in range(self.longest(live), 0, -1):
            seen = range(max(0, end - max(1, self.number(self.size - 1))), end)
            windows = self.have(live, range(self.num_full, self.first_state), seen)
            if windows and self.last_state(live, end):
                return end
        return 0

    def found_pages(self, live: Any) -> list[list[Any]]:
        groups, end = super().found_pages(live), self.end_of_hit(live)
        for group in range(self.first_state, self.num_all):
            page = [self.cached[group, self.name(live, end - 1)][0]] if end else []
            groups.append([None] * (end - 1) + page)
        return groups

    def need(self, live: Any, num_slots: int | None) -> int:
        whole = num_slots is None
        num_tokens = live.num_known if num_slots is None else num_slots
        end, need = self.end_of_hit(live), 0
        if self.kept.waits and end:
            names = [(g, self.name(live, end - 1)) for g in range(self.first_state, self.num_all)]
            if any(name in self.fresh for name in names):
                return self.num_blocks + 1
        for group, pages in enumerate(self.found_pages(live)):
            if group >= self.first_state:
                last = num_tokens - (0 if whole else self.num_ahead_first)
                need += self.num_new(live, pages, end * self.block_size, last)
            else:
                counted: float = self.number(num_tokens)
                if whole and group >= self.num_full:
                    counted = min(counted, self.most_counted)
                need += max(0, int(counted) - end)
            need += sum(1 for page in pages if page and not page.holders)
        return need + self.num_states

    def new_places(self, live: Any, pages: list[Any], begin: int, end: int) -> list[bool]:
        """Tell of each block that a step adds to a state group whether it gets a page."""
        blocks = range(len(pages), self.number(end))
        last, saved = self.number(end) - 1, self.saved(live, begin, end)
        return [self.kept.dense or block in (last, saved) for block in blocks]

    def num_new(self, live: Any, pages: list[Any], begin: int, end: int) -> int:
        """Pages that a step takes in a state group."""
        if not self.num_drafts:
            return sum(self.new_places(live, pages, begin, end))
        first, moved = self.first_new(live, pages, begin, end)
        missing = self.number(end) + self.num_drafts - max(first, len(pages))
        return max(0, missing - len(moved))

    def first_new(self, live: Any, pages: list[Any], begin: int, end: int) -> tuple[int, range]:
        """Return the first block whose state a step has, and the blocks of drafts before it."""
        saved, held = self.saved(live, begin, end), len(pages)
        if self.number(end) + self.num_drafts <= held:
            return held, range(0)
        first = len(pages) if self.kept.dense else self.number(end) - 1
        first = first if saved is None else saved
        drafts = self.num_drafts if live in self.drafting else 0
        return first, range(held - drafts, max(held - drafts, min(held, first)))

    def saved(self, live: Any, begin: int, end: int) -> int | None:
        """Return the block whose state a step saves inside."""
        if not self.kept.inside or begin % self.block_size:
            return None
        place = (end - 1) // self.block_size
        after_begin = place * self.block_size >= begin + self.block_size
        return place - 1 if after_begin and place - 1 > (begin - 1) // self.block_size else None

    def prefill_end(self, live: Any, num_known: int) -> int:
        return max(live.job.num_prompt_tokens, num_known - 1)

    def extend(self, live: Any, num_tokens: int) -> None:
        for pages in live.pages[: self.first_state]:
            while len(pages) < self.number(num_tokens):
                pages.append(self.new_block())
        self.count(live)

    def extend_states(self, live: Any, begin: int, end: int) -> None:
        for pages in live.pages[self.first_state :]:
            if self.num_drafts:
                self.extend_with_drafts(live, pages, begin, end)
                continue
            for takes in self.new_places(live, pages, begin, end):
                pages.append(self.new_block() if takes else None)
        self.drafting.add(live)
        self.count(live)

    def extend_with_drafts(self, live: Any, pages: list[Any], begin: int, end: int) -> None:
        number = self.num_new(live, pages, begin, end)
        first, moved = self.first_new(live, pages, begin, end)
        left = [pages[block] for block in moved]
        for block in moved:
            pages[block] = None
        pages += [None] * (first - len(pages))
        pages += left + [self.new_block() for _ in range(number)]

    def missing_states(self, live: Any, begin: int, end: int) -> int:
        groups = live.pages[self.first_state :]
        return sum(self.num_new(live, pages, begin, end) for pages in groups)

    def missing(self, live: Any, num_tokens: int, end: int | None = None) -> int:
        """Pages that a turn lacks. end: last token of the step, without what is written ahead."""
        numbers = [len(pages) for pages in live.pages[: self.first_state]]
        more = sum(max(0, self.number(num_tokens) - number) for number in numbers)
        return more + self.missing_states(live, live.num_cached, end or num_tokens)

    def give_behind(self, live: Any, num_tokens: int) -> None:
        states = live.pages[self.first_state :]
        del live.pages[self.first_state :]
        super().give_behind(live, num_tokens)
        live.pages += states
        for pages in states:
            for block in reversed(
                range(min(max(0, num_tokens - 1 - self.num_unsure) // self.block_size, len(pages)))
            ):
                if pages[block]:
                    self.put(pages[block])
                    pages[block] = None
        self.count(live)

    def admit(self, live: Any, num_blocks: int, loads: bool = False) -> None:
        live.shared = 0
        if self.longest(live) > self.end_of_hit(live):
            live.shared = self.longest(live) * self.block_size
        super().admit(live, num_blocks, loads)

    def go_on(self, live: Any, num_slots: int, num_more: int) -> None:
        super().go_on(live, num_slots, num_more)
        self.extend_states(live, live.num_cached, num_slots)

    def enter(self, live: Any, num_tokens: int, private: bool = False) -> None:
        before = live.num_entered
        super().enter(live, num_tokens, private)
        for pages in live.pages[self.first_state :]:
            self.fresh.update(page.name for page in pages[before : live.num_entered] if page)

    def verify(self, live: Any, num_tokens: int) -> None:
        """Name blocks of verified tokens between steps."""
        fresh = set(self.fresh)
        self.enter(live, num_tokens)
        self.fresh = fresh

    def give_back(self, live: Any, num_full: int = 0) -> None:
        super().give_back(live, num_full)
        self.drafting.discard(live)

    def leave(self, live: Any, num_tokens: int, preempted: bool) -> None:
        fresh = set(self.fresh)
        super().leave(live, num_tokens, preempted)
        self.fresh = fresh

    def begin_alone(self, live: Any, num_tokens: int) -> None:
        first = self.behind(num_tokens)
        live.pages = [[] for _ in range(self.num_full)]
        live.pages += [[None] * first for _ in range(self.num_full, self.first_state)]
        behind = max(0, num_tokens - 1) // self.block_size
        live.pages += [[None] * behind for _ in range(self.first_state, self.num_all)]
        live.states = []
        live.num_entered = live.shared = 0
        self.extend(live, num_tokens)
        self.extend_states(live, behind * self.block_size, num_tokens)

    def swap_in(self, live: Any, num_blocks: int, num_slots: int, num_tokens: int) -> None:
        self.begin_alone(live, num_tokens)
        self.extend(live, num_slots)
        if num_slots > num_tokens:
            self.extend_states(live, num_slots - 1, num_slots)
        assert len(live.blocks) == num_blocks
        self.enter(live, num_tokens)

    def check(self, held: Any) -> None:
        self.num_groups, before = self.num_all, self.num_groups
        super().check(held)
        self.num_groups = before

    # --- pieces -------------------------------------------------------------------------------

    def end_of_piece(
        self, live: Any, num_known: int, begin: int, num_new: int, is_first: bool
    ) -> int:
        """Return where a piece of a prompt ends; its begin where it cannot be computed."""
        size, end = self.block_size, begin + num_new
        prefill_end = self.prefill_end(live, num_known)
        if self.kept.dense or begin >= prefill_end:
            return end
        shared = 0
        if self.kept.shared == "always" or (self.kept.shared == "at_first" and is_first):
            if not is_first:
                shared = live.shared
            elif self.longest(live) > self.end_of_hit(live):
                shared = self.longest(live) * size
        if not self.kept.goes_on:
            return self.end_before_0_33(num_known, begin, end, shared)
        inside = self.kept.inside and end >= prefill_end and begin % size == 0
        if inside:
            place = (prefill_end - 1) // size * size
            first_new = self.number(end) - 2 > (begin - 1) // size
            inside = first_new and begin + size <= place < end
        if end < prefill_end:
            whole = end // size * size
            if whole > begin or size <= self.most:
                end = whole
        stops = []
        if not inside:
            stops.append((num_known - 1) // size * size)
            if begin % size:
                stops.append((begin // size + 1) * size)
        if begin < shared < end:
            stops.append(begin + (shared - begin) // size * size)
        return max(begin, min([stop for stop in stops if begin < stop < end] + [end]))

    def end_before_0_33(self, num_known: int, begin: int, end: int, shared: int) -> int:
        size = self.block_size
        last = max(0, num_known - num_known % size - self.num_again * size)
        if end < last:
            end = begin + (end - begin) // size * size
        elif begin < last < end:
            end = last
        if shared - begin >= size and end > shared:
            end = begin + (shared - begin) // size * size
        return end
