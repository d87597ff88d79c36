"""SimPy's environment with absolute times and one written order for events at the same time.

A relative delay rounds: `now + (end - now)` need not be `end`. Steps of an engine end at times
that were computed as a vector, and an arrival on such a time must meet it to the bit, so events
here are scheduled at absolute times.

Ties in time are settled by phase:

0. Gateways poll clients for their loads.
1. Steps end: by client id, and within a client by engine.
2. Clients fail, come up, leave, or change role and chunk: in the order in which these events
   were scheduled.
3. What was sent over the network or loaded is there: in the order in which it was sent.
4. Requests move (arrive, or enter another queue): in the order in which these events were
    scheduled.
5. Users whose time limit has passed give up: by client id.
6. Engines plan: in the order in which their steps end.
7. Transfers that began or ended share their links anew.

An event of an earlier phase that is scheduled for the present time runs before the rest of the
later phases. So a request that is served exactly at its time-out counts as served. Results do not
depend on when the end of a step was scheduled: a run that was planned long ago ends at the same
position as one that was cut a moment ago.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

import simpy
from simpy.core import StopSimulation
from simpy.events import NORMAL, Event, Timeout

# A phase has a position for each client, engine or transfer, between it and the next phase: the
# n-th transfer arrives in ARRIVE + n. `MOVE` has one position, that of SimPy's own time-outs;
# SimPy's urgent events come just before it.
_PLACES = 2**40
POLL = -3 * _PLACES - 1
STEP_END = -2 * _PLACES - 1
CHANGE = -_PLACES - 1
ARRIVE = -_PLACES
MOVE = NORMAL
GIVE_UP = _PLACES
PLAN = 2 * _PLACES
SHARE = 3 * _PLACES
_ENGINES = 2**16  # places of one client

_new = object.__new__


def engine_phases(client_id: int, engine: int) -> tuple[int, int]:
    """Return the phases in which an engine of a client ends its steps, and in which it plans.

    client_id: below 2**24. engine: its number in the client, from 0, below 2**16.
    """
    place = client_id * _ENGINES + engine
    return STEP_END + place, PLAN + place


def give_up_phase(client_id: int) -> int:
    """Return the phase in which users give up on their visits to a client."""
    return GIVE_UP + client_id


class NothingLeftError(RuntimeError):
    """No event is scheduled any more, and the awaited one has not happened."""


class Due(Event):
    """An event that will succeed, at a time that is known from the start."""

    _ok = True
    _value = None


class StepCore(Protocol):
    """Takes the steps of engines between two events that others see (`clients/engine/core`)."""

    @property
    def next_time(self) -> float:
        """When it has something to do next, seconds; inf: never, as things are."""

    def advance(self, time: float, phase: int, /) -> bool:
        """Take the steps before an event; return True at the first that others see."""


class Stepper(Protocol):
    """The part of a run that steps engines."""

    @property
    def core(self) -> StepCore:
        """What takes the steps."""

    def let_run_ahead(self) -> None:
        """Let engines step before others step earlier: the end of a request begins nothing."""

    def tell(self) -> None:
        """Let others see the latest step; set the clock to its time."""

    def flush(self) -> None:
        """Write the steps so far that are not written yet."""


class Environment(simpy.Environment):
    """A SimPy environment whose events can be scheduled at an absolute time and phase.

    now: the present time, seconds. It is read far more often than it is set, so it is a plain
        attribute here, and SimPy's own one a property of the same value.
    phase: phase of the present event, while `run` waits for an event.
    agenda: scheduled events, a heap of (time, phase, number, event). next_number: returns the
        number of the next event. Hot code pushes events there directly instead of calling `at`.
    stepper: steps engines between two events; None: all engines wait for events of their own.
    """

    now: float = 0.0
    phase: int = MOVE

    def __init__(self) -> None:
        super().__init__()
        self._started = Due(self)  # what every generator has waited for at its start
        self.agenda: list[tuple[float, int, int, Event]] = self._queue  # type: ignore[assignment]
        self.next_number = self._eid.__next__
        self.stepper: Stepper | None = None

    @property
    def _now(self) -> float:
        return self.now

    @_now.setter
    def _now(self, time: float) -> None:
        self.now = time

    def at(self, time: float, phase: int = MOVE) -> Event:
        """Return an event that happens at `time` (seconds, not before now) in `phase`."""
        if not time >= self.now:
            raise _in_the_past(time, self.now)
        event = _new(Due)  # one call less than Due(self), for every event
        event.env = self
        event.callbacks = []
        heappush(self._queue, (time, phase, next(self._eid), event))  # type: ignore[misc]
        return event

    def timeout(self, delay: float, value: object = None) -> Timeout:  # type: ignore[override]
        """Return an event that happens in so many seconds.

        Raises ValueError for less than 0 s, and for what is no number.
        """
        if not (hasattr(delay, "__float__") and delay >= 0):
            raise ValueError(f"env.timeout needs seconds >= 0, got {delay!r} at {self.now:.6g} s")
        return Timeout(self, delay, value)

    def repeat(
        self, event: Event, callback: Callable[[Event], None], time: float, phase: int = MOVE
    ) -> None:
        """Let an event that has happened happen again, at `time` in `phase`, and call `callback`.

        Raises ValueError for the past.
        """
        if time < self.now:
            raise _in_the_past(time, self.now)
        event.callbacks = [callback]
        heappush(self._queue, (time, phase, next(self._eid), event))  # type: ignore[misc]

    def trigger(self, event: Event, time: float, phase: int, value: object = None) -> None:
        """Let a pending event succeed at `time` in `phase`. Raises ValueError for the past."""
        if time < self.now:
            raise _in_the_past(time, self.now)
        event._ok = True
        event._value = value
        heappush(self._queue, (time, phase, next(self._eid), event))  # type: ignore[misc]

    def happen(self, event: Event) -> None:
        """Make a pending event succeed now, before all other scheduled events."""
        event._ok = True
        event._value = None
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)

    def move(self, event: Event, time: float, phase: int) -> Event:
        """Schedule an event anew at an earlier time; its waiters wait for the new event.

        The old event stays in the queue without callbacks, and does nothing. Returns the new event.
        """
        if time < self.now:
            raise _in_the_past(time, self.now)
        earlier = _new(Due)  # as in `at`, without its call
        earlier.env = self
        earlier.callbacks, event.callbacks = event.callbacks, []
        heappush(self._queue, (time, phase, next(self._eid), earlier))  # type: ignore[misc]
        return earlier

    def put_off(self, event: Event) -> Event:
        """Let the waiters of a scheduled event wait for a pending one instead; return that."""
        pending = Event(self)
        pending.callbacks, event.callbacks = event.callbacks, []
        return pending

    def start(self, steps: Generator[Event, Any, object]) -> None:
        """Run a generator from now on; no process can wait for it or interrupt it.

        It costs only the events that it yields; a SimPy process adds one for its start and one for
        its end. An exception in it ends the run.
        """
        _Course(steps).go_on(self._started)

    def run(self, until: float | Event | None = None) -> Any:
        """Run until an event has happened, like SimPy's `run`, in a loop without a call per event.

        Raises NothingLeftError if the agenda is empty before that.
        """
        if not isinstance(until, Event) or until.processed:
            return super().run(until)
        until.callbacks.append(StopSimulation.callback)
        queue = self._queue
        try:
            while queue and self.stepper is None:  # a client that starts or changes may make one
                self.now, self.phase, _, event = heappop(queue)
                callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
                for callback in callbacks:
                    callback(event)
                if not event._ok and not hasattr(event, "_defused"):
                    raise event._value
            if self.stepper is not None:
                self._run_with_steps(self.stepper)
        except StopSimulation as stop:
            return stop.args[0]
        raise NothingLeftError("no events are left, and the awaited event has not occurred")

    def _run_with_steps(self, stepper: Stepper) -> None:
        """Run until nothing is left; between two events, engines step."""
        queue, core = self._queue, stepper.core
        while True:
            time, phase = queue[0][:2] if queue else (inf, 0)
            if core.next_time <= time and core.advance(time, phase):
                stepper.tell()
                continue
            if not queue:
                return
            self.now, self.phase, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value

    def step(self) -> None:
        """Take the next event, or the steps before it up to the first that others see.

        So `run(until=...)` with a time, and callers with a clock of their own, need not know when
        that is.
        """
        queue, stepper = self._queue, self.stepper
        if stepper is not None:
            time, phase = queue[0][:2] if queue else (inf, 0)
            if stepper.core.next_time <= time and stepper.core.advance(time, phase):
                stepper.tell()
                return
        super().step()

    def only_waits_for(self, known: Collection[Event]) -> bool:
        """Return whether only polls and the given events are scheduled, and no engine steps."""
        return not self._engines_step and all(
            phase == POLL or event in known or not event.callbacks
            for _, phase, _, event in self._queue
        )

    def only_has(self, phase: int) -> bool:
        """Return whether all scheduled events are of one phase, and no engine steps."""
        return not self._engines_step and all(
            scheduled == phase for _, scheduled, _, _ in self._queue
        )

    @property
    def _engines_step(self) -> bool:
        return self.stepper is not None and self.stepper.core.next_time < inf

    def phase_is_last(self) -> bool:
        """Return whether no further event is scheduled for the present time, and no engine steps.

        An engine that plans may then do so at once.
        """
        queue, stepper = self._queue, self.stepper
        is_last = not queue or queue[0][0] > self.now
        return is_last and (stepper is None or stepper.core.next_time > self.now)


class _Course:
    """A generator on its way from event to event."""

    __slots__ = ("_send", "_throw")

    def __init__(self, steps: Generator[Event, Any, object]) -> None:
        self._send = steps.send
        self._throw = steps.throw

    def go_on(self, event: Event) -> None:
        """Resume the generator with the event's value, until it yields a pending one."""
        send = self._send  # an attribute is read faster than a method is looked up
        try:
            while True:
                if event._ok:
                    event = send(event._value)
                else:
                    event._defused = True
                    event = self._throw(event._value)
                if event.callbacks is not None:
                    break
        except StopIteration:
            return
        event.callbacks.append(self.go_on)


def _in_the_past(time: float, now: float) -> ValueError:
    return ValueError(f"cannot schedule at {time!r} s, the clock is at {now!r} s")
