"""Closed loops: each user takes the next request, or session, when the last one has ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from itertools import chain, groupby
from typing import Generic, TypeVar

from numpy.random import Generator as Rng
from simpy.events import Event

from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.core.visit import Failure, Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.load_generation.base import LoadGenerator
from mist_sim.traces import ClosedLoop, Retries

Unit = TypeVar("Unit")


class _Loop(LoadGenerator, ABC, Generic[Unit]):
    """A closed loop: users, each of whom takes the next unit of work after the last has ended.

    loop: how many users there are, when they begin, and how long they think in between.
    """

    def __init__(
        self,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        retries: Retries | None,
        rng: Rng,
        loop: ClosedLoop,
    ) -> None:
        super().__init__(env, coordinator, recorder, retries, rng)
        self.loop = loop

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
            next_at = ended_at + self.loop.think_time
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
