"""The window groups' part of a prefix cache: intervals of blocks, wherever they are in a prompt.

A request needs only the blocks before its first computed token that its windows reach, so cached
blocks of a content id may have gaps anywhere. A block is either free or held by one request;
another request that finds it gets a copy in pages of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

from mist_sim.clients.kv_cache.windows.page_queue import PageQueue, Stretch, WindowPiece
from mist_sim.errors import ScenarioError

Spans = Sequence[tuple[Hashable, int]]
"""Ids, each with the position behind its last block, as in `Chain.spans`."""


def _start(stretch: Stretch) -> int:
    return stretch.start


def _end(span: tuple[Hashable, int]) -> int:
    return span[1]


class WindowCache:
    """The cached blocks of the window groups; all groups have the same.

    changes: grows whenever a block comes or goes.
    """

    def __init__(self, queue: PageQueue) -> None:
        self.queue = queue
        self.changes = 0
        self._firsts: dict[Hashable, int] = {}  # where the blocks of an id begin
        self._of: dict[Hashable, list[Stretch]] = {}  # by position

    def find(self, spans: Spans, most: int, num_needed: int) -> int:
        """Return how many first blocks, at most `most`, need no computation for the windows.

        The last `num_needed` of them are there, or all if they are fewer; of several such numbers
        it is the largest.
        """
        left = right = most  # blocks [left, right) are there
        for key, first, end in reversed(list(_with_firsts(spans))):
            if first >= most:
                continue
            for stretch in reversed(self._stretches(key, first)):
                last = min(stretch.end, end, most)
                if stretch.start >= last:
                    continue
                if last < left:
                    right = last
                left = stretch.start
                if right - left >= num_needed:
                    return right
        return 0 if left else right

    def enter(self, spans: Spans, start: int, end: int) -> list[tuple[int, int]]:
        """Enter blocks [start, end), held by a request; return those that were not cached."""
        entered: list[tuple[int, int]] = []
        for key, first, last in _with_firsts(spans):
            if first < end and start < last:
                self._firsts.setdefault(key, first)
                entered += self._fill(key, max(first, start), min(last, end))
        if entered:
            self.changes += 1
        return entered

    def free(self, spans: Spans, start: int, end: int) -> None:
        """Queue blocks [start, end), which a request held, the last one first."""
        piece = WindowPiece()
        for key, first, last in reversed(list(_parts(spans, start, end))):
            for stretch in reversed(self._cut(key, first, last)):
                piece.add(stretch)
        self.queue.append_window(piece)

    def has_any(self, spans: Spans, start: int, end: int) -> bool:
        """Whether any of blocks [start, end) is there."""
        for key, first, last in _parts(spans, start, end):
            stretches = self._of.get(key, [])
            place = bisect_left(stretches, first, key=_start)
            if place and stretches[place - 1].end > first:
                return True
            if place < len(stretches) and stretches[place].start < last:
                return True
        return False

    def free_in_turn(self, spans: Spans, bounds: list[int]) -> None:
        """Queue the blocks between each two bounds, one part after the other, as `free` does.

        bounds: rising positions; a request held all blocks between them, and all are there.
        """
        piece = WindowPiece()
        starts, parts = set(bounds), piece.stretches
        place = 0  # of the first stretch of the latest part
        for key, first, last in _parts(spans, bounds[0], bounds[-1]):
            inner = bounds[bisect_right(bounds, first) : bisect_left(bounds, last)]
            edges = [first, *inner, last]
            new = [Stretch(key, start, end, piece) for start, end in pairwise(edges)]
            stretches = self._of[key]
            begin = self._split(stretches, first)
            stretches[begin : self._split(stretches, last)] = new
            if first in starts:
                parts += new
            else:  # continues in a part with other ids, whose first block is this part's last
                parts.insert(place, new[0])
                parts += new[1:]
            if len(new) > 1 or first in starts:
                place = len(parts) - 1
        piece.num_blocks = bounds[-1] - bounds[0]
        self.queue.append_window(piece)

    def use(self, spans: Spans, start: int, end: int) -> None:
        """Make blocks [start, end) the latest used, the first one last, where they are free."""
        latest = WindowPiece()
        for key, first, last in reversed(list(_parts(spans, start, end))):
            for stretch in reversed(self._cut(key, first, last)):
                if (piece := stretch.piece) is not None:
                    piece.remove(stretch)
                    if not piece.num_blocks:
                        self.queue.remove_window(piece)
                    latest.add(stretch)
        if latest.num_blocks:
            self.queue.append_window(latest)

    def lose(self, piece: WindowPiece, num_blocks: int) -> None:
        """Forget the first blocks of a piece in the queue, which are used for something else."""
        number = 0  # of stretches that are lost whole
        for stretch in piece.stretches:
            num_blocks -= stretch.end - stretch.start
            if num_blocks < 0:
                stretch.end = stretch.start - num_blocks
                break
            number += 1
            stretches = self._of[stretch.key]
            stretches.remove(stretch)
            if not stretches:
                del self._of[stretch.key], self._firsts[stretch.key]
            if not num_blocks:
                break
        del piece.stretches[:number]
        self.changes += 1

    def _stretches(self, key: Hashable, first: int) -> list[Stretch]:
        """Return the cached stretches of an id whose first block is at a position.

        Raises ScenarioError if another request had it at another position.
        """
        known = self._firsts.get(key, first)
        if known != first:
            raise ScenarioError(
                f"content id {key} begins with block {known} of one request and block {first} of "
                "another; equal ids must be equal places, as of chain hashes"
            )
        return self._of.get(key, [])

    def _fill(self, key: Hashable, start: int, end: int) -> list[tuple[int, int]]:
        """Add the blocks of an id in [start, end) that are not there, as held; return them."""
        stretches = self._of.setdefault(key, [])
        gaps = []
        for stretch in self._cut(key, start, end):
            if start < stretch.start:
                gaps.append((start, stretch.start))
            start = stretch.end
        if start < end:
            gaps.append((start, end))
        for first, last in gaps:
            insort(stretches, Stretch(key, first, last, None), key=_start)
        return gaps

    def _cut(self, key: Hashable, start: int, end: int) -> list[Stretch]:
        """Return the stretches in [start, end), cut where these lie inside of one."""
        stretches = self._of.get(key, [])
        return stretches[self._split(stretches, start) : self._split(stretches, end)]

    def _split(self, stretches: list[Stretch], position: int) -> int:
        """Let a stretch begin at a position if one lies around it, in the queue before the rest.

        Returns the place of the first stretch that begins there or later.
        """
        place = bisect_left(stretches, position, key=_start)
        if not place or stretches[place - 1].end <= position:
            return place
        lower = stretches[place - 1]
        upper = Stretch(lower.key, position, lower.end, lower.piece)
        lower.end = position
        stretches.insert(place, upper)
        if lower.piece is not None:
            queued = lower.piece.stretches
            queued.insert(queued.index(lower), upper)
        return place


def _with_firsts(spans: Spans) -> Iterator[tuple[Hashable, int, int]]:
    """Yield ids with the position of their first block and that behind their last."""
    first = 0
    for key, end in spans:
        yield key, first, end
        first = end


def _parts(spans: Spans, start: int, end: int) -> Iterator[tuple[Hashable, int, int]]:
    """Yield ids with their blocks within [start, end)."""
    place = bisect_right(spans, start, key=_end)
    while start < end and place < len(spans):
        key, last = spans[place]
        yield key, start, min(last, end)
        start, place = last, place + 1
