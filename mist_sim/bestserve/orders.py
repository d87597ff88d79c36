"""The order in which a simulator asks the instances: shuffled (as printed) or round-robin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from mist_sim.errors import ScenarioError, brief

Routing = Literal["shuffle", "round_robin"]

_BLOCK = 1024  # permutations drawn at a time


class Order:
    """The order of the instances in a pass.

    routing: "shuffle": a new random order in every pass (the `shuffle` of Algorithms 2, 3, 6 and
        7); "round_robin": the instance after the one that took the last batch is asked first.
    Raises ScenarioError for another one.
    """

    def __init__(self, routing: Routing, num_instances: int, rng: np.random.Generator) -> None:
        if routing not in ("shuffle", "round_robin"):
            raise ScenarioError(f"routing must be shuffle or round_robin, got {brief(routing)}")
        numbers = range(num_instances)
        self._turns = [[*numbers[first:], *numbers[:first]] for first in numbers]
        self._first = 0
        self._shuffled = _permutations(num_instances, rng) if routing == "shuffle" else None

    def next(self) -> Sequence[int]:
        """Return the order of the next pass."""
        return self._turns[self._first] if self._shuffled is None else next(self._shuffled)

    def took(self, instance: int) -> None:
        """Hear that an instance took something in this pass."""
        self._first = (instance + 1) % len(self._turns)


def _permutations(num: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield orders without end; one instance needs no luck."""
    if num == 1:
        while True:
            yield [0]
    block = np.tile(np.arange(num), (_BLOCK, 1))
    while True:
        yield from rng.permuted(block, axis=1).tolist()
