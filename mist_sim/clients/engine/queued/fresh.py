"""A waiting queue in which sequences wait for batches in flight that still compute them."""

from __future__ import annotations

from collections.abc import Iterator

from mist_sim.clients.scheduling.order import FirstComeFirstServed, Ranked, WaitingQueue
from mist_sim.clients.sequence_state import SequenceState


class FreshQueue(WaitingQueue):
    """A queue in which sequences wait that a batch in flight still computes.

    They were preempted in flight and keep their place. stale: these sequences. passes_over: whether
    others are admitted meanwhile, and not only those before them. adds_at_end: whether each that
    arrives is behind all others.
    """

    def __init__(self, queue: WaitingQueue, *, passes_over: bool) -> None:
        self._queue = queue
        self._passes_over = passes_over
        self.stale: set[SequenceState] = set()
        self.adds_at_end = type(queue) is FirstComeFirstServed
        self.takes_from_anywhere = queue.takes_from_anywhere  # type: ignore[misc]
        self.returns_whole = queue.returns_whole  # type: ignore[misc]

    @property
    def has_fresh(self) -> bool:
        """Whether any sequence may be admitted."""
        if not self.stale or self._passes_over:
            return len(self._queue) > len(self.stale)
        return self._queue.head() not in self.stale

    def add(self, sequence: SequenceState) -> None:
        """Queue a sequence that arrives."""
        self._queue.add(sequence)

    def give_back(self, sequence: SequenceState) -> None:
        """Queue a sequence that was preempted."""
        self._queue.give_back(sequence)

    def head(self) -> SequenceState:
        """Return the first sequence that no batch in flight computes; there is one."""
        queue, stale = self._queue, self.stale
        if not (stale and self._passes_over):
            return queue.head()
        fresh = (each for each in queue if each not in stale)
        return min(fresh, key=queue.place) if isinstance(queue, Ranked) else next(fresh)

    def take(self) -> SequenceState:
        """Remove and return the head."""
        if not (self.stale and self._passes_over):
            return self._queue.take()
        sequence = self.head()
        self._queue.remove(sequence)
        return sequence

    def remove(self, sequence: SequenceState) -> None:
        """Remove a sequence wherever it stands."""
        self._queue.remove(sequence)
        self.stale.discard(sequence)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._queue)

    def victim(self, running: dict[SequenceState, None]) -> SequenceState:
        """Return the running sequence to preempt."""
        return self._queue.victim(running)
