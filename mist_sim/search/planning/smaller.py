"""Tries the choice with one engine less, so that a plan buys no engine that it need not."""

from __future__ import annotations

from mist_sim.search.planning.hunt import Clock, Hunt
from mist_sim.search.planning.refining import without_one


def take_smaller(hunt: Hunt, clock: Clock, most: int) -> None:
    """Run the choice without one of its engines until that is not seen to keep the limits.

    Only where the hunt left that open: one that ended by itself knows it. At least one such run is
    made, even if time is up. most: requests of the longest run.
    """
    best = hunt.best
    while best is not None:
        left = set(hunt.left)
        hunt.run([each for each in without_one(best.candidate).values() if each in left], most)
        if hunt.best is best or clock.is_up():
            return
        best = hunt.best
