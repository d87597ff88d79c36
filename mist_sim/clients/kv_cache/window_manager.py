"""The prefix cache of a model with sliding windows."""

from __future__ import annotations

from typing import ClassVar

from mist_sim.clients.kv_cache.prefix_manager import PrefixCachingManager
from mist_sim.clients.kv_cache.windows.page_queue import PageQueue, WindowPiece
from mist_sim.clients.kv_cache.windows.window_cache import WindowCache
from mist_sim.clients.kv_cache.windows.window_chain import WindowChain
from mist_sim.clients.kv_cache.windows.window_drops import WindowDrops
from mist_sim.clients.kv_cache.windows.window_pool import WindowPool
from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Content
from mist_sim.core.views import ContentWatcher

_FEWEST_TOGETHER = 4  # pieces of a prompt; for fewer, one after the other is as fast


class WindowCachingManager(PrefixCachingManager):
    """Keeps full blocks of groups with full attention, and those of window groups, separately.

    A prompt begins with the longest run of cached blocks of full attention, as far as the blocks
    before its end that the windows reach are cached, too (vLLM's `HybridKVCacheCoordinator`). It
    holds the former, and has the latter as a copy in its own pages.

    While a prompt is computed, and decoded, its window groups return the blocks that no window will
    reach again, and take free pages for new ones. Returned blocks of a prompt stay in the cache
    until their pages are reused. Blocks of an answer enter when the sequence leaves: all those of
    full attention, and those still in its windows. The cache keeps one copy of a window group's
    block.
    """

    looks_ahead: ClassVar[bool] = False
    pool: WindowPool
    drops: WindowDrops

    def __init__(self, pool: WindowPool, num_recomputed: int = 0) -> None:
        super().__init__(pool, num_recomputed)
        groups = pool.groups
        self.drops = WindowDrops()
        self._full_pages, self._window_pages = groups.num_full_groups, groups.num_window_groups
        reach = (groups.sliding_window or 1) - 1
        self._num_needed = max(1, -(-reach // pool.block_size))  # blocks before a hit's end
        self._start_queue(pool.num_blocks)

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        chain = sequence.chain
        return self._hit(sequence, chain)[0] * self.pool.block_size if chain is not None else 0

    def watch(self, watcher: ContentWatcher) -> bool:
        """Notify a watcher about full attention, which every hit needs; windows may shorten it."""
        return bool(self._full_pages) and super().watch(watcher)

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Pages that an admission takes: full-attention blocks held by others are shared."""
        num_pages = self.pool.blocks_for(sequence.num_tokens)
        if sequence.chain is None or not self._full_pages or sequence.is_brought:
            return num_pages
        _, num_held = self._hit(sequence, sequence.chain)
        return num_pages - self._full_pages * num_held

    def fewest_blocks_to_admit(
        self, sequence: SequenceState, first_piece: int | None = None
    ) -> int:
        """Pages of a sequence if others hold all of its shared full-attention blocks."""
        num_pages = self.pool.blocks_for(sequence.num_tokens)
        if sequence.chain is None:
            return num_pages
        num_blocks = self._num_blocks(sequence.num_tokens)
        return num_pages - self._full_pages * min(sequence.chain.num_shared, num_blocks)

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Give a sequence its hit, copies of the blocks in windows, and pages for the rest."""
        num_pages = self.pool.blocks_for(sequence.num_tokens)
        chain = sequence.chain
        if isinstance(chain, WindowChain):
            hit, _ = self._hit(sequence, chain)
            sequence.num_computed_tokens = hit * self.pool.block_size
            if self._full_pages:
                self.pool.allocate(self._full_pages * self.cache.hold(chain, hit))
                num_pages -= self._full_pages * hit
            self.windows.use(chain.spans, max(0, hit - self._num_needed), hit)
            chain.begin(max(0, hit + 1 - self.pool.max_window_blocks), hit)
        self.grow(num_pages)

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        """Enter the blocks of a step, and queue blocks that its windows leave behind."""
        if not self.shares_blocks:
            return
        chain = sequence.chain
        if isinstance(chain, WindowChain):
            self._enter(chain, num_tokens // self.pool.block_size)
            num_left = self._leave_behind(chain, self._first_needed(num_tokens))
        else:
            before = self._first_needed(sequence.num_computed_tokens)
            num_left = self._first_needed(num_tokens) - before
            self._queue_nameless(self._window_pages * num_left)
        self._evict(self._window_pages * num_left)

    def compute_more(self, sequence: SequenceState, num_new_tokens: int, num_steps: int) -> None:
        """Note the same for later steps, in turn; no other blocks move."""
        if not self.shares_blocks:
            return
        first, end = (sequence.num_computed_tokens + n * num_new_tokens for n in (1, num_steps))
        chain = sequence.chain
        if not isinstance(chain, WindowChain):
            num_left = self._first_needed(end) - self._first_needed(first)
            self._queue_nameless(self._window_pages * num_left)
            self._evict(self._window_pages * num_left)
            return
        pieces = range(first + num_new_tokens, end + 1, num_new_tokens)
        while pieces and (chain.cached or chain.next_block < chain.num_shared):
            num_done = self._compute_together(chain, pieces) or 1
            self.compute(sequence, pieces[num_done - 1])
            pieces = pieces[num_done:]
        self.compute(sequence, end)  # none of the rest can be found

    def _compute_together(self, chain: WindowChain, pieces: range) -> int:
        """Note many computed pieces whose blocks are all new to the cache; return their number.

        pieces: the computed tokens after each. Returns 0, and does nothing, if blocks left by other
            sequences might be evicted in between, or if blocks without content ids are left behind.
        """
        size, most = self.pool.block_size, self.pool.max_window_blocks
        stop = min(pieces.stop, chain.num_shared * size + 1)
        pieces = range(pieces.start, stop, pieces.step)
        if len(pieces) < _FEWEST_TOGETHER or chain.cached != [(chain.first, chain.next_block)]:
            return 0
        end = pieces[-1] // size
        if self.windows.has_any(chain.spans, chain.next_block, end):
            return 0
        self._enter(chain, end)
        firsts = dict.fromkeys(-(-num_tokens // size) - most for num_tokens in pieces)
        bounds = [chain.first, *(first for first in firsts if first > chain.first)]
        if len(bounds) > 1:
            self.windows.free_in_turn(chain.spans, bounds)
            chain.drop_until(bounds[-1])
            self._evict(self._window_pages * (bounds[-1] - bounds[0]))
        return len(pieces)

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        """1 if a found block may be held soon; None otherwise."""
        chain = sequence.chain
        if chain is None or not self._full_pages:
            return None
        found = self.cache.find(chain, self._hit(sequence, chain)[0])
        return 1 if self._may_be_held(found) else None

    def is_entering(self, sequence: SequenceState) -> bool:
        chain = sequence.chain
        return isinstance(chain, WindowChain) and chain.next_block < chain.num_shared

    def grow(self, num_blocks: int) -> None:
        """Give the decodes new pages, including those that replace returned ones."""
        self.pool.allocate(num_blocks)
        if not self.shares_blocks:
            return
        for drops in self.drops.take():
            self._queue_nameless(self._window_pages * drops.num_nameless)
            for chain, position in drops.cached:
                self.windows.free(chain.spans, position, position + 1)
            num_blocks += self._window_pages * (drops.num_nameless + len(drops.cached))
        self._evict(num_blocks)

    def free(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all pages; blocks with content stay in the cache until they are taken."""
        first, chain = self._first_held(sequence, num_computed_tokens + num_unknown), sequence.chain
        if isinstance(chain, WindowChain):
            chain.first = max(chain.first, first)
            self._enter(chain, num_computed_tokens // self.pool.block_size)
        self._release(chain, num_blocks, num_computed_tokens)

    def preempt(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all pages; the full blocks stay cached, where it may find them again."""
        first = self._first_held(sequence, num_computed_tokens + num_unknown)
        chain = sequence.chain
        if not isinstance(chain, WindowChain):
            chain = sequence.chain = self._chain(())
            chain.begin(first, first)
        chain.make_private()
        chain.first = max(chain.first, first)
        num_full = num_computed_tokens // self.pool.block_size
        if self._full_pages:
            self.cache.enter(chain, num_full)
        self._enter_windows(chain, num_full)
        self._release(chain, num_blocks, num_computed_tokens)
        chain.start_over()
        sequence.num_computed_tokens = 0

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Give a sequence pages of its own for all that comes."""
        num_pages = self.pool.blocks_for(num_tokens)
        self.grow(num_pages)
        return num_pages

    def arrive(self, sequence: SequenceState, num_tokens: int) -> None:
        """Enter the content of a sequence's new pages."""
        chain = sequence.chain
        if isinstance(chain, WindowChain):
            first = self._first_needed(num_tokens)
            chain.begin(first, first)
            self._enter(chain, num_tokens // self.pool.block_size)

    # --- blocks and pages ---------------------------------------------------------------------

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.block_size)

    def _first_needed(self, num_tokens: int) -> int:
        """Position of the first window block that a sequence with so many computed tokens holds."""
        return max(0, self._num_blocks(num_tokens) - self.pool.max_window_blocks)

    def _first_held(self, sequence: SequenceState, num_tokens: int) -> int:
        """Position of the first window block of a sequence that leaves; drafts have blocks, too."""
        first = self.drops.first_left(sequence)
        return self._first_needed(num_tokens) if first is None else first

    def _chain(self, content: Content) -> WindowChain:
        if not self.shares_blocks:
            self.shares_blocks = self.drops.is_kept = True
            self._start_queue(self.pool.num_free)
        return WindowChain(content, self.pool.block_size)

    def _start_queue(self, num_free: int) -> None:
        """Begin to keep the order of the free pages."""
        self.queue = PageQueue(num_free, self._full_pages, self._window_pages)
        self.cache.queue = self.queue
        self.windows = WindowCache(self.queue)

    def _hit(self, sequence: SequenceState, chain: Chain) -> tuple[int, int]:
        """Cached blocks of a waiting sequence, never the block of its last token.

        Returns them, and those with full attention that other sequences hold.
        """
        changes = self.cache.changes + self.windows.changes
        if not isinstance(chain, WindowChain):
            return 0, 0
        if chain.hit is None or chain.hit[0] != changes:
            most = self._most_found(sequence)
            if self._full_pages:
                most = self.cache.find(chain, most).num_found
            num_again = self.num_recomputed
            end = self.windows.find(chain.spans, most, self._num_needed + num_again)
            hit = max(0, end - num_again)
            num_held = self.cache.find(chain, hit).num_held if self._full_pages else 0
            chain.hit = changes, hit, num_held
        return chain.hit[1], chain.hit[2]

    def _enter(self, chain: WindowChain, num_blocks: int) -> None:
        """Enter the first blocks, as far as the sequence holds them and others may ask for them."""
        num_blocks = min(num_blocks, chain.num_shared)
        if self._full_pages and chain.is_entering:
            self.cache.enter(chain, num_blocks)
        self._enter_windows(chain, num_blocks)

    def _enter_windows(self, chain: WindowChain, num_blocks: int) -> None:
        start = max(chain.next_block, chain.first)
        if start < num_blocks:
            chain.add_cached(self.windows.enter(chain.spans, start, num_blocks))
            chain.next_block = num_blocks

    def _release(self, chain: Chain | None, num_blocks: int, num_computed_tokens: int) -> None:
        """Queue the pages of a sequence: of full attention first, the last block's first."""
        if not self.shares_blocks:
            self.pool.release(num_blocks)
            return
        num_full, num_window = self.pool.blocks_in(num_blocks)
        num_own = num_full - chain.num_held if chain is not None else num_full
        self._queue_nameless(self._full_pages * num_own)
        num_freed = self._full_pages * num_own + self._window_pages * num_window
        if isinstance(chain, WindowChain):
            num_freed += self._full_pages * self.cache.release(chain)
            self._queue_windows(chain, chain.first, chain.first + num_window)
        else:
            self._queue_nameless(self._window_pages * num_window)
        self.pool.release(num_freed)

    def _leave_behind(self, chain: WindowChain, first: int) -> int:
        """Queue the window blocks before a position; return how many."""
        num_blocks = first - chain.first
        if num_blocks <= 0:
            return 0
        self._queue_windows(chain, chain.first, first)
        return num_blocks

    def _queue_windows(self, chain: WindowChain, start: int, end: int) -> None:
        """Queue the window blocks [start, end) of a sequence, the last one first."""
        for first, last in reversed(chain.drop_until(end)):
            self._queue_nameless(self._window_pages * (end - last))
            self.windows.free(chain.spans, first, last)
            end = first
        self._queue_nameless(self._window_pages * (end - start))

    def _queue_nameless(self, num_pages: int) -> None:
        """Queue pages without content ids as free."""
        if num_pages:
            self.queue.append(None, num_pages)

    def _evict(self, num_pages: int) -> None:
        """Use the least recently used free pages for something else."""
        for piece, num_blocks in self.queue.pop_pages(num_pages):
            if isinstance(piece, WindowPiece):
                self.windows.lose(piece, num_blocks)
            elif piece.entry is not None:
                self.cache.lose(piece.entry, num_blocks)
