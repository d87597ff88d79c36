"""Clients that serve waiting visits in batches: MIST's scheduler "Batched" (§III-E)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence

from simpy.events import Event
from simpy.resources.resource import Request

from mist_sim.clients.base import Client
from mist_sim.clients.workers.devices import Device
from mist_sim.clients.workers.waiting import Waiting
from mist_sim.core.recorder import Recorder
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment, engine_phases


class BatchedClient(Client):
    """A client with one batch at a time: a batch takes the waiting visits, oldest first.

    Subclasses compute the time of a batch (`batch_seconds`).

    max_batch_size: most visits per batch (>= 1).
    max_wait: seconds that the oldest visit waits for others while the client is free and the batch
        is not full (>= 0).

    device: a device shared with other clients; a batch takes one of its slots. None: not shared.

    A batch that has begun takes no more visits; one that waits for its slot does. Visits given up
    leave the queue at once; in a batch they leave when it ends.
    """

    max_batch_size: int
    max_wait: float
    device: Device | None = None

    def check_batches(self) -> None:
        """Raise ValueError unless batches have a size and a finite wait."""
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be >= 1, got {self.max_batch_size}")
        if not 0 <= self.max_wait < math.inf:
            raise ValueError(f"max_wait must be finite and >= 0 s, got {self.max_wait}")

    @abstractmethod
    def batch_seconds(self, batch: Sequence[Visit]) -> float:
        """Return how long a batch takes that begins now (>= 0)."""

    def batch_ended(self) -> None:
        """Note that the batch is over; its visits are handed back next."""

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation with an empty queue and no batch."""
        super().start(env, client_id, recorder)
        self._waiting = Waiting(self.max_batch_size)
        self._batch: list[Visit] = []
        self._is_serving = False
        # a new object after each failure; the end of an earlier batch is ignored
        self._life = object()
        self._gathering: Event | None = None  # the end of the wait for others
        self._slots = None if self.device is None else self.device.shared_by(self.shared_parts, env)
        self._slot: Request | None = None  # that is held, or asked for
        self._end_phase, self._plan_phase = engine_phases(client_id, 0)

    def accept(self, visit: Visit) -> None:
        """Queue a visit; start a batch if the client is idle, or end the wait if one is full."""
        self._waiting.add(visit)
        if not self._is_serving:
            self._is_serving = True
            self.env.start(self._serve(self._life))
        elif self._gathering is not None and self._waiting.is_full:
            self.env.move(self._gathering, self.env.now, self._plan_phase)
            self._gathering = None

    def abort(self, visit: Visit) -> None:
        """A visit that is given up leaves the queue at once, or leaves with its batch."""
        if visit in self._batch:
            return
        self._waiting.discard(visit)
        self.finish(visit)

    def halt(self) -> None:
        """Discard the batch in flight; its visits are released one by one.

        Visits given up before the failure are released here.
        """
        self._life = object()
        self._give_slot_back()
        batch, self._batch = self._batch, []
        self._gathering, self._is_serving = None, False
        for visit in batch:
            if visit.outcome is not None:
                self.finish(visit)

    def _serve(self, life: object) -> Generator[Event, object, None]:
        """Serve batches until no visit waits, or the client fails."""
        while len(self._waiting):
            # visits that arrive at this instant join first
            yield self.env.at(self.env.now, self._plan_phase)
            if life is not self._life:
                return
            while (until := self._waits_until()) > self.env.now:
                self._gathering = self.env.at(until, self._plan_phase)
                yield self._gathering
                if life is not self._life:
                    return
                self._gathering = None
            if self._slots is not None and len(self._waiting):
                self._slot = self._slots.request()
                yield self._slot
                if life is not self._life:
                    return
            if not len(self._waiting):
                break
            yield self.env.at(self._begin_batch(), self._end_phase)
            if life is not self._life:
                return
            self._give_slot_back()
            self.batch_ended()
            batch, self._batch = self._batch, []
            for visit in batch:
                self.finish(visit)
        self._give_slot_back()
        self._is_serving = False

    def _give_slot_back(self) -> None:
        """Return the slot of the device, or withdraw the request for one."""
        if self._slot is not None and self._slots is not None:
            self._slot.cancel()
            self._slots.release(self._slot)
            self._slot = None

    def _waits_until(self) -> float:
        """Return until when the next batch waits for others; a time that has come: not at all."""
        if not len(self._waiting) or self._waiting.is_full:
            return self.env.now
        return self._waiting.oldest.queued_at + self.max_wait

    def _begin_batch(self) -> float:
        """Take the oldest visits out of the queue, and return when they will be served."""
        self._batch = self._waiting.take()
        for visit in self._batch:
            self.begin(visit)
        return self.env.now + self.batch_seconds(self._batch)
