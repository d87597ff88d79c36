"""The record that a client keeps of each visit, from its entry to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mist_sim.core.views import OUT, WAITING, ClientState
from mist_sim.core.visit import Visit


class Stay:
    """State of a visit in its client.

    phase: `OUT` before and after, `WAITING` or `RUNNING` in between.
    num_queued_tokens: tokens to compute before the visit's next token, counted while it waits.
    load: the client's counts, which routers see.
    end: event triggered when the visit is over, with the visit as its value.
    leaves: called instead of the event, with the client's number and the visit, if no process
        waits; it records the visit. Otherwise None.
    """

    __slots__ = ("end", "leaves", "load", "num_queued_tokens", "phase", "visit")

    load: ClientState
    end: Any  # a SimPy event, which policies do not see

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.phase = OUT
        self.leaves: Callable[[int, Visit], None] | None = None
        self.num_queued_tokens = 0

    def enter(self, load: ClientState) -> None:
        """Wait from now on at a client with these counts, as `become` does."""
        self.load, self.phase = load, WAITING
        phases = load.phases
        load.outstanding += 1
        phases.num_waiting += 1
        phases.num_waiting_tokens += self.num_queued_tokens
        if load.has_watchers:
            load.tell(OUT, WAITING, self.visit)

    def become(self, phase: int) -> None:
        """Go to a phase; with `enter` the one place where routers' counts change."""
        load, phases, before = self.load, self.load.phases, self.phase
        self.phase = phase
        if before == OUT:
            load.outstanding += 1
        elif before == WAITING:
            phases.num_waiting -= 1
            phases.num_waiting_tokens -= self.num_queued_tokens
        else:
            phases.num_running -= 1
        if phase == OUT:
            load.outstanding -= 1
        elif phase == WAITING:
            phases.num_waiting += 1
            phases.num_waiting_tokens += self.num_queued_tokens
        else:
            phases.num_running += 1
        if load.has_watchers:
            load.tell(before, phase, self.visit)
