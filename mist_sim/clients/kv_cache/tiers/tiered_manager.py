"""KV memory with tiers below the GPU: blocks found there are loaded and not computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.manager import Ahead
from mist_sim.clients.kv_cache.prefix_manager import PrefixCachingManager
from mist_sim.clients.kv_cache.tiers.shared import SharedTiers
from mist_sim.clients.kv_cache.tiers.stores import CacheTier, found_in, stores_of, taken_by
from mist_sim.clients.prefixes.prefix_cache import Chain, PrefixCache
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import ContentWatcher


class TieredManager(PrefixCachingManager):
    """A prefix cache whose blocks are also written to tiers below.

    Write-through: a block is written when it enters the cache, the other full blocks of a sequence
        when it leaves. Write-back: a block is written when the tier above, or the GPU, evicts it.
        Writes use the other direction of a link and delay nothing. A tier evicts its least recently
        used block: a block is used when it is written or a sequence with it is admitted; in a
        write-back tier also when it is loaded.

    A sequence whose blocks lie in tiers takes memory for them, waits for the load, and is admitted
    before all others; or the step that admits it waits for the load. From its turn on other
    sequences find the loaded blocks, too. A sequence given up before leaves nothing in the cache.
    Blocks of an answer are written to tiers when the sequence leaves.

    A shared tier gets a prompt's blocks when all of them are computed (`publish`), and the others
    when the sequence leaves: blocks of a step in flight are not visible to other engines.

    content: returns the content of a shared tier.
    takes_all: whether sequences take memory for all of their tokens at once.
    """

    looks_ahead: ClassVar[bool] = False

    def __init__(
        self,
        pool: BlockPool,
        tiers: Sequence[CacheTier],
        num_recomputed: int = 0,
        *,
        uncached_first: bool = False,
        content: Callable[[CacheTier], PrefixCache] | None = None,
    ) -> None:
        super().__init__(pool, num_recomputed, uncached_first=uncached_first)
        self.takes_all = False
        self.stores = stores_of(tiers, content or SharedTiers().content)
        self._own = [store for store in self.stores if not store.tier.shared]
        self._shared = [store for store in self.stores if store.tier.shared]
        self.publishes = bool(self._shared)
        self.in_step = any(tier.in_step for tier in tiers)
        self.tiers = self
        self.cache.on_evict = taken_by(self.stores)
        if self.cache.on_evict is not None:
            self.cache.enter_copies = self._enter_copies

    def missing(self, sequence: SequenceState) -> list[int]:
        """Blocks to load from each tier.

        After the cached blocks, each comes from the nearest tier that has it, in runs: a tier gives
        blocks up to its first missing one. Found blocks that will be recomputed are not loaded.
        """
        chain = sequence.chain
        if chain is None or chain.num_loaded:
            return []
        most = self._most_found(sequence)
        reached = self._find(sequence, chain).num_cached
        counts, last = found_in(self.stores, chain.spans, reached, most)
        counts[last] -= min(counts[last], self.num_recomputed)
        return counts if any(counts) else []

    def start_load(self, sequence: SequenceState) -> list[tuple[str, int]]:
        """Admit a waiting sequence that has blocks in lower tiers; return how many in which."""
        counts = self.missing(sequence)
        chain = sequence.chain
        if counts and chain is not None:
            num_found = self._find(sequence, chain).num_cached
            # the loaded blocks are behind all of these
            chain.found = self.cache.find(chain, num_found)
            self.admit(sequence, None if self.takes_all else sum(counts) * self.pool.block_size)
            chain.num_loaded = num_found + sum(counts)
            for store in self.stores:
                if store.tier.writes_back:
                    store.use(chain.spans, chain.num_loaded)
        return [(store.tier.name, n) for store, n in zip(self.stores, counts, strict=False) if n]

    def load_time(self, loads: list[tuple[str, int]]) -> float:
        """Return the sum of the tiers' latencies and of the time of each block, in seconds."""
        tiers = {store.tier.name: store.tier for store in self.stores}
        return sum(tiers[name].load_time(num_blocks) for name, num_blocks in loads)

    def end_load(self, sequence: SequenceState) -> None:
        """Let others find the loaded blocks of a sequence."""
        if sequence.chain is not None:
            self.compute(sequence, sequence.chain.num_loaded * self.pool.block_size)

    def num_first_tokens(self, sequence: SequenceState, first_piece: int) -> int:
        """Tokens that get blocks first: where some are to be loaded, these."""
        chain = sequence.chain
        if chain is not None and (counts := self.missing(sequence)):
            here = (self._find(sequence, chain).num_cached + sum(counts)) * self.pool.block_size
            return min(sequence.num_tokens, here + first_piece) if self.in_step else here
        return super().num_first_tokens(sequence, first_piece)

    def num_reserved(self, sequence: SequenceState) -> int:
        """Blocks of a sequence that has its load, or waits for it."""
        if self.takes_all or sequence.chain is None:
            return self.pool.blocks_for(sequence.num_tokens)
        return sequence.chain.num_loaded

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        """None once its entries are loaded: it holds its blocks already."""
        if sequence.chain is not None and sequence.chain.num_loaded:
            return None
        return super().steps_until_gain(sequence)

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        """The loaded tokens if there are any, else those that the cache finds."""
        if sequence.chain is not None and sequence.chain.num_loaded:
            return sequence.chain.num_loaded * self.pool.block_size
        return super().num_cached_tokens(sequence)

    def num_prefix_tokens(self, probe: SequenceState, ahead: Ahead) -> int:
        """Tokens found in the cache or in a tier."""
        num_tokens = super().num_prefix_tokens(probe, ahead)
        if probe.chain is not None and (counts := self.missing(probe)):
            num_found = self._find(probe, probe.chain).num_cached
            num_tokens = (num_found + sum(counts)) * self.pool.block_size
        return num_tokens

    def watch(self, watcher: ContentWatcher) -> bool:
        """Refuse to tell a watcher, which would miss what the tiers have."""
        return False  # blocks in a tier count as found too

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Free blocks that an admission takes, beyond those that a load has already."""
        if sequence.chain is None or not sequence.chain.num_loaded:
            return super().blocks_to_admit(sequence, num_tokens)
        if num_tokens is None:
            num_tokens = sequence.num_tokens
        return self.pool.blocks_for(num_tokens) - self.num_reserved(sequence)

    def fewest_blocks_to_admit(
        self, sequence: SequenceState, first_piece: int | None = None
    ) -> int:
        """0 for a loaded sequence, which has blocks; else as without tiers."""
        if sequence.chain is not None and sequence.chain.num_loaded:
            return 0
        return super().fewest_blocks_to_admit(sequence, first_piece)

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Give a sequence its blocks, loaded ones counted as computed, and store new ones below."""
        chain = sequence.chain
        if chain is None or not chain.num_loaded:
            super().admit(sequence, most_new)
        else:
            num_blocks, num_loaded = self.num_reserved(sequence), chain.num_loaded
            sequence.num_computed_tokens = num_here = num_loaded * self.pool.block_size
            chain.num_loaded = 0
            if not self.takes_all:
                num_tokens = sequence.num_tokens
                if most_new is not None:
                    num_tokens = min(num_tokens, num_here + most_new)
                self.grow(self.pool.blocks_for(num_tokens) - num_blocks)
        if chain is not None:
            for store in self._own:
                store.use(chain.spans, chain.num_held)
            for store in self._shared:
                store.use(chain.spans, store.reach(chain.spans, 0, chain.num_held))

    def publish(self, sequence: SequenceState) -> None:
        """Write the blocks of a prompt to tiers that others share; all of them are computed."""
        if sequence.chain is not None:
            for store in self._shared:
                store.compute(sequence.chain.spans, sequence.chain.num_held)

    def abandon(self) -> None:
        """Write nothing more to shared tiers: the content of this engine is lost."""
        self._shared = []

    def most_steps(self, limit: int) -> int:
        """Return the steps, at most `limit`, after which blocks may be taken all at once.

        1 while decodes fill copies of free blocks, which tiers get only without a copy.
        """
        return 1 if self.cache.on_evict is not None and self._fills_copies() else limit

    def _fills_copies(self) -> bool:
        """Tell whether a decode may fill a block of which a free copy is in the cache."""
        chains = [each.chain for each in self.answers.writers if each.chain is not None]
        return any(
            entry.num_held < entry.num_cached and entry.end > chain.num_held
            for chain in chains
            for key, _ in chain.spans[chain.place :]
            for entry in self.cache.copies(key)
        )

    def _enter_copies(self, key: Hashable) -> None:
        """Enter the blocks of an id that decodes have filled by now."""
        if self.answers:
            self.answers.catch_up((key,))

    def are_apart(self, several: Sequence[SequenceState]) -> bool:
        """Whether there is one prompt at most; several write to the tiers one after the other."""
        # written to the tiers in turn; each write may displace other blocks
        return len(several) < 2 and super().are_apart(several)

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note computed tokens, and store the blocks that they fill in the tiers below."""
        chain = sequence.chain
        num_before = chain.num_held if chain is not None else 0
        super().compute(sequence, num_tokens)
        if chain is not None and chain.num_held > num_before:
            self._store(chain)

    def forget(self, sequence: SequenceState, num_blocks: int) -> None:
        """Take back its blocks; none of them holds computed entries."""
        sequence.num_computed_tokens = 0
        super()._release(sequence.chain, num_blocks, 0)

    def _release(self, chain: Chain | None, num_blocks: int, num_computed_tokens: int) -> None:
        num_held = 0
        if chain is not None:
            num_held = chain.num_held
            self._store(chain)
            for store in self._shared:
                store.compute(chain.spans, num_held)
        for store in (*self._own, *self._shared):
            store.fill(num_computed_tokens // self.pool.block_size - num_held)
        super()._release(chain, num_blocks, num_computed_tokens)

    def _store(self, chain: Chain) -> None:
        for store in self._own:
            store.compute(chain.spans, chain.num_held)
