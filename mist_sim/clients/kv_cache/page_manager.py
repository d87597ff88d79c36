"""KV memory page by page, for models with sliding windows whose prompts take it piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import ClassVar, NamedTuple

from mist_sim.clients.kv_cache.manager import Ahead, KvCacheManager
from mist_sim.clients.kv_cache.windows.page_pool import PagePool
from mist_sim.clients.kv_cache.windows.page_table import Page, PageTable
from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import ContentWatcher

Pages = list[Page | None]
"""The pages of a group, by block; None where a window has left them."""


class Holding:
    """The pages of a sequence with memory, group by group, those of full attention first.

    num_left: first blocks without pages in window groups. num_named: first blocks with names.
    plan, num_new: the latest plan that had it, and the tokens that it had there.
    """

    __slots__ = ("groups", "num_left", "num_named", "num_new", "plan")

    def __init__(self, groups: list[Pages], num_left: int, num_named: int, plan: int) -> None:
        self.groups = groups
        self.num_left = num_left
        self.num_named = num_named
        self.plan = plan
        self.num_new = 0


class Hit(NamedTuple):
    """What a waiting sequence finds: pages of its first blocks, by group.

    changes: of the table at the look-up. num_left: first blocks whose pages in window groups it
    needs no more. num_free: pages found that no sequence holds.
    """

    changes: int
    num_blocks: int
    num_left: int
    num_free: int
    groups: list[list[Page]]


class PageManager(KvCacheManager):
    """Lends pages to sequences, and takes back those that their windows have left.

    In the turn of a sequence (`serve`) its pages that no window sees any more come back first, then
    it takes those of its new tokens: of all full groups, then of all window groups.
    """

    pool: PagePool
    looks_ahead: ClassVar[bool] = False

    def __init__(self, pool: PagePool, *, lags: bool, blank_first: bool = False) -> None:
        super().__init__(pool)
        groups = pool.groups
        self._num_full, self._num_groups = groups.num_full_groups, groups.num_groups
        self.table = PageTable(
            pool.num_blocks, self._num_groups, blank_first=blank_first or not self.caches_prefixes
        )
        self.shares_blocks = self.caches_prefixes
        self._lags = lags
        self._plan = 0
        self._of: dict[SequenceState, Holding] = {}

    # --- the turns of a plan ------------------------------------------------------------------

    def begin_plan(self) -> None:
        """Note that the running sequences get their turns now."""
        self._plan += 1

    def leave_behind(self, sequence: SequenceState, num_tokens: int) -> Holding:
        """Take back the pages that a sequence's windows have left after so many computed tokens.

        Tokens of steps in flight count as computed, unless the version waits for them.
        """
        holding = self._of[sequence]
        if self._lags and self.answers.is_ahead and holding.plan == self._plan - 1:
            num_tokens -= holding.num_new
        self._move_on(holding, num_tokens, 0)
        return holding

    def need(self, sequence: SequenceState, num_tokens: int) -> int:
        """Pages that a sequence lacks for so many tokens."""
        num_blocks = -(-num_tokens // self.pool.block_size)
        return self._num_groups * max(0, num_blocks - len(self._of[sequence].groups[0]))

    def serve(self, sequence: SequenceState, num_tokens: int, num_new: int) -> None:
        """Give a sequence its turn: pages for so many new tokens behind those computed."""
        if self._of[sequence].plan == self._plan:
            return  # it had its turn
        holding = self.leave_behind(sequence, num_tokens)
        self._extend(holding, num_tokens + num_new)
        holding.plan, holding.num_new = self._plan, num_new

    def serve_decode(self, sequence: SequenceState, num_tokens: int) -> None:
        """Give a decode its turn; the newest of its tokens is known unless the plan is ahead."""
        self.serve(sequence, num_tokens, 1)
        self.name_until(sequence, num_tokens + (not self.answers.is_ahead))

    def decode_on(
        self,
        decodes: Iterable[SequenceState],
        context: Callable[[SequenceState], int],
        num_steps: int,
    ) -> None:
        """Give decodes their turns in the steps of a plan after its first one.

        context: returns a sequence's computed tokens before the plan.
        """
        lag = int(self._lags and self.answers.is_ahead)
        for sequence in decodes:
            num_tokens = context(sequence) + num_steps - 1
            self._move_on(self._of[sequence], num_tokens - lag, num_tokens + 1)

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note a piece of a prompt, up to so many tokens, for which there are pages."""
        holding = self._of[sequence]
        holding.plan, holding.num_new = self._plan, num_tokens - sequence.num_computed_tokens
        self.name_until(sequence, num_tokens)

    def compute_more(self, sequence: SequenceState, num_new_tokens: int, num_steps: int) -> None:
        """Give a prompt its turns in the steps of a plan after its first one."""
        holding = self._of[sequence]
        lag = num_new_tokens if self._lags and self.answers.is_ahead else 0
        for step in range(1, num_steps):
            num_tokens = sequence.num_computed_tokens + step * num_new_tokens
            self._move_on(holding, num_tokens - lag, num_tokens + num_new_tokens)
            self.name_until(sequence, num_tokens + num_new_tokens)

    def name_until(self, sequence: SequenceState, num_tokens: int) -> None:
        """Let others find the blocks that so many tokens fill."""

    def lose_step(self, sequence: SequenceState, num_tokens: int) -> None:
        """Take back the pages of a lost step; those with names stay."""
        holding = self._of[sequence]
        num_blocks = max(-(-num_tokens // self.pool.block_size), holding.num_named)
        for pages in holding.groups:
            self._let_go(reversed(pages[num_blocks:]))
            del pages[num_blocks:]
        holding.plan = 0

    # --- sequences that come and go -----------------------------------------------------------

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Pages that an admission takes; where all of a prompt has to fit, as a version counts."""
        pool, full = self.pool, self._num_full
        if sequence.is_brought:
            return pool.blocks_for(sequence.num_tokens)
        whole = num_tokens is None
        num_blocks = -(
            -(sequence.num_tokens if num_tokens is None else num_tokens) // pool.block_size
        )
        num_counted = pool.counted(num_blocks) if whole else num_blocks
        hit = self.hit(sequence)
        num_window = max(0, num_counted - hit.num_blocks) * (self._num_groups - full)
        return full * (num_blocks - hit.num_blocks) + num_window + hit.num_free

    def fewest_blocks_to_admit(
        self, sequence: SequenceState, first_piece: int | None = None
    ) -> int:
        return 0

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Give a sequence what it finds, and pages for its first piece."""
        size, num_tokens, hit = self.pool.block_size, sequence.num_tokens, self.hit(sequence)
        sequence.num_computed_tokens = hit.num_blocks * size
        if most_new is not None:
            num_tokens = min(num_tokens, sequence.num_computed_tokens + most_new)
        groups: list[Pages] = []
        for number, found in enumerate(hit.groups):
            num_left = hit.num_left if number >= self._num_full else 0
            pages: Pages = [None] * num_left
            pages += found[num_left:]
            groups.append(pages)
            for page in islice(found, num_left, None):
                if self.table.hold(page):
                    self.pool.allocate(1)
        holding = Holding(groups, hit.num_left, hit.num_blocks, self._plan)
        self._of[sequence] = holding
        self._extend(holding, num_tokens)

    def hit(self, sequence: SequenceState) -> Hit:
        """Return the cached pages that a waiting sequence finds: none, without a prefix cache."""
        return Hit(0, 0, 0, 0, [[] for _ in range(self._num_groups)])

    def num_held(self, sequence: SequenceState, num_computed_tokens: int) -> int:
        return self.pool.blocks_for(num_computed_tokens)

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Give a sequence pages of its own for all entries that come."""
        holding = Holding([[] for _ in range(self._num_groups)], 0, 0, 0)
        self._of[sequence] = holding
        self._extend(holding, num_tokens)
        return self.pool.blocks_for(num_tokens)

    def arrive(self, sequence: SequenceState, num_tokens: int) -> None:
        self.name_until(sequence, num_tokens)

    def go_on(self, sequence: SequenceState, num_here: int, num_tokens: int) -> None:
        self._extend(self._of[sequence], num_tokens)

    def grow(self, num_blocks: int) -> None:
        """Nothing: each sequence takes its own pages, in its turn."""

    def give_back(self, num_blocks: int) -> None:
        """Nothing, for the same reason."""

    def swap_in(self, sequence: SequenceState, num_blocks: int, num_computed_tokens: int) -> None:
        self.reserve(sequence, num_computed_tokens)
        self.arrive(sequence, num_computed_tokens)

    def free(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all pages, group by group, the last one first."""
        self.name_until(sequence, num_computed_tokens)
        for pages in self._of.pop(sequence).groups:
            self._let_go(reversed(pages))

    def preempt(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        self.free(sequence, num_blocks, num_computed_tokens)
        sequence.num_computed_tokens = 0

    # --- pages --------------------------------------------------------------------------------

    def _move_on(self, holding: Holding, num_seen: int, num_tokens: int) -> None:
        """Take back the pages that the window has left after so many tokens; then extend."""
        num_left = self.pool.num_left(num_seen)
        if num_left > holding.num_left:
            self._drop(holding, num_left)
        self._extend(holding, num_tokens)

    def _extend(self, holding: Holding, num_tokens: int) -> None:
        """Give a sequence pages for so many tokens."""
        num_blocks, before = -(-num_tokens // self.pool.block_size), len(holding.groups[0])
        if num_blocks <= before:
            return
        take = self.table.take
        for number, pages in enumerate(holding.groups):
            first = before
            if number >= self._num_full and holding.num_left > before:  # left in one run of steps
                first = min(holding.num_left, num_blocks)
                pages.extend([None] * (first - before))
            self.pool.allocate(num_blocks - first)
            pages.extend([take(number) for _ in range(num_blocks - first)])

    def _drop(self, holding: Holding, num_left: int) -> None:
        """Take back the pages of window groups before a block, the last one first."""
        first = holding.num_left
        for pages in holding.groups[self._num_full :]:
            self._let_go(reversed(pages[first:num_left]))
            end = min(num_left, len(pages))
            pages[first:end] = [None] * (end - first)
        holding.num_left = num_left

    def _let_go(self, pages: Iterable[Page | None]) -> None:
        self.pool.release(self.table.let_go(pages))


class CachingPageManager(PageManager):
    """Lets a sequence begin with pages of others that have the same tokens, as vLLM's hybrids do.

    A prompt begins with the longest run of blocks whose pages all full groups have, as far as the
    blocks before its end that windows see are there in all window groups. It holds the very pages
    that it finds, with others, if these hold them. Blocks get names in the turn whose tokens fill
    them; several pages may have one name, and the oldest is found.

    Source: `HybridKVCacheCoordinator` in `vllm/v1/core/kv_cache_coordinator.py`,
    `SlidingWindowManager` in `vllm/v1/core/single_type_kv_cache_manager.py`.
    """

    caches_prefixes: ClassVar[bool] = True

    def __init__(self, pool: PagePool, *, lags: bool, blank_first: bool = False) -> None:
        super().__init__(pool, lags=lags, blank_first=blank_first)
        reach = (pool.groups.sliding_window or 1) - 1
        self._num_needed = max(1, -(-reach // pool.block_size))  # blocks before a hit's end
        self._names: dict[SequenceState, list[Hashable]] = {}  # of those with memory
        self._latest: tuple[SequenceState, list[Hashable], Hit] | None = None  # look-up

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        return self.hit(sequence).num_blocks * self.pool.block_size

    def num_prefix_tokens(self, probe: SequenceState, ahead: Ahead) -> int:
        return self._find(probe, self._first_names(probe)).num_blocks * self.pool.block_size

    def watch(self, watcher: ContentWatcher) -> bool:
        return False  # windows may shorten what full attention has

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        return 1

    def is_entering(self, sequence: SequenceState) -> bool:
        return True

    def hit(self, sequence: SequenceState) -> Hit:
        latest = self._latest
        if latest is None or latest[0] is not sequence:
            names = self._first_names(sequence)
        elif latest[2].changes == self.table.changes:
            return latest[2]
        else:
            names = latest[1]
        hit = self._find(sequence, names)
        self._latest = sequence, names, hit
        return hit

    def _find(self, sequence: SequenceState, names: list[Hashable]) -> Hit:
        """Look a waiting sequence up; its last token is always computed."""
        size, find, num_full = self.pool.block_size, self.table.find, self._num_full
        most = (sequence.num_tokens - 1) // size
        _name_more(sequence, names, most)
        full: list[list[Page]] = [[] for _ in range(num_full)]
        for position in range(most if num_full else 0):
            pages = [find(group, names[position]) for group in range(num_full)]
            if None in pages:
                most = position
                break
            for kept, page in zip(full, pages, strict=True):
                if page is not None:
                    kept.append(page)
        window = self._in_windows(names, most)
        num_blocks = len(window[0])
        num_left = self.pool.num_left(num_blocks * size)
        for kept in full:
            del kept[num_blocks:]
        held = [page for kept in full for page in kept]
        held += [page for kept in window for page in kept[num_left:]]
        num_free = sum(not page.holders for page in held)
        return Hit(self.table.changes, num_blocks, num_left, num_free, full + window)

    def _in_windows(self, names: list[Hashable], most: int) -> list[list[Page]]:
        """Return the pages in window groups of the longest hit of at most so many blocks.

        Those that no query sees are any pages: they are not held.
        """
        groups = range(self._num_full, self._num_groups)
        runs: list[list[Page]] = []  # by block, from the last one back
        for position in range(most - 1, -1, -1):
            pages = [self.table.find(group, names[position]) for group in groups]
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

    def name_until(self, sequence: SequenceState, num_tokens: int) -> None:
        holding = self._of[sequence]
        num_full = min(num_tokens // self.pool.block_size, len(holding.groups[0]))
        if num_full <= holding.num_named:
            return
        names = self._names.get(sequence)
        if names is None:
            names = self._names[sequence] = self._first_names(sequence)
        _name_more(sequence, names, num_full)
        for pages in holding.groups:
            for position in range(holding.num_named, num_full):
                page = pages[position]
                if page is not None:
                    self.table.call(page, names[position])
        holding.num_named = num_full

    def decode_on(
        self,
        decodes: Iterable[SequenceState],
        context: Callable[[SequenceState], int],
        num_steps: int,
    ) -> None:
        """Give each decode the turns in which something changes for it, in their order."""
        pool, size = self.pool, self.pool.block_size
        lag, known = int(self._lags and self.answers.is_ahead), int(not self.answers.is_ahead)
        turns: list[tuple[int, int, SequenceState, int]] = []
        for number, sequence in enumerate(decodes):
            begin = context(sequence)
            num_left = self._of[sequence].num_left
            for step in range(1, num_steps):
                num_tokens = begin + step
                left = pool.num_left(num_tokens - lag)
                if left > num_left or not num_tokens % size or not (num_tokens + known) % size:
                    turns.append((step, number, sequence, num_tokens))
                    num_left = left
        turns.sort(key=lambda turn: turn[:2])
        for _, _, sequence, num_tokens in turns:
            self._move_on(self._of[sequence], num_tokens - lag, num_tokens + 1)
            self.name_until(sequence, num_tokens + known)

    def free(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        super().free(sequence, num_blocks, num_computed_tokens, num_unknown)
        self._names.pop(sequence, None)

    def _first_names(self, sequence: SequenceState) -> list[Hashable]:
        """Return the names of the blocks whose content other requests may share."""
        names: list[Hashable] = []
        for key, end in Chain(sequence.visit.request.content, self.pool.block_size).spans:
            names += [(key, position) for position in range(len(names), end)]
        return names


def _name_more(sequence: SequenceState, names: list[Hashable], num_blocks: int) -> None:
    """Name the blocks after the shared ones, up to `num_blocks` in all."""
    names += [(sequence, position) for position in range(len(names), num_blocks)]
