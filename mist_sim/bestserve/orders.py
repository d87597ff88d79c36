"""The order in which a simulator asks the instances: shuffled (as printed) or round-robin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import numpy as np

from mist_sim.errors import ScenarioError, brief

Routing = Literal["shuffle", "round_robin"]

_BLOCK = 1024  # permutations drawn at a time


class Order(Protocol):
    """The order of the instances in a pass."""

    def next(self) -> Sequence[int]:
        """Return the order of the next pass."""

    def took(self, instance: int) -> None:
        """Hear that an instance took something in this pass."""


class Shuffled:
    """A new random order in every pass (the `shuffle` of Algorithms 2, 3, 6 and 7)."""

    def __init__(self, num_instances: int, rng: np.random.Generator) -> None:
        self._orders = _permutations(num_instances, rng)

    def next(self) -> Sequence[int]:
        """Return the next order drawn."""
        return next(self._orders)

    def took(self, instance: int) -> None:
        """Do nothing: the order is fixed."""


class InTurn:
    """The instance after the one that took the last batch is asked first."""

    def __init__(self, num_instances: int) -> None:
        numbers = range(num_instances)
        self._turns = [[*numbers[first:], *numbers[:first]] for first in numbers]
        self._first = 0

    def next(self) -> Sequence[int]:
        """Return all instances, beginning with the one whose turn it is."""
        return self._turns[self._first]

    def took(self, instance: int) -> None:
        """Give the next turn to the instance after this one."""
        self._first = (instance + 1) % len(self._turns)


def order_of(routing: Routing, num_instances: int, rng: np.random.Generator) -> Order:
    """Return the order of a routing. Raises ScenarioError for an unknown one."""
    if routing == "shuffle":
        return Shuffled(num_instances, rng)
    if routing == "round_robin":
        return InTurn(num_instances)
    raise ScenarioError(f"routing must be shuffle or round_robin, got {brief(routing)}")


def _permutations(num: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield orders without end; one instance needs no luck."""
    if num == 1:
        while True:
            yield [0]
    block = np.tile(np.arange(num), (_BLOCK, 1))
    while True:
        yield from rng.permuted(block, axis=1).tolist()
