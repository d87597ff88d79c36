"""What lies in the levels of a client, and what becomes of it: stateful retrieval.

Levels are inclusive, and written through: what an engine has computed is written to every level,
and a level gives blocks up on its own, by its own capacity and order. What is read from a level is
written to those in front of it. We chose this and not demotion, where a level gets what the one in
front gives up, for two reasons. A level that several clients share has what any of them computed,
as soon as it is computed, which is what a shared level is for; with demotion it lacks the hottest
entries, since they stay in front. And stores that are built so write through by default (LMCache;
SGLang's HiCache, `write_through`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from mist_sim.clients.kv_cache.tiers.evicting import EvictingStore
from mist_sim.clients.kv_cache.tiers.stores import CacheTier, found_in
from mist_sim.clients.kv_cache.tiers.use_order import Eviction
from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.clients.retrieval.levels import StorageLevel
from mist_sim.clients.shared_parts import SharedParts
from mist_sim.core.request import Content


class Contents:
    """The blocks in each of a client's levels, the nearest first.

    block_size: tokens of a block; only full ones are kept.
    """

    def __init__(self, stores: Sequence[EvictingStore], block_size: int) -> None:
        self.stores = stores
        self.block_size = block_size

    def find(self, content: Content, num_tokens: int) -> list[int]:
        """Return how many of the first tokens of a request come from each level.

        num_tokens: that are asked for. Nothing changes.
        """
        chain = Chain(content, self.block_size)
        most = min(num_tokens // self.block_size, chain.num_shared)
        counts, _ = found_in(self.stores, chain.spans, 0, most)
        return [count * self.block_size for count in counts]

    def read(self, content: Content, found: Sequence[int]) -> None:
        """Note that tokens were read from levels, as `find` says.

        Those levels have used them, and the ones in front of the last level have them from now on.
        """
        if not any(found):
            return
        spans = Chain(content, self.block_size).spans
        num_blocks = sum(found) // self.block_size
        deepest = max(number for number, count in enumerate(found) if count)
        for number, store in enumerate(self.stores[: deepest + 1]):
            if found[number]:
                store.use(spans, num_blocks)
            if number < deepest:
                store.compute(spans, num_blocks)

    def write(self, content: Content, num_tokens: int) -> None:
        """Write the first tokens of a request to all levels: an engine has computed them."""
        chain = Chain(content, self.block_size)
        num_blocks = min(num_tokens // self.block_size, chain.num_shared)
        for store in self.stores:
            store.compute(chain.spans, num_blocks)


def contents_of(
    levels: Sequence[StorageLevel],
    block_size: int,
    bytes_per_token: float,
    eviction: Eviction,
    parts: SharedParts | None,
) -> Contents:
    """Return what a client's levels hold: at first nothing, in shared ones what others wrote."""
    stores = []
    for level in levels:
        num_blocks = num_blocks_of(level, block_size, bytes_per_token)
        tier = CacheTier(level.name, num_blocks, level.latency, 0.0, shared=level.shared)
        make = partial(EvictingStore, tier, eviction)
        known = parts or SharedParts()
        stores.append(known.part("level", level.name, make) if level.shared else make())
    return Contents(stores, block_size)


def num_blocks_of(level: StorageLevel, block_size: int, bytes_per_token: float) -> int:
    """Return how many blocks a level holds; more than there can be for one without a limit."""
    if level.capacity_tokens is not None:
        return level.capacity_tokens // block_size
    if level.capacity is None:
        return sys.maxsize
    return int(level.capacity // (block_size * bytes_per_token))
