"""One run: the clock, the seed, the clients, the workload; `run()` returns the records."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from time import monotonic

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.clients.roster import Roster
from mist_sim.coordinator import Coordinator
from mist_sim.core.request import Request
from mist_sim.core.visit import Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.metrics import ColumnRecorder, Result, Slo
from mist_sim.rng import Streams
from mist_sim.routers import RoundRobinRouter, Router, Seeded
from mist_sim.sender import Sender
from mist_sim.traces import ClosedLoop, Workload

Progress = Callable[[int, float], None]
"""Called with (requests finished or failed, simulated seconds), ten times a second at most."""

_PROGRESS_EVERY = 0.1  # seconds of the user's time
_OBJECTS_BETWEEN_COLLECTIONS = 500_000


class Simulation:
    """Clients, a router and a workload, put together for one run.

    clients: at least one, with unique names. seed: of all random streams (>= 0).
    slo: limits for goodput. warmup: seconds at the start whose arrivals do not count in the
    summary. Raises ScenarioError for clients without unique names.
    """

    def __init__(
        self,
        *,
        clients: Sequence[Client],
        workload: Workload,
        router: Router | None = None,
        seed: int = 0,
        slo: Slo | None = None,
        warmup: float = 0.0,
    ) -> None:
        clients = list(clients)
        names = [client.name for client in clients]
        if not names:
            raise ScenarioError("clients: a simulation needs at least one client, got none")
        for name, count in Counter(names).items():
            if count > 1:
                raise ScenarioError(f"clients: names must be unique, got {name!r} {count} times")
        if seed < 0:
            raise ScenarioError(f"seed must be >= 0, got {seed}")
        if not 0 <= warmup < math.inf:
            raise ScenarioError(f"warmup must be finite and >= 0 s, got {warmup}")
        self.clients = clients
        self.workload = workload
        self.router = router if router is not None else RoundRobinRouter()
        self.streams = Streams(seed)
        self.slo = slo or Slo()
        self.warmup = warmup

    def run(self, progress: Progress | None = None) -> Result:
        """Simulate until every request has finished or failed.

        Raises ScenarioError for input that shows itself bad during the run (a trace row), and
        InvariantError when the simulation breaks a law of its own.
        """
        self._env = env = Environment()
        recorder = ColumnRecorder()
        roster = Roster()
        for client in self.clients:
            client.streams = self.streams
            client.start(env, roster.next_id(), recorder)
            roster.join(client)
        if isinstance(self.router, Seeded):
            self.router.seed(self.streams.generator("router"))
        self._sender = Sender(
            env,
            Coordinator(env, roster, self.router),
            recorder,
            self.workload.retries,
            self.streams.generator("retries"),
        )
        self._progress, self._next_progress = progress, 0.0
        self._num_injected = 0
        self._all_sent = False
        self._all_done = env.event()
        requests = self.workload.requests(self.streams)
        if isinstance(self.workload.closed_loop, ClosedLoop):
            env.start(self._start_users(self.workload.closed_loop, requests))
        else:
            env.start(self._inject(requests))
        try:
            with _rare_collections():
                env.run(until=self._all_done)
        except RuntimeError as error:
            if self._all_done.triggered or env.peek() != float("inf"):
                raise
            raise InvariantError(
                f"nothing left to happen at {env.now} s with "
                f"{self._num_injected - self._sender.num_ended} requests in flight"
            ) from error
        self._sender.check_conservation(self._num_injected)
        return Result(
            recorder=recorder,
            client_names=[client.name for client in self.clients],
            num_gpu_blocks=[client.num_gpu_blocks for client in self.clients],
            estimates={c.name: c.estimate for c in self.clients if c.estimate is not None},
            assumed={c.name: c.assumed for c in self.clients if c.assumed},
            slo=self.slo,
            warmup=self.warmup,
            open_loop=self.workload.closed_loop is None,
        )

    def _inject(self, requests: Iterator[Request]) -> Generator[Event, object, None]:
        """Send open-loop requests at their arrival times, pulled one ahead."""
        for request in requests:
            if request.arrival_time is None:
                raise InvariantError(f"open-loop request {request.request_id} has no arrival time")
            yield self._env.at(request.arrival_time, MOVE)
            self._num_injected += 1
            self._env.start(self._follow(request))
        self._all_sent = True
        self._stop_when_done()

    def _start_users(
        self, loop: ClosedLoop, requests: Iterator[Request]
    ) -> Generator[Event, object, None]:
        """Let `concurrency` users send the requests, each the next one after its last."""
        self._num_sending = 1  # who starts the users, and then they
        for number in range(loop.concurrency):
            start = loop.start(number)
            if start > self._env.now:
                yield self._env.at(start)
            first = next(requests, None)
            if first is None:
                break
            self._num_sending += 1
            self._env.start(self._user(first, requests, loop.think_time))
        self._stop_sending()

    def _user(
        self, first: Request, others: Iterator[Request], think_time: float
    ) -> Generator[Event, float, None]:
        for request in chain((first,), others):
            request.arrival_time = self._env.now
            self._num_injected += 1
            ended_at = yield from self._follow(request)
            next_at = ended_at + think_time
            if next_at > self._env.now:
                yield self._env.at(next_at)
        self._stop_sending()

    def _stop_sending(self) -> None:
        self._num_sending -= 1
        self._all_sent = self._num_sending == 0
        self._stop_when_done()

    def _follow(self, request: Request) -> Generator[Event, Visit, float]:
        """Send a request, notice when it was the last, and return when it ended (seconds)."""
        ended_at = yield from self._sender.send(request)
        if self._progress is not None and (now := monotonic()) >= self._next_progress:
            self._progress(self._sender.num_ended, self._env.now)
            self._next_progress = now + _PROGRESS_EVERY
        if self._all_sent:
            self._stop_when_done()
        return ended_at

    def _stop_when_done(self) -> None:
        done = self._sender.num_ended == self._num_injected
        if self._all_sent and done and not self._all_done.triggered:
            self._all_done.succeed()


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for cyclic garbage less often than after every 700 new objects.

    Processes and their events refer to one another, so a run makes such garbage, but little.
    """
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
