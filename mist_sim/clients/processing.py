"""A client of identical workers that serve one stage each: MIST's sequential scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass

import simpy
from simpy.events import Event, Process

from mist_sim.clients.base import Client
from mist_sim.clients.registry import CLIENTS
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.stages import ToolCall
from mist_sim.units import Seconds


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """How many seconds a stage takes on one worker: `base`, and `per_token` for each token.

    Without a base, a tool call takes its own duration and other stages take nothing but their
    tokens' time. A stage without `num_tokens` counts as none.
    """

    base: float | None
    per_token: float

    def __call__(self, stage: Stage) -> float:
        """Return the duration of a stage in seconds."""
        base = self.base
        if base is None:
            base = stage.duration if isinstance(stage, ToolCall) else 0.0
        return base + self.per_token * int(getattr(stage, "num_tokens", 0))


@CLIENTS.register("sequential")
@dataclass(eq=False)
class SequentialClient(Client):
    """Workers that take one visit each: text processing, tools, retrieval.

    They take visits in order of arrival and serve their stages one after another. A visit that is
    given up leaves at once; its worker takes the next one.

    serves: the stages that it serves, such as [preprocess].
    num_workers: visits served at once.
    base_time: time that every stage takes; a tool_call takes its own without it.
    time_per_token: time for each of a stage's num_tokens, on top.
    service_time: seconds that a stage takes on one worker (finite, >= 0), from the stage itself, in
        place of the other two.
    Raises ValueError for values outside these ranges, and where no time is given.
    Source: MIST §III-E, scheduler "Sequential".
    """

    name: str
    _: KW_ONLY
    serves: Collection[str]
    num_workers: int = 1
    base_time: Seconds | None = None
    time_per_token: Seconds | None = None
    service_time: Callable[[Stage], float] | None = None

    def __post_init__(self) -> None:
        serves = [self.serves] if isinstance(self.serves, str) else self.serves
        super().__init__(self.name, tuple(serves))
        if self.num_workers < 1:
            raise ValueError(f"num_workers must be >= 1, got {self.num_workers}")
        self._check_times()
        self._seconds = self.service_time or ServiceTime(self.base_time, self.time_per_token or 0.0)

    def _check_times(self) -> None:
        for name in ("base_time", "time_per_token"):
            if not 0 <= (getattr(self, name) or 0.0) < math.inf:
                raise ValueError(f"{name} must be finite and >= 0 s, got {getattr(self, name)}")
        has_times = (self.base_time, self.time_per_token) != (None, None)
        if self.service_time is not None and has_times:
            raise ValueError("service_time must be left out with base_time or time_per_token")
        timed = has_times or self.service_time is not None or set(self.serves) <= {ToolCall.kind}
        if not timed:
            raise ValueError(
                "base_time or service_time is required; nothing says how long it takes"
            )

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
                seconds: object = self._seconds(stage)
                if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
                    raise ScenarioError(
                        f"{self.name}: service_time({stage}) must be finite and >= 0 s, "
                        f"got {seconds} at {self.env.now} s"
                    )
                yield self.env.timeout(seconds)
