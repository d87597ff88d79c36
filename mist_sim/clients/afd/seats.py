"""Taken slots, including those reserved for requests on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mist_sim.clients.afd.bundle import Bundle
from mist_sim.clients.afd.worker_placement import Placement


class Seat(NamedTuple):
    """A slot: its batch, and the attention worker that holds the KV entries."""

    batch: int
    worker: int


class Seats:
    """Slots reserved before their requests are seated.

    bundle: the seated requests. placement: chooses the worker.
    """

    def __init__(self, bundle: Bundle, placement: Placement) -> None:
        config = bundle.config
        shape = (config.batches, config.attention_workers)
        self._bundle = bundle
        self._placement = placement
        self._taken = np.zeros(shape, dtype=np.int64)
        self._beside = np.zeros(shape, dtype=np.int64)  # tokens that come, or leave with a step
        self._num_taken = [0] * config.batches

    @property
    def num_free(self) -> int:
        """Slots neither taken nor reserved."""
        return self._bundle.config.num_slots - sum(self._num_taken)

    def take(self, coming: Sequence[int]) -> list[Seat]:
        """Give away slots to requests with so many tokens each, no more than are free.

        Each goes to the batch with the fewest requests, so that batches take equally long.
        """
        by_batch: dict[int, list[int]] = {}
        for request in range(len(coming)):
            batch = min(range(len(self._num_taken)), key=self._num_taken.__getitem__)
            self._num_taken[batch] += 1
            by_batch.setdefault(batch, []).append(request)
        seats: dict[int, Seat] = {}
        for batch, requests in by_batch.items():
            held = self._bundle.batches[batch].held + self._beside[batch]
            free = self._bundle.config.slots - self._taken[batch]
            workers = self._placement.place([coming[k] for k in requests], held, free)
            for request, worker in zip(requests, workers, strict=True):
                self._taken[batch, worker] += 1
                self._beside[batch, worker] += coming[request]
                seats[request] = Seat(batch, worker)
        return [seats[request] for request in range(len(coming))]

    def arrive(self, seat: Seat, num_tokens: int) -> None:
        """Note that a request sits down, or does not come any more."""
        self._beside[seat] -= num_tokens

    def leave(self, seat: Seat, num_tokens: int) -> None:
        """Note that a request leaves with the step under way; it keeps its slot until then."""
        self._beside[seat] += num_tokens

    def left(self, seat: Seat, num_tokens: int) -> None:
        """Note that the step has ended."""
        self._beside[seat] -= num_tokens

    def free(self, seat: Seat) -> None:
        """Take a slot back."""
        self._taken[seat] -= 1
        self._num_taken[seat.batch] -= 1
