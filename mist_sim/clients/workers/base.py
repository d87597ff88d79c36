"""Clients of identical workers: a queue in order of arrival, and one visit per worker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

import simpy
from simpy.events import Event, Process

from mist_sim.clients.base import Client
from mist_sim.clients.workers.devices import Device
from mist_sim.clients.workers.fetching import Fetch
from mist_sim.clients.workers.growing import let_grow, num_until_growth
from mist_sim.clients.workers.service_times import is_time
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError


class Workers(Client):
    """Workers that take one visit each, in order of arrival, and serve its stages in sequence.

    An abandoned visit leaves at once; its worker takes the next one. Subclasses compute the time of
    a stage.

    num_workers: visits served at once. fetch: bytes that each stage brings over a topology after
        its service time; None: none. device: a device whose slots they share with other clients;
        None: not shared.
    """

    num_workers: int = 1
    fetch: Fetch | None = None
    device: Device | None = None

    @abstractmethod
    def service_times(self) -> Callable[[Stage], float]:
        """Return the function for a stage's seconds, with its random streams at their start."""

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation with all workers free."""
        super().start(env, client_id, recorder)
        self._workers = simpy.Resource(env, self.num_workers)
        self._slots = None if self.device is None else self.device.shared_by(self.shared_parts, env)
        self._services: dict[Visit, Process] = {}  # of visits that may be given up
        self._growth = self.streams.generator(f"{self.name}: growth")
        self._seconds = self.service_times()

    def accept(self, visit: Visit) -> None:
        """Start a process for the visit; remember it if it may have to be interrupted."""
        service = self.env.process(self._work(visit))
        if visit.request.limits is not None or self.may_fail:
            self._services[visit] = service

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return how many of the next stages it serves in a visit: up to one that grows."""
        return num_until_growth(stages[: super().takes(stages)])

    def abort(self, visit: Visit) -> None:
        """Remove a visit that is given up from the queue, or from its worker, at once."""
        self._services[visit].interrupt()

    def restart(self) -> None:
        """Come back with no visit; random draws continue."""
        seconds, growth = self._seconds, self._growth
        super().restart()
        self._seconds, self._growth = seconds, growth

    def _work(self, visit: Visit) -> Generator[Event, object, None]:
        with suppress(simpy.Interrupt):
            yield from self._serve(visit)
        self._services.pop(visit, None)
        self.finish(visit)

    def _serve(self, visit: Visit) -> Generator[Event, object, None]:
        with self._workers.request() as turn:
            yield turn
            if self._slots is None:
                yield from self._serve_stages(visit)
                return
            with self._slots.request() as slot:
                yield slot
                yield from self._serve_stages(visit)

    def _serve_stages(self, visit: Visit) -> Generator[Event, object, None]:
        self.begin(visit)
        for stage in visit.stages:
            seconds = self._seconds(stage)
            if not is_time(seconds):
                raise ScenarioError(
                    f"{self.name}: the service time of {stage} must be a finite number >= 0 s, "
                    f"got {seconds} at {self.env.now} s"
                )
            yield self.env.timeout(float(seconds))
            if self.fetch is not None:
                yield from self._bring(self.fetch, stage)
            if stage.grows:
                let_grow(self.name, visit, self._growth, self.env.now)

    def _bring(self, fetch: Fetch, stage: Stage) -> Generator[Event, object, None]:
        """Wait until a stage's bytes are there."""
        if self.network is not None and (ways := self.network.ways) is not None:
            num_bytes = fetch.num_bytes(stage)
            yield ways.carry(fetch.source, fetch.destinations, num_bytes)
