"""Rules that every order of eviction keeps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from mist_sim.clients.prefixes.prefix_cache import Chain, PrefixCache
from mist_sim.eviction import CachedBlocks, Eviction
from mist_sim.testing.rules import name_of, repeated, require, stream_of


def check_eviction(factory: Callable[[], Eviction]) -> None:
    """Check an order of eviction: all ranks compare, equal ones for equal uses, and a cache holds.

    A cache of few blocks serves 400 prompts twice, with equal hits; it never holds more than fits.
    """
    eviction = factory()
    kind = name_of(eviction)
    require(isinstance(eviction, Eviction), f"{kind} must be a child of mist_sim.Eviction")
    asked = _blocks(eviction.nothing_lost_first)
    ranks = [_rank(eviction.copy(), blocks) for blocks in asked]
    for one, other in pairwise(ranks):
        try:
            require(
                bool(one < other) + bool(other < one) + bool(one == other) == 1,
                f"{kind}.rank: of {one!r} and {other!r} one must be smaller, or both equal",
            )
        except TypeError as error:
            raise AssertionError(f"{kind}.rank: {one!r} and {other!r}: {error}") from error
    remedy = "decide by the blocks and what was told before"
    repeated(factory, lambda each: [_rank(each.copy(), blocks) for blocks in asked], remedy)
    repeated(factory, lambda each: _hits(each.copy()), remedy)


def _rank(eviction: Eviction, blocks: CachedBlocks) -> Any:
    try:
        return eviction.rank(blocks)
    except Exception as error:
        name = name_of(eviction)
        raise AssertionError(f"{name}.rank raised {error!r} for {blocks}") from error


def _blocks(always_found: bool) -> list[CachedBlocks]:
    """Return blocks of all kinds. always_found: each can be found."""
    draws = stream_of("check_eviction")
    found = []
    for number in range(200):
        start, length, uses, used, age = draws.integers(0, [50, 20, 9, 1000, 500]).tolist()
        key = None if number % 10 == 0 and not always_found else f"text {number}"
        found.append(CachedBlocks(key, start, length + 1, uses, used, max(0, used - age)))
    return found


def _hits(eviction: Eviction) -> list[int]:
    """Return the blocks that prompts find which are served one after the other."""
    num_blocks = 40
    draws, cache, hits = stream_of("check_eviction"), PrefixCache(num_blocks, None, eviction), []
    for _ in range(400):
        text, length = draws.geometric(0.2), int(draws.integers(1, 20))
        chain = Chain(((int(text), length),), 1)
        found = cache.find(chain, length).num_found
        cache.hold(chain, found)
        cache.evict(length - found)
        cache.enter(chain, length)
        cache.release(chain)
        held = sum(piece.num_blocks for piece in cache.queue)
        require(held == num_blocks, f"{name_of(eviction)}: {held} of {num_blocks} blocks are there")
        hits.append(found)
    return hits
