"""On which attention worker a request takes a free slot.

All workers wait for the slowest, so what counts is how evenly tokens lie on them. A request stays
where it is placed: its KV entries are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


class Placement(Protocol):
    """Chooses an attention worker for each request that comes."""

    def choose(self, held: Tokens, free: Tokens) -> int:
        """Return a worker with a free slot.

        held: tokens on each worker. free: free slots of each, of which there is one at least.
        """


class RandomPlacement:
    """Takes any free slot, as likely as any other: what the paper's theory is about."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, held: Tokens, free: Tokens) -> int:
        """Return a worker, as likely as it has free slots."""
        ends = free.cumsum()
        return int(ends.searchsorted(self._rng.integers(ends[-1]), side="right"))


class LeastLoad:
    """Takes a slot on the worker that holds the fewest tokens; of equals the first."""

    def __init__(self, rng: np.random.Generator) -> None:
        del rng  # nothing is drawn

    def choose(self, held: Tokens, free: Tokens) -> int:
        """Return the worker."""
        return int(np.where(free > 0, held, np.iinfo(np.int64).max).argmin())


PLACEMENTS: Mapping[str, type[RandomPlacement | LeastLoad]] = {
    "random": RandomPlacement,
    "least_load": LeastLoad,
}
"""Placements by name."""
