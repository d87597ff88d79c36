"""A prefix cache as a list of single blocks that serves one request after the other."""

from collections.abc import Callable, Hashable, Sequence

Rank = Callable[[int, int], tuple[int, ...]]
"""Ranks a block by its uses and its last one; the smallest goes first."""

RANKS: dict[str, Rank] = {"lru": lambda uses, used: (used,), "lfu": lambda uses, used: (uses, used)}


class PlainCache:
    """Blocks by name, with (uses, last use); blank ones by last use, and those that go first."""

    def __init__(self, num_blocks: int, rank: Rank) -> None:
        self.rank = rank
        self.blocks: dict[Hashable, list[int]] = {}
        self.blank: list[int] = []
        self.num_first, self.clock = num_blocks, 0

    def serve(self, wanted: Sequence[Hashable], num_blank: int, num_first: int = 0) -> int:
        """Serve a request with these blocks, and others behind them; return how many were there.

        num_blank, num_first: others, in the order of use, and to be used before all.
        """
        found = next((k for k, each in enumerate(wanted) if each not in self.blocks), len(wanted))
        held = {each: self.blocks.pop(each) for each in wanted[:found]}
        for _ in range(len(wanted) - found + num_blank + num_first):
            self._evict()
        for each in wanted[found:]:
            self.blocks.pop(each, None)
        self.clock += 1
        self.blank += [self.clock] * num_blank
        self.num_first += num_first
        for each in reversed(wanted):
            self.clock += 1
            self.blocks[each] = [held[each][0] + 1 if each in held else 0, self.clock]
        return found

    def _evict(self) -> None:
        if self.num_first:
            self.num_first -= 1
            return
        least = min(self.blocks, key=lambda each: self.rank(*self.blocks[each]), default=None)
        blank = min(self.blank, default=None)
        if least is None or (
            blank is not None and self.rank(0, blank) < self.rank(*self.blocks[least])
        ):
            assert blank is not None
            self.blank.remove(blank)
        else:
            del self.blocks[least]
