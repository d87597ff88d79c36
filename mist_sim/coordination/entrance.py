"""The gateway's door: requests go in, wait or are refused as an admission says."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

from simpy.events import Event

from mist_sim.admission import SHORTEST, Admission, GatewayView, num_tokens_of
from mist_sim.clients.deadlines import given_up, limits_of
from mist_sim.coordination.dispatch import Dispatch
from mist_sim.core.request import Request
from mist_sim.core.visit import Failure
from mist_sim.environment import GIVE_UP, MOVE, Environment
from mist_sim.errors import ScenarioError, brief
from mist_sim.stages import Decode, Prefill


class _Place(NamedTuple):
    """A request that waits: its rank, then its number among all that came, and what wakes it."""

    rank: int
    number: int
    request: Request
    entry: Event


@dataclass
class _Door:
    """The requests of one model.

    inside: with their tokens. of_class: (requests, tokens) inside, by label. waiting: with what
    wakes them. heaps: those of each label, by rank and arrival; some may have given up. asks_at:
    when to ask again at the latest, seconds.
    """

    inside: dict[Request, int] = field(default_factory=dict)
    of_class: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    waiting: dict[Request, Event] = field(default_factory=dict)
    heaps: dict[str | None, list[_Place]] = field(default_factory=dict)
    asks_at: float = inf

    def count(self, request: Request, number: int, num_tokens: int) -> None:
        """Count a request that goes in, or with a `number` of -1, that leaves."""
        requests, tokens = self.of_class.get(request.label, (0, 0))
        self.of_class[request.label] = requests + number, tokens + number * num_tokens

    def heads(self) -> list[_Place]:
        """Return the next request of each label, in order."""
        for heap in self.heaps.values():
            while heap and self.waiting.get(heap[0].request) is not heap[0].entry:
                heappop(heap)
        return sorted(heap[0] for heap in self.heaps.values() if heap)


class Entrance:
    """Lets requests in, one at a time.

    dispatch: knows the clients that are up.
    """

    def __init__(self, env: Environment, admission: Admission, dispatch: Dispatch) -> None:
        self._env = env
        self._admission = admission.copy()
        self._roster = dispatch.roster
        self._doors: dict[str | None, _Door] = {}
        self._num_arrived = 0

    def enter(self, request: Request) -> Generator[Event, Any, Failure | None]:
        """Wait until a request that is sent now is let in; return how it failed, or None.

        Raises ScenarioError for an answer of the admission that is none, and where it lets none
        in although none is inside.
        """
        door = self._doors.setdefault(request.model, _Door())
        rank = self._rank(request)
        gateway = self._view(door, request, rank)
        if gateway is not None:
            reason: object = self._admission.refusal(request, gateway)
            if not isinstance(reason, str):
                raise ScenarioError(
                    f"{self._name}.refusal must return a text, empty to refuse nothing, got "
                    f"{brief(reason)}"
                )
            if reason:
                return Failure("rejected", self._env.now, reason, is_busy=True)
        self._num_arrived += 1
        door.waiting[request] = entry = Event(self._env)
        heap = door.heaps.setdefault(request.label, [])
        heappush(heap, _Place(rank, self._num_arrived, request, entry))
        if self._ask(door, request):
            return None
        for time, limit in limits_of(request)[:1]:
            if time < inf:
                timer = self._env.at(max(time, self._env.now), GIVE_UP)
                timer.callbacks.append(partial(self._give_up, door, request, entry, limit))
        failure: Failure | None = yield entry
        request.at_gateway = self._env.now - request.sent_at
        return failure

    def leave(self, request: Request) -> None:
        """A request that was let in has ended, and others may go in."""
        door = self._doors[request.model]
        door.count(request, -1, door.inside.pop(request))
        self._ask(door)

    def ask(self) -> None:
        """Let requests in that may, since a client came up."""
        for door in self._doors.values():
            self._ask(door)

    def num_waiting(self, serves: Callable[[str, str | None], bool]) -> int:
        """Return how many requests wait of those that some clients can serve.

        serves: tells whether they serve a kind of stage of a model (None: any).
        """
        number = 0
        for model, door in self._doors.items():
            first = next(iter(door.waiting), None)
            if first is not None and serves(first.to_serve[0].kind, model):
                number += len(door.waiting)
        return number

    def _rank(self, request: Request) -> int:
        rank: object = self._admission.queue(request)
        if not isinstance(rank, int):
            raise ScenarioError(f"{self._name}.queue must return a whole number, got {brief(rank)}")
        return rank

    def _view(self, door: _Door, request: Request, rank: int) -> GatewayView | None:
        """Return what the gateway knows; None: no client is up."""
        stages = {stage.kind: stage for stage in reversed(request.to_serve)}
        prompt = stages.get(Prefill.kind, request.to_serve[0])
        of = partial(self._roster.candidates, model=request.model)
        candidates = of(prompt.kind)
        if not candidates:
            return None
        answer = stages.get(Decode.kind)
        heads = [head for head in door.heads() if head.request.label == request.label]
        return GatewayView(
            self._env.now,
            candidates,
            candidates if answer is None else of(answer.kind),
            len(door.inside),
            sum(tokens for _, tokens in door.of_class.values()),
            door.of_class.get(request.label, (0, 0)),
            len(door.waiting),
            not heads or heads[0].request is request or rank < heads[0].rank,
        )

    def _ask(self, door: _Door, arriving: Request | None = None) -> bool:
        """Let the next request in that may; then, when a client has it, the one after it.

        arriving: a request that is there now; returns whether it goes in, and so need not wait.
        """
        for rank, _, request, entry in door.heads():
            if not self._lets_in(door, request, rank):
                continue
            del door.waiting[request]
            door.inside[request] = num_tokens = num_tokens_of(request)
            door.count(request, 1, num_tokens)
            if request is not arriving:
                self._env.trigger(entry, self._env.now, MOVE)
            if door.waiting:
                self._env.at(self._env.now, MOVE).callbacks.append(lambda _: self._ask_next(door))
            return request is arriving
        return False

    def _lets_in(self, door: _Door, request: Request, rank: int) -> bool:
        """Tell whether a request may go in now; if not, ask again in time."""
        gateway = self._view(door, request, rank)
        if gateway is None:
            return not door.inside
        delay: Any = self._admission.delay(request, gateway)
        is_number = isinstance(delay, int | float) and not isinstance(delay, bool)
        if not is_number or not (delay == 0 or delay >= SHORTEST):
            raise ScenarioError(
                f"{self._name}.delay must return 0 or seconds >= {SHORTEST:g} (inf: until one "
                f"inside ends), got {brief(delay)} for request {request.request_id}"
            )
        if delay == inf and not door.inside:
            raise ScenarioError(
                f"{self._name}.delay lets request {request.request_id} wait until one ends at "
                f"{self._env.now:.6g} s, and none is inside: let it in, refuse it "
                "(refusal), or name the seconds after which to ask again"
            )
        if 0 < delay < inf and self._env.now + delay < door.asks_at:
            door.asks_at = self._env.now + delay
            timer = self._env.at(door.asks_at, MOVE)
            timer.callbacks.append(lambda _: self._ask_again(door))
        return bool(delay == 0)

    def _ask_next(self, door: _Door) -> None:
        self._ask(door)

    def _ask_again(self, door: _Door) -> None:
        if self._env.now >= door.asks_at:
            door.asks_at = inf
        self._ask(door)

    def _give_up(self, door: _Door, request: Request, entry: Event, limit: str, _: Event) -> None:
        """End a request that waits, at one of its limits; the next one may go in."""
        if door.waiting.get(request) is entry:
            del door.waiting[request]
            failure = given_up(request, limit, self._env.now)
            self._env.trigger(entry, self._env.now, MOVE, failure)
            self._ask(door)

    @property
    def _name(self) -> str:
        return type(self._admission).__name__
