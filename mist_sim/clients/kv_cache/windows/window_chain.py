"""The window blocks of a request, and which of them are in the prefix cache."""

from __future__ import annotations

from mist_sim.clients.prefixes.prefix_cache import Chain


class WindowChain(Chain):
    """A chain of a model with sliding windows; the base class `Chain` covers full attention.

    first: position of the first block that its window groups hold.
    next_block: position of the first block not yet entered into the cache.
    cached: ranges [start, end) of its blocks that other requests can find, in order.
    hit: result of the latest look-up; kept by the manager.
    """

    __slots__ = ("cached", "first", "hit", "next_block")

    def start_over(self) -> None:
        super().start_over()
        self.begin(0, 0)
        self.hit: tuple[int, int, int] | None = None

    def begin(self, first: int, next_block: int) -> None:
        """Hold window blocks from a position on, none of them cached."""
        self.first = first
        self.next_block = next_block
        self.cached: list[tuple[int, int]] = []

    def add_cached(self, blocks: list[tuple[int, int]]) -> None:
        """Hold further window blocks that other requests can find."""
        for start, end in blocks:
            if self.cached and self.cached[-1][1] == start:
                self.cached[-1] = (self.cached[-1][0], end)
            else:
                self.cached.append((start, end))

    def drop_first(self) -> int:
        """Let go of the first window block in the cache; return its position."""
        start, end = self.cached[0]
        if start + 1 < end:
            self.cached[0] = (start + 1, end)
        else:
            del self.cached[0]
        return start

    def drop_until(self, position: int) -> list[tuple[int, int]]:
        """Release the window blocks before a position; return those in the cache."""
        dropped = [(start, min(end, position)) for start, end in self.cached if start < position]
        self.cached = [(max(start, position), end) for start, end in self.cached if end > position]
        self.first = position
        return dropped
