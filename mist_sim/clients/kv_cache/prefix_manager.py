"""How many KV blocks each sequence holds, with a prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.manager import Ahead, KvCacheManager
from mist_sim.clients.prefixes.free_queue import FreeQueue
from mist_sim.clients.prefixes.prefix_cache import Chain, Found, PrefixCache, one_token_up
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Content
from mist_sim.core.views import ContentWatcher


class PrefixCachingManager(KvCacheManager):
    """Keeps full blocks after their sequence has left, until the space is needed (vLLM v1).

    A sequence begins with its longest cached run of blocks, without the block of its last token,
    which is always computed. It computes the rest in new blocks, even if some of these are cached.
    Blocks are entered when the step that computes them is planned, those of an answer too (see
    `Answers`), beside copies already there. A preempted sequence finds its own blocks again; a
    swapped one has all its blocks copied to new ones and entered anew.

    As long as no sequence has content or was preempted, no block can be found again, and blocks are
    only counted.

    num_recomputed: number of last found blocks that are recomputed
        (`SpeculativeConfig.num_recomputed_blocks`).
    uncached_first: whether free blocks without cached content are used before all others (see
        `EngineRules`).
    hashes_ahead: whether a block is found only where the token behind it is the same, too.
    """

    caches_prefixes: ClassVar[bool] = True

    def __init__(
        self,
        pool: BlockPool,
        num_recomputed: int = 0,
        *,
        uncached_first: bool = False,
        hashes_ahead: bool = False,
    ) -> None:
        super().__init__(pool)
        self.num_recomputed = num_recomputed
        self.uncached_first = uncached_first
        self.cache = PrefixCache(pool.num_blocks)
        self.answers.cache = self.cache
        self.answers.covers_next = hashes_ahead

    @property
    def free_queue(self) -> FreeQueue:
        """All free blocks, in the order in which they will be used."""
        return self.cache.queue if self.shares_blocks else FreeQueue(self.pool.num_free)

    def add(self, sequence: SequenceState) -> None:
        """Begin the chain of a sequence with content."""
        content = sequence.visit.request.content
        if content:
            sequence.chain = self._chain(content)

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        """Tokens in the cached blocks that a waiting sequence begins with; never its last token."""
        if sequence.chain is None:
            return 0
        return self._find(sequence, sequence.chain).num_found * self.pool.block_size

    def num_prefix_tokens(self, probe: SequenceState, ahead: Ahead) -> int:
        """Tokens found in the cache, after the effects of the run's steps so far."""
        if not self.shares_blocks:
            return 0
        probe.chain = chain = self._chain(probe.visit.request.content)
        size = self.pool.block_size
        if self.looks_ahead and (ahead.num_blocks or ahead.computed):
            entering = [
                (sequence.chain, min(num_tokens // size, sequence.chain.num_shared))
                for sequence, num_tokens in ahead.computed
                if sequence.chain is not None and sequence.chain.is_entering
            ]
            most = self._most_found(probe)
            num_found = self.cache.find_later(chain, most, ahead.num_blocks, entering)
            return max(0, num_found - self.num_recomputed) * size
        return self.num_cached_tokens(probe)

    def watch(self, watcher: ContentWatcher) -> bool:
        """Let the cache tell a watcher of its content, unless ids cover the token behind."""
        if self.answers.covers_next:
            return False  # their ids lie one token up of those that a prompt has
        self.cache.watch(watcher)
        return True

    def unwatch(self) -> None:
        """Let the cache tell its watcher no more."""
        self.cache.unwatch()

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Free blocks that an admission takes: all but those that other sequences already hold."""
        num_blocks = self.pool.blocks_for(sequence.num_tokens if num_tokens is None else num_tokens)
        if sequence.chain is None or not sequence.chain.num_shared:
            return num_blocks
        return num_blocks - self._find(sequence, sequence.chain).num_held

    def fewest_blocks_to_admit(
        self, sequence: SequenceState, first_piece: int | None = None
    ) -> int:
        """Blocks of all or of a first piece, without those that others may hold."""
        num_blocks = self.pool.blocks_for(
            sequence.num_tokens if first_piece is None else first_piece
        )
        if sequence.chain is None:
            return num_blocks
        return num_blocks - min(sequence.chain.num_shared, num_blocks)

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Give a sequence the cached blocks that it begins with, and new ones for the rest."""
        chain, num_found = sequence.chain, 0
        if chain is not None:
            num_found = self._find(sequence, chain).num_found
            sequence.num_computed_tokens = num_found * self.pool.block_size
            self.pool.allocate(self.cache.hold(chain, num_found))
        num_tokens = sequence.num_tokens
        if most_new is not None and sequence.num_computed_tokens + most_new < num_tokens:
            num_tokens = sequence.num_computed_tokens + most_new
        self.grow(self.pool.blocks_for(num_tokens) - num_found)

    def num_held(self, sequence: SequenceState, num_computed_tokens: int) -> int:
        """Blocks of its computed tokens, or of its chain if those are more."""
        num_blocks = self.pool.blocks_for(num_computed_tokens)
        return num_blocks if sequence.chain is None else max(num_blocks, sequence.chain.num_held)

    def blocks_to_reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Free blocks that `reserve` takes: all but the full ones that the cache has."""
        num_full = num_tokens // self.pool.block_size
        num_here = min(self.num_cached_tokens(sequence) // self.pool.block_size, num_full)
        return self.pool.blocks_for(num_tokens) - num_here

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Hold the cached blocks of a sequence, and take new ones for its other entries."""
        num_blocks, chain = self.pool.blocks_for(num_tokens), sequence.chain
        if chain is not None:
            num_full = num_tokens // self.pool.block_size
            num_found = min(self._find(sequence, chain).num_found, num_full)
            self.pool.allocate(self.cache.hold(chain, num_found))
            num_blocks -= num_found
        self.grow(num_blocks)
        return num_blocks

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        """Enter the blocks that a step fills; decodes' blocks of the same ids come first."""
        chain = sequence.chain
        if chain is not None and chain.is_entering:
            is_last = num_tokens >= sequence.num_tokens - 1
            num_tokens = min(num_tokens, self.answers.num_hashed(sequence))
            num_full = min(num_tokens // self.pool.block_size, chain.num_shared)
            if self.answers:
                self.answers.catch_up(chain.keys_until(num_full))
            self.cache.enter(chain, num_full)
            if is_last:
                self.answers.begin(sequence)

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        """1 if a found block may be held soon; else steps until a decode fills the next block."""
        chain = sequence.chain
        if chain is None or not chain.num_shared:
            return None  # others neither hold nor fill its blocks
        found = self._find(sequence, chain)
        if found.unheld and self._may_be_held(found):
            return 1
        spans = list(found.unheld)
        if found.missing is not None:
            spans.append((found.missing, found.num_cached, found.num_cached + 1))
        steps = [self.answers.steps_until(*span) for span in spans] if self.answers else []
        return min([each for each in steps if each is not None], default=None)

    def _may_be_held(self, found: Found) -> bool:
        """Whether other sequences hold another copy of a block found in an unheld copy.

        After the unheld copy is evicted, that copy is found, and takes no free block.
        """
        if self.answers:
            self.answers.catch_up([key for key, _, _ in found.unheld])
        return any(self.cache.is_held(*span) for span in found.unheld)

    def is_entering(self, sequence: SequenceState) -> bool:
        """Whether its chain still enters blocks."""
        return sequence.chain is not None and sequence.chain.is_entering

    def are_apart(self, several: Sequence[SequenceState]) -> bool:
        """Whether the sequences enter different content ids, none of which a decode fills."""
        chains = [sequence.chain for sequence in several if sequence.chain is not None]
        if self.answers and any(self.answers.are_written(chain) for chain in chains):
            return False
        keys = [key for chain in chains for key, _ in chain.spans[chain.place :]]
        return len(set(keys)) == len(keys)

    def grow(self, num_blocks: int) -> None:
        """Give the decodes new blocks, and evict as many cached ones if blocks are shared."""
        if num_blocks:
            self.pool.allocate(num_blocks)
            if self.shares_blocks:
                self.cache.evict(num_blocks)

    def give_back(self, num_blocks: int) -> None:
        """Take back empty blocks; they are the first to be used again."""
        self.pool.release(num_blocks)
        if num_blocks and self.shares_blocks:
            self._queue_own(num_blocks, 0)

    def free(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Enter the last full blocks of a sequence, and queue all its blocks as free."""
        if sequence.chain is not None:
            self.compute(sequence, num_computed_tokens)
            self.answers.end(sequence)
        self._release(sequence.chain, num_blocks, num_computed_tokens)

    def preempt(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all blocks; the full ones stay in the cache, where it may find them again."""
        if sequence.chain is None:
            sequence.chain = self._chain(())
        chain = sequence.chain
        chain.make_private()
        self.answers.end(sequence)
        self.cache.enter(chain, num_computed_tokens // self.pool.block_size)
        self._release(chain, num_blocks, num_computed_tokens)
        chain.start_over()
        sequence.num_computed_tokens = 0

    def swap_out(self, sequence: SequenceState, num_blocks: int, num_computed_tokens: int) -> None:
        """Take back all blocks, and begin its chain anew."""
        super().swap_out(sequence, num_blocks, num_computed_tokens)
        if sequence.chain is not None:
            sequence.chain.start_over()

    def _release(self, chain: Chain | None, num_blocks: int, num_computed_tokens: int) -> None:
        """Queue the blocks of a sequence as free, its last one first.

        In vLLM the full blocks of its computed tokens have a hash, even if no request can match it.
        """
        if not self.shares_blocks:
            self.pool.release(num_blocks)
            return
        num_held = chain.num_held if chain is not None else 0
        num_freed = num_blocks - num_held
        if num_freed:
            num_full = num_computed_tokens // self.pool.block_size
            self._queue_own(num_freed, max(0, num_full - num_held))
        if chain is not None and num_held:
            num_freed += self.cache.release(chain)
        self.pool.release(num_freed)

    def _queue_own(self, num_blocks: int, num_full: int) -> None:
        """Queue blocks as free that no other sequence can find; `num_full` of them are full."""
        num_first = num_blocks - num_full if self.uncached_first else 0
        if num_first:
            self.cache.queue.prepend(num_first)
        if num_blocks > num_first:
            self.cache.queue.append(None, num_blocks - num_first)

    def _chain(self, content: Content) -> Chain:
        """Return a chain of blocks; with the first one, keep the order of the free blocks."""
        if not self.shares_blocks:
            self.shares_blocks = True
            self.cache.queue_anew(self.pool.num_free)
        known = one_token_up(content) if self.answers.covers_next else content
        return Chain(known, self.pool.block_size)

    def _most_found(self, sequence: SequenceState) -> int:
        """The largest number of cached blocks a sequence can use: those before its last token's."""
        return (sequence.num_tokens - 1) // self.pool.block_size

    def _find(self, sequence: SequenceState, chain: Chain) -> Found:
        """Return which blocks a waiting sequence begins with."""
        found, cache = chain.found, self.cache
        while (
            found is None
            or found.changes != cache.changes
            or (self.answers and self.answers.catch_up((found.missing,)))
        ):
            found = cache.find(chain, self._most_found(sequence))
            if self.num_recomputed and found.num_found:
                found = self._without_last(chain, found)
            chain.found = found
        return found

    def _without_last(self, chain: Chain, found: Found) -> Found:
        """Return the found blocks without the last ones, which a drafting layer recomputes."""
        num_found = max(0, found.num_found - self.num_recomputed)
        shorter = self.cache.find(chain, num_found)
        return shorter._replace(missing=found.missing, num_cached=found.num_cached)
