"""The record that a client keeps of each visit, from its entry to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mist_sim.core.views import OUT
from mist_sim.core.visit import Visit

if TYPE_CHECKING:
    from array import array


class Stay:
    """Where a visit is in its client.

    phase: `OUT` before and after, `WAITING` or `RUNNING` in between.
    counts: of the client's stays in each phase, which routers see.
    end: happens when the visit is over, with the visit as its value.
    """

    __slots__ = ("counts", "end", "phase", "visit")

    counts: array[int]
    end: Any  # a SimPy event, which policies do not see

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.phase = OUT

    def become(self, phase: int) -> None:
        """Go to a phase: the one place where what routers count changes."""
        counts = self.counts
        counts[self.phase] -= 1
        counts[phase] += 1
        self.phase = phase
