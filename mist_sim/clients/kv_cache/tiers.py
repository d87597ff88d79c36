"""KV memory with tiers below the GPU: blocks found there are loaded and not computed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mist_sim.clients import sequence as sequences
from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.manager import PrefixCachingManager
from mist_sim.clients.kv_cache.prefix import Chain, PrefixCache
from mist_sim.errors import ScenarioError


@dataclass(frozen=True, slots=True)
class CacheTier:
    """A tier in blocks: what it holds, and the seconds of a load and of each block in it."""

    name: str
    num_blocks: int
    latency: float
    seconds_per_block: float

    def divided_by(self, num_lanes: int) -> CacheTier:
        """Return the part of a lane, of so many that share the tier equally.

        Raises ScenarioError when there is not a block for each.
        """
        if self.num_blocks < num_lanes:
            raise ScenarioError(
                f"tier {self.name} has {self.num_blocks} blocks, less than one for each of "
                f"{num_lanes} lanes (pipeline_parallel_size); raise its capacity"
            )
        return replace(self, num_blocks=self.num_blocks // num_lanes)


class TierLink:
    """The way from a tier to the GPUs of an engine; loads go over it one after the other."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def send(self, seconds: float, now: float) -> float:
        """Begin a load behind those under way; return when it is there (seconds)."""
        self._free_at = max(now, self._free_at) + seconds
        return self._free_at


class TierStore:
    """The blocks of a lane in a tier, least recently used first, and the engine's link to it."""

    def __init__(self, tier: CacheTier, link: TierLink) -> None:
        self.tier = tier
        self.cache = PrefixCache(tier.num_blocks)
        self._link = link

    def store(self, spans: list[tuple[Hashable, int]], num_blocks: int) -> None:
        """Keep the first blocks of a chain as the latest used, its first one last of all."""
        num_blocks = min(num_blocks, self.tier.num_blocks)
        chain = Chain((), 1)
        chain.spans = spans
        num_found, _ = self.cache.find(chain, num_blocks)
        self.cache.hold(chain, num_found)
        self.cache.evict(num_blocks - num_found)
        self.cache.enter(chain, num_blocks)
        self.cache.release(chain)

    def fill(self, num_blocks: int) -> None:
        """Keep blocks that nobody will ask for."""
        num_blocks = min(num_blocks, self.tier.num_blocks)
        if num_blocks > 0:
            self.cache.evict(num_blocks)
            self.cache.queue.append(None, num_blocks)

    def load(self, num_blocks: int, now: float) -> float:
        """Send blocks to the GPU behind those under way; return when they are there (s)."""
        return self._link.send(self.tier.latency + num_blocks * self.tier.seconds_per_block, now)


class TieredManager(PrefixCachingManager):
    """A prefix cache whose blocks are also written to every tier below (write-through).

    A block is written when it enters the cache, the other full blocks of a sequence when it
    leaves; writes go the other way over a link and delay nothing. A tier gives up what was
    used least recently: it is used when it is written or a sequence that has it is admitted.

    A sequence whose blocks lie in tiers takes its memory, waits for the load, and is admitted
    before all others. Then other sequences find the loaded blocks, too. One that is given up
    before leaves nothing in the cache.

    links: one a tier; the lanes of an engine share them.
    """

    has_tiers: ClassVar[bool] = True

    def __init__(
        self, pool: BlockPool, tiers: Sequence[CacheTier], links: Sequence[TierLink]
    ) -> None:
        super().__init__(pool)
        self.stores = [TierStore(tier, link) for tier, link in zip(tiers, links, strict=True)]

    def missing(self, sequence: sequences.Sequence) -> list[int]:
        """Blocks to load from each tier, the nearest one that has a block."""
        chain = sequence.chain
        if chain is None or chain.num_loaded:
            return []
        reached, _ = self._find(sequence, chain)
        most = (sequence.num_tokens - 1) // self.pool.block_size
        counts = []
        for store in self.stores:
            num_found, _ = store.cache.find(chain, most)
            counts.append(max(0, num_found - reached))
            reached = max(reached, num_found)
        return counts if any(counts) else []

    def start_load(self, sequence: sequences.Sequence) -> list[int]:
        """Admit a waiting sequence that has blocks in lower tiers, and say how many in each."""
        counts = self.missing(sequence)
        chain = sequence.chain
        if counts and chain is not None:
            num_found, _ = self._find(sequence, chain)
            self.admit(sequence)
            chain.num_loaded = num_found + sum(counts)
        return counts

    def load(self, counts: list[int], now: float) -> float:
        loads = zip(self.stores, counts, strict=True)
        return max(store.load(count, now) for store, count in loads if count)

    def tokens_by_tier(self, counts: list[int]) -> list[tuple[str, int]]:
        size = self.pool.block_size
        loads = zip(self.stores, counts, strict=True)
        return [(store.tier.name, count * size) for store, count in loads if count]

    def num_cached_tokens(self, sequence: sequences.Sequence) -> int:
        if sequence.chain is not None and sequence.chain.num_loaded:
            return sequence.chain.num_loaded * self.pool.block_size
        return super().num_cached_tokens(sequence)

    def blocks_to_admit(self, sequence: sequences.Sequence) -> int:
        if sequence.chain is not None and sequence.chain.num_loaded:
            return 0
        return super().blocks_to_admit(sequence)

    def fewest_blocks_to_admit(self, sequence: sequences.Sequence) -> int:
        if sequence.chain is not None and sequence.chain.num_loaded:
            return 0
        return super().fewest_blocks_to_admit(sequence)

    def admit(self, sequence: sequences.Sequence) -> None:
        """Give a sequence its blocks, loaded ones counted as computed, and store new ones below."""
        chain = sequence.chain
        if chain is None or not chain.num_loaded:
            super().admit(sequence)
        else:
            sequence.num_computed_tokens = chain.num_loaded * self.pool.block_size
            chain.num_loaded = 0
        if chain is not None:
            self._store(chain)

    def compute(self, sequence: sequences.Sequence, num_tokens: int) -> None:
        """Note what is computed, and store the blocks that it fills in the tiers below."""
        chain = sequence.chain
        num_before = chain.num_held if chain is not None else 0
        super().compute(sequence, num_tokens)
        if chain is not None and chain.num_held > num_before:
            self._store(chain)

    def forget(self, sequence: sequences.Sequence) -> None:
        sequence.num_computed_tokens = 0
        super()._release(sequence.chain, self.pool.blocks_for(sequence.num_tokens), 0)

    def _release(self, chain: Chain | None, num_blocks: int, num_computed_tokens: int) -> None:
        num_held = 0
        if chain is not None:
            num_held = chain.num_held
            self._store(chain)
        for store in self.stores:
            store.fill(num_computed_tokens // self.pool.block_size - num_held)
        super()._release(chain, num_blocks, num_computed_tokens)

    def _store(self, chain: Chain) -> None:
        for store in self.stores:
            store.store(chain.spans, chain.num_held)
