"""Tiers below the GPU: the blocks stored there, and the times to load them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from mist_sim.clients.kv_cache.tiers.use_order import Eviction, UseOrder
from mist_sim.clients.prefixes.prefix_cache import Chain, PrefixCache
from mist_sim.errors import ScenarioError


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
    """The blocks of a lane in a tier, least recently used first.

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
        self.cache = PrefixCache(tier.num_blocks, below) if content is None else content

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

    def __init__(self, tier: CacheTier, below: Evicted | None, eviction: Eviction = "lru") -> None:
        super().__init__(tier, below)
        self._order = UseOrder(eviction)

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
