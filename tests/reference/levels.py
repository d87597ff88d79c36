"""Levels of storage block by block, and MIST's expected time written out; shares no code."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

Block = tuple[Hashable, int]
BatchSeconds = Callable[[Sequence[float]], float]


@dataclass
class PlainLevel:
    """A level of so many blocks: for each block its uses, and clock times of entry and last use."""

    capacity: int
    eviction: str
    blocks: dict[Block, list[int]] = field(default_factory=dict)
    clock: int = 0
    num_written: int = 0
    num_given_up: int = 0

    def reach(self, blocks: Sequence[Block], start: int) -> int:
        """Return up to where all blocks are there from a position on."""
        while start < len(blocks) and blocks[start] in self.blocks:
            start += 1
        return start

    def use(self, blocks: Sequence[Block]) -> None:
        for block in reversed(blocks):
            if block in self.blocks:
                self.clock += 1
                self.blocks[block][0] += 1
                self.blocks[block][2] = self.clock

    def write(self, blocks: Sequence[Block]) -> None:
        blocks = blocks[: self.capacity]
        missing = [block for block in blocks if block not in self.blocks]
        while len(self.blocks) + len(missing) > self.capacity:
            others = [block for block in self.blocks if block not in blocks]
            del self.blocks[min(others, key=self._rank)]
            self.num_given_up += 1
        self.num_written += len(missing)
        for block in reversed(blocks):
            self.clock += 1
            if block in self.blocks:
                self.blocks[block][2] = self.clock
            else:
                self.blocks[block] = [1, self.clock, self.clock]

    def _rank(self, block: Block) -> tuple[int, ...]:
        num_uses, entered, used = self.blocks[block]
        ranks = {"lru": (used,), "fifo": (entered,), "lfu": (num_uses, used)}
        return ranks[self.eviction]


class PlainLevels:
    """Levels that are written through: each has what was computed, and what was read below it."""

    def __init__(self, capacities: Sequence[int], eviction: str) -> None:
        self.levels = [PlainLevel(capacity, eviction) for capacity in capacities]

    def find(self, blocks: Sequence[Block]) -> list[int]:
        """Return how many blocks come from each level.

        The nearest level that has the next block gives what it has from there on in a row.
        """
        counts, position = [0] * len(self.levels), 0
        while True:
            ends = [level.reach(blocks, position) for level in self.levels]
            having = [number for number, end in enumerate(ends) if end > position]
            if not having:
                return counts
            counts[having[0]] += ends[having[0]] - position
            position = ends[having[0]]

    def read(self, blocks: Sequence[Block], counts: Sequence[int]) -> None:
        found = blocks[: sum(counts)]
        deepest = max((n for n, count in enumerate(counts) if count), default=-1)
        for number, level in enumerate(self.levels[: deepest + 1]):
            if counts[number]:
                level.use(found)
            if number < deepest:
                level.write(found)

    def write(self, blocks: Sequence[Block]) -> None:
        for level in self.levels:
            level.write(blocks)


def expected_seconds(
    num_bytes: float, levels: Sequence[tuple[float, float, float]], recomputation: float
) -> float:
    """Sum the probability that a level answers times its seconds; levels are (H, T, BW)."""
    total, reached = 0.0, 1.0
    for hit_rate, latency, bandwidth in levels:
        total += reached * hit_rate * (latency + num_bytes / bandwidth)
        reached *= 1 - hit_rate
    return total + reached * recomputation


def batches(
    arrivals: Sequence[float], sizes: Sequence[float], most: int | None, seconds: BatchSeconds
) -> list[float]:
    """Return when each retrieval ends that is served in batches, in order of arrival.

    seconds: of a batch, by the sizes in it.
    """
    ends, now, number = [0.0] * len(arrivals), 0.0, 0
    while number < len(arrivals):
        now = max(now, arrivals[number])
        waiting = [k for k in range(number, len(arrivals)) if arrivals[k] <= now][:most]
        now += seconds([sizes[k] for k in waiting])
        for k in waiting:
            ends[k] = now
        number += len(waiting)
    return ends
