"""MIST's Algorithm 1: the coordinator walks every request through its pipeline.

The paper's two events are two kinds of SimPy process here. STAGE-PUSH is `walk`, one process
per request: route, serve, next stage. CLIENT-STEP is the loop inside each client. The event
queue of the algorithm is SimPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.deadlines import given_up, limits_of
from mist_sim.clients.reservation import Reservation
from mist_sim.clients.roster import Roster
from mist_sim.coordination.dispatch import Dispatch
from mist_sim.coordination.growth import beyond_limit, grow
from mist_sim.coordination.places_ahead import Absences, PlacesAhead, PromptVisit
from mist_sim.core.front_end import ApiServers
from mist_sim.core.hand_over import HandOver
from mist_sim.core.request import Request, Stage, token_totals
from mist_sim.core.visit import SERVED, Failure, HeldKv, Lost, Moved, Visit
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.routers import RefusalError, Router
from mist_sim.stages import Prefill

Spawn = Callable[[Request], Event]
"""Sends a child; the event's value is its `Failure` when it ends, None when it is served."""


class Coordinator:
    """Moves requests from stage to stage.

    roster: the clients present. spawn: sends the children of requests, whose ids count
    down from -1. hand_over: how requests go from prefill to decode. absences: handles requests
    whose client is gone; None: clients never leave. servers: the front end; None: no front end.
    """

    def __init__(
        self,
        env: Environment,
        roster: Roster,
        router: Router,
        spawn: Spawn | None = None,
        hand_over: HandOver | None = None,
    ) -> None:
        self.env = env
        self.roster = roster
        self.spawn = spawn
        hand_over = hand_over or HandOver()
        self.dispatch = Dispatch(roster, router, hand_over.policy)
        self._places = PlacesAhead(env, self.dispatch)
        self._drops_first = hand_over.drops_first
        self._pushes = hand_over.transfer == "push"
        self._num_children = 0
        self.servers: ApiServers | None = None

    @property
    def absences(self) -> Absences | None:
        """Handles requests whose client is gone; None: clients never leave."""
        return self._places.absences

    @absences.setter
    def absences(self, absences: Absences) -> None:
        """Set what handles requests whose client is gone."""
        self._places.absences = absences

    def walk(self, request: Request, visits: list[Visit]) -> Generator[Event, Any, Failure | None]:
        """Take a request that was sent through all its stages (STAGE-PUSH).

        Appends its visits to `visits` as they end. Returns the failure, or None on success.
        """
        kv: HeldKv | None = None  # entries that the next stage continues from
        ahead: Reservation | None = None  # where the next stage waits for them
        failure: Failure | None = None
        passed: Stage | None = None  # that is behind the front end
        while failure is None and (stages := request.to_serve):
            stage = stages[0]
            if ahead is not None:
                visit = yield from ahead.wait(visits)
                kv = _kept(request, visit, kv, None)
                later = stages[len(ahead.stages) :]
                failure = yield from self._follow(request, ahead.client, visit, later)
                ahead = None
                continue
            if stage.continues and stage.is_empty and (kv is None or kv.num_output_tokens):
                request.to_serve = stages[1:]
                request.num_stages -= 1
                continue
            if kv is not None and not kv.is_there:
                failure, kv, request.kv = self._without_entries(request, kv), None, None
                continue
            if self.servers is not None and passed is not stage:
                passed = stage
                failure = yield from through(self.servers, self.env, request, visits, kv)
                continue
            chosen = self.choose(request, stages, kv)
            if isinstance(chosen, Failure):
                failure = chosen
                continue
            if chosen is None:
                failure = yield from self._wait(request, stage, kv)
                continue
            client, num_stages = chosen
            here, later = stages[:num_stages], stages[num_stages:]
            is_followed = bool(later) and self._is_followed(request, client, later)
            is_prompt = is_followed and not stage.continues
            is_silent = is_prompt and self._drops_first and not stage.num_emitted
            if is_prompt and self._pushes:
                prompt = PromptVisit(request, client, here, later, is_silent)
                place = yield from self._places.take(prompt, visits)
                if not place.begins:
                    failure = place.failure
                    continue
                ahead, later = place.ahead, later[place.num_over :]
                is_followed = not place.num_over
            taken, kv = _taken(request, stage, kv)
            visit = yield client.serve(request, here, taken, is_followed, is_silent)
            visits.append(visit)
            if ahead is not None or visit.held_kv is not None:
                ahead = yield from self._places.keep(ahead, visit, visits)
                kv = _kept(request, visit, kv, ahead)
            if visit.outcome is SERVED:
                request.to_serve = later
            else:
                failure = yield from self._follow(request, client, visit, later, ahead)
        request.kv = None
        _drop(kv)
        return (yield from _cancelled(ahead, failure, visits))

    def choose(
        self, request: Request, stages: tuple[Stage, ...], kv: HeldKv | None
    ) -> tuple[Client, int] | Failure | None:
        """Return the client of the next stages, and the number of stages of this visit.

        Returns a Failure if no client serves them or the router rejects the request, and None if
        the clients that serve them are away.
        """
        stage = stages[0]
        try:
            client = self.dispatch.route(
                request, stage, kv.source if kv and stage.continues else None
            )
        except RefusalError as refusal:
            return self.refused(refusal)
        if client is None and self.absences is not None:
            return None
        num_stages = self.dispatch.num_stages(request, client, stages)
        if client is None or not num_stages or (stage.continues and kv is None):
            return self.unserved(request, stage, client)
        return client, num_stages

    def refused(self, refusal: RefusalError) -> Failure:
        """Return the failure of a request that the router rejects now."""
        return Failure("rejected", self.env.now, str(refusal), is_busy=True)

    def unserved(self, request: Request, stage: Stage, client: Client | None) -> Failure:
        """Return the failure of a request whose next stage no client serves, or `client` cannot."""
        return Failure("rejected", self.env.now, _nobody_serves(request, stage, client))

    def _wait(
        self, request: Request, stage: Stage, kv: HeldKv | None
    ) -> Generator[Event, Any, Failure | None]:
        """Wait for a client that serves a stage; return why the wait was given up, or None."""
        if self.absences is None:
            raise InvariantError(f"no client serves {stage.kind!r} at {self.env.now} s")
        near = self.roster.neighbours(kv.source if kv and stage.continues else None)
        return (yield from self.absences.wait(request, stage.kind, near))

    def _is_followed(self, request: Request, client: Client, later: tuple[Stage, ...]) -> bool:
        """Tell whether the stage after a visit continues from its KV entries."""
        if not later or (later[0].is_empty and not self._drops_first):
            return False
        if client.traits.asks_ahead:
            self.dispatch.ask_ahead(request, later[0], client.name)
        return later[0].continues

    def _follow(
        self,
        request: Request,
        client: Client,
        visit: Visit,
        later: tuple[Stage, ...],
        ahead: Reservation | None = None,
    ) -> Generator[Event, Any, Failure | None]:
        """Apply the outcome of a client's visit; return the request's failure, or None."""
        outcome = visit.outcome
        if isinstance(outcome, Failure):
            return outcome
        if isinstance(outcome, Moved):
            rest = self._rest(request, client, visit.stages[-1], outcome)
            request.to_serve = (rest, *later)
        elif isinstance(outcome, Lost) and self.absences is not None:
            undone = self.absences.after_visit(visit, client)
            return self._go_on(request, undone, len(visit.stages), later)
        elif outcome is None or isinstance(outcome, Lost):
            raise InvariantError(
                f"request {request.request_id} left a client without an outcome at {self.env.now} s"
            )
        else:
            endless = beyond_limit(request, outcome, visit.stages[-1], self.env.now)
            if endless is not None:
                return endless
            grow(request, outcome, client, visit, later, ahead)
            if outcome.children:
                return (yield from self._await(request, outcome.children))
        return None

    def _without_entries(self, request: Request, kv: HeldKv) -> Failure | None:
        """Continue after the KV entries that the next stage needs were lost."""
        if not request.to_serve[0].continues:
            return None  # it does without
        if self.absences is None:
            raise InvariantError(f"{kv.source} lost KV entries at {self.env.now} s, and is there")
        stage, *later = request.to_serve
        rest = self.absences.after_hand_over(request, stage, kv)
        return self._go_on(request, rest, 1, tuple(later))

    def _go_on(
        self,
        request: Request,
        rest: tuple[Stage, ...] | Failure,
        num_before: int,
        later: tuple[Stage, ...],
    ) -> Failure | None:
        """Replace the next `num_before` stages by `rest`; return the failure if it is one."""
        if isinstance(rest, Failure):
            return rest
        request.to_serve = (*rest, *later)
        request.num_stages += len(rest) - num_before
        return None

    def _rest(self, request: Request, client: Client, stage: Stage, moved: Moved) -> Stage:
        """Return the part of a stage that a client left for another client to serve."""
        try:
            return stage.with_rest(moved.num_tokens)
        except TypeError as error:
            raise ScenarioError(
                f"{client.name}: the outcome of request {request.request_id} must not be Moved "
                f"after the stage {stage} at {self.env.now} s: {error}"
            ) from error

    def _await(
        self, parent: Request, children: tuple[Request, ...]
    ) -> Generator[Event, Any, Failure | None]:
        """Send children side by side and wait for all; return the first one's failure, if any."""
        if self.spawn is None:
            raise InvariantError(f"no part sends the children of request {parent.request_id}")
        for child in children:
            if child.parent_id is not None:
                raise ScenarioError(
                    f"a child of request {parent.request_id} at {self.env.now} s is awaited by "
                    f"request {child.parent_id} already; an outcome needs a new Request for each"
                )
            self._num_children += 1
            child.request_id = -self._num_children
            child.parent_id, child.growth = parent.request_id, parent.growth
            child.arrival_time = self.env.now
            child.model = child.model or parent.model
            child.limits = parent.limits_left(self.env.now)
            child.num_prompt_tokens, child.num_output_tokens = token_totals(child.stages)
        ends = [self.spawn(child) for child in children]
        yield self.env.all_of(ends)
        return next((end.value for end in ends if end.value is not None), None)


def _taken(
    request: Request, stage: Stage, kv: HeldKv | None
) -> tuple[HeldKv | None, HeldKv | None]:
    """Return the entries from which a stage continues, and the entries left for later ones."""
    if stage.continues or stage.may_continue:
        request.kv = None
        return kv, None
    return None, kv


def _kept(
    request: Request, visit: Visit, kv: HeldKv | None, ahead: Reservation | None
) -> HeldKv | None:
    """Return the entries for the next stage; a place taken ahead receives them at once."""
    if ahead is not None:
        ahead.fill(visit)
    elif visit.held_kv is not None:
        _drop(kv)
        request.kv = kv = visit.held_kv
    return kv


def _cancelled(
    ahead: Reservation | None, failure: Failure | None, visits: list[Visit]
) -> Generator[Event, Any, Failure | None]:
    """Cancel the place taken ahead if the request failed before it got there; return the failure.

    That of the place may have come first.
    """
    if ahead is None or failure is None:
        return failure
    yield from ahead.cancel(failure, visits)
    return visits[-1].failure or failure


def _drop(kv: HeldKv | None) -> None:
    """Drop entries that no stage will continue from."""
    if kv is not None:
        kv.drop()


def _nobody_serves(request: Request, stage: Stage, client: Client | None) -> str:
    if client is None:
        of_model = f" of {request.model}" if request.model else ""
        return f"no client serves the stage {stage.kind!r}{of_model}"
    return f"{client.name} serves {stage.kind!r} only after a prefill that left its KV entries"


def through(
    servers: ApiServers,
    env: Environment,
    request: Request,
    visits: list[Visit],
    kv: HeldKv | None,
) -> Generator[Event, object, Failure | None]:
    """Delay a request before its next stage; return a failure if its sender gives up, or None.

    A prompt goes through a server, after the answer before it. A stage that continues from a
    prompt's entries on another client (`kv`) takes the hop to that client's server. Other stages
    take no time.
    """
    stages, begun_at = request.to_serve, env.now
    stage, last = stages[0], visits[-1] if visits else None
    if stage.continues:
        if kv is None or last is None or last.outcome is not SERVED:
            return None
        enters_at = begun_at + servers.hop(kv.num_prompt_tokens)
    else:
        if last is not None and last.num_output_tokens and last.num_served_stages:
            yield env.at(begun_at + servers.leaves_after(visits[-1:]))
        enters_at = env.now
        if stage.kind == Prefill.kind:
            parsed_at = servers.parsed_at(env.now)
            if parsed_at > env.now:
                limit_at, limit = (limits_of(request) or [(parsed_at, "")])[0]
                yield env.at(max(min(limit_at, parsed_at), env.now))
                if limit_at < parsed_at:
                    return given_up(request, limit, env.now)
            enters_at = servers.enters_at(env.now, stage.num_input_tokens)
    limit_at, limit = (limits_of(request) or [(enters_at, "")])[0]
    if limit_at < enters_at:
        yield env.at(max(limit_at, env.now))
        return given_up(request, limit, env.now)
    if enters_at > env.now:
        yield env.at(enters_at)
    request.front_end += env.now - begun_at
    return None
