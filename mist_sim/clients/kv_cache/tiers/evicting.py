"""A tier that keeps computed blocks, and evicts them in one of several orders."""

from __future__ import annotations

from collections.abc import Hashable

from mist_sim.clients.kv_cache.tiers.stores import CacheTier, OrderedStore, Spans, parts_of
from mist_sim.clients.kv_cache.tiers.use_order import Eviction, Rank


class EvictingStore(OrderedStore):
    """Keeps written blocks up to its capacity; evicted blocks are lost.

    With `lru` it holds the same blocks as `WriteThroughStore`. With `fifo` the first blocks of a
    prompt may be evicted before later ones, which are then not found until the first ones are
    written again.

    num_written, num_given_up: blocks written and evicted since the start; their difference is the
        number held.
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
        """Write the first blocks of a prompt, as many as the tier can hold.

        Blocks already there are kept, and keep their place in the order; writing them again counts
        as no use. No block of the prompt is evicted for another one of it.
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
        """They are not written, since no other request will look them up."""
