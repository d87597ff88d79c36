"""Stateful retrieval: the content of a client's levels, and its changes.

Levels are inclusive, and written through: entries computed by an engine are written to every level,
and each level evicts blocks by its own capacity and order. Entries read from a level are written to
the levels in front of it. The alternative is demotion, where a level receives the blocks that the
one in front evicts. We chose write-through for two reasons. A level shared by several clients then
has every client's entries as soon as they are computed, which is the purpose of sharing; with
demotion it lacks the hottest entries, since they stay in front. And such stores write through by
default (LMCache; SGLang's HiCache, `write_through`).
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
from mist_sim.core.request import Content, Request
from mist_sim.core.visit import Failure, Lost, Visit
from mist_sim.stages import Prefill


class Contents:
    """The blocks in each of a client's levels, the nearest first.

    block_size: tokens of a block; only full ones are kept.
    """

    def __init__(self, stores: Sequence[EvictingStore], block_size: int) -> None:
        self.stores = stores
        self.block_size = block_size

    def find(self, content: Content, num_tokens: int) -> list[int]:
        """Return how many of the first tokens of a request come from each level.

        num_tokens: tokens requested. Changes no level.
        """
        chain = Chain(content, self.block_size)
        most = min(num_tokens // self.block_size, chain.num_shared)
        counts, _ = found_in(self.stores, chain.spans, 0, most)
        return [count * self.block_size for count in counts]

    def read(self, content: Content, found: Sequence[int]) -> None:
        """Record that tokens were read from levels, as returned by `find`.

        Those levels count a use, and the levels in front of the last one hold the tokens from now
        on.
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
    """Return the contents of a client's levels: empty, except for shared ones already in use."""
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


class Keeper:
    """Follows the visits of one request.

    The entries of a visit are written when it ends, including those of its answer: all tokens but
    the last have entries. Writes use the other direction of links and delay nothing.
    """

    def __init__(self, request: Request, contents: Contents) -> None:
        self.contents = contents
        self._request = request
        self._num_tokens = 0  # of the prompt, and of its answer so far

    def __call__(self, visit: Visit) -> None:
        """Write the entries of a visit that has ended."""
        if isinstance(visit.outcome, Failure | Lost):
            return
        for stage in visit.stages:
            if isinstance(stage, Prefill):
                self._num_tokens = stage.num_prompt_tokens
        if visit.num_output_tokens:
            self._num_tokens += visit.num_output_tokens
            self.contents.write(self._request.content, self._num_tokens - 1)
