"""KV memory of layers that keep different things: pages of full, window and state groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from mist_sim.clients.engine_rules import SharedStop
from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.core.request import Content
from mist_sim.models.kv_groups import KvGroups


class StateRules(NamedTuple):
    """How a version keeps states of ends of pieces (vLLM's `mamba_cache_mode: align`).

    waits: whether a request waits a step for a state that another one saves in it.
    shared_stop: which pieces end where full attention found more than states.
    goes_on: whether a piece that begins inside a block ends at the next block, and one of less than
        a block is computed where no step has room for a block.
    saves_inside: whether a kernel saves a state before the end of a piece, too.
    most: tokens of a prompt that fit into an empty step.
    num_again: last blocks of a hit that are computed again, for drafts: the last piece that ends
        where a state is kept ends so many blocks earlier, so that states are found there.
    num_unsure: last computed tokens that count as refused drafts when states come back.

    Source: `Scheduler._mamba_block_aligned_split` in `vllm/v1/core/sched/scheduler.py`.
    """

    waits: bool = False
    shared_stop: SharedStop = "never"
    goes_on: bool = False
    saves_inside: bool = False
    most: int = 0
    num_again: int = 0
    num_unsure: int = 0


class Piece(NamedTuple):
    """Tokens [begin, end) of a prompt that a step may compute.

    num_tokens: of the prompt, with all that it has answered. num_prompt: without that.
    shared_end: tokens that full attention finds where states have fewer; 0: no more.
    """

    begin: int
    end: int
    num_tokens: int
    num_prompt: int
    shared_end: int = 0

    @property
    def prefill_end(self) -> int:
        """Tokens that are computed before decoding."""
        return max(self.num_prompt, self.num_tokens - 1)


def end_of(piece: Piece, size: int, rules: StateRules) -> int:
    """Return where a piece ends with blocks of so many tokens; its begin: it cannot be computed."""
    if piece.begin >= piece.prefill_end:
        return piece.end
    return _stop(piece, size, rules) if rules.goes_on else _cut(piece, size, rules)


def _cut(piece: Piece, size: int, rules: StateRules) -> int:
    """Return the end in 0.15 to 0.24."""
    begin, end = piece.begin, piece.end
    last = max(piece.num_tokens // size - rules.num_again, 0) * size
    if end < last:
        end = begin + (end - begin) // size * size
    elif begin < last < end:
        end = last
    num_shared = piece.shared_end - begin
    if rules.shared_stop != "never" and num_shared >= size and end - begin > num_shared:
        end = begin + num_shared // size * size
    return end


def _stop(piece: Piece, size: int, rules: StateRules) -> int:
    """Return the end in 0.33: whole blocks, and the first stop inside these."""
    begin, end = piece.begin, piece.end
    saves = end >= piece.prefill_end and _saves(begin, end, piece.prefill_end, size, rules)
    last = 0 if saves else (piece.num_tokens - 1) // size * size
    if end < piece.prefill_end:
        aligned = end // size * size
        if aligned > begin or size <= rules.most:
            end = aligned
    next_block = 0 if begin % size == 0 or saves else (begin // size + 1) * size
    shared = 0
    if begin < piece.shared_end < end:
        shared = begin + (piece.shared_end - begin) // size * size
    return max(begin, min((s for s in (next_block, last, shared) if begin < s < end), default=end))


def saved_block(begin: int, end: int, size: int, rules: StateRules) -> int | None:
    """Return the block at whose end a step saves a state beside the newest one; None: at none."""
    return -(-end // size) - 2 if _saves(begin, end, end, size, rules) else None


def _saves(begin: int, end: int, place: int, size: int, rules: StateRules) -> bool:
    """Tell whether a step saves a state at the end of the last block before a place.

    Source: `is_mamba_prefill_checkpoint_valid` in `vllm/v1/kv_cache_interface.py`.
    """
    if not rules.saves_inside or begin % size:
        return False
    saved, block = (place - 1) // size * size, -(-end // size) - 2
    return block > (begin - 1) // size and begin + size <= saved < end


class PageRules(NamedTuple):
    """How a version counts pages.

    most_beside: tokens beside a window for which the admission of a whole prompt counts pages, and
        no more; None: it counts the pages of all its tokens (see `EngineRules.caps_windows`).
    lags: whether a page is returned only when no step in flight sees it
        (`EngineRules.returns_unseen`).
    num_again: last blocks of a hit that a drafting layer computes again. num_again_full: blocks of
        full attention that it loses before windows are asked. None: all of it
        (`EngineRules.hybrid_drops`).
    states: where states are kept for others, with a prefix cache. Drafts have none ahead of the
        model itself:
    num_ahead: tokens that a drafting model writes ahead of a step (`num_lookahead_tokens`).
    num_ahead_first: those for which the first piece of a prompt has memory.
    names_verified: whether the tokens that a step verified have names before pages come back
        (`EngineRules.caches_verified`).
    """

    most_beside: int | None = None
    lags: bool = False
    num_again: int = 0
    num_again_full: int | None = 0
    states: StateRules = StateRules()
    num_ahead: int = 0
    num_ahead_first: int = 0
    names_verified: bool = False


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


class Page:
    """A page of a group of layers. name: the tokens whose entries are in it, or were.

    holders: requests that hold it; without any it is free, and its content is found until the page
        is used for something else.
    """

    __slots__ = ("group", "holders", "name")

    def __init__(self, group: int) -> None:
        self.group = group
        self.holders = 1
        self.name: Hashable = None


class PageTable:
    """Free pages in the order in which they are used, and named pages by group.

    num_blank: free pages in which nothing is found and which are used before all others.
    blank_first: whether returned pages without a name are used before the others (vLLM from 0.24
        on), rather than in the order of their return.
    watched: names that the latest look-up was for.
    changes: grows whenever a page with one of these comes or goes, or is held or free.
    fresh: names of blocks whose states were saved in the present plan.
    are_alike: whether nothing is found in pages, so that holders need not tell them apart.

    Source: `BlockPool` in `vllm/v1/core/block_pool.py`.
    """

    def __init__(
        self, num_pages: int, num_groups: int, *, blank_first: bool, are_alike: bool = False
    ) -> None:
        self.num_blank, self.are_alike = num_pages, are_alike
        self.watched: frozenset[Hashable] = frozenset()
        self.changes = 0
        self.fresh: set[Hashable] = set()
        self._blank_first = blank_first
        self._free: OrderedDict[Page, None] = OrderedDict()  # the next one to be used first
        self._named: list[dict[Hashable, dict[Page, None]]] = [{} for _ in range(num_groups)]

    @property
    def num_free(self) -> int:
        """Pages that no request holds."""
        return self.num_blank + len(self._free)

    def find(self, group: int, name: Hashable) -> Page | None:
        """Return the page that has had a name for longest; None without any."""
        copies = self._named[group].get(name)
        return next(iter(copies)) if copies else None

    def take(self, group: int) -> Page:
        """Take the free page that is used next; what was in it is lost."""
        if self.num_blank:
            self.num_blank -= 1
            return Page(group)
        page, _ = self._free.popitem(last=False)
        self._forget(page)
        page.group, page.holders = group, 1
        return page

    def hold(self, page: Page) -> bool:
        """Let one more request hold a page; return whether it was free."""
        is_free = not page.holders
        if is_free:
            del self._free[page]
        page.holders += 1
        if page.name in self.watched:
            self.changes += 1
        return is_free

    def call(self, page: Page, name: Hashable) -> None:
        """Name a page by the tokens in it."""
        page.name = name
        self._named[page.group].setdefault(name, {})[page] = None
        if name in self.watched:
            self.changes += 1

    def let_go(self, pages: Iterable[Page | None]) -> int:
        """Take pages back from a request, in this order; return how many are free now."""
        num_free, watched = 0, self.watched
        for page in pages:
            if page is None:
                continue
            page.holders -= 1
            if page.holders:
                continue
            num_free += 1
            if page.name in watched:
                self.changes += 1
            if page.name is None and self._blank_first:
                self.num_blank += 1
            else:
                self._free[page] = None
        return num_free

    def _forget(self, page: Page) -> None:
        if page.name is None:
            return
        copies = self._named[page.group][page.name]
        del copies[page]
        if not copies:
            del self._named[page.group][page.name]
        if page.name in self.watched:
            self.changes += 1
        page.name = None


class Hit(NamedTuple):
    """The cached pages of a waiting sequence's first blocks, by group.

    changes: of the table at the look-up. num_skipped: first blocks whose pages in window groups it
    needs no more. num_free: pages found that no sequence holds. groups: of full attention and
    windows. states: the page of each state group after the last block. most: blocks that full
    attention has.
    """

    changes: int
    num_blocks: int
    num_skipped: int
    num_free: int
    groups: list[list[Page]]
    states: list[Page]
    most: int

    @property
    def num_found(self) -> int:
        """The blocks, as of other caches."""
        return self.num_blocks


class Hits:
    """Look-ups in a page table.

    A hit is the longest prefix that all full groups have, of which all window groups have the last
    blocks, as far as a window reaches, and all state groups the last one. With a layer that drafts,
    its last block is computed again, so windows must have one more; versions differ in what full
    groups lose before (`PageRules`).

    Source: `HybridKVCacheCoordinator` in `vllm/v1/core/kv_cache_coordinator.py`,
    `SlidingWindowManager` and `MambaManager` in `vllm/v1/core/single_type_kv_cache_manager.py`.
    """

    def __init__(self, pool: PagePool, table: PageTable, rules: PageRules) -> None:
        groups = pool.groups
        self._pool = pool
        self._table = table
        self._num_full = groups.num_full_groups
        self._num_groups = self._num_full + groups.num_window_groups
        self._state_groups = range(self._num_groups, groups.num_groups)
        self._num_again, self._num_again_full = rules.num_again, rules.num_again_full
        reach = (groups.sliding_window or 1) - 1
        # blocks of a window before the end of a hit
        self._num_needed = max(1, -(-reach // pool.block_size))

    def find(self, names: list[Hashable]) -> Hit:
        """Look up blocks by their names, from the first one on."""
        full = self._in_full(names)
        found = most = len(full[0]) if full else len(names)
        if self._num_again and self._state_groups:
            window, states, num_blocks, found = self._beside_states(names, max(0, most - 1))
        else:
            if full and self._num_again and self._num_groups > self._num_full:
                most = 0 if self._num_again_full is None else max(0, most - self._num_again_full)
            window, states, most = self._in_others(names, most)
            num_blocks = max(0, most - self._num_again)
        num_skipped = self._pool.num_skipped(num_blocks * self._pool.block_size)
        for kept in (*full, *window):
            del kept[num_blocks:]
        held = [page for kept in full for page in kept]
        held += [page for kept in window for page in kept[num_skipped:]]
        num_free = sum(not page.holders for page in (*held, *states))
        changes = self._table.changes
        return Hit(changes, num_blocks, num_skipped, num_free, full + window, states, found)

    def _in_others(
        self, names: list[Hashable], most: int
    ) -> tuple[list[list[Page]], list[Page], int]:
        """Return the pages of windows and of states for the longest hit, and its blocks.

        Where states have fewer blocks, windows are asked again for as many.
        """
        while True:
            window = self._in_windows(names, most, self._num_again)
            found = len(window[0]) if window else most
            if not self._state_groups:
                return window, [], found
            states = self._in_states(names, found)
            if states[1] == found or not window:
                return window, *states
            most = states[1]

    def _beside_states(
        self, names: list[Hashable], num_full: int
    ) -> tuple[list[list[Page]], list[Page], int, int]:
        """Return pages of windows and states for the longest hit of a model that drafts.

        num_full: blocks of full attention, without the last one. Windows and states are asked for a
        block more, once for each length, of which windows lose it and states do not.
        In versions whose full attention loses a block first, states are asked for that many.
        Also returns the blocks of the hit, and the most that any kind of layer had on the way.
        """
        if self._num_again_full != 0:  # no look beyond, and windows lose a block in every round
            has_windows = self._num_groups > self._num_full
            window = self._in_windows(names, 0, 0)
            states, number = self._in_states(names, 0 if has_windows else num_full)
            return window, states, number, number
        most, end = num_full, len(names)
        window = []
        windows_looked = states_looked = False
        number = num_full
        while True:
            if self._num_groups > self._num_full:
                extra, before = int(not windows_looked), number
                window = self._in_windows(names, min(number + extra, len(names)), extra)
                number = max(0, len(window[0]) - extra)
                if windows_looked and number < before:
                    windows_looked = states_looked = False
                else:
                    windows_looked = True
                most = max(most, number)
            before = number
            states, number = self._in_states(names, min(number + (not states_looked), len(names)))
            if states_looked and number < before:
                windows_looked = states_looked = False
            else:
                states_looked = True
            most = max(most, number)
            if number >= end or not window:
                return window, states, number, most
            end = number

    def _in_states(self, names: list[Hashable], most: int) -> tuple[list[Page], int]:
        """Return the pages of the last state among so many blocks, and the blocks up to there."""
        for position in range(most - 1, -1, -1):
            pages = [self._table.find(group, names[position]) for group in self._state_groups]
            found = [page for page in pages if page is not None]
            if len(found) == len(pages):
                return found, position + 1
        return [], 0

    def _in_full(self, names: list[Hashable]) -> list[list[Page]]:
        """Return the pages in full groups of the first blocks that all of them have."""
        find, groups = self._table.find, range(self._num_full)
        full: list[list[Page]] = [[] for _ in groups]
        for name in names if full else ():
            found = [page for group in groups if (page := find(group, name)) is not None]
            if len(found) < len(full):
                break
            for kept, page in zip(full, found, strict=True):
                kept.append(page)
        return full

    def _in_windows(self, names: list[Hashable], most: int, num_again: int) -> list[list[Page]]:
        """Return the pages in window groups of the longest run of at most so many blocks.

        num_again: blocks of it on top of the reach of the windows. Blocks before that reach are
        filled with a page that is never held.
        """
        groups = range(self._num_full, self._num_groups)
        runs: list[list[Page]] = []  # by block, from the last one back
        for position in range(most - 1, -1, -1):
            pages = [self._table.find(group, names[position]) for group in groups]
            found = [page for page in pages if page is not None]
            if len(found) < len(pages):
                runs.clear()
                continue
            runs.append(found)
            if len(runs) == self._num_needed + num_again:
                runs += [found] * position
                break
        runs.reverse()
        return [[pages[number] for pages in runs] for number in range(len(groups))]


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

    @property
    def num_skipped(self) -> int:
        """First blocks whose states are not needed any more."""
        return self._num_skipped

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


Pages = list[Page | None]
"""The pages of a group, by block; None where a window has left them."""


class HeldPages:
    """The pages of a sequence group by group, those of full attention first.

    Pages are taken of the first group for all blocks, then of the next; they come back group by
    group, the last block first.

    num_blocks: blocks that have, or had, a page in every group. num_skipped: first ones whose pages
    in window groups have been returned, or never taken. states: pages that are kept for others come
    after these; None without any. num_named: first blocks that others can find. num_shared_tokens:
    tokens that full attention alone found when it began; a piece ends there (`shared_stop` of
    `StateRules`). Without a prefix cache, pages are alike and only counted.
    """

    __slots__ = (
        "_are_alike",
        "_groups",
        "_names",
        "_num_full",
        "_pool",
        "_table",
        "num_blocks",
        "num_named",
        "num_shared_tokens",
        "num_skipped",
        "owner",
        "states",
    )

    def __init__(
        self,
        pool: PagePool,
        table: PageTable,
        owner: Hashable = None,
        names: Iterable[Hashable] = (),
        num_skipped: int = 0,
        num_skipped_states: int = 0,
    ) -> None:
        """names: of its first blocks; the blocks behind have names that only `owner` knows.

        num_skipped_states: first blocks whose states it never has.
        """
        pool.allocate(pool.num_state_pages)
        self._pool, self._table, self._are_alike = pool, table, table.are_alike
        self.owner, self._names = owner, list(names)
        groups = pool.groups
        self._num_full = groups.num_full_groups
        num_groups = groups.num_full_groups + groups.num_window_groups
        self._groups: list[Pages] = [[] for _ in range(num_groups)]
        self.num_blocks = self.num_named = self.num_shared_tokens = 0
        self.num_skipped = num_skipped
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

    def extend(self, num_tokens: int) -> None:
        """Take pages for so many tokens; none for blocks that windows have left."""
        end, first = -(-num_tokens // self._pool.block_size), self.num_blocks
        if end <= first:
            return
        in_window = max(first, min(self.num_skipped, end))
        for number, pages in enumerate(self._groups):
            begin = first if number < self._num_full else in_window
            self._pool.allocate(end - begin)
            if self._are_alike:
                continue
            pages.extend([None] * (begin - first))
            pages.extend([self._table.take(number) for _ in range(end - begin)])
        self.num_blocks = end

    def leave_behind(self, num_tokens: int) -> None:
        """Give back the pages that windows have left, and all states but the newest."""
        num_skipped = self._pool.num_skipped(num_tokens)
        if num_skipped > self.num_skipped:
            first, end = self.num_skipped, min(num_skipped, self.num_blocks)
            for pages in self._groups[self._num_full :] if first < end else ():
                if self._are_alike:
                    self._pool.release(end - first)
                    continue
                self._let_go(reversed(pages[first:end]))
                pages[first:end] = [None] * (end - first)
            self.num_skipped = num_skipped
        if self.states is not None:
            self.states.leave_behind(num_tokens - self._pool.states.num_unsure)

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
        self._keep(num_blocks)
        if self.states is not None:
            self.states.cut(num_blocks)

    def end(self) -> None:
        """Give back all pages, those of states included."""
        self.num_named = 0
        self._keep(0)
        if self.states is not None:
            self.states.end()
        self._pool.release(self._pool.num_state_pages)

    def _keep(self, num_blocks: int) -> None:
        """Return the pages of all blocks but the first `num_blocks`, but for states."""
        if num_blocks < self.num_blocks:
            in_window = max(num_blocks, min(self.num_skipped, self.num_blocks))
            for number, pages in enumerate(self._groups):
                if self._are_alike:
                    begin = num_blocks if number < self._num_full else in_window
                    self._pool.release(self.num_blocks - begin)
                    continue
                self._let_go(reversed(pages[num_blocks:]))
                del pages[num_blocks:]
            self.num_blocks = num_blocks

    def _let_go(self, pages: Iterable[Page | None]) -> None:
        self._pool.release(self._table.let_go(pages))


def first_names(content: Content, block_size: int) -> list[Hashable]:
    """Return the names of the blocks whose content requests may share."""
    names: list[Hashable] = []
    for key, end in Chain(content, block_size).spans:
        names += [(key, position) for position in range(len(names), end)]
    return names


def name_more(owner: Hashable, names: list[Hashable], num_blocks: int) -> None:
    """Name the blocks after the shared ones, up to `num_blocks` in all."""
    names += [(owner, position) for position in range(len(names), num_blocks)]
