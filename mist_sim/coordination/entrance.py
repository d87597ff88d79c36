"""The gateway's door: requests go in, wait or are refused as an admission says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from functools import partial
from itertools import chain
from math import inf
from typing import Any

from simpy.events import Event

from mist_sim.admission import Admission, GatewayView, num_tokens_of
from mist_sim.clients.deadlines import given_up, limits_of
from mist_sim.coordination.dispatch import Dispatch
from mist_sim.core.request import Request
from mist_sim.core.visit import Failure
from mist_sim.environment import GIVE_UP, MOVE, Environment
from mist_sim.errors import ScenarioError, brief

_SHORTEST = 1e-6  # seconds between two questions: shorter ones would never let the time go on


class Entrance:
    """Lets requests in, one at a time.

    dispatch: knows the clients that serve a request's first stage now; none: it goes in, and waits
        for one there.
    """

    def __init__(self, env: Environment, admission: Admission, dispatch: Dispatch) -> None:
        self._env = env
        self._admission = admission.copy()
        self._dispatch = dispatch
        self._inside: dict[Request, int] = {}  # with their tokens
        self._num_tokens = 0
        self._queues: dict[int, OrderedDict[Request, Event]] = {}
        self._asks_at = inf

    def enter(self, request: Request) -> Generator[Event, Any, Failure | None]:
        """Wait until a request that is sent now is let in; return how it failed, or None.

        Raises ScenarioError for an answer of the admission that is none, and where it lets nobody
        in although nobody is inside.
        """
        gateway = self._view(request)
        if gateway is None:
            return None
        if reason := self._text(self._admission.refusal(request, gateway)):
            return Failure("rejected", self._env.now, reason, is_busy=True)
        queue = self._queue_of(request)
        if not queue and self._lets_in(request):
            self._let_in(request)
            return None
        queue[request] = entry = Event(self._env)
        for time, limit in limits_of(request)[:1]:
            if time < inf:
                timer = self._env.at(max(time, self._env.now), GIVE_UP)
                timer.callbacks.append(partial(self._give_up, request, entry, limit))
        failure: Failure | None = yield entry
        request.at_gateway = self._env.now - request.sent_at
        return failure

    def leave(self, request: Request) -> None:
        """A request that may be inside has ended, and others may go in."""
        num_tokens = self._inside.pop(request, None)
        if num_tokens is not None:
            self._num_tokens -= num_tokens
            self.ask()

    def _queue_of(self, request: Request) -> OrderedDict[Request, Event]:
        number = self._admission.queue(request)
        if not isinstance(number, int):
            raise ScenarioError(
                f"{self._name}.queue must return a whole number, got {brief(number)}"
            )
        return self._queues.setdefault(number, OrderedDict())

    def _view(self, request: Request) -> GatewayView | None:
        candidates = self._dispatch.candidates(request, request.to_serve[0])
        if not candidates:
            return None
        num_waiting = sum(map(len, self._queues.values()))
        return GatewayView(
            self._env.now, candidates, len(self._inside), self._num_tokens, num_waiting
        )

    def _lets_in(self, request: Request) -> bool:
        """Tell whether a request may go in now; if not, ask again in time."""
        gateway = self._view(request)
        if gateway is None:
            return True
        delay: Any = self._admission.delay(request, gateway)
        is_number = isinstance(delay, int | float) and not isinstance(delay, bool)
        if not is_number or not (delay == 0 or delay >= _SHORTEST):
            raise ScenarioError(
                f"{self._name}.delay must return 0 or seconds >= {_SHORTEST:g} (inf: until one "
                f"inside ends), got {brief(delay)} for request {request.request_id}"
            )
        if delay == inf and not self._inside:
            raise ScenarioError(
                f"{self._name}.delay lets request {request.request_id} wait until one ends at "
                f"{self._env.now:.6g} s, and nobody is inside: let it in, refuse it "
                "(refusal), or name the seconds after which to ask again"
            )
        if 0 < delay < inf and self._env.now + delay < self._asks_at:
            self._asks_at = self._env.now + delay
            self._env.at(self._asks_at, MOVE).callbacks.append(self._ask_again)
        return bool(delay == 0)

    def _let_in(self, request: Request) -> None:
        self._inside[request] = num_tokens = num_tokens_of(request)
        self._num_tokens += num_tokens

    def ask(self) -> None:
        """Let the next request in that may; then, when a client has it, the one after it."""
        for number in sorted(self._queues):
            queue = self._queues[number]
            if queue and self._lets_in(next(iter(queue))):
                request, entry = queue.popitem(last=False)
                self._let_in(request)
                self._env.trigger(entry, self._env.now, MOVE)
                self._env.at(self._env.now, MOVE).callbacks.append(lambda _: self.ask())
                return

    def waiting(self) -> Iterator[Request]:
        """Return the requests that wait."""
        return chain.from_iterable(self._queues.values())

    def _ask_again(self, event: Event) -> None:
        if self._env.now >= self._asks_at:
            self._asks_at = inf
        self.ask()

    def _give_up(self, request: Request, entry: Event, limit: str, _: Event) -> None:
        """End a request that waits, at one of its limits; the next one may go in."""
        queue = next((each for each in self._queues.values() if each.get(request) is entry), None)
        if queue is not None:
            del queue[request]
            failure = given_up(request, limit, self._env.now)
            self._env.trigger(entry, self._env.now, MOVE, failure)
            self.ask()

    @property
    def _name(self) -> str:
        return type(self._admission).__name__

    def _text(self, reason: object) -> str:
        if not isinstance(reason, str):
            raise ScenarioError(
                f"{self._name}.refusal must return a text, empty to refuse nothing, got "
                f"{brief(reason)}"
            )
        return reason
