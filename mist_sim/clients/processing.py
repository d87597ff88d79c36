"""A client of identical workers that serve one stage each: MIST's sequential scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress

import simpy
from simpy.events import Event, Process

from mist_sim.clients.base import Client
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError


class SequentialClient(Client):
    """Workers that take visits in order of arrival and serve their stages one after another.

    serves: the stage kinds. num_workers: visits served at once (CPU cores, tool slots; >= 1).
    service_time: seconds that a stage takes on one worker (finite, >= 0), from its parameters.
    A visit that is given up leaves at once; its worker takes the next one.
    Raises ValueError for num_workers below 1. Source: MIST §III-E, scheduler "Sequential".
    """

    def __init__(
        self,
        name: str,
        *,
        serves: Iterable[str],
        service_time: Callable[[Stage], float],
        num_workers: int = 1,
    ) -> None:
        super().__init__(name, frozenset([serves] if isinstance(serves, str) else serves))
        if num_workers < 1:
            raise ValueError(f"num_workers must be >= 1, got {num_workers}")
        self.num_workers = num_workers
        self.service_time = service_time

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        super().start(env, client_id, recorder)
        self._workers = simpy.Resource(env, self.num_workers)
        self._services: dict[Visit, Process] = {}  # of visits that may be given up

    def accept(self, visit: Visit) -> None:
        service = self.env.process(self._work(visit))
        if visit.request.limits is not None:
            self._services[visit] = service

    def abort(self, visit: Visit) -> None:
        """A visit that is given up leaves the queue, or its worker, at once."""
        self._services[visit].interrupt()

    def _work(self, visit: Visit) -> Generator[Event, object, None]:
        with suppress(simpy.Interrupt):
            yield from self._serve(visit)
        self._services.pop(visit, None)
        self.finish(visit)

    def _serve(self, visit: Visit) -> Generator[Event, object, None]:
        with self._workers.request() as turn:
            yield turn
            self.begin(visit)
            for stage in visit.stages:
                seconds: object = self.service_time(stage)
                if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
                    raise ScenarioError(
                        f"{self.name}: service_time({stage}) must be finite and >= 0 s, "
                        f"got {seconds} at {self.env.now} s"
                    )
                yield self.env.timeout(seconds)
