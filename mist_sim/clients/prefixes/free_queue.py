"""The free blocks of a pool in the order of reuse, and the content cached in them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator


class Entry:
    """Neighbouring cached blocks of one content id: one copy of them.

    origin: position of the id's first block in every request that has it.
    first: position of this copy's first block.
    num_cached: number of its blocks, from there on.
    num_held: number of its blocks that a running request holds, always the first ones.
    finds: how often requests found the blocks before a position; only counted for `RankedBlocks`.
    written: the cache's `changes` at its first block.
    rest: the entry that took over its later blocks after a split; None without a split. Requests
        that held these blocks still hold them.
    whole: the entry that all parts of the copy were split from; None: itself, which a reference to
        itself would keep for the collector.
    """

    __slots__ = (
        "_fewer",
        "_num_holders",
        "finds",
        "first",
        "key",
        "num_cached",
        "num_held",
        "origin",
        "pieces",
        "rest",
        "whole",
        "written",
    )

    def __init__(self, key: Hashable, origin: int, first: int) -> None:
        self.key = key
        self.origin = origin
        self.first = first
        self.num_cached = 0
        self.num_held = self.written = 0
        self.rest: Entry | None = None
        self.whole: Entry | None = None
        self.pieces: list[Piece] = []  # where its free blocks queue, the last ones of it first
        self.finds: dict[int, int] = {}
        self._num_holders = 0  # requests that hold all of `num_held`
        self._fewer: dict[int, int] = {}  # and how many hold so many blocks, but fewer

    @property
    def end(self) -> int:
        """Position behind its last block."""
        return self.first + self.num_cached

    def hold(self, num_blocks: int, num_requests: int = 1) -> None:
        """Note that requests hold the first blocks."""
        if num_blocks > self.num_held:
            if self._num_holders:
                self._fewer[self.num_held] = self._num_holders
            self.num_held, self._num_holders = num_blocks, num_requests
        elif num_blocks == self.num_held:
            self._num_holders += num_requests
        else:
            self._fewer[num_blocks] = self._fewer.get(num_blocks, 0) + num_requests

    def grow(self, num_blocks: int) -> None:
        """Note that the request which holds all cached blocks added more to them."""
        if self.num_cached:
            self._num_holders -= 1
        self.num_cached = num_blocks
        self.hold(num_blocks)

    def release(self, num_blocks: int) -> int:
        """Note that a request let the first blocks go; return how many no request holds."""
        if num_blocks < self.num_held:
            number = self._fewer.pop(num_blocks) - 1
            if number:
                self._fewer[num_blocks] = number
            return 0
        self._num_holders -= 1
        if self._num_holders:
            return 0
        self.num_held = max(self._fewer) if self._fewer else 0
        if self.num_held:
            self._num_holders = self._fewer.pop(self.num_held)
        return num_blocks - self.num_held

    def split(self, position: int) -> Entry:
        """Move the blocks from a position on to a new entry, and return that.

        Pieces of the free blocks among them still refer to this entry.
        """
        count = position - self.first
        rest = Entry(self.key, self.origin, position)
        rest.whole = self.whole or self
        rest.written = self.written
        for end in [end for end in self.finds if end > position]:
            rest.finds[end] = number = self.finds.pop(end)
            self.finds[position] = self.finds.get(position, 0) + number
        rest.num_cached, self.num_cached = self.num_cached - count, count
        holders = self._fewer | {self.num_held: self._num_holders}
        self._fewer, self.num_held, self._num_holders = {}, 0, 0
        for num_blocks, number in holders.items():
            self.hold(min(num_blocks, count), number)
            if num_blocks > count:
                rest.hold(num_blocks - count, number)
        rest.rest, self.rest = self.rest, rest
        return rest


class Piece:
    """Neighbouring free blocks in the queue: of one entry, or without content.

    grows: whether more blocks of its entry may be added. next, previous: its neighbours.
    """

    __slots__ = ("entry", "next", "num_blocks", "previous")
    grows = True

    next: Piece
    previous: Piece

    def __init__(self, entry: Entry | None, num_blocks: int) -> None:
        self.entry = entry
        self.num_blocks = num_blocks


class FreeQueue:
    """The free blocks, least recently used first; never-used ones go before all others."""

    def __init__(self, num_blocks: int) -> None:
        self._ends = ends = Piece(None, 0)  # before the first and behind the last
        ends.next = ends.previous = ends
        self.append(None, num_blocks)

    def append(self, entry: Entry | None, num_blocks: int) -> None:
        """Queue blocks as most recently used, an entry's last block in front."""
        ends = self._ends
        latest = ends.previous
        if latest is not ends and latest.entry is entry and latest.grows:
            latest.num_blocks += num_blocks
            return
        piece = Piece(entry, num_blocks)
        self._insert(piece, ends)
        if entry is not None:
            entry.pieces.append(piece)

    def prepend(self, num_blocks: int) -> None:
        """Queue blocks without content, to be used first."""
        first = self._ends.next
        if first.entry is None and first.grows and first is not self._ends:
            first.num_blocks += num_blocks
        else:
            self._insert(Piece(None, num_blocks), first)

    def take(self, entry: Entry, num_blocks: int) -> None:
        """Take blocks of an entry out of the queue: its first free ones, wherever they are."""
        while num_blocks:
            piece = entry.pieces[-1]
            num_taken = min(num_blocks, piece.num_blocks)
            num_blocks -= num_taken
            piece.num_blocks -= num_taken
            if not piece.num_blocks:
                entry.pieces.pop()
                self._remove(piece)

    def pop(self, num_blocks: int) -> list[tuple[Entry, int]]:
        """Take the least recently used blocks; return which entries lost how many, in turn."""
        lost = []
        while num_blocks:
            piece = self._ends.next
            num_taken = piece.num_blocks
            if num_taken > num_blocks:
                num_taken = num_blocks
                piece.num_blocks -= num_taken
            else:
                before, behind = piece.previous, piece.next
                before.next, behind.previous = behind, before
                if piece.entry is not None:
                    del piece.entry.pieces[0]
            num_blocks -= num_taken
            if piece.entry is not None:
                lost.append((piece.entry, num_taken))
        return lost

    def split(self, entry: Entry, position: int) -> Entry:
        """Split an entry as `Entry.split` does; its free blocks stay where they are."""
        rest = entry.split(position)
        num_blocks = rest.num_cached - rest.num_held
        while num_blocks:
            piece = entry.pieces[0]
            if piece.num_blocks > num_blocks:
                part = Piece(rest, num_blocks)
                piece.num_blocks -= num_blocks
                self._insert(part, piece)
            else:
                part = entry.pieces.pop(0)
                part.entry = rest
            rest.pieces.append(part)
            num_blocks -= part.num_blocks
        return rest

    def _insert(self, piece: Piece, behind: Piece) -> None:
        """Put a piece in front of another one."""
        before = behind.previous
        piece.previous, piece.next = before, behind
        before.next = behind.previous = piece

    def _remove(self, piece: Piece) -> None:
        before, behind = piece.previous, piece.next
        before.next, behind.previous = behind, before

    def __iter__(self) -> Iterator[Piece]:
        piece = self._ends.next
        while piece is not self._ends:
            yield piece
            piece = piece.next
