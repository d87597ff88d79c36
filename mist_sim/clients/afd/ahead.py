"""The passes of a bundle until something changes, computed at once."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import NamedTuple

from mist_sim.clients.afd.bundle import Bundle
from mist_sim.clients.afd.bundle_clock import Pass


class Ahead(NamedTuple):
    """Passes that begin, in this order, if nothing changes before `until`.

    until: when the next decision is due: a request leaves, or another pass begins; infinite without
        work.
    """

    passes: list[Pass]
    until: float


def look_ahead(
    bundle: Bundle,
    now: float,
    limit: int,
    *,
    until: float = inf,
    closed: Collection[int] = (),
    leaving: Collection[int] = (),
) -> Ahead:
    """Return the passes that begin between now and the next change.

    limit: the most passes. until: when a change is already due. closed: batches that a request
        joins before their next step, so that this step is excluded; they may be empty. leaving:
        batches that a request leaves when the step under way ends.
    """
    clock, passes = bundle.clock.copy(), list[Pass]()
    filled = bundle.filled
    in_turn = [k for k in range(len(bundle.batches)) if k in filled or k in closed]
    phases = {k: iter(bundle.phases(k, limit // clock.layers + 2)) for k in filled}
    present = {k: next(phases[k]) for k in filled if not clock.is_first(k)}
    steps_left = {k: bundle.batches[k].steps_to_next_end() for k in filled}
    steps_left |= dict.fromkeys(leaving, 1)
    while in_turn:
        batch = min(in_turn, key=clock.ready.__getitem__)
        start = clock.start(batch, now)
        if start >= until:
            break
        is_closed = not clock.is_under_way(batch) and any(
            k in closed for k in clock.together(batch, in_turn)
        )
        if is_closed or len(passes) == limit:
            return Ahead(passes, start)
        if clock.is_first(batch):
            present[batch] = next(phases[batch])
        step = clock.next_pass(batch, present[batch], now)
        passes.append(step)
        for done in clock.begin(step, in_turn):
            left = steps_left[done]
            if left is not None:
                steps_left[done] = left - 1
                if left == 1:
                    until = min(until, clock.ready[done])
    return Ahead(passes, until)
