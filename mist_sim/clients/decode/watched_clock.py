"""A decode clock that lists the sequences that joined it."""

from __future__ import annotations

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.sequence_state import SequenceState

_SPARE = 256


class WatchedClock(DecodeClock):
    """A decode clock with a list of joined sequences.

    joined: sequences that joined since the list was last cleared; sequences that have left since
        may be missing.
    """

    __slots__ = ("joined",)

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.joined: list[SequenceState] = []

    def _enter(self, sequence: SequenceState, context: int, num_steps: int) -> None:
        super()._enter(sequence, context, num_steps)
        self.joined.append(sequence)
        if len(self.joined) > _SPARE + 2 * self.num_decodes:  # the list is never cleared
            self.joined = [each for each in self.joined if each.ticket]
