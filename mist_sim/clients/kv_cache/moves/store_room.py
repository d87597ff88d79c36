"""The room of a store: blocks that are reserved before entries go there."""

from __future__ import annotations

from mist_sim.errors import InvariantError


class Room:
    """Blocks of a store, some taken by stored entries or by entries on their way.

    num_blocks: all blocks. num_used: taken blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_used = 0

    def has(self, num_blocks: int) -> bool:
        """Tell whether so many blocks can be reserved."""
        return self.num_used + num_blocks <= self.num_blocks

    def reserve(self, num_blocks: int) -> None:
        """Take blocks, for which there is room."""
        self.num_used += num_blocks

    def release(self, num_blocks: int) -> None:
        """Give blocks back. Raises InvariantError when more come back than were taken."""
        self.num_used -= num_blocks
        if self.num_used < 0:
            raise InvariantError(f"{-self.num_used} blocks more came back than were reserved")
