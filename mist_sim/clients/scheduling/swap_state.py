"""The swap space of a lane: its room, and the copies under way."""

from __future__ import annotations

from mist_sim.clients.kv_cache import SwapSpace
from mist_sim.clients.kv_cache.moves import KvMove, Room
from mist_sim.clients.sequence_state import SequenceState


class SwapState:
    """The swap space of a lane, empty at first.

    overlap: whether steps go on while blocks are copied.
    room: of the space; zero without swap space.
    going: sequences being copied out while steps go on; their blocks stay taken until then:
        (blocks, computed tokens) of each. returning: sequences being copied back.
    """

    def __init__(self, space: SwapSpace | None, *, overlap: bool) -> None:
        self.overlap = overlap
        self.room = Room(space.num_blocks if space else 0)
        self.going: dict[SequenceState, tuple[int, int]] = {}
        self.returning: dict[SequenceState, KvMove] = {}
        self._seconds_per_block = space.seconds_per_block if space else 0.0

    @property
    def num_going(self) -> int:
        """Blocks that become free when the copies out have ended."""
        return sum([num_blocks for num_blocks, _ in self.going.values()]) if self.going else 0

    def copy_time(self, num_blocks: int) -> float:
        """Return the seconds to copy so many blocks, in either direction."""
        return num_blocks * self._seconds_per_block

    def begin_return(self, swap: KvMove) -> KvMove:
        """Note that a sequence is copied back, and return that move."""
        self.returning[swap.sequence] = back = swap.back()
        return back

    def end_return(self, sequence: SequenceState) -> None:
        """Free the swap room of a sequence that has been copied back, if any."""
        if sequence in self.returning:
            self.room.release(self.returning.pop(sequence).num_blocks)
