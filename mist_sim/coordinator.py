"""MIST's Algorithm 1: the coordinator walks every request through its pipeline.

The paper's two events are two kinds of SimPy process here. STAGE-PUSH is `walk`, one process
per request: route, serve, next stage. CLIENT-STEP is the loop inside each client. The event
queue of the algorithm is SimPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.reservation import Reservation
from mist_sim.clients.roster import Roster
from mist_sim.core.hand_over import HandOver
from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import SERVED, Failure, HeldKv, Lost, Moved, Visit
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError, ScenarioError, brief
from mist_sim.routers import RefusalError, Router
from mist_sim.stages import Decode, Prefill

_HANDED_OVER = (Prefill.kind, Decode.kind)

Spawn = Callable[[Request], Event]
"""Sends a child; the event's value is its `Failure` when it ends, None when it is served."""


class Absences(Protocol):
    """What becomes of requests whose client is gone; asked only where clients may go."""

    def wait(
        self, request: Request, kind: str, near: frozenset[str] | None = None
    ) -> Generator[Event, Any, Failure | None]:
        """Wait until a client that serves a stage comes; return why it is given up, or None.

        near: names of the clients that may serve it; None: any.
        """

    def after_visit(self, visit: Visit, client: Client) -> tuple[Stage, ...] | Failure:
        """Return the stages that do what a lost visit left undone, or how its request ends."""

    def after_hand_over(
        self, request: Request, stage: Stage, kv: HeldKv
    ) -> tuple[Stage, ...] | Failure:
        """Return the same for a stage that would have continued from entries which are lost."""


class _Place(NamedTuple):
    """What came of a place that was to be taken ahead of a prompt.

    begins: whether the prompt begins now. ahead: the place; None: there is none.
    num_over: stages after the prompt that are over. failure: how the request failed.
    """

    begins: bool
    ahead: Reservation | None = None
    num_over: int = 0
    failure: Failure | None = None


class Coordinator:
    """Moves requests from stage to stage.

    roster: the clients that there are now. spawn: sends the children of requests, whose ids count
    down from -1. hand_over: how requests go from prefill to decode. absences: what happens where
    clients are gone; None: they stay.
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
        self.router = router
        self.spawn = spawn
        hand_over = hand_over or HandOver()
        self._drops_first = hand_over.drops_first
        self._pushes = hand_over.transfer == "push"
        self._policy = hand_over.policy
        self.absences: Absences | None = None
        self._num_children = 0

    def walk(self, request: Request, visits: list[Visit]) -> Generator[Event, Any, Failure | None]:
        """Take a request that is sent now through all its stages (STAGE-PUSH).

        Its visits are added to `visits` as they end. Returns how it failed, None when it did not.
        """
        request.send(self.env.now)
        kv: HeldKv | None = None  # entries that the next stage continues from
        ahead: Reservation | None = None  # where the next stage waits for them
        failure: Failure | None = None
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
            if kv is not None and kv.is_lost:
                failure, kv, request.kv = self._without_entries(request, kv), None, None
                continue
            chosen = self._choose(request, stages, kv)
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
                place = yield from self._place(request, client, here, later, is_silent, visits)
                if not place.begins:
                    failure = place.failure
                    continue
                ahead, later = place.ahead, later[place.num_over :]
                is_followed = not place.num_over
            taken = None
            if stage.continues:
                taken, request.kv, kv = kv, None, None
            visit = yield client.serve(request, here, taken, is_followed, is_silent)
            visits.append(visit)
            if ahead is not None or visit.held_kv is not None:
                ahead = yield from self._kept_place(ahead, visit, visits)
                kv = _kept(request, visit, kv, ahead)
            if visit.outcome is SERVED:
                request.to_serve = later
            else:
                failure = yield from self._follow(request, client, visit, later)
        request.kv = None
        _drop(kv)
        yield from _cancel(ahead, failure, visits)
        return failure

    def _choose(
        self, request: Request, stages: tuple[Stage, ...], kv: HeldKv | None
    ) -> tuple[Client, int] | Failure | None:
        """Return the client of the next stages, and how many of them it serves in a visit.

        Or how the request fails: nobody serves them, or the router turns it away; None: those who
        do are away.
        """
        stage = stages[0]
        try:
            client = self._route(request, stage, kv.source if kv and stage.continues else None)
        except RefusalError as refusal:
            return Failure("rejected", self.env.now, str(refusal), is_busy=True)
        if client is None and self.absences is not None:
            return None
        num_stages = self._num_stages(request, client, stages)
        if client is None or not num_stages or (stage.continues and kv is None):
            reason = _nobody_serves(request, stage, client)
            return Failure("rejected", self.env.now, reason)
        return client, num_stages

    def _wait(
        self, request: Request, stage: Stage, kv: HeldKv | None
    ) -> Generator[Event, Any, Failure | None]:
        """Wait until somebody comes who serves a stage; return why it is given up, or None."""
        if self.absences is None:
            raise InvariantError(f"nobody serves {stage.kind!r} at {self.env.now} s")
        near = self.roster.neighbours(kv.source if kv and stage.continues else None)
        return (yield from self.absences.wait(request, stage.kind, near))

    def _num_stages(
        self, request: Request, client: Client | None, stages: tuple[Stage, ...]
    ) -> int:
        """Return how many of the next stages a client serves in a visit; 0: there is none."""
        num_stages = client.takes(stages) if client else 0
        policy = self._policy
        if client and policy is not None and num_stages > 1 and client.reserves:
            if stages[0].continues or not stages[1].continues:
                return num_stages
            others = self.roster.near(stages[1].kind, client.name, request.model)
            if policy.hands_over(request, client.view, others):
                return 1
        return num_stages

    def _is_followed(self, request: Request, client: Client, later: tuple[Stage, ...]) -> bool:
        """Tell whether the stage after a visit continues from its KV entries."""
        if not later or (later[0].is_empty and not self._drops_first):
            return False
        if client.asks_ahead:
            self._ask_ahead(request, later[0], client.name)
        return later[0].continues

    def _reserve(
        self,
        request: Request,
        source: Client,
        prompt: tuple[Stage, ...],
        later: tuple[Stage, ...],
        is_silent: bool,
    ) -> Reservation | None:
        """Queue a request where it decodes; None where nobody reserves memory for it."""
        client = self._route(request, later[0], source.name)
        num_stages = client.takes(later) if client and client.reserves else 0
        num_tokens = sum([s.num_prompt_tokens for s in prompt if isinstance(s, Prefill)])
        if client is None or not num_stages or not num_tokens:
            return None
        return Reservation(
            self.env,
            client,
            request,
            later[:num_stages],
            source=source.name,
            num_prompt_tokens=num_tokens,
            num_output_tokens=int(not is_silent),
        )

    def _place(
        self,
        request: Request,
        source: Client,
        prompt: tuple[Stage, ...],
        later: tuple[Stage, ...],
        is_silent: bool,
        visits: list[Visit],
    ) -> Generator[Event, Any, _Place]:
        """Take a place where a request decodes, and wait for its memory, before the prompt begins.

        Where clients go meanwhile, the walk looks again who is there.
        """
        if self.absences is not None:
            kind, near = later[0].kind, self.roster.neighbours(source.name)
            if not self.roster.near(kind, source.name, request.model):
                return _Place(False, failure=(yield from self.absences.wait(request, kind, near)))
        ahead = self._reserve(request, source, prompt, later, is_silent)
        if ahead is None:
            return _Place(True)
        if not (yield from ahead.has_memory(visits)):
            visit = visits[-1]
            if isinstance(visit.outcome, Lost) and self.absences is not None:
                rest = self.absences.after_visit(visit, ahead.client)
                return _Place(False, failure=rest if isinstance(rest, Failure) else None)
            return _Place(visit.failure is None, None, len(ahead.stages), visit.failure)
        if self.roster.get(source.client_id) is not source:
            gone = Lost(f"{source.name}: left before it began with the prompt")
            yield from ahead.cancel(gone, visits)
            return _Place(False)
        return _Place(True, ahead)

    def _kept_place(
        self, ahead: Reservation | None, prompt: Visit, visits: list[Visit]
    ) -> Generator[Event, Any, Reservation | None]:
        """Return the place of a request after its prompt; it is given up where that was lost."""
        if ahead is None or not isinstance(prompt.outcome, Lost):
            return ahead
        yield from ahead.cancel(prompt.outcome, visits)
        return None

    def _follow(
        self, request: Request, client: Client, visit: Visit, later: tuple[Stage, ...]
    ) -> Generator[Event, Any, Failure | None]:
        """Do what the outcome of a client's visit says; return how the request failed, or None."""
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
            request.to_serve = (*outcome.then, *later)
            request.num_stages += len(outcome.then)
            if outcome.children:
                return (yield from self._await(request, outcome.children))
        return None

    def _without_entries(self, request: Request, kv: HeldKv) -> Failure | None:
        """Walk on where the entries are lost from which the next stage would have continued."""
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
        """Walk other stages in the place of `num_before` ones; return the failure, if it is one."""
        if isinstance(rest, Failure):
            return rest
        request.to_serve = (*rest, *later)
        request.num_stages += len(rest) - num_before
        return None

    def _rest(self, request: Request, client: Client, stage: Stage, moved: Moved) -> Stage:
        """Return what is left of a stage that a client leaves to others."""
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
            raise InvariantError(f"nobody sends the children of request {parent.request_id}")
        for child in children:
            self._num_children += 1
            child.request_id = -self._num_children
            child.parent_id = parent.request_id
            child.arrival_time = self.env.now
            child.model = child.model or parent.model
            child.limits = parent.limits_left(self.env.now)
        ends = [self.spawn(child) for child in children]
        yield self.env.all_of(ends)
        return next((end.value for end in ends if end.value is not None), None)

    def _route(self, request: Request, stage: Stage, source: str | None = None) -> Client | None:
        """Return the client that the router chooses for a stage; None when none serves it.

        source: name of the client that keeps what the stage continues from; None: it does not.
        """
        if request.chosen_ahead is not None:
            chosen, request.chosen_ahead = request.chosen_ahead, None
            if (client := self.roster.get(chosen)) is not None and stage.kind in client.serves:
                return client
        roster, kind, model = self.roster, stage.kind, request.model
        if source is not None:
            candidates = roster.near(kind, source, model)
        elif model is None:
            candidates = roster.candidates(kind)
        else:
            candidates = roster.candidates_of(kind, model)
        if not candidates:
            self._check_model(request)
            return None
        if self._policy is not None and kind in _HANDED_OVER:
            candidates = self._policy.among(request, stage, candidates)
        client_id = self.router.choose(request, stage, candidates)
        client = self.roster.get(client_id)
        if client is None or stage.kind not in client.serves:
            raise ScenarioError(
                f"{type(self.router).__name__}.choose returned {client_id!r}, which is not the "
                f"client_id of a candidate for {stage.kind}: {[v.client_id for v in candidates]}"
            )
        return client

    def _check_model(self, request: Request) -> None:
        """Raise ScenarioError for a request that names a model which nobody ever served."""
        if request.model is not None and request.model not in self.roster.models:
            known = ", ".join(sorted(self.roster.models)) or "none"
            raise ScenarioError(
                f"request {request.request_id} names the model {brief(request.model)}, which no "
                f"client serves; they serve {known}"
            )

    def _ask_ahead(self, request: Request, stage: Stage, source: str) -> None:
        """Let the router choose now for a stage that comes after the next visit, at `source`."""
        try:
            client = self._route(request, stage, source if stage.continues else None)
        except RefusalError:
            return  # it is asked again when the stage begins
        request.chosen_ahead = client.client_id if client is not None else None


def _kept(
    request: Request, visit: Visit, kv: HeldKv | None, ahead: Reservation | None
) -> HeldKv | None:
    """Return the entries that the next stage continues from; where memory waits, they go there."""
    if ahead is not None:
        ahead.fill(visit)
    elif visit.held_kv is not None:
        _drop(kv)
        request.kv = kv = visit.held_kv
    return kv


def _cancel(
    ahead: Reservation | None, failure: Failure | None, visits: list[Visit]
) -> Generator[Event, Any, None]:
    """Let nobody wait for a prompt of a request that failed before."""
    if ahead is not None and failure is not None:
        yield from ahead.cancel(failure, visits)


def _drop(kv: HeldKv | None) -> None:
    """Let go of entries that no stage will continue from."""
    if kv is not None:
        kv.drop()


def _nobody_serves(request: Request, stage: Stage, client: Client | None) -> str:
    if client is None:
        of_model = f" of {request.model}" if request.model else ""
        return f"no client serves the stage {stage.kind!r}{of_model}"
    return f"{client.name} serves {stage.kind!r} only after a prefill that left its KV entries"
