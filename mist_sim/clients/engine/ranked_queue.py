"""Requests that wait in another order than that of arrival, as the engine core asks for them."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from mist_sim.clients.scheduling.order import Ranked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mist_sim.clients.scheduling import WaitingQueue
    from mist_sim.clients.sequence_state import SequenceState


class RankedQueue:
    """The queue of a lane of the core, which knows requests by their slots.

    queue: ranks them, empty at first. loaded_first, pass_goes_on: as in `EngineRules`.
    """

    def __init__(self, queue: WaitingQueue, *, loaded_first: bool, pass_goes_on: bool) -> None:
        self.takes_from_anywhere = queue.takes_from_anywhere
        self.pass_goes_on = pass_goes_on
        self._queue, self._loaded_first = queue, loaded_first
        self._sequences: dict[int, SequenceState] = {}  # by slot, the latest that had it
        self._arrived: deque[tuple[float, SequenceState]] = deque()  # that no plan knows yet
        self._num_arrived = 0

    def come(self, now: float, sequence: SequenceState) -> None:
        """Queue a sequence that comes now and has a slot."""
        self._sequences[sequence.slot] = sequence
        self._arrived.append((now, sequence))
        sequence.arrival = self._num_arrived
        self._num_arrived += 1

    def take_over(self, sequence: SequenceState, *, waits: bool) -> None:
        """Know a sequence that was in another lane, in its order of arrival at the client."""
        self._sequences[sequence.slot] = sequence
        self._num_arrived = max(self._num_arrived, sequence.arrival + 1)
        if waits:
            self._queue.add(sequence)

    def has_arrived(self) -> bool:
        """Tell whether some came that no plan knows yet."""
        return bool(self._arrived)

    def head(self, known_until: float) -> int:
        """Return the next slot of those that came by then; -1: none until a request leaves."""
        while self._arrived and self._arrived[0][0] <= known_until:
            self._queue.add(self._arrived.popleft()[1])
        first = self._queue.head() if self._queue else None
        return -1 if first is None else first.slot

    def in_order(self) -> list[int]:
        """Return the slots of all that wait, the next one first."""
        self.head(inf)
        queue = self._queue
        several = sorted(queue, key=queue.place) if isinstance(queue, Ranked) else list(queue)
        return [each.slot for each in several]

    def head_without(self, slots: list[int]) -> int:
        """Return the next slot that is none of these; -1: none."""
        queue, found = self._queue, [each for each in self._queue if each.slot not in slots]
        if isinstance(queue, Ranked) and found:
            return min(found, key=queue.place).slot
        return found[0].slot if found else -1

    def loaded(self, slots: list[int], known_until: float) -> int:
        """Return which of some prompts whose entries have come goes before the queue; -1: none."""
        queue, head = self._queue, self.head(known_until)
        first = queue.first([self._sequences[slot] for slot in slots])
        if head >= 0 and not self._loaded_first:
            first = queue.first([first, self._sequences[head]])
        return -1 if first.slot == head else first.slot

    def give_back(self, slot: int, num_tokens: int) -> None:
        """Queue one again that gave way, with so many tokens."""
        sequence = self._sequences[slot]
        sequence.num_tokens = num_tokens
        self._queue.give_back(sequence)

    def remove(self, slot: int) -> None:
        """Take one out."""
        sequence = self._sequences[slot]
        for arrival in self._arrived:
            if arrival[1] is sequence:
                self._arrived.remove(arrival)
                return
        self._queue.remove(sequence)

    def victim(self, running: Iterable[int]) -> int:
        """Return the slot that gives way. running: in order of admission."""
        return self._queue.victim(dict.fromkeys([self._sequences[slot] for slot in running])).slot
