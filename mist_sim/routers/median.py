"""The median of all numbers so far."""

from __future__ import annotations

from heapq import heappush, heappushpop


class RunningMedian:
    """Numbers in two heaps that meet in the middle; O(log n) a number."""

    def __init__(self) -> None:
        self._below: list[float] = []  # negative, so that the largest is first
        self._above: list[float] = []

    def add(self, value: float) -> None:
        """Take one more number into account."""
        if len(self._below) > len(self._above):
            heappush(self._above, -heappushpop(self._below, -value))
        else:
            heappush(self._below, -heappushpop(self._above, value))

    @property
    def value(self) -> float:
        """The median of one number or more, the lower one of two in the middle."""
        return -self._below[0]
