"""KV memory of layers that keep different things: pages of full, window and state groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

from mist_sim.clients.engine_rules import SharedStop
from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.manager import Ahead, KvCacheManager
from mist_sim.clients.prefixes.prefix_cache import Chain, one_token_up
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Content
from mist_sim.core.views import ContentWatcher
from mist_sim.models.kv_groups import KvGroups


class StateRules(NamedTuple):
    """How a version keeps states of ends of pieces (vLLM's `mamba_cache_mode: align`).

    waits: whether a request waits a step for a state that another one saves in it.
    shared_stop: which pieces end where full attention found more than states.
    goes_on: whether a piece that begins inside a block ends at the next block, and one of less than
        a block is computed where no step has room for a block.
    saves_inside: whether a kernel saves a state before the end of a piece, too.
    most: tokens of a prompt that fit into an empty step.

    Source: `Scheduler._mamba_block_aligned_split` in `vllm/v1/core/sched/scheduler.py`.
    """

    waits: bool = False
    shared_stop: SharedStop = "never"
    goes_on: bool = False
    saves_inside: bool = False
    most: int = 0


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
    last = piece.num_tokens // size * size
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

    Source: `BlockPool` in `vllm/v1/core/block_pool.py`.
    """

    def __init__(self, num_pages: int, num_groups: int, *, blank_first: bool) -> None:
        self.num_blank = num_pages
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
        self._num_needed = max(1, -(-reach // pool.block_size)) + rules.num_again

    def find(self, names: list[Hashable]) -> Hit:
        """Look up blocks by their names, from the first one on."""
        full = self._in_full(names)
        found = most = len(full[0]) if full else len(names)
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
            window = self._in_windows(names, most)
            found = len(window[0]) if window else most
            if not self._state_groups:
                return window, [], found
            states = self._in_states(names, found)
            if states[1] == found or not window:
                return window, *states
            most = states[1]

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

    def _in_windows(self, names: list[Hashable], most: int) -> list[list[Page]]:
        """Return the pages in window groups of the longest run of at most so many blocks.

        Blocks before the reach of the windows are filled with a page that is never held.
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
            if len(runs) == self._num_needed:
                runs += [found] * position
                break
        runs.reverse()
        return [[pages[number] for pages in runs] for number in range(len(groups))]


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
        owner: Hashable,
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


def first_names(content: Content, block_size: int) -> list[Hashable]:
    """Return the names of the blocks whose content requests may share."""
    names: list[Hashable] = []
    for key, end in Chain(content, block_size).spans:
        names += [(key, position) for position in range(len(names), end)]
    return names


def name_more(owner: Hashable, names: list[Hashable], num_blocks: int) -> None:
    """Name the blocks after the shared ones, up to `num_blocks` in all."""
    names += [(owner, position) for position in range(len(names), num_blocks)]


class Turn(NamedTuple):
    """The turn of a running sequence in a step.

    num_computed: tokens that are computed before. num_new: tokens of the step. num_slots: tokens
    that it has memory for then, drafts included. num_known: computed ones with names for others.
    """

    num_computed: int
    num_new: int
    num_slots: int
    num_known: int


class PageManager(KvCacheManager):
    """Lends pages to sequences, and takes back those that their windows have left.

    In the turn of a sequence (`serve`) its pages that no window sees any more come back first, then
    it takes those of its new tokens. Blocks come and go in turns alone: `grow` and `give_back` do
    nothing.

    keeps_states: whether states are kept for others.
    """

    pool: PagePool

    def __init__(self, pool: PagePool, *, lags: bool) -> None:
        """lags: of `PageRules`."""
        super().__init__(pool)
        self._lags = lags
        self.keeps_states = pool.groups.num_kept_states > 0
        self._of: dict[SequenceState, Holding] = {}

    # --- the turns of a plan ------------------------------------------------------------------

    def leave_behind(self, sequence: SequenceState, num_computed: int) -> None:
        """Take back the pages that a sequence's windows have left after so many computed tokens.

        All tokens of a step in flight, drafts included, count as computed; where the version waits
        for the step, none does.
        """
        holding = self._of[sequence]
        if self.answers.is_ahead and holding.plan == self.num_plans - 1:
            num_computed = holding.num_before + (0 if self._lags else holding.num_new)
        self._return(holding, num_computed)

    def _return(self, holding: Holding, num_computed: int) -> None:
        """Take back the pages that a sequence needs no more after so many computed tokens."""
        holding.leave_behind(num_computed)

    def need(self, sequence: SequenceState, turn: Turn) -> int:
        """Pages that a sequence lacks for a turn."""
        num_more = -(-turn.num_slots // self.pool.block_size) - self._of[sequence].num_blocks
        return self.pool.groups.num_groups * max(0, num_more)

    def num_late(self, num_sequences: int) -> int:
        """Pages that sequences may take in a later step than that in which their slots begin."""
        return 0

    def piece(self, sequence: SequenceState, num_new: int) -> int:
        """Tokens of a prompt's next piece, of so many that a step has for it; 0: it has to wait."""
        return num_new

    def serve(self, sequence: SequenceState, turn: Turn) -> None:
        """Give a sequence its turn in a plan, unless it had that."""
        holding = self._of[sequence]
        if holding.plan == self.num_plans:
            return
        self.leave_behind(sequence, turn.num_computed)
        self._have_turn(holding, turn)

    def serve_next(self, sequence: SequenceState, turn: Turn, num_before: int) -> None:
        """Give a sequence its turn in a later step of a plan.

        num_before: its computed tokens before the step before.
        """
        holding = self._of[sequence]
        self._return(holding, self.num_counted_as_computed(turn, num_before))
        self._have_turn(holding, turn)

    def num_counted_as_computed(self, turn: Turn, num_before: int) -> int:
        """Tokens that count as computed when a later step of a plan takes pages back."""
        if not self.answers.is_ahead:
            return turn.num_computed
        return num_before if self._lags else num_before + turn.num_new

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note a piece of a prompt, up to so many tokens, for which there are pages."""
        holding, num_computed = self._of[sequence], sequence.num_computed_tokens
        if holding.plan != self.num_plans:
            self.leave_behind(sequence, num_computed)
        num_known = min(num_tokens, self.answers.num_hashed(sequence))
        self._have_turn(holding, Turn(num_computed, num_tokens - num_computed, 0, num_known))

    def _have_turn(self, holding: Holding, turn: Turn) -> None:
        holding.extend(turn.num_slots)
        holding.name_until(turn.num_known)
        holding.plan, holding.num_before = self.num_plans, turn.num_computed
        holding.num_new = turn.num_new

    def lose_step(self, sequence: SequenceState, num_slots: int) -> None:
        """Take back the pages of a lost step; those of so many tokens stay."""
        holding = self._of[sequence]
        holding.cut(-(-num_slots // self.pool.block_size))
        holding.plan = 0

    # --- sequences that come and go -----------------------------------------------------------

    def waits_for_state(self, sequence: SequenceState) -> bool:
        """Tell whether a waiting sequence finds a state that the present plan saves."""
        return False

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Pages that an admission takes; where all of a prompt has to fit, as a version counts."""
        if num_tokens is None:
            return self.pool.blocks_alone(sequence.num_tokens)
        return self.pool.blocks_for(num_tokens)

    def fewest_blocks_to_admit(
        self, sequence: SequenceState, first_piece: int | None = None
    ) -> int:
        """0: others may hold every page of its prefix by then."""
        return 0

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Give a sequence the cached pages that it finds, and new pages for its first piece."""
        self._of[sequence] = holding = self._begin(sequence)
        num_tokens = sequence.num_tokens
        if most_new is not None:
            num_tokens = min(num_tokens, sequence.num_computed_tokens + most_new)
        holding.extend(num_tokens)
        holding.plan = self.num_plans

    def _begin(self, sequence: SequenceState) -> Holding:
        """Let a sequence begin with its cached pages."""
        return Holding(self.pool)

    def _begin_alone(self, sequence: SequenceState, num_skipped: int) -> Holding:
        """Let a sequence begin in new pages; windows have left its first blocks."""
        return Holding(self.pool, num_skipped)

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Give a sequence new pages for entries that come, if a window still sees them."""
        holding = self._begin_alone(sequence, self.pool.num_skipped(num_tokens))
        self._of[sequence] = holding
        holding.extend(num_tokens)
        return self.pool.blocks_of(num_tokens)

    def arrive(self, sequence: SequenceState, num_tokens: int) -> None:
        """Enter the pages of the loaded tokens into the cache."""
        self._of[sequence].name_until(num_tokens)

    def go_on(self, sequence: SequenceState, num_here: int, num_tokens: int) -> None:
        """Give a prompt pages for the tokens after those that were loaded."""
        self._of[sequence].extend(num_tokens)

    def grow(self, num_blocks: int) -> None:
        """Nothing: each sequence takes its own pages, in its turn."""

    def give_back(self, num_blocks: int) -> None:
        """Nothing, for the same reason."""

    def swap_in(self, sequence: SequenceState, num_blocks: int, num_computed_tokens: int) -> None:
        """Take pages for entries that are copied back; a prompt takes pages for all its tokens.

        num_blocks: pages that it takes.
        """
        if num_blocks > self.reserve(sequence, num_computed_tokens):
            self._of[sequence].extend(sequence.num_tokens)
        self.arrive(sequence, num_computed_tokens)

    def free(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all pages."""
        holding = self._of.pop(sequence)
        holding.name_until(num_computed_tokens)
        holding.end()


class CachingPageManager(PageManager):
    """Lets a sequence begin with cached pages of equal tokens.

    It holds the very pages that it finds (see `Hits`), with others, if these hold them. Blocks get
    names in the turn whose tokens fill them; several pages may have one name, and the oldest is
    found. Where states are kept for others, pieces of prompts end where one is saved.
    """

    _of: dict[SequenceState, HeldPages]  # type: ignore[assignment]

    caches_prefixes: ClassVar[bool] = True
    looks_ahead: ClassVar[bool] = False

    def __init__(
        self,
        pool: PagePool,
        rules: PageRules,
        *,
        blank_first: bool = False,
        hashes_ahead: bool = False,
    ) -> None:
        """blank_first: of `PageTable`. hashes_ahead: of `LaneMemory`."""
        super().__init__(pool, lags=rules.lags)
        groups = pool.groups
        self.table = PageTable(pool.num_blocks, groups.num_groups, blank_first=blank_first)
        self.shares_blocks = True
        self._hits = Hits(pool, self.table, rules)
        self.answers.covers_next = hashes_ahead
        self._drafts = rules.drafts
        self._latest: tuple[SequenceState, list[Hashable], Hit] | None = None  # look-up
        self._fresh_in = 0  # plan of the table's fresh names

    # --- what is found ------------------------------------------------------------------------

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        """Tokens of the blocks that every group of layers finds in its cache."""
        return self.hit(sequence).num_blocks * self.pool.block_size

    def num_prefix_tokens(self, probe: SequenceState, ahead: Ahead) -> int:
        """Tokens that a look-up finds now; a run in progress changes nothing before it ends."""
        return self._hits.find(self._names(probe)).num_blocks * self.pool.block_size

    def watch(self, watcher: ContentWatcher) -> bool:
        """Refuse to tell a watcher: the cached content of one group is not that of all."""
        return False  # windows may shorten what full attention has

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        """Any step may free pages or enter them, so the next one may already bring a gain."""
        return 1

    def is_entering(self, sequence: SequenceState) -> bool:
        """Every computed page enters the cache."""
        return True

    def hit(self, sequence: SequenceState) -> Hit:
        """Return the cached pages that a waiting sequence finds."""
        latest, num_blocks = self._latest, (sequence.num_tokens - 1) // self.pool.block_size
        if latest is None or latest[0] is not sequence or len(latest[1]) != num_blocks:
            names = self._names(sequence)  # others, too, once it has run and was preempted
            self.table.watched = frozenset(names)
        elif latest[2].changes == self.table.changes:
            return latest[2]
        else:
            names = latest[1]
        hit = self._hits.find(names)
        self._latest = sequence, names, hit
        return hit

    def _names(self, sequence: SequenceState) -> list[Hashable]:
        """Return the names of the blocks that it may find; its last token is always computed."""
        names, most = self._first_names(sequence), (sequence.num_tokens - 1) // self.pool.block_size
        name_more(sequence, names, most)
        return names[:most]

    def _first_names(self, sequence: SequenceState) -> list[Hashable]:
        """Return the names of the blocks whose content other requests may share."""
        content = sequence.visit.request.content
        known = one_token_up(content) if self.answers.covers_next else content
        return first_names(known, self.pool.block_size)

    # --- states that are kept for others ------------------------------------------------------

    def piece(self, sequence: SequenceState, num_new: int) -> int:
        """Tokens of the next piece; kept states may make it end earlier, where a state is saved."""
        if self.pool.groups.state_cache != "align" or not num_new:
            return num_new
        rules, size = self.pool.states, self.pool.block_size
        shared = 0
        if sequence not in self._of:
            hit = self.hit(sequence)
            begin = hit.num_blocks * size
            if rules.shared_stop != "never" and hit.most > hit.num_blocks:
                shared = hit.most * size
        else:
            begin = sequence.num_brought if sequence.is_brought else sequence.num_computed_tokens
            shared = self._of[sequence].num_shared_tokens
        end, num_prompt = begin + num_new, sequence.num_prompt_tokens
        piece = Piece(begin, end, sequence.num_tokens, num_prompt, shared)
        return end_of(piece, size, rules) - begin

    def need(self, sequence: SequenceState, turn: Turn) -> int:
        """Pages that a sequence lacks for a turn, with those in which it saves states."""
        holding = self._of[sequence]
        num_more = max(0, -(-turn.num_slots // self.pool.block_size) - holding.num_blocks)
        groups, states = self.pool.groups, holding.states
        if states is None:
            return groups.num_groups * num_more
        end = self._end(turn)
        saved = saved_block(turn.num_computed, end, self.pool.block_size, self.pool.states)
        num_pages = (groups.num_groups - groups.num_kept_states) * num_more
        return num_pages + states.num_lacking(end, saved)

    def num_late(self, num_sequences: int) -> int:
        """Pages of states, which need none yet for what a drafting model writes ahead."""
        return self.pool.groups.num_kept_states * num_sequences if self._drafts.num_ahead else 0

    def _end(self, turn: Turn) -> int:
        """Return the tokens up to which a step needs states: none that a drafting model writes.

        A step planned ahead counts all drafts of the one before it as accepted.
        """
        end = turn.num_computed + turn.num_new
        if not (self.pool.num_drafts and turn.num_slots):
            return end
        return max(min(end, turn.num_slots), turn.num_slots - self._drafts.num_ahead)

    def _return(self, holding: Holding, num_computed: int) -> None:
        if self.keeps_states and self._drafts.names_verified:
            holding.name_until(num_computed)  # so that others find what comes back
        super()._return(holding, num_computed)

    def _have_turn(self, holding: Holding, turn: Turn) -> None:
        if not (isinstance(holding, HeldPages) and holding.states is not None):
            super()._have_turn(holding, turn)
            return
        holding.extend(turn.num_slots)
        end, num_named = self._end(turn), holding.num_named
        size, rules = self.pool.block_size, self.pool.states
        holding.states.take(end, saved_block(turn.num_computed, end, size, rules))
        super()._have_turn(holding, turn)
        self._note_plan()
        self.table.fresh.update(holding.saved(num_named))

    def _note_plan(self) -> None:
        """Forget which states were saved in a plan before this one."""
        if self._fresh_in != self.num_plans:
            self._fresh_in = self.num_plans
            self.table.fresh.clear()

    def _states_to_admit(self, hit: Hit, end: int) -> int:
        """Return the pages of states that a waiting sequence takes up to a token."""
        groups, pool = self.pool.groups, self.pool
        needed = -(-end // pool.block_size) + pool.num_drafts - hit.num_blocks
        if not pool.is_dense:
            size = pool.block_size
            saved = saved_block(hit.num_blocks * size, end, size, pool.states)
            needed = min(needed, 1 + pool.num_drafts + (saved is not None))
        return groups.num_kept_states * needed

    def waits_for_state(self, sequence: SequenceState) -> bool:
        """Tell whether the state that ends a sequence's hit is saved in this plan."""
        if not (self.keeps_states and self.pool.states.waits) or sequence.is_brought:
            return False
        hit = self.hit(sequence)
        if not (hit.num_blocks and hit.states):
            return False
        self._note_plan()
        return hit.states[0].name in self.table.fresh

    # --- sequences that come and go -----------------------------------------------------------

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Free pages that an admission takes: pages that no other sequence holds, and states."""
        pool = self.pool
        whole, most = num_tokens is None, sequence.num_tokens
        num_blocks = -(-(most if num_tokens is None else num_tokens) // pool.block_size)
        num_counted = pool.counted(num_blocks) if whole else num_blocks
        hit, groups = self.hit(sequence), pool.groups
        num_window = groups.num_window_groups * max(0, num_counted - hit.num_blocks)
        num_full = groups.num_full_groups * (num_blocks - hit.num_blocks)
        num_pages = num_full + num_window + hit.num_free + pool.num_state_pages
        if not groups.num_kept_states:
            return num_pages
        end = most if num_tokens is None else num_tokens - self._drafts.num_ahead_first
        return num_pages + self._states_to_admit(hit, end)

    def num_first_tokens(self, sequence: SequenceState, first_piece: int) -> int:
        """Cached tokens and the first piece, which kept states may shorten."""
        num_tokens = super().num_first_tokens(sequence, first_piece)
        num_cached = self.num_cached_tokens(sequence)
        return num_cached + self.piece(sequence, num_tokens - num_cached)

    def _begin(self, sequence: SequenceState) -> Holding:
        hit = self.hit(sequence)
        size = self.pool.block_size
        sequence.num_computed_tokens = hit.num_blocks * size
        holding = HeldPages(self.pool, self.table, sequence, self._first_names(sequence))
        holding.begin_with(hit)
        if self.pool.states.shared_stop == "always" and hit.most > hit.num_blocks:
            holding.num_shared_tokens = hit.most * size
        return holding

    def _begin_alone(self, sequence: SequenceState, num_skipped: int) -> Holding:
        names = self._first_names(sequence)
        num_skipped_states = self.pool.num_skipped_states(sequence.num_brought)
        return HeldPages(self.pool, self.table, sequence, names, num_skipped, num_skipped_states)

    def go_on(self, sequence: SequenceState, num_here: int, num_tokens: int) -> None:
        """Give a prompt pages up to so many tokens, and states for drafts behind its end."""
        super().go_on(sequence, num_here, num_tokens)
        states, end = self._of[sequence].states, num_tokens - self._drafts.num_ahead_first
        if states is not None and end > sequence.num_tokens:
            size, rules = self.pool.block_size, self.pool.states
            states.take(end, saved_block(sequence.num_computed_tokens, end, size, rules))

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Give a sequence pages for entries that come, and for their states."""
        num_pages = super().reserve(sequence, num_tokens)
        if states := self._of[sequence].states:
            states.take(num_tokens)
        return num_pages
