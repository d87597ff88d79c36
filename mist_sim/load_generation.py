"""When the requests of a workload are sent, and how often, until each has ended for good.

Open loops: requests arrive at their own times, independently of earlier ones.

The plain walk: a request that one client serves whole, from its arrival to its end.

Most runs have only such requests. The coordinator would run a process that waits for the visit;
here the same work is one call at the arrival and one at the end. The order of the records and all
times are bit-identical (`tests/property/test_step_core.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from numpy.random import Generator as Rng
from simpy.events import Event

from mist_sim.coordination.coordinator import Coordinator
from mist_sim.coordination.entrance import Entrance
from mist_sim.core.front_end import ApiServers
from mist_sim.core.recorder import End, Recorder
from mist_sim.core.request import Request
from mist_sim.core.visit import SERVED, Failure, Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.routers import RefusalError
from mist_sim.traces import ClosedLoop, Retries

__all__ = ["CappedOpenLoop", "LoadGenerator", "OpenLoop", "SessionUsers", "Users", "Watch"]


class Watch(Protocol):
    """A watcher of the workload, with a gateway's knowledge."""

    def sent(self, request: Request, now: float, /) -> None:
        """A request is sent for the first time. now: seconds."""

    def served(self, request: Request, num_output_tokens: int, /) -> None:
        """A request was served, and emitted so many tokens."""


@dataclass(eq=False)
class LoadGenerator(ABC):
    """Sends requests through the coordinator until each has ended for good, and records how.

    Subclasses decide when a request is sent.

    retries: when a failed request is sent again; None: never. rng: draws the jitter of the waits in
        between.
    on_end: called with (requests that have ended, seconds) whenever one of the workload's ends,
        children apart; None at first.
    watch: notified of requests sent and served; None: no watcher.
    servers: the front end between users and clients; None: none. entrance: where requests are
        admitted; None: all go in. Children of requests are not asked for.
    all_ended: happens when the last request has ended and no other will be sent.
    ends_begin_nothing: whether the end of a request never makes anything begin, nor is looked at
        before the next one comes.
    num_sent, num_ended: requests so far, however often each was sent.
    num_visits, num_stages: of the requests that have ended, in the order in which they did: visits
        in all attempts, and stages of the pipeline. The check of conservation reads them.
    """

    env: Environment
    coordinator: Coordinator
    recorder: Recorder
    retries: Retries | None
    rng: Rng

    ends_begin_nothing = False

    def __post_init__(self) -> None:
        self.on_end: Callable[[int, float], None] | None = None
        self.watch: Watch | None = None
        self.servers: ApiServers | None = None
        self.entrance: Entrance | None = None
        self.all_ended = self.env.event()
        self.num_sent = self.num_ended = 0
        self.num_visits: list[int] = []
        self.num_stages: list[int] = []
        self._num_own_ended = 0  # without children
        self._left_at = 0.0  # when users have all answers that have ended, if nothing waits for it
        self._num_sources = 0  # processes that may send another request

    def start(self, requests: Iterator[Request]) -> None:
        """Begin to send requests, at time zero."""
        self._num_sources = 1
        self.env.start(self._generate(requests))

    @abstractmethod
    def _generate(self, requests: Iterator[Request]) -> Generator[Event, object, None]:
        """Send each request at its time; call `_stop_sending` at the end."""

    def spawn(self, child: Request) -> Event:
        """Send the child of a request; the event's value is how it failed, None when it did not."""
        return self.env.process(self.send(child))

    def send(self, request: Request) -> Generator[Event, Visit, Failure | None]:
        """Send a request that arrives now, and return how it ended, None when it is served.

        The time of a failure may be earlier than now: the user goes at once, the work on its
        request ends with the step in flight.
        """
        self.num_sent += 1
        if self.watch is not None:
            self.watch.sent(request, self.env.now)
        num_attempts = 0
        in_vain: list[Visit] = []
        while True:
            num_attempts += 1
            visits: list[Visit] = []
            request.send(self.env.now)
            if self.entrance is None or request.parent_id is not None:
                failure = yield from self.coordinator.walk(request, visits)
            else:
                failure = yield from self._walk_inside(self.entrance, request, visits)
            if failure is None:
                break
            in_vain += visits
            resend_at = self._resend_at(failure, num_attempts)
            if resend_at is None:
                break
            gone_at = _gone_at(request)
            yield self.env.at(max(self.env.now, min(resend_at, gone_at)))
            if gone_at <= resend_at:
                visits = []
                failure = Failure("cancelled", gone_at, "the user went away between two attempts")
                break
        leaving = self._leaves_after(visits) if failure is None else 0.0
        request.front_end += leaving
        ended_at = self.env.now + leaving if failure is None else failure.time
        # rows are in the order in which steps end, as in plain walks
        self.recorder.record_end(End(request, visits, ended_at, failure, num_attempts, in_vain))
        self._count_row(request, len(in_vain) if failure else len(in_vain) + len(visits))
        if leaving:
            yield self.env.at(ended_at)
        if self.watch is not None and failure is None:
            self.watch.served(request, sum([visit.num_output_tokens for visit in visits]))
        self._count_end(request)
        return failure

    def _walk_inside(
        self, entrance: Entrance, request: Request, visits: list[Visit]
    ) -> Generator[Event, Any, Failure | None]:
        """Walk a request once the gateway lets it in; return how it failed, or None."""
        failure = yield from entrance.enter(request)
        if failure is None:
            failure = yield from self.coordinator.walk(request, visits)
            entrance.leave(request)
        return failure

    def _leaves_after(self, visits: list[Visit]) -> float:
        """Return the seconds from the end of the last visit until the user has the answer."""
        return 0.0 if self.servers is None else self.servers.leaves_after(visits)

    def _resend_at(self, failure: Failure, num_attempts: int) -> float | None:
        """Return when a request is sent again after a failure, seconds; None: it is not."""
        retries = self.retries
        if retries is None or num_attempts >= retries.max_attempts:
            return None
        hopeless = failure.status == "rejected" and not failure.is_busy
        if failure.status not in retries.on or hopeless:
            return None
        return failure.time + retries.wait(num_attempts, self.rng.random())

    def _count_row(self, request: Request, num_visits: int) -> None:
        """Note what the row of a request counts, for the check of conservation."""
        self.num_visits.append(num_visits)
        self.num_stages.append(request.num_stages)

    def _count_end(self, request: Request) -> None:
        """Note that a request has ended for good, and whether it was the last."""
        self.num_ended += 1
        if self.on_end is not None and request.parent_id is None:
            self._num_own_ended += 1
            self.on_end(self._num_own_ended, self.env.now)
        if not self._num_sources:
            self._stop_when_all_ended()

    def _stop_sending(self) -> None:
        """Note that a process will not send another request."""
        self._num_sources -= 1
        self._stop_when_all_ended()

    def _stop_when_all_ended(self) -> None:
        all_ended = not self._num_sources and self.num_ended == self.num_sent
        if all_ended and not self.all_ended.triggered:
            now = self.env.now
            self.env.trigger(self.all_ended, max(now, self._left_at), MOVE)


def _gone_at(request: Request) -> float:
    """Return when the user of a request goes away, seconds."""
    if request.limits is None or request.arrival_time is None:
        return inf
    return request.arrival_time + request.limits.patience


Unit = TypeVar("Unit")


@dataclass(eq=False)
class _Loop(LoadGenerator, ABC, Generic[Unit]):
    """A closed loop: users, each of whom takes the next unit of work after the last has ended.

    loop: how many users there are, and when they begin. think_times: seconds in between.
    """

    loop: ClosedLoop
    think_times: Iterator[float]

    @abstractmethod
    def _units(self, requests: Iterator[Request]) -> Iterator[Unit]:
        """Return the items that users take one at a time: requests or sessions."""

    @abstractmethod
    def _do(self, unit: Unit) -> Generator[Event, Visit, Failure | None]:
        """Send a unit's requests; return the failure of the last one, or None."""

    def _generate(self, requests: Iterator[Request]) -> Generator[Event, object, None]:
        """Start the users, as long as there is work for them."""
        units = self._units(requests)
        for number in range(self.loop.concurrency):
            start = self.loop.start(number)
            if start > self.env.now:
                yield self.env.at(start)
            first = next(units, None)
            if first is None:
                break
            self._num_sources += 1
            self.env.start(self._user(first, units))
        self._stop_sending()

    def _user(self, first: Unit, others: Iterator[Unit]) -> Generator[Event, Visit, None]:
        for unit in chain((first,), others):
            failure = yield from self._do(unit)
            ended_at = self.env.now if failure is None else failure.time
            next_at = ended_at + next(self.think_times)
            if next_at > self.env.now:
                yield self.env.at(next_at)
        self._stop_sending()


class Users(_Loop[Request]):
    """Users; each sends its next request when the last one has ended."""

    def _units(self, requests: Iterator[Request]) -> Iterator[Request]:
        return requests

    def _do(self, unit: Request) -> Generator[Event, Visit, Failure | None]:
        unit.arrival_time = self.env.now
        return self.send(unit)


class SessionUsers(_Loop[list[Request]]):
    """Users; each goes through whole sessions, one after the other.

    The workload must list a session's requests one after another. All of them are sent, even after
    one that failed. A request without a session counts as a session. Raises ScenarioError for a
    session that resumes after others: its turns would lose the waits between them.
    """

    def _units(self, requests: Iterator[Request]) -> Iterator[list[Request]]:
        def session_of(request: Request) -> tuple[int | None, int]:
            own = request.request_id if request.session_id is None else -1
            return request.session_id, own

        begun: set[int] = set()
        for (session_id, _), session in groupby(requests, session_of):
            unit = list(session)
            if session_id is not None and session_id in begun:
                raise ScenarioError(
                    f"arrivals: requests of a session must come one after another with sessions: "
                    f"true; request {unit[0].request_id} belongs to session {session_id}, and "
                    "others came between; sort the trace by session (agentic: leave start_every "
                    "out), or leave sessions out"
                )
            if session_id is not None:
                begun.add(session_id)
            yield unit

    def _do(self, unit: list[Request]) -> Generator[Event, Visit, Failure | None]:
        failure: Failure | None = None
        for position, request in enumerate(unit):
            if position and request.think_time:
                yield self.env.at(self.env.now + request.think_time)
            request.arrival_time = self.env.now
            failure = yield from self.send(request)
        return failure


Ended = Callable[[Request, list[Visit], Failure | None], None]
"""Takes a request that is over, its visit, if there was one, and how it failed."""


@dataclass(eq=False)
class PlainWalk:
    """Walks requests through clients whose traits say `serves_whole`.

    ended: called to record a request that ended. counted: called after that with the request, its
        number of visits, and when its user has all of it (seconds). at_once: whether both happen as
        the step ends rather than in the later phase in which requests move: if all requests walk
        plainly and no other part reads the records meanwhile, the result is the same.
    """

    _env: Environment
    _coordinator: Coordinator
    _recorder: Recorder
    _ended: Ended
    _counted: Callable[[Request, int, float], None]
    at_once: bool

    def __post_init__(self) -> None:
        self._route = self._coordinator.dispatch.route
        self._leave = self._end if self.at_once else self._end_soon

    def begin(self, request: Request, _: Event | None = None) -> None:
        """Take a request that arrives now, or comes from the front end, to a client."""
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
            left_at = self._recorder.record_whole(client_id, visit)
            self._counted(request, 1, left_at)
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
            at_once,
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
        elif servers.parses and (parsed_at := servers.parsed_at(env.now)) > env.now:
            env.at(parsed_at).callbacks.append(partial(self._parsed, request, servers))
        else:
            self._parsed(request, servers)
        self._await_next(event)

    def _parsed(self, request: Request, servers: ApiServers, _: Event | None = None) -> None:
        """Take a request from its parsing to an engine's queue."""
        env, begin = self.env, self._plainly[0].begin
        enters_at = servers.enters_at(env.now, request.num_prompt_tokens)
        if enters_at > env.now:
            env.at(enters_at).callbacks.append(partial(begin, request))
        else:
            begin(request)

    def _end_plainly(self, request: Request, visits: list[Visit], failure: Failure | None) -> None:
        """Note the end of a request that took the plain walk."""
        entered_at = visits[0].queued_at if visits else self.env.now
        request.front_end = entered_at - request.sent_at
        if failure is None:
            leaving = self._leaves_after(visits)
            request.front_end += leaving
            left_at = self.env.now + leaving
            self.recorder.record_end(End(request, visits, left_at))
        else:
            left_at = failure.time
            self.recorder.record_end(End(request, visits, left_at, failure, 1, visits))
        self._count_plainly(request, len(visits), left_at)

    def _count_plainly(self, request: Request, num_visits: int, left_at: float) -> None:
        """Note what the row of a request counts, and its end; the run goes on until `left_at`."""
        if left_at > self._left_at:  # noqa: PLR1730 - max() is a call a request
            self._left_at = left_at
        self.num_visits.append(num_visits)
        self.num_stages.append(request.num_stages)
        self._count_end(request)

    def _generate(self, requests: Iterator[Request]) -> Generator[Event, object, None]:
        for request in requests:
            yield self.env.at(_arrival_time(request, self.env))
            self.env.start(self.send(request))
        self._stop_sending()


@dataclass(eq=False)
class CappedOpenLoop(LoadGenerator):
    """An open loop with at most so many requests under way; others wait with their sender.

    They leave in order of arrival, each when the one before it has left and a seat is free, and
    arrive when they are sent: latencies do not count the wait. Source: the semaphore in
    `benchmark` of vllm/benchmarks/serve.py (0.19), which is taken before a request's clock starts.

    max_concurrency: most requests that are under way (>= 1).
    """

    max_concurrency: int
    _num_under_way: int = 0
    _seat: Event | None = None  # happens when one is free, where a sender waits for it

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
