"""Packing orders: which waiting sequence is admitted next, and which running one is preempted.

A queue never skips its head: when the head does not fit, everybody waits. So in every order but
first come, first served, a long prompt can starve under a stream of short ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, ClassVar, Literal, get_args

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.errors import ScenarioError, brief

Order = Literal[
    "fcfs",
    "least_work_left",
    "shortest_prompt_first",
    "shortest_predicted_first",
    "priority",
    "earliest_deadline_first",
]
ORDERS: tuple[str, ...] = get_args(Order)

Key = Callable[[SequenceState], float]


class WaitingQueue(ABC):
    """The sequences waiting for admission, and the rule for preemption.

    takes_from_anywhere: whether a sequence other than the last admitted may have to give way.
    """

    takes_from_anywhere: ClassVar[bool] = False

    @abstractmethod
    def add(self, sequence: SequenceState) -> None:
        """Queue a sequence that arrives."""

    @abstractmethod
    def give_back(self, sequence: SequenceState) -> None:
        """Queue a sequence that was preempted."""

    @abstractmethod
    def head(self) -> SequenceState:
        """Return the sequence that is admitted next; the queue is not empty."""

    @abstractmethod
    def take(self) -> SequenceState:
        """Take the head out."""

    @abstractmethod
    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out of any place."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many wait."""

    @abstractmethod
    def __iter__(self) -> Iterator[SequenceState]:
        """Iterate over the waiting sequences, in no particular order."""

    def first(self, several: Iterable[SequenceState]) -> SequenceState:
        """Return which of some sequences goes first, of which the first ones have their memory."""
        return next(iter(several))

    def victim(self, running: dict[SequenceState, None]) -> SequenceState:
        """Return the running sequence that gives its memory up: the latest admitted."""
        return next(reversed(running))


class FirstComeFirstServed(OrderedDict[SequenceState, None], WaitingQueue):
    """In order of arrival; a preempted sequence goes back to the head (vLLM's default).

    Many may wait, and give up at any place in the queue; removal needs no search.
    """

    def add(self, sequence: SequenceState) -> None:
        """Queue a sequence at the end."""
        self[sequence] = None

    def give_back(self, sequence: SequenceState) -> None:
        """Queue a sequence at the front."""
        self[sequence] = None
        self.move_to_end(sequence, last=False)

    def head(self) -> SequenceState:
        """Return the sequence that came first."""
        for first in self:  # next() and iter() would be calls
            return first
        raise KeyError("no sequence waits")

    def take(self) -> SequenceState:
        """Take the sequence that came first."""
        return self.popitem(last=False)[0]

    remove = OrderedDict.__delitem__  # type: ignore[assignment]


class Ranked(WaitingQueue):
    """By a key, the smallest first; equal keys in order of arrival.

    key: must not change while a sequence waits.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[tuple[float, int, SequenceState]] = []
        self._removed: set[SequenceState] = set()  # still in the heap

    def add(self, sequence: SequenceState) -> None:
        """Put a sequence into the heap, by its key and then its arrival."""
        if sequence in self._removed:  # its old entry is still in the heap
            self._forget_removed()
        key: Any = self._key(sequence)
        if key is None or key != key:
            raise ScenarioError(
                f"the key of Ranked(key) must return a number, got {brief(key)} for request "
                f"{sequence.visit.request.request_id}"
            )
        heappush(self._heap, (key, sequence.arrival, sequence))

    def place(self, sequence: SequenceState) -> tuple[float, int]:
        """Return the sort key of a sequence."""
        return self._key(sequence), sequence.arrival

    def give_back(self, sequence: SequenceState) -> None:
        """Put it back in its place, which its key decides."""
        self.add(sequence)

    def head(self) -> SequenceState:
        """Return the sequence with the smallest key."""
        return self._heap[0][2]

    def take(self) -> SequenceState:
        """Take the sequence with the smallest key."""
        sequence = heappop(self._heap)[2]
        if self._removed:
            self._clear_head()
        return sequence

    def remove(self, sequence: SequenceState) -> None:
        """Mark a sequence as removed; its entry leaves the heap when it comes to the top."""
        self._removed.add(sequence)
        self._clear_head()

    def _clear_head(self) -> None:
        """Drop removed sequences from the top of the heap, so that its head is waiting."""
        while self._heap and self._heap[0][2] in self._removed:
            self._removed.remove(heappop(self._heap)[2])

    def _forget_removed(self) -> None:
        """Drop the entries of removed sequences from all of the heap."""
        self._heap = [entry for entry in self._heap if entry[2] not in self._removed]
        heapify(self._heap)
        self._removed.clear()

    def __len__(self) -> int:
        return len(self._heap) - len(self._removed)

    def __iter__(self) -> Iterator[SequenceState]:
        return (sequence for _, _, sequence in self._heap if sequence not in self._removed)


class ByPriority(Ranked):
    """By the request's priority, the smallest value first (vLLM's `priority` policy).

    The running sequence with the largest value is preempted; among equals the latest to arrive, and
    among those that arrived together the first admitted (the `max` in vLLM's `Scheduler.schedule`).
    """

    takes_from_anywhere: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(_priority)

    def first(self, several: Iterable[SequenceState]) -> SequenceState:
        """Return the sequence with the best priority, then the earliest."""
        return min(several, key=self.place)

    def victim(self, running: dict[SequenceState, None]) -> SequenceState:
        """Return the running sequence with the worst priority, then the latest queued."""
        return max(running, key=lambda each: (_priority(each), each.visit.queued_at))


def waiting_queue(order: Order) -> WaitingQueue:
    """Return an empty queue of one order.

    fcfs: by arrival. shortest_prompt_first: by prompt length. least_work_left: by the tokens left
        to prefill, those of a preempted answer included (MIST §III-E1; the length of the answer is
        unknown). priority: by `Request.priority`.
    shortest_predicted_first: by `Request.num_predicted_tokens`; requests without come last.
    earliest_deadline_first: by `Request.deadline`, when the first token is due; requests without
        one come last.
    """
    if order == "fcfs":
        return FirstComeFirstServed()
    if order == "priority":
        return ByPriority()
    return Ranked(_KEYS[order])


def is_ours(owner: type) -> bool:
    """Tell whether a class is of this package, or of Python."""
    return owner.__module__.partition(".")[0] in ("mist_sim", "abc", "builtins")


def _priority(sequence: SequenceState) -> int:
    return sequence.visit.request.priority


def _prompt_length(sequence: SequenceState) -> int:
    return sequence.num_prompt_tokens


def _work_left(sequence: SequenceState) -> int:
    return sequence.num_tokens


def _deadline(sequence: SequenceState) -> float:
    return sequence.visit.request.deadline


def _predicted(sequence: SequenceState) -> float:
    number = sequence.visit.request.num_predicted_tokens
    return inf if number is None else number


_KEYS: dict[str, Key] = {
    "shortest_predicted_first": _predicted,
    "least_work_left": _work_left,
    "shortest_prompt_first": _prompt_length,
    "earliest_deadline_first": _deadline,
}
