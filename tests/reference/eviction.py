"""A prefix cache as a list of single blocks that serves one request after the other."""

from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush

Rank = Callable[[float, int, int, int], tuple[float, ...]]
"""Ranks a block by the age of the cache, its uses, its last one, and its position in the prompt.

The smallest goes first; the age is the largest rank of those that went, of its first number.
"""

RANKS: dict[str, Rank] = {
    "lru": lambda age, uses, used, position: (used,),
    "lfu": lambda age, uses, used, position: (uses, used),
}


def by_cost(age: float, uses: int, used: int, position: int) -> tuple[float, ...]:
    """Rank a block by uses, age and cost: with an early one, all those behind it are lost."""
    return (age + (1 + uses) / (1 + position), used)


class PlainCache:
    """Blocks by name, with their uses and rank; blank ones by rank, and those that go first."""

    def __init__(self, num_blocks: int, rank: Rank) -> None:
        self.rank = rank
        self.blocks: dict[Hashable, tuple[int, tuple[float, ...]]] = {}
        self.heap: list[tuple[tuple[float, ...], Hashable | None]] = []  # some are outdated
        self.num_first, self.clock, self.age = num_blocks, 0, 0.0

    def serve(self, wanted: Sequence[Hashable], num_blank: int, num_first: int = 0) -> int:
        """Serve a request with these blocks, and others behind them; return how many were there.

        num_blank, num_first: others, in the order of use, and to be used before all.
        """
        found = next((k for k, each in enumerate(wanted) if each not in self.blocks), len(wanted))
        held = {each: self.blocks.pop(each)[0] for each in wanted[:found]}
        for _ in range(len(wanted) - found + num_blank + num_first):
            self._evict()
        for each in wanted[found:]:
            self.blocks.pop(each, None)
        self.clock += 1
        for _ in range(num_blank):
            heappush(self.heap, (self.rank(self.age, 0, self.clock, 0), None))
        self.num_first += num_first
        for position, each in reversed(list(enumerate(wanted))):
            self.clock += 1
            uses = held[each] + 1 if each in held else 0
            rank = self.rank(self.age, uses, self.clock, position)
            self.blocks[each] = uses, rank
            heappush(self.heap, (rank, each))
        return found

    def _evict(self) -> None:
        if self.num_first:
            self.num_first -= 1
            return
        while True:
            rank, name = heappop(self.heap)
            if name is None or self.blocks.get(name, (0, None))[1] == rank:
                break
        self.age = max(self.age, rank[0])
        self.blocks.pop(name, None)
