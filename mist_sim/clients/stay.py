"""The record that a client keeps of each visit, from its entry to its end."""

from __future__ import annotations

from typing import Any

from mist_sim.core.views import OUT, WAITING, WAITING_TOKENS, ClientState
from mist_sim.core.visit import Visit


class Stay:
    """Where a visit is in its client.

    phase: `OUT` before and after, `WAITING` or `RUNNING` in between.
    num_queued_tokens: tokens to compute before the visit's next token, counted while it waits.
    load: the client's counts, which routers see.
    end: happens when the visit is over, with the visit as its value.
    """

    __slots__ = ("end", "load", "num_queued_tokens", "phase", "visit")

    load: ClientState
    end: Any  # a SimPy event, which policies do not see

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.phase = OUT
        self.num_queued_tokens = 0

    def become(self, phase: int) -> None:
        """Go to a phase: the one place where what routers count changes."""
        load, before = self.load, self.phase
        counts, row = load.counts, load.row
        counts[row + before] -= 1
        counts[row + phase] += 1
        self.phase = phase
        if phase == WAITING:
            counts[row + WAITING_TOKENS] += self.num_queued_tokens
        elif before == WAITING:
            counts[row + WAITING_TOKENS] -= self.num_queued_tokens
        if load.watchers:
            load.tell(before, phase)
