"""The passes of a bundle until something changes, computed at once."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import NamedTuple

from mist_sim.clients.afd.bundle import Bundle
from mist_sim.clients.afd.clock import Pass


class Ahead(NamedTuple):
    """Passes that will begin, in this order, if nothing changes before `until`.

    until: when the next decision is due: somebody leaves, or a pass begins that is not among them;
    infinite where nothing is to be done.
    """

    passes: list[Pass]
    until: float


def look_ahead(
    bundle: Bundle, now: float, limit: int, *, until: float = inf, closed: Collection[int] = ()
) -> Ahead:
    """Return the passes that begin from now on and before the next change.

    limit: the most passes. until: when a change is due already. closed: batches whose next pass
    may not be among them, since somebody joins before it; they may be empty.
    """
    clock, passes = bundle.clock.copy(), list[Pass]()
    in_turn = [k for k, slots in enumerate(bundle.batches) if slots.num_filled or k in closed]
    phases = {k: iter(bundle.phases(k, limit)) for k in in_turn if k not in closed}
    steps_left = {k: bundle.batches[k].steps_to_next_end() for k in phases}
    while in_turn:
        batch = min(in_turn, key=clock.ready.__getitem__)
        start = clock.start(batch, now)
        if start >= until:
            break
        if batch in closed or len(passes) == limit:
            return Ahead(passes, start)
        step = clock.next_pass(batch, next(phases[batch]), now)
        clock.begin(step)
        passes.append(step)
        left = steps_left[batch]
        if left is not None:
            steps_left[batch] = left - 1
            if left == 1:
                until = min(until, step.end)
    return Ahead(passes, until)
