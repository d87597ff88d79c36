"""Placement of requests on attention workers with free slots.

All workers wait for the slowest, so tokens should be spread evenly. A request stays where it is
placed: its KV entries are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


class Placement(Protocol):
    """Chooses attention workers for the requests that come to a batch at one time."""

    def place(self, coming: Sequence[int], held: Tokens, free: Tokens) -> list[int]:
        """Return a worker for each request, none beyond its free slots.

        coming: tokens of each request, no more of them than there are free slots. held: tokens on
        each worker. free: free slots of each.
        """


class RandomPlacement:
    """Takes free slots at random with equal probability, as in the paper's theory."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def place(self, coming: Sequence[int], held: Tokens, free: Tokens) -> list[int]:
        """Return the workers of as many free slots, drawn without putting back."""
        numbers = self._rng.multivariate_hypergeometric(free, len(coming))
        workers: list[int] = self._rng.permutation(
            np.repeat(np.arange(len(free)), numbers)
        ).tolist()
        return workers


class LeastLoad:
    """Gives the longest prompt to the worker that holds the fewest tokens, and so on downwards.

    If the slots are full, a request takes the slot of one that left, so a policy can only choose
    among requests that arrive together.
    Source: longest processing time first (Graham, SIAM J. Appl. Math. 17, 1969).
    """

    def __init__(self, rng: np.random.Generator) -> None:
        del rng  # no random draws

    def place(self, coming: Sequence[int], held: Tokens, free: Tokens) -> list[int]:
        """Return the workers; of workers with equal loads the first, of equal requests too."""
        held, free, workers = held.copy(), free.copy(), [0] * len(coming)
        for request in sorted(range(len(coming)), key=lambda k: -coming[k]):
            worker = int(np.where(free > 0, held, _FULL).argmin())
            workers[request] = worker
            held[worker] += coming[request]
            free[worker] -= 1
        return workers


_FULL = np.iinfo(np.int64).max

PLACEMENTS: Mapping[str, type[RandomPlacement | LeastLoad]] = {
    "random": RandomPlacement,
    "least_load": LeastLoad,
}
"""Placements by name."""
