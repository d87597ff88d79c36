"""Events that recur without end: looks at queues, and random failures."""

from __future__ import annotations

from collections.abc import Callable

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.environment import CHANGE, Environment, NothingLeftError


class Endless:
    """Schedules recurring events, and ends a run in which no other event is left.

    Looks and further failures do not help requests that wait inside clients for one another's
    memory, unless one of these fails; nor do new clients, which serve only requests waiting at the
    gateway.

    anybody_waits: returns whether requests wait at the gateway. failing: clients that fail again
        and again.
    """

    def __init__(self, env: Environment, anybody_waits: Callable[[], bool]) -> None:
        self.failing: list[Client] = []
        self._env = env
        self._anybody_waits = anybody_waits
        self._events: set[Event] = set()

    def at(self, time: float) -> Event:
        """Return an event at a time (seconds), in the phase of changes.

        It raises NothingLeftError if only such events are left, and they have no effect.
        """
        event = self._env.at(max(time, self._env.now), CHANGE)
        event.callbacks.append(self._check)
        self._events.add(event)
        return event

    def _check(self, event: Event) -> None:
        self._events.discard(event)
        if self._env.only_waits_for(self._events) and not self._may_change_something():
            raise NothingLeftError("no events are left except looks and failures at random")

    def _may_change_something(self) -> bool:
        return self._anybody_waits() or any(not client.is_empty for client in self.failing)
