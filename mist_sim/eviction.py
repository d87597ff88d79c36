"""Which KV blocks go first when there is no room: plug-ins for the GPU, its tiers, and levels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass
from heapq import heappush
from typing import Any, ClassVar, NamedTuple

from mist_sim.errors import ScenarioError, brief
from mist_sim.registry import Registry

EVICTIONS = Registry("evictions")


class CachedBlocks(NamedTuple):
    """Neighbouring blocks of one content that no request holds.

    key: of their content; None: no request can find it, and nothing is lost with it (an order is
    asked about these only without `nothing_lost_first`). start: position of the first block in the
    requests that have it. num_blocks: how many they are.
    num_uses: how often requests found them. used, written: when they were last used, and when
    written; counted in uses of this memory, so that they order blocks and are no seconds.
    """

    key: Hashable | None
    start: int
    num_blocks: int
    num_uses: int
    used: int
    written: int


class Eviction(ABC):
    """Ranks the blocks that no request holds; the smallest rank goes first.

    Each memory has a copy of its own, which may keep what it likes. Of one content the later
    blocks always go before the earlier ones, which they are of no use without (but in levels of a
    `kv_retrieval` client, whose blocks go by rank alone). Of equal ranks the ones that came first
    go first.

    nothing_lost_first: whether blocks that no prompt finds go before all others, unranked: memory
        that was never used, and blocks behind what requests have in common. Where it is False they
        wait their turn by rank, as in vLLM and so in the built-in orders.
    """

    nothing_lost_first: ClassVar[bool] = True

    @abstractmethod
    def rank(self, blocks: CachedBlocks) -> Any:
        """Return the rank of blocks, from now on and until they are used again.

        All ranks of one memory must compare with `<`: numbers, or tuples of them.
        """

    def evicted(self, blocks: CachedBlocks, rank: Any) -> None:  # noqa: B027 - optional
        """Take note that blocks with this rank are gone; by default nothing is kept."""

    def copy(self) -> Eviction:
        """Return one for another memory, which has seen nothing."""
        return deepcopy(self)


@EVICTIONS.register("lru")
@dataclass(frozen=True)
class LruEviction(Eviction):
    """The least recently used blocks go first, as in vLLM."""

    nothing_lost_first: ClassVar[bool] = False

    def rank(self, blocks: CachedBlocks) -> int:
        """Return when they were used last."""
        return blocks.used


@EVICTIONS.register("lfu")
@dataclass(frozen=True)
class LfuEviction(Eviction):
    """The blocks with the fewest uses go first, of these the least recently used."""

    nothing_lost_first: ClassVar[bool] = False

    def rank(self, blocks: CachedBlocks) -> tuple[int, int]:
        """Return how often they were used, and when last."""
        return blocks.num_uses, blocks.used


@EVICTIONS.register("fifo")
@dataclass(frozen=True)
class FifoEviction(Eviction):
    """The blocks that were written first go first."""

    nothing_lost_first: ClassVar[bool] = False

    def rank(self, blocks: CachedBlocks) -> int:
        """Return when they were written."""
        return blocks.written


LRU = LruEviction()


def check_eviction(eviction: object) -> None:
    """Raise ValueError for what is no order of eviction, such as a name in Python."""
    if not isinstance(eviction, Eviction):
        raise ValueError(
            f"eviction must be a child of mist_sim.Eviction, such as EVICTIONS['lfu'](), "
            f"got {brief(eviction)}"
        )


def push(heap: list[Any], node: tuple[Any, ...], eviction: Eviction) -> None:
    """Put a node, which begins with a rank, on a heap.

    Raises ScenarioError for None, NaN, and a rank that does not compare with those before.
    """
    rank = node[0]
    if rank is None or rank != rank:
        raise ScenarioError(
            f"{type(eviction).__name__}.rank must return a number, or a tuple of numbers, got "
            f"{brief(rank)}"
        )
    try:
        heappush(heap, node)
    except TypeError as error:
        raise ScenarioError(
            f"{type(eviction).__name__}.rank must return ranks that compare with <, got "
            f"{brief(node[0])}: {error}"
        ) from error
