"""A tier that has what was computed, and gives blocks up in one of several orders."""

from __future__ import annotations

from collections.abc import Hashable

from mist_sim.clients.kv_cache.tiers.stores import CacheTier, OrderedStore, Spans, parts_of
from mist_sim.clients.kv_cache.tiers.use_order import Eviction, Rank


class EvictingStore(OrderedStore):
    """Has what was written, up to its capacity; what it gives up is lost.

    With `lru` it holds what `WriteThroughStore` holds. With `fifo` the first blocks of a prompt may
    go before those behind them, which then are not found until the first ones are written again.

    num_written, num_given_up: blocks since the beginning; their difference is what it holds.
    """

    def __init__(self, tier: CacheTier, eviction: Eviction = "lru") -> None:
        super().__init__(tier, None, eviction)
        self.num_written = 0
        self.num_given_up = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds."""
        return self._order.num_blocks

    def compute(self, spans: Spans, num_blocks: int) -> None:
        """Write the first blocks; of more than the tier holds, the first ones.

        Those that are there already are kept, and take no other place than the new ones; that
        counts as no use of them. None of these blocks is given up for another of them.
        """
        num_blocks = min(num_blocks, self.tier.num_blocks)
        order, num_missing = self._order, 0
        parts: list[tuple[Hashable, int, int, Rank | None]] = []
        for key, start, end, is_there in parts_of(order, spans, num_blocks):
            rank = order.take_out(key, start, end) if is_there else None
            parts.append((key, start, end, rank))
            num_missing += 0 if is_there else end - start
        num_there = sum(end - start for _, start, end, _ in parts) - num_missing
        self._make_room(num_there + num_missing)
        for key, start, end, rank in parts:
            if rank is None:
                order.add(key, start, end)
            else:
                order.put_back(key, start, end, rank)
        self.num_written += num_missing

    def _make_room(self, num_blocks: int) -> None:
        """Give up blocks until there is room for so many, at most all."""
        while (too_many := self.num_blocks + num_blocks - self.tier.num_blocks) > 0:
            _, start, end = self._order.pop(too_many)
            self.num_given_up += end - start

    def fill(self, num_blocks: int) -> None:
        """They are not written: no other request will ask for them."""
