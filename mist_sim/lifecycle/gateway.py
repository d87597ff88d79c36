"""Where requests wait while no client is up that could serve them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator
from functools import partial
from math import inf
from typing import Any

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.clients.deadlines import given_up, limits_of
from mist_sim.core.request import Request
from mist_sim.core.visit import Failure
from mist_sim.environment import GIVE_UP, MOVE, Environment
from mist_sim.lifecycle.fleet import Need


class Gateway:
    """Holds requests until a client comes up, first come first served.

    A request that can wait no longer gives up; if no client can come any more, it is rejected.

    why_nobody: returns why no client for a stage will come any more; None: one may.
    activate: called when a request has begun to wait.
    """

    def __init__(
        self,
        env: Environment,
        why_nobody: Callable[[Need], str | None],
        activate: Callable[[], None],
    ) -> None:
        self._env = env
        self._why_nobody = why_nobody
        self._activate = activate
        self._waiting: dict[Need, deque[Event]] = {}

    def num_waiting(self, clients: Collection[Client]) -> int:
        """Return how many requests wait that any of some clients could serve."""
        return sum(
            len(places)
            for need, places in self._waiting.items()
            if places and any(need.is_met_by(client) for client in clients)
        )

    @property
    def anybody_waits(self) -> bool:
        """Whether a request waits."""
        return any(self._waiting.values())

    def wait(
        self, request: Request, kind: str, near: frozenset[str] | None = None
    ) -> Generator[Event, Any, Failure | None]:
        """Wait until a client that serves a stage comes up; return why it is given up, or None."""
        need = Need(kind, request.model, near)
        if reason := self._why_nobody(need):
            return Failure("rejected", self._env.now, reason)
        place = Event(self._env)
        places = self._waiting.setdefault(need, deque())
        places.append(place)
        for time, limit in limits_of(request)[:1]:
            if time < inf:
                timer = self._env.at(max(time, self._env.now), GIVE_UP)
                give_up = partial(self._give_up, request, places, place, limit)
                timer.callbacks.append(give_up)
        self._activate()
        failure: Failure | None = yield place
        return failure

    def _give_up(
        self, request: Request, places: deque[Event], place: Event, limit: str, _: Event
    ) -> None:
        """End a request that waits, at one of its limits."""
        if not place.triggered:
            places.remove(place)
            self._env.trigger(place, self._env.now, MOVE, given_up(request, limit, self._env.now))

    def came_up(self, client: Client) -> None:
        """Let all go on that wait for stages which a client serves."""
        for need, places in self._waiting.items():
            if need.is_met_by(client):
                self._let_go(places, None)

    def went_away(self) -> None:
        """Reject requests for which no client can come any more."""
        for need, places in self._waiting.items():
            if places and (reason := self._why_nobody(need)):
                self._let_go(places, Failure("rejected", self._env.now, reason))

    def _let_go(self, places: deque[Event], failure: Failure | None) -> None:
        while places:
            self._env.trigger(places.popleft(), self._env.now, MOVE, failure)
