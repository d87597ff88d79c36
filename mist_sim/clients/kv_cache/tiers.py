"""Memory below the GPU that KV blocks are kept in and loaded from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop
from typing import Any, NamedTuple

from mist_sim.clients.prefixes.prefix_cache import Chain, PrefixCache
from mist_sim.errors import ScenarioError
from mist_sim.eviction import LRU, CachedBlocks, Eviction, push


class Use(NamedTuple):
    """When blocks were used. num_uses: since they were written. used, written: a clock of uses."""

    num_uses: int
    used: int
    written: int


class Segment:
    """Blocks of an id at positions [start, end), used one after the other, the last one first."""

    __slots__ = ("end", "key", "rank", "start", "use")

    def __init__(self, key: Hashable, start: int, end: int, use: Use) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.use = use
        self.rank: Any = None

    @property
    def blocks(self) -> CachedBlocks:
        """What its rank goes by."""
        return CachedBlocks(self.key, self.start, self.end - self.start, *self.use)


def _start(segment: Segment) -> int:
    return segment.start


class UseOrder:
    """Blocks in order of eviction; of blocks with one rank, the last one of a prompt goes first.

    num_blocks: number of blocks.
    """

    def __init__(self, eviction: Eviction = LRU) -> None:
        self.num_blocks = 0
        self._eviction = eviction.copy()
        self._of: dict[Hashable, list[Segment]] = {}  # by position
        # (rank, -end, number, segment); entries of changed segments are dropped lazily
        self._heap: list[tuple[Any, int, int, Segment]] = []
        self._num_pushed = 0
        self._latest: Segment | None = None
        self._clock = 0

    def run_end(self, key: Hashable, start: int, end: int) -> int:
        """Return up to where, at most `end`, all blocks of an id are there from `start` on."""
        for segment in self._of.get(key, ()):
            if segment.start <= start < segment.end:
                start = segment.end
        return min(start, end)

    def last_part(self, key: Hashable, start: int, end: int) -> tuple[int, bool]:
        """Return the beginning of the last part of [start, end), and whether it is there.

        The blocks of a part are all in one segment, or all missing.
        """
        for segment in reversed(self._of.get(key, ())):
            if segment.end < end:
                return max(start, segment.end), False
            if segment.start < end:
                return max(start, segment.start), True
        return start, False

    def use(self, key: Hashable, start: int, end: int) -> None:
        """Note that a part which is there is used now."""
        use = self.take_out(key, start, end)
        self.add(key, start, end, use._replace(num_uses=use.num_uses + 1))

    def take_out(self, key: Hashable, start: int, end: int) -> Use:
        """Take out a part which is there; return its uses, with which it may come back."""
        segment = next(each for each in self._of[key] if each.start <= start < each.end)
        self._of[key].remove(segment)
        self.num_blocks -= segment.end - segment.start
        for first, last in ((segment.start, start), (end, segment.end)):
            if first < last:
                self._keep(Segment(key, first, last, segment.use))
        if self._latest is segment:
            self._latest = None
        segment.start = segment.end = -1  # the heap's entry is outdated
        return segment.use

    def add(self, key: Hashable, start: int, end: int, use: Use | None = None) -> None:
        """Add a part, which is not there, as used now. use: before; None: it is new."""
        latest = self._latest
        if latest is not None and latest.key == key and latest.start == end:
            had = use or Use(0, 0, latest.use.used)  # which is new if it was written then
            if latest.use[::2] == had[::2]:
                self.num_blocks += end - start
                latest.start = start
                if (rank := self._eviction.rank(latest.blocks)) != latest.rank:
                    latest.rank = rank
                    self._push(latest)
                return
        self._clock += 1
        now = self._clock
        use = Use(0, now, now) if use is None else use._replace(used=now)
        self._latest = Segment(key, start, end, use)
        self._keep(self._latest)

    def pop(self, most: int) -> tuple[Hashable, int, int]:
        """Take out the blocks that go first, at most so many and all of one segment."""
        heap = self._heap
        while heap[0][1] != -heap[0][3].end or heap[0][0] != heap[0][3].rank:
            heappop(heap)
        segment = heappop(heap)[3]
        end = segment.end
        segment.end = start = max(segment.start, end - most)
        self.num_blocks -= end - start
        gone = segment.blocks._replace(start=start, num_blocks=end - start)
        self._eviction.evicted(gone, segment.rank)
        if start > segment.start:
            self._push(segment)
        else:
            self._of[segment.key].remove(segment)
            if self._latest is segment:
                self._latest = None
            if not self._of[segment.key]:
                del self._of[segment.key]
        return segment.key, start, end

    def _keep(self, segment: Segment) -> None:
        insort(self._of.setdefault(segment.key, []), segment, key=_start)
        segment.rank = self._eviction.rank(segment.blocks)
        self._push(segment)
        self.num_blocks += segment.end - segment.start

    def _push(self, segment: Segment) -> None:
        self._num_pushed += 1
        node = segment.rank, -segment.end, self._num_pushed, segment
        push(self._heap, node, self._eviction)


@dataclass(frozen=True, slots=True)
class CacheTier:
    """A tier in blocks: its capacity, and the seconds of a load and of each block in it.

    writes_back: whether it receives blocks that the tier above evicts, rather than all computed
        ones.
    at, read_bandwidth: its place in a network with a topology, and its largest read rate there,
        bytes/s; None: as much as the links carry.
    shared: whether engines share its content.
    in_step: whether the step that admits a sequence waits for its blocks, and not the sequence.
        Such a load has the link to itself: lanes that load at one time do not slow each other down.
    eviction: which blocks go first.
    """

    name: str
    num_blocks: int
    latency: float
    seconds_per_block: float
    writes_back: bool = False
    at: str = "host"
    read_bandwidth: float | None = None
    shared: bool = False
    in_step: bool = False
    eviction: Eviction = LRU

    def load_time(self, num_blocks: int) -> float:
        """Return the seconds of a load of so many blocks that has the link to itself."""
        return self.latency + num_blocks * self.seconds_per_block

    def divided_by(self, num_lanes: int) -> CacheTier:
        """Return the part of a lane, of so many that share the tier equally; a shared one is whole.

        Raises ScenarioError when there is not a block for each.
        """
        if self.shared:
            return self
        if self.num_blocks < num_lanes:
            raise ScenarioError(
                f"tier {self.name} has {self.num_blocks} blocks, less than one for each of "
                f"{num_lanes} lanes (pipeline_parallel_size); raise its capacity"
            )
        return replace(self, num_blocks=self.num_blocks // num_lanes)


Spans = Sequence[tuple[Hashable, int]]
"""Ids, each with the position behind its last block, as in `Chain.spans`."""

Evicted = Callable[[Hashable, int, int], None]
"""Takes an id and the positions [start, end) of blocks that a tier gave up, the last one first."""


class TierStore(ABC):
    """The blocks of a lane in a tier, in the order of eviction.

    below: receives the blocks that the tier evicts; None: they are lost.
    """

    def __init__(self, tier: CacheTier, below: Evicted | None) -> None:
        self.tier = tier
        self.below = below

    @abstractmethod
    def reach(self, spans: Spans, start: int, end: int) -> int:
        """Return the end of the blocks held without a gap from `start` on, at most `end`."""

    @abstractmethod
    def use(self, spans: Spans, num_blocks: int) -> None:
        """Note that a sequence uses the first blocks: it is admitted with them, or loads them."""

    @abstractmethod
    def compute(self, spans: Spans, num_blocks: int) -> None:
        """Note that the first blocks of a sequence are computed and in the cache above."""

    @abstractmethod
    def fill(self, num_blocks: int) -> None:
        """Note computed blocks that no other request will look up."""


class WriteThroughStore(TierStore):
    """Keeps computed blocks: every sequence's blocks from the first one on.

    content: its content, if shared with others.
    """

    def __init__(
        self, tier: CacheTier, below: Evicted | None, content: PrefixCache | None = None
    ) -> None:
        super().__init__(tier, below)
        if content is None:
            content = PrefixCache(tier.num_blocks, below, tier.eviction)
        self.cache = content

    def reach(self, spans: Spans, start: int, end: int) -> int:
        """Return the end of the first blocks that it has without a gap; `start` at least."""
        return max(start, self.cache.find(_chain(spans), end).num_found)

    def use(self, spans: Spans, num_blocks: int) -> None:
        """Keep the blocks as the latest used, the first one last of all."""
        self.compute(spans, num_blocks)

    def compute(self, spans: Spans, num_blocks: int) -> None:
        """Keep the blocks as `use` does; of more than the tier holds, the first ones."""
        num_blocks = min(num_blocks, self.tier.num_blocks)
        chain = _chain(spans)
        num_found = self.cache.find(chain, num_blocks).num_found
        self.cache.hold(chain, num_found)
        self.cache.evict(num_blocks - num_found)
        self.cache.enter(chain, num_blocks)
        self.cache.release(chain)

    def fill(self, num_blocks: int) -> None:
        """Queue the blocks, which push out older ones; each may go at any time."""
        num_blocks = min(num_blocks, self.tier.num_blocks)
        if num_blocks > 0:
            self.cache.evict(num_blocks)
            self.cache.queue.append(None, num_blocks)


class OrderedStore(TierStore):
    """Blocks of any positions, in the order in which they are given up."""

    def __init__(self, tier: CacheTier, below: Evicted | None) -> None:
        super().__init__(tier, below)
        self._order = UseOrder(tier.eviction)

    def reach(self, spans: Spans, start: int, end: int) -> int:
        """Return the position of the first missing block; the tier above may begin anywhere."""
        for key, span_end in spans:
            last = min(span_end, end)
            if start < last:
                start = self._order.run_end(key, start, last)
                if start < last:
                    break
        return start

    def use(self, spans: Spans, num_blocks: int) -> None:
        """Mark the blocks that are there as used latest, the first one last of all."""
        for key, start, end, is_there in parts_of(self._order, spans, num_blocks):
            if is_there:
                self._order.use(key, start, end)


class WriteBackStore(OrderedStore):
    """Keeps blocks that the tier above evicted."""

    def compute(self, spans: Spans, num_blocks: int) -> None:
        """They are written when the tier above gives them up."""

    def fill(self, num_blocks: int) -> None:
        """They are not written."""

    def take(self, key: Hashable, start: int, end: int) -> None:
        """Keep blocks as the latest used, each in the place of the least recently used one."""
        order, capacity = self._order, self.tier.num_blocks
        while start < end:
            part, is_there = order.last_part(key, start, end)
            if is_there:
                order.use(key, part, end)
                end = part
                continue
            num_blocks = end - part
            if order.num_blocks < capacity:
                num_blocks = min(num_blocks, capacity - order.num_blocks)
            else:
                lost, first, last = order.pop(num_blocks)
                num_blocks = last - first
                if self.below is not None:
                    self.below(lost, first, last)
            order.add(key, end - num_blocks, end)
            end -= num_blocks


def parts_of(
    order: UseOrder, spans: Spans, num_blocks: int
) -> Iterator[tuple[Hashable, int, int, bool]]:
    """Yield the first blocks of spans in parts, the last one first: id, [start, end), is it there.

    A stored part lies within one segment. It may be used, or taken out, before the next one.
    """
    starts = [0, *(end for _, end in spans)]
    for (key, span_end), start in reversed(list(zip(spans, starts, strict=False))):
        end = min(span_end, num_blocks)
        while start < end:
            part, is_there = order.last_part(key, start, end)
            yield key, part, end, is_there
            end = part


def found_in(
    stores: Sequence[TierStore], spans: Spans, start: int, end: int
) -> tuple[list[int], int]:
    """Return how many of the blocks [start, end) come from each store, the nearest first.

    From `start` on, blocks come from the nearest store that has the next one, up to its first
    missing block; then the search repeats. Also returns the store of the last block.
    """
    counts = [0] * len(stores)
    number = last = 0
    while number < len(stores):
        reached = stores[number].reach(spans, start, end)
        if reached > start:
            counts[number] += reached - start
            start, number, last = reached, 0, number
        else:
            number += 1
    return counts, last


def _chain(spans: Spans) -> Chain:
    """Return a chain of spans that holds no blocks."""
    chain = Chain((), 1)
    chain.spans = list(spans)
    return chain


def stores_of(
    tiers: Sequence[CacheTier],
    content: Callable[[CacheTier], PrefixCache],
) -> list[TierStore]:
    """Return the stores of tiers, each evicting into the next one below.

    content: returns the content of a shared tier.
    """
    stores: list[TierStore] = []
    for tier in reversed(tiers):
        below = taken_by(stores)
        if tier.writes_back:
            stores.insert(0, WriteBackStore(tier, below))
        else:
            shared = content(tier) if tier.shared else None
            stores.insert(0, WriteThroughStore(tier, below, shared))
    return stores


def taken_by(stores: list[TierStore]) -> Evicted | None:
    """Return the store that receives blocks evicted above the given ones, if any."""
    return stores[0].take if stores and isinstance(stores[0], WriteBackStore) else None


class SharedTiers:
    """The contents of the shared tiers of one run, by name."""

    def __init__(self) -> None:
        self._contents: dict[str, PrefixCache] = {}

    def content(self, tier: CacheTier) -> PrefixCache:
        """Return the content of a shared tier, one object for all its users; empty at first."""
        if tier.name not in self._contents:
            self._contents[tier.name] = PrefixCache(tier.num_blocks, eviction=tier.eviction)
        return self._contents[tier.name]


class Tiers:
    """The tiers below the prefix cache of a lane.

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

    tiers: the nearest first. cache: the prefix cache. content: returns the content of a shared
        tier. num_again: last blocks of a hit that are computed again, where a layer drafts.
    publishes: whether others share any of them. in_step: whether the step that admits a sequence
        waits for its blocks.
    """

    def __init__(
        self,
        tiers: Sequence[CacheTier],
        cache: PrefixCache,
        content: Callable[[CacheTier], PrefixCache],
        num_again: int = 0,
    ) -> None:
        self.tiers = tiers
        self.stores = stores_of(tiers, content)
        self._num_again = num_again
        self._own = [store for store in self.stores if not store.tier.shared]
        self._shared = [store for store in self.stores if store.tier.shared]
        self.publishes = bool(self._shared)
        self.in_step = any(tier.in_step for tier in tiers)
        cache.on_evict = taken_by(self.stores)

    def missing(self, chain: Chain, start: int, end: int) -> list[int]:
        """Return how many of the blocks [start, end) come from each tier; empty: none do.

        Each comes from the nearest tier that has it, in runs: a tier gives blocks up to its first
        missing one. Found blocks that will be recomputed are not loaded.
        """
        counts, last = found_in(self.stores, chain.spans, start, end)
        counts[last] -= min(counts[last], self._num_again)
        return counts if any(counts) else []

    def touch(self, chain: Chain) -> None:
        """Note that a sequence is admitted with the blocks that it holds."""
        for store in self._own:
            store.use(chain.spans, chain.num_held)
        for store in self._shared:
            store.use(chain.spans, store.reach(chain.spans, 0, chain.num_held))

    def load(self, chain: Chain, num_blocks: int) -> None:
        """Note that the first blocks of a sequence are loaded, as far as they were not cached."""
        for store in self.stores:
            if store.tier.writes_back:
                store.use(chain.spans, num_blocks)

    def store(self, chain: Chain) -> None:
        """Write the blocks that a sequence has computed, but not to tiers that others share."""
        for store in self._own:
            store.compute(chain.spans, chain.num_held)

    def publish(self, chain: Chain) -> None:
        """Write the blocks of a computed prompt to tiers that others share."""
        for store in self._shared:
            store.compute(chain.spans, chain.num_held)

    def leave(self, chain: Chain | None, num_full: int) -> None:
        """Write the full blocks of a sequence that gives its memory back."""
        num_held = 0
        if chain is not None:
            num_held = chain.num_held
            self.store(chain)
            self.publish(chain)
        for store in (*self._own, *self._shared):
            store.fill(num_full - num_held)

    def abandon(self) -> None:
        """Write nothing more to shared tiers: the content of this engine is lost."""
        self._shared = []
