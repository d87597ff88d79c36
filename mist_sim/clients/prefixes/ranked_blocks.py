"""The free blocks of a pool in an order of one's own, in place of the least recently used first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop
from typing import Any

from mist_sim.clients.prefixes.free_queue import Entry, FreeQueue, Piece
from mist_sim.eviction import CachedBlocks, Eviction, push

Node = tuple[Any, int, int, int, "RankedPiece"]
"""Rank, number of the append, -end, number of the node: nothing compares the pieces."""


class RankedPiece(Piece):
    """Neighbouring free blocks that have one rank. end: behind its last block. node: in the heap.

    blocks: what the rank was told.
    """

    __slots__ = ("blocks", "end", "node")
    grows = False

    blocks: CachedBlocks
    end: int
    node: Node


class RankedBlocks(FreeQueue):
    """Free blocks, the smallest rank first; of an entry always the last blocks.

    clock: counts the uses of the cache.
    """

    def __init__(self, num_blocks: int, eviction: Eviction, clock: Callable[[], int]) -> None:
        self._eviction, self._clock = eviction, clock
        self._heap: list[Node] = []  # nodes of changed pieces are dropped lazily
        self._num_nodes = self._num_appended = 0
        super().__init__(num_blocks)

    def append(self, entry: Entry | None, num_blocks: int) -> None:
        """Queue blocks that are free from now on, in pieces that were found equally often."""
        if entry is None and self._eviction.nothing_lost_first:
            self.prepend(num_blocks)
            return
        self._num_appended += 1
        now = self._clock()
        if entry is None:
            self._add(None, CachedBlocks(None, 0, num_blocks, 0, now, now))
            return
        start = entry.first + entry.num_held
        end, num_uses = start + num_blocks, 0
        for place, number in sorted(entry.finds.items(), reverse=True):
            if start < place < end:
                blocks = CachedBlocks(entry.key, place, end - place, num_uses, now, entry.written)
                self._add(entry, blocks)
                end = place
            num_uses += number if place > start else 0
        self._add(entry, CachedBlocks(entry.key, start, end - start, num_uses, now, entry.written))

    def _add(self, entry: Entry | None, blocks: CachedBlocks) -> None:
        piece = RankedPiece(entry, blocks.num_blocks)
        piece.blocks, piece.end = blocks, blocks.start + blocks.num_blocks
        self._push(piece, self._eviction.rank(blocks), self._num_appended)
        self._insert(piece, self._ends)
        if entry is not None:
            entry.pieces.append(piece)

    def _push(self, piece: RankedPiece, rank: Any, number: int) -> None:
        self._num_nodes += 1
        piece.node = (rank, number, -piece.end, self._num_nodes, piece)
        push(self._heap, piece.node, self._eviction)

    def pop(self, num_blocks: int) -> list[tuple[Entry, int]]:
        """Take the blocks that go first; return which entries lost how many, in turn."""
        lost: list[tuple[Entry, int]] = []
        while num_blocks:
            piece = self._first()
            entry = piece.entry
            if entry is not None:
                piece = entry.pieces[0]
            num_taken = min(num_blocks, piece.num_blocks)
            num_blocks -= num_taken
            piece.num_blocks -= num_taken
            if not piece.num_blocks:
                self._remove(piece)
                if entry is not None:
                    del entry.pieces[0]
            if entry is not None:
                lost.append((entry, num_taken))
            if isinstance(piece, RankedPiece):
                piece.end -= num_taken
                gone = piece.blocks._replace(start=piece.end, num_blocks=num_taken)
                self._eviction.evicted(gone, piece.node[0])
        return lost

    def _first(self) -> Piece:
        """Return the piece that goes first: blocks that are to, else the smallest rank."""
        first = self._ends.next
        if not isinstance(first, RankedPiece):
            return first
        while True:
            node = self._heap[0]
            if node[-1].num_blocks and node[-1].node is node:
                return node[-1]
            heappop(self._heap)

    def split(self, entry: Entry, position: int) -> Entry:
        """Split an entry as `Entry.split` does; its free blocks keep their rank."""
        rest = entry.split(position)
        num_blocks = rest.num_cached - rest.num_held
        while num_blocks:
            piece = entry.pieces[0]
            part: Piece
            if piece.num_blocks > num_blocks and isinstance(piece, RankedPiece):
                part = self._part(piece, rest, num_blocks)
            else:
                part = entry.pieces.pop(0)
                part.entry = rest
            rest.pieces.append(part)
            num_blocks -= part.num_blocks
        return rest

    def _part(self, piece: RankedPiece, rest: Entry, num_blocks: int) -> RankedPiece:
        """Cut the last blocks off a piece; they go before the others of it."""
        part = RankedPiece(rest, num_blocks)
        part.end, part.blocks = piece.end, piece.blocks
        rank, number, *_ = piece.node
        piece.num_blocks -= num_blocks
        piece.end -= num_blocks
        for each in (part, piece):
            self._push(each, rank, number)
        self._insert(part, piece)
        return part

    def __iter__(self) -> Iterator[Piece]:
        pieces = [*super().__iter__()]
        first = [each for each in pieces if not isinstance(each, RankedPiece)]
        ranked = [each for each in pieces if isinstance(each, RankedPiece)]
        return iter([*first, *sorted(ranked, key=lambda each: each.node[:-1])])
