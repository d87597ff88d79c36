"""The clients of a run and their states, changes without end, and where requests wait meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, NamedTuple, Protocol

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.clients.deadlines import given_up, limits_of
from mist_sim.clients.roster import Roster
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.core.views import ClientState, State
from mist_sim.core.visit import Failure
from mist_sim.environment import CHANGE, GIVE_UP, MOVE, Environment, NothingLeftError
from mist_sim.errors import brief


class Listener(Protocol):
    """Is notified of changes."""

    def came_up(self, client: Client) -> None:
        """A client takes visits from now on."""

    def went_away(self) -> None:
        """Some clients stopped taking requests, perhaps for good."""


class Need(NamedTuple):
    """A request's demand on its client.

    kind: of the stage that it serves. model: that it serves; None: any. near: names of the clients
    among which it must be; None: any.
    """

    kind: str
    model: str | None
    near: frozenset[str] | None = None

    def is_met_by(self, client: Client) -> bool:
        """Tell whether a client would do."""
        is_model = self.model is None or client.traits.model in (None, self.model)
        is_near = self.near is None or client.name in self.near
        return self.kind in client.traits.serves and is_model and is_near


@dataclass(eq=False)
class Member:
    """A client, and its state.

    state: its state. is_wanted: whether it should be up. will_return: whether it comes back after
        draining. num_faults: failures not repaired yet. is_gone: whether it failed for good.
        is_scaled: whether an autoscaler starts it.
    num_starts: number of its starts, to recognise a start that was given up.
    """

    client: Client
    state: State = "up"
    is_wanted: bool = True
    will_return: bool = False
    is_gone: bool = False
    is_scaled: bool = False
    num_faults: int = 0
    num_starts: int = 0
    watch: Callable[[ClientState], None] | None = None  # while it drains

    @property
    def may_come(self) -> bool:
        """Whether it takes visits, or may do so later."""
        return not self.is_gone and (self.is_wanted or self.will_return or self.is_scaled)


@dataclass(eq=False)
class Fleet:
    """Changes the states of clients, and tells the roster, the records and a listener.

    begin_start: lets a client begin to start, and returns the event when it is ready.
    """

    _env: Environment
    _roster: Roster
    _recorder: Recorder
    _begin_start: Callable[[Client], Event]
    listener: Listener = field(init=False)

    def __post_init__(self) -> None:
        self.members = {client.name: Member(client) for client in self._roster}

    def begin(self, off: Iterable[str]) -> None:
        """Write the first states. off: clients that do not run at first."""
        for name in off:
            member = self.members[name]
            member.is_wanted = False
            self._roster.leave(member.client.client_id)
            member.state = "off"
        for member in self.members.values():
            self._recorder.states.add((member.client.client_id, self._env.now, member.state))

    def why_nobody(self, need: Need) -> str | None:
        """Return why no client serves a stage, now or later; None: one may."""
        serving = [m for m in self.members.values() if need.is_met_by(m.client)]
        if any(member.may_come for member in serving):
            return None
        gone = ", ".join(member.client.name for member in serving)
        why = f"all that do have failed or left for good: {gone}" if gone else "none is there"
        of = "" if need.model is None else f" of {need.model}"
        where = "" if need.near is None else " in the node of the prompt's client (pools: local)"
        return f"no client serves the stage {brief(need.kind)}{of}{where}; {why}"

    # --- failures -------------------------------------------------------------------------

    def fail(self, names: Sequence[str], *, for_good: bool) -> None:
        """Let clients fail at the same time; their work is lost."""
        failing = []
        for name in names:
            member = self.members[name]
            member.num_faults += 1
            member.is_gone = member.is_gone or for_good
            if member.is_scaled:
                member.is_wanted = False  # it comes back when its autoscaler asks for it
            if member.state in ("starting", "up", "draining"):
                self._leave_roster(member)
                self._become(member, "failed")
                failing.append(member.client)
        for client in failing:
            client.fail(f"{client.name}: failed while it had the request")
        self._lose_entries()
        for client in failing:
            self._roster.forget(client)
        self.listener.went_away()

    def _lose_entries(self) -> None:
        """Tell clients of visits that would go on from KV entries which were lost."""
        for member in self.members.values():
            client = member.client
            for visit in [v for v in client.stays if v.kv is not None and v.kv.is_lost]:
                source = visit.kv.source if visit.kv else ""
                client.lose_entries(
                    visit, f"{source}: failed while it kept KV entries of the request"
                )

    def repair(self, names: Sequence[str]) -> None:
        """Start failed clients, unless another reason keeps them down."""
        for name in names:
            member = self.members[name]
            member.num_faults -= 1
            if member.num_faults:
                continue
            if member.state == "failed":
                self._become(member, "off")
            if member.is_wanted:
                self.start(member)
            else:
                self.listener.went_away()

    # --- start and drain ------------------------------------------------------------------

    def start(self, member: Member) -> None:
        """Let a client start that is off, or take visits again that drains."""
        member.is_wanted = True
        member.will_return = False
        if member.state == "draining":
            if member.watch is not None:
                member.client.view.unwatch((member.watch,))
            self._join(member)
        elif member.state == "off" and not member.num_faults:
            self._become(member, "starting")
            member.num_starts += 1
            ready = self._begin_start(member.client)
            ready.callbacks.append(partial(self._ready, member, member.num_starts))

    def _ready(self, member: Member, start: int, _: Event) -> None:
        if member.state == "starting" and member.num_starts == start:
            member.client.restart()
            self._join(member)

    def drain(self, member: Member) -> None:
        """Stop a client from taking visits; it is off when its present ones are over."""
        member.is_wanted = False
        if member.state == "starting":
            self._become(member, "off")
        elif member.state == "up":
            self._roster.leave(member.client.client_id)
            self._become(member, "draining")
            member.watch = partial(self._watch, member)
            member.client.view.watch(member.watch, phases=False)
            self._off_if_empty(member)
        self.listener.went_away()

    def _watch(self, member: Member, _: ClientState) -> None:
        """Look whether a client is empty when all is done that is done now."""
        if member.state == "draining":
            look = self._env.at(self._env.now, CHANGE)
            look.callbacks.append(lambda _: self._off_if_empty(member))

    def _off_if_empty(self, member: Member) -> None:
        if member.state == "draining" and member.client.is_empty:
            self._become(member, "off")
            self._roster.forget(member.client)

    # --- consequences ----------------------------------------------------------------------

    def _join(self, member: Member) -> None:
        self._roster.join(member.client)
        self._become(member, "up")
        self.listener.came_up(member.client)

    def _leave_roster(self, member: Member) -> None:
        if member.state == "up":
            self._roster.leave(member.client.client_id)

    def _become(self, member: Member, state: State) -> None:
        member.state = state
        self._recorder.states.add((member.client.client_id, self._env.now, state))


@dataclass(eq=False)
class Endless:
    """Schedules recurring events, and ends a run in which no other event is left.

    Looks and further failures do not help requests that wait inside clients for one another's
    memory, unless one of these fails; nor do new clients, which serve only requests waiting at the
    gateway.

    anybody_waits: returns whether requests wait at the gateway. failing: clients that fail again
        and again.
    """

    _env: Environment
    _anybody_waits: Callable[[], bool]
    failing: list[Client] = field(default_factory=list)
    _events: set[Event] = field(default_factory=set)

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


@dataclass(eq=False)
class Gateway:
    """Holds requests until a client comes up, first come first served.

    A request that can wait no longer gives up; if no client can come any more, it is rejected.

    why_nobody: returns why no client for a stage will come any more; None: one may.
    activate: called when a request has begun to wait.
    """

    _env: Environment
    _why_nobody: Callable[[Need], str | None]
    _activate: Callable[[], None]
    _waiting: dict[Need, deque[Event]] = field(default_factory=dict)

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
