"""Load generation: sends each request as often as its retries ask, and records how it ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from math import inf
from typing import Protocol

from numpy.random import Generator as Rng
from simpy.events import Event

from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.front_end import ApiServers
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.core.visit import Failure, Visit
from mist_sim.environment import Environment
from mist_sim.traces import Retries


class Watch(Protocol):
    """A watcher of the workload, with a gateway's knowledge."""

    def sent(self, request: Request, now: float, /) -> None:
        """A request is sent for the first time. now: seconds."""

    def served(self, request: Request, num_output_tokens: int, /) -> None:
        """A request was served, and emitted so many tokens."""


class LoadGenerator(ABC):
    """Sends requests through the coordinator until each has ended for good, and records how.

    Subclasses decide when a request is sent.

    retries: when a failed request is sent again; None: never. rng: draws the jitter of the waits in
        between.
    on_end: called with (requests that have ended, seconds) whenever one of the workload's ends,
        children apart; None at first.
    watch: notified of requests sent and served; None: no watcher.
    servers: the front end between users and clients; None: none.
    all_ended: happens when the last request has ended and no other will be sent.
    ends_begin_nothing: whether the end of a request never makes anything begin, nor is looked at
        before the next one comes.
    num_sent, num_ended: requests so far, however often each was sent.
    num_visits, num_stages: of the requests that have ended, in the order in which they did: visits
        in all attempts, and stages of the pipeline. The check of conservation reads them.
    """

    ends_begin_nothing = False

    def __init__(
        self,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        retries: Retries | None,
        rng: Rng,
    ) -> None:
        self.env = env
        self.coordinator = coordinator
        self.recorder = recorder
        self.retries = retries
        self.on_end: Callable[[int, float], None] | None = None
        self.watch: Watch | None = None
        self.servers: ApiServers | None = None
        self.all_ended = env.event()
        self.num_sent = 0
        self.num_ended = 0
        self.num_visits: list[int] = []
        self.num_stages: list[int] = []
        self._rng = rng
        self._num_own_ended = 0  # without children
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
            failure = yield from self.coordinator.walk(request, visits)
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
        self.recorder.record_end(request, visits, ended_at, failure, num_attempts, in_vain)
        self._count_row(request, len(in_vain) if failure else len(in_vain) + len(visits))
        if leaving:
            yield self.env.at(ended_at)
        if self.watch is not None and failure is None:
            self.watch.served(request, sum([visit.num_output_tokens for visit in visits]))
        self._count_end(request)
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
        return failure.time + retries.wait(num_attempts, self._rng.random())

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
            self.all_ended.succeed()


def _gone_at(request: Request) -> float:
    """Return when the user of a request goes away, seconds."""
    if request.limits is None or request.arrival_time is None:
        return inf
    return request.arrival_time + request.limits.patience
