"""Open loops: requests arrive at their own times, independently of earlier ones.

The plain walk: a request that one client serves whole, from its arrival to its end.

Most runs have only such requests. The coordinator would run a process that waits for the visit;
here the same work is one call at the arrival and one at the end. The order of the records and all
times are bit-identical (`tests/property/test_step_core.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

from numpy.random import Generator as Rng
from simpy.events import Event

from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.front_end import ApiServers
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.core.visit import SERVED, Failure, Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import InvariantError
from mist_sim.load_generation.base import LoadGenerator
from mist_sim.routers import RefusalError
from mist_sim.traces import Retries

Ended = Callable[[Request, list[Visit], Failure | None], None]
"""Takes a request that is over, its visit, if there was one, and how it failed."""


class PlainWalk:
    """Walks requests through clients whose traits say `serves_whole`.

    ended: called to record a request that ended. counted: called after that with the request and
        its number of visits. at_once: whether both happen as the step ends rather than in the later
        phase in which requests move: if all requests walk plainly and no other part reads the
        records meanwhile, the result is the same.
    """

    def __init__(
        self,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        ended: Ended,
        counted: Callable[[Request, int], None],
        *,
        at_once: bool,
    ) -> None:
        self._env, self._recorder = env, recorder
        self._coordinator, self._route = coordinator, coordinator.dispatch.route
        self._ended, self._counted = ended, counted
        self._leave = self._end if at_once else self._end_soon

    def begin(self, request: Request) -> None:
        """Take a request that arrives now to a client."""
        stages, sent_at = request.stages, request.arrival_time
        request.send(self._env.now if sent_at is None else sent_at)
        try:
            client = self._route(request, stages[0])
        except RefusalError as refusal:
            self._ended(request, [], self._coordinator.refused(refusal))
            return
        if client is None:
            self._ended(request, [], self._coordinator.unserved(request, stages[0], None))
        else:
            client.serve_whole(request, stages, self._leave)

    def _end(self, client_id: int, visit: Visit) -> None:
        """Write down a visit that is over, and the request with it."""
        if visit.outcome is SERVED and visit.first_token_at == visit.first_token_at:
            request = visit.request
            request.to_serve = ()
            self._recorder.record_whole(client_id, visit)
            self._counted(request, 1)
        else:
            self._recorder.record_visit(client_id, visit)
            self._end_now(visit, None)

    def _end_soon(self, client_id: int, visit: Visit) -> None:
        self._recorder.record_visit(client_id, visit)
        event = self._env.at(self._env.now)
        event.callbacks.append(partial(self._end_now, visit))

    def _end_now(self, visit: Visit, _: Event | None) -> None:
        request, outcome = visit.request, visit.outcome
        if outcome is SERVED:
            request.to_serve = ()
            self._ended(request, [visit], None)
        elif isinstance(outcome, Failure):
            self._ended(request, [visit], outcome)
        else:
            raise InvariantError(
                f"a visit of request {request.request_id} ended with {outcome} at "
                f"{self._env.now} s, although its client has the trait serves_whole"
            )


class OpenLoop(LoadGenerator):
    """Sends each request at its arrival time; the requests are pulled one ahead."""

    _plain: PlainWalk | None = None

    def walk_plainly(self, *, at_once: bool) -> None:
        """Walk all requests plainly from now on (see `PlainWalk`); retries must be off."""
        self.ends_begin_nothing = at_once
        self._plain = PlainWalk(
            self.env,
            self.coordinator,
            self.recorder,
            self._end_plainly,
            self._count_plainly,
            at_once=at_once,
        )

    def start(self, requests: Iterator[Request]) -> None:
        """Start to send; plain walks need an event for each arrival, and no process."""
        if self._plain is None:
            super().start(requests)
            return
        self._num_sources = 1
        self._plainly = self._plain, requests
        self._await_next(None)

    def _await_next(self, event: Event | None) -> None:
        """Schedule the next request's arrival. event: of the arrival before; None: the first."""
        env, (_, requests) = self.env, self._plainly
        request = next(requests, None)
        if request is None:
            self._stop_sending()
            return
        self._next, time = request, request.arrival_time
        if time is None:
            time = _arrival_time(request, env)
        if event is None:
            event = env.at(time)
            event.callbacks.append(self._arrive)
        else:
            env.repeat(event, self._arrive, time)

    def _arrive(self, event: Event) -> None:
        """Let a request arrive at the front end if there is one, else at a client."""
        self.num_sent += 1
        env, request, servers = self.env, self._next, self.servers
        if servers is None:
            self._plainly[0].begin(request)
        else:
            parsed_at = servers.parsed_at(env.now)
            if parsed_at > env.now:
                env.at(parsed_at).callbacks.append(partial(self._parsed, request, servers))
            else:
                self._parsed(request, servers)
        self._await_next(event)

    def _parsed(self, request: Request, servers: ApiServers, _: Event | None = None) -> None:
        """Take a request from its parsing to an engine's queue."""
        enters_at = servers.enters_at(self.env.now, request.num_prompt_tokens)
        if enters_at > self.env.now:
            self.env.at(enters_at).callbacks.append(partial(self._enter, request))
        else:
            self._plainly[0].begin(request)

    def _enter(self, request: Request, _: Event) -> None:
        """Take a request from the front end to a client."""
        self._plainly[0].begin(request)

    def _end_plainly(self, request: Request, visits: list[Visit], failure: Failure | None) -> None:
        """Note the end of a request that took the plain walk."""
        entered_at = visits[0].queued_at if visits else self.env.now
        request.front_end = entered_at - request.sent_at
        if failure is None:
            leaving = self._leaves_after(visits)
            request.front_end += leaving
            self.recorder.record_end(request, visits, self.env.now + leaving)
        else:
            self.recorder.record_end(request, visits, failure.time, failure, 1, visits)
        self._count_plainly(request, len(visits))

    def _count_plainly(self, request: Request, num_visits: int) -> None:
        self.num_visits.append(num_visits)
        self.num_stages.append(request.num_stages)
        self._count_end(request)

    def _generate(self, requests: Iterator[Request]) -> Generator[Event, object, None]:
        for request in requests:
            yield self.env.at(_arrival_time(request, self.env))
            self.env.start(self.send(request))
        self._stop_sending()


class CappedOpenLoop(LoadGenerator):
    """An open loop with at most so many requests under way; others wait with their sender.

    They leave in order of arrival, each when the one before it has left and a seat is free, and
    arrive when they are sent: latencies do not count the wait. Source: the semaphore in
    `benchmark` of vllm/benchmarks/serve.py (0.19), which is taken before a request's clock starts.

    max_concurrency: most requests that are under way (>= 1).
    """

    def __init__(
        self,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        retries: Retries | None,
        rng: Rng,
        max_concurrency: int,
    ) -> None:
        super().__init__(env, coordinator, recorder, retries, rng)
        self.max_concurrency = max_concurrency
        self._num_under_way = 0
        self._seat: Event | None = None  # happens when one is free, where a sender waits for it

    def _generate(self, requests: Iterator[Request]) -> Generator[Event, object, None]:
        for request in requests:
            if request.arrival_time is None:
                raise InvariantError(
                    f"open-loop request {request.request_id} has no arrival time at "
                    f"{self.env.now} s"
                )
            if request.arrival_time > self.env.now:
                yield self.env.at(request.arrival_time, MOVE)
            if self._num_under_way == self.max_concurrency:
                self._seat = self.env.event()
                yield self._seat
            request.arrival_time = self.env.now
            self._num_under_way += 1
            self.env.start(self._send_one(request))
        self._stop_sending()

    def _send_one(self, request: Request) -> Generator[Event, Visit, None]:
        yield from self.send(request)
        self._num_under_way -= 1
        if self._seat is not None:
            seat, self._seat = self._seat, None
            seat.succeed()


def _arrival_time(request: Request, env: Environment) -> float:
    """Return when a request of an open loop arrives, seconds."""
    if request.arrival_time is None:
        raise InvariantError(
            f"open-loop request {request.request_id} has no arrival time at {env.now} s"
        )
    return request.arrival_time
