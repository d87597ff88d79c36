"""Which slots are taken, those included whose request is on its way."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mist_sim.clients.afd.bundle import Bundle
from mist_sim.clients.afd.placement import Placement


class Seat(NamedTuple):
    """A slot: its batch, and the attention worker that holds the KV entries."""

    batch: int
    worker: int


class Seats:
    """Slots that are given away before their requests sit down.

    bundle: who sits in them already. placement: chooses the worker.
    """

    def __init__(self, bundle: Bundle, placement: Placement) -> None:
        config = bundle.config
        shape = (config.batches, config.attention_workers)
        self._bundle = bundle
        self._placement = placement
        self._taken = np.zeros(shape, dtype=np.int64)
        self._coming = np.zeros(shape, dtype=np.int64)  # tokens on their way
        self._num_taken = [0] * config.batches

    def take(self, num_tokens: int) -> Seat | None:
        """Give away a slot to a request with so many tokens; None when all are taken.

        It is in the batch with the fewest requests, so that batches take equally long.
        """
        config = self._bundle.config
        batch = min(range(config.batches), key=self._num_taken.__getitem__)
        if self._num_taken[batch] == config.slots_per_batch:
            return None
        held = self._bundle.batches[batch].held + self._coming[batch]
        worker = self._placement.choose(held, config.slots - self._taken[batch])
        self._taken[batch, worker] += 1
        self._coming[batch, worker] += num_tokens
        self._num_taken[batch] += 1
        return Seat(batch, worker)

    def arrive(self, seat: Seat, num_tokens: int) -> None:
        """Note that a request sits down, or does not come any more."""
        self._coming[seat] -= num_tokens

    def free(self, seat: Seat) -> None:
        """Take a slot back."""
        self._taken[seat] -= 1
        self._num_taken[seat.batch] -= 1
