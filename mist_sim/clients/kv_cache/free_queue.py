"""The free blocks of a pool in the order in which they will be used, and what is cached there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator


class Entry:
    """The cached blocks of one content id.

    first: position of its first block in every request that has it.
    num_cached: its blocks in the cache, the first ones of it.
    num_held: those of them that a running request holds, again the first ones.
    """

    __slots__ = ("_holders", "first", "key", "num_cached", "num_held", "pieces")

    def __init__(self, key: Hashable, first: int) -> None:
        self.key = key
        self.first = first
        self.num_cached = 0
        self.num_held = 0
        self.pieces: list[Piece] = []  # where its free blocks queue, the last ones of it first
        self._holders: dict[int, int] = {}  # how many requests hold so many blocks

    def hold(self, num_blocks: int) -> None:
        """Note that a request holds the first blocks."""
        self._holders[num_blocks] = self._holders.get(num_blocks, 0) + 1
        self.num_held = max(self.num_held, num_blocks)

    def grow(self, num_blocks: int) -> None:
        """Note that the request which holds all cached blocks added more to them."""
        if self.num_cached:
            self._drop(self.num_cached)
        self.num_cached = num_blocks
        self.hold(num_blocks)

    def release(self, num_blocks: int) -> int:
        """Note that a request let the first blocks go; return how many no request holds."""
        if not self._drop(num_blocks) or num_blocks < self.num_held:
            return 0
        self.num_held = max(self._holders, default=0)
        return num_blocks - self.num_held

    def _drop(self, num_blocks: int) -> bool:
        """Note one holder less of so many blocks; tell whether it was the last."""
        holders = self._holders
        holders[num_blocks] -= 1
        if holders[num_blocks]:
            return False
        del holders[num_blocks]
        return True


class Piece:
    """Neighbouring free blocks in the queue: of one entry, or with nothing worth keeping.

    grows: whether more blocks of its entry may be added to it.
    """

    __slots__ = ("entry", "num_blocks")
    grows = True

    def __init__(self, entry: Entry | None, num_blocks: int) -> None:
        self.entry = entry
        self.num_blocks = num_blocks


class FreeQueue:
    """The free blocks, least recently used first; never-used ones go before all others."""

    def __init__(self, num_blocks: int) -> None:
        self._pieces: OrderedDict[Piece, None] = OrderedDict()
        self.append(None, num_blocks)

    def append(self, entry: Entry | None, num_blocks: int) -> None:
        """Queue blocks as the latest used, those of an entry with its last one in front."""
        if self._pieces:
            latest = next(reversed(self._pieces))
            if latest.entry is entry and latest.grows:
                latest.num_blocks += num_blocks
                return
        piece = Piece(entry, num_blocks)
        self._pieces[piece] = None
        if entry is not None:
            entry.pieces.append(piece)

    def take(self, entry: Entry, num_blocks: int) -> None:
        """Take blocks of an entry out, wherever they are: the first ones that are free."""
        while num_blocks:
            piece = entry.pieces[-1]
            num_taken = min(num_blocks, piece.num_blocks)
            num_blocks -= num_taken
            piece.num_blocks -= num_taken
            if not piece.num_blocks:
                entry.pieces.pop()
                del self._pieces[piece]

    def pop(self, num_blocks: int) -> list[tuple[Entry, int]]:
        """Take the least recently used blocks; return which entries lost how many, in turn."""
        lost = []
        while num_blocks:
            piece = next(iter(self._pieces))
            num_taken = piece.num_blocks
            if num_taken > num_blocks:
                num_taken = num_blocks
                piece.num_blocks -= num_taken
            else:
                del self._pieces[piece]
                if piece.entry is not None:
                    del piece.entry.pieces[0]
            num_blocks -= num_taken
            if piece.entry is not None:
                lost.append((piece.entry, num_taken))
        return lost

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)
