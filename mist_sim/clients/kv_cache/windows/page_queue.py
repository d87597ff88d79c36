"""The free pages of a model with sliding windows in the order in which they will be used."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from mist_sim.clients.prefixes.free_queue import FreeQueue, Piece


class Stretch:
    """Blocks [start, end) of a content id that window groups keep; `piece`: where they queue.

    piece is None while a request holds them.
    """

    __slots__ = ("end", "key", "piece", "start")

    def __init__(self, key: Hashable, start: int, end: int, piece: WindowPiece | None) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.piece = piece


class WindowPiece(Piece):
    """Neighbouring free window blocks in the queue, each stretch with its last one first."""

    __slots__ = ("stretches",)
    grows = False  # its blocks are window groups' own

    def __init__(self) -> None:
        super().__init__(None, 0)
        self.stretches: list[Stretch] = []

    def add(self, stretch: Stretch) -> None:
        """Queue blocks behind the others."""
        stretch.piece = self
        self.stretches.append(stretch)
        self.num_blocks += stretch.end - stretch.start

    def remove(self, stretch: Stretch) -> None:
        """Take all blocks of a stretch out."""
        stretch.piece = None
        self.stretches.remove(stretch)
        self.num_blocks -= stretch.end - stretch.start


class PageQueue(FreeQueue):
    """Free pages, least recently used first.

    A block of tokens has a page in each group; pages of all groups of a kind queue together.
    Entries and window pieces count blocks; other pieces count pages.

    full_pages, window_pages: pages of a block in groups of full attention and with a window.
    """

    def __init__(self, num_pages: int, full_pages: int, window_pages: int) -> None:
        self.full_pages = full_pages
        self.window_pages = window_pages
        super().__init__(num_pages)

    def append_window(self, piece: WindowPiece) -> None:
        """Queue window blocks as the latest used."""
        self._insert(piece, self._ends)

    def remove_window(self, piece: WindowPiece) -> None:
        """Forget a window piece without blocks."""
        self._remove(piece)

    def pop_pages(self, num_pages: int) -> Iterator[tuple[Piece, int]]:
        """Take the least recently used pages; yield pieces with the blocks that lose a page.

        A block that loses one page is lost as a whole.
        """
        while num_pages:
            piece = self._ends.next
            size = self.pages_of_a_block(piece)
            num_lost = min(piece.num_blocks, -(-num_pages // size))
            num_pages -= num_lost * size
            piece.num_blocks -= num_lost
            if not piece.num_blocks:
                self._remove(piece)
                if piece.entry is not None:
                    del piece.entry.pieces[0]
            if num_pages < 0:
                self._insert(Piece(None, -num_pages), self._ends.next)
                num_pages = 0
            yield piece, num_lost

    def pages_of_a_block(self, piece: Piece) -> int:
        """Pages of each block that a piece counts."""
        if isinstance(piece, WindowPiece):
            return self.window_pages
        return 1 if piece.entry is None else self.full_pages
