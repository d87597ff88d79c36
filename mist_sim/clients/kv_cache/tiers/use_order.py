"""Blocks in the order in which they are given up, kept as segments of neighbours of one id."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Literal, NamedTuple, get_args

Eviction = Literal["lru", "lfu", "fifo"]
"""Which block goes first: the least recently used, the least often used, the first to come."""

EVICTIONS: tuple[str, ...] = get_args(Eviction)


class Rank(NamedTuple):
    """Rank of a block in the order of eviction; the smallest is evicted first.

    num_uses: uses since it was written; 0 if the order ignores uses. used_at: a clock of uses.
    """

    num_uses: int
    used_at: int


class Segment:
    """Blocks of an id at positions [start, end), used one after the other, the last one first."""

    __slots__ = ("end", "key", "rank", "start")

    def __init__(self, key: Hashable, start: int, end: int, rank: Rank) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.rank = rank


def _start(segment: Segment) -> int:
    return segment.start


class UseOrder:
    """Blocks in order of eviction.

    `lru`: the least recently used one first. `lfu`: the one with the fewest uses since it was
    written, ties by least recent use. `fifo`: the one written first. Of blocks used together, the
    last one.

    num_blocks: number of blocks.
    """

    def __init__(self, eviction: Eviction = "lru") -> None:
        self.num_blocks = 0
        self._counts = eviction == "lfu"
        self._keeps_rank = eviction == "fifo"
        self._of: dict[Hashable, list[Segment]] = {}  # by position
        # (rank, -end, number, segment); entries of changed segments are dropped lazily
        self._heap: list[tuple[Rank, int, int, Segment]] = []
        self._num_pushed = 0
        self._latest: Segment | None = None
        self._num_uses = 0

    def run_end(self, key: Hashable, start: int, end: int) -> int:
        """Return up to where, at most `end`, all blocks of an id are there from `start` on."""
        for segment in self._of.get(key, ()):
            if segment.start <= start < segment.end:
                start = segment.end
        return min(start, end)

    def last_part(self, key: Hashable, start: int, end: int) -> tuple[int, bool]:
        """Return the beginning of the last part of [start, end), and whether it is there.

        The blocks of a part are all in one segment, or all missing.
        """
        for segment in reversed(self._of.get(key, ())):
            if segment.end < end:
                return max(start, segment.end), False
            if segment.start < end:
                return max(start, segment.start), True
        return start, False

    def use(self, key: Hashable, start: int, end: int) -> None:
        """Note that a part which is there is used now."""
        if not self._keeps_rank:
            rank = self.take_out(key, start, end)
            self.add(key, start, end, rank.num_uses + self._counts)

    def take_out(self, key: Hashable, start: int, end: int) -> Rank:
        """Take out a part which is there; return its rank, with which it may come back."""
        segment = next(each for each in self._of[key] if each.start <= start < each.end)
        self._of[key].remove(segment)
        self.num_blocks -= segment.end - segment.start
        for first, last in ((segment.start, start), (end, segment.end)):
            if first < last:
                self._keep(Segment(key, first, last, segment.rank))
        if self._latest is segment:
            self._latest = None
        segment.start = segment.end = -1  # the heap's entry is outdated
        return segment.rank

    def put_back(self, key: Hashable, start: int, end: int, rank: Rank) -> None:
        """Add a part that was taken out, as used now, though that counts as no use."""
        if self._keeps_rank:
            self._keep(Segment(key, start, end, rank))
        else:
            self.add(key, start, end, rank.num_uses)

    def add(self, key: Hashable, start: int, end: int, num_uses: int | None = None) -> None:
        """Add a part, which is not there, as used now. num_uses: as of `Rank`; None: it is new."""
        uses = int(self._counts) if num_uses is None else num_uses
        latest = self._latest
        is_next = latest is not None and latest.key == key and latest.start == end
        if is_next and latest is not None and latest.rank.num_uses == uses:
            latest.start = start
            self.num_blocks += end - start
            return
        self._num_uses += 1
        self._latest = Segment(key, start, end, Rank(uses, self._num_uses))
        self._keep(self._latest)

    def pop(self, most: int) -> tuple[Hashable, int, int]:
        """Take out the blocks that go first, at most so many and all of one segment."""
        heap = self._heap
        while heap[0][1] != -heap[0][3].end:
            heappop(heap)
        segment = heappop(heap)[3]
        end = segment.end
        segment.end = start = max(segment.start, end - most)
        self.num_blocks -= end - start
        if start > segment.start:
            self._push(segment)
        else:
            self._of[segment.key].remove(segment)
            if self._latest is segment:
                self._latest = None
            if not self._of[segment.key]:
                del self._of[segment.key]
        return segment.key, start, end

    def _keep(self, segment: Segment) -> None:
        insort(self._of.setdefault(segment.key, []), segment, key=_start)
        self._push(segment)
        self.num_blocks += segment.end - segment.start

    def _push(self, segment: Segment) -> None:
        self._num_pushed += 1
        heappush(self._heap, (segment.rank, -segment.end, self._num_pushed, segment))
