"""Places taken ahead: memory where a request decodes, before its prompt begins (pushed entries)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.reservation import Reservation
from mist_sim.coordination.dispatch import Dispatch
from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import Failure, HeldKv, Lost, Visit
from mist_sim.environment import Environment
from mist_sim.routers import RefusalError
from mist_sim.stages import Prefill


class Absences(Protocol):
    """Handles requests whose client is gone; asked only if clients may leave."""

    def wait(
        self, request: Request, kind: str, near: frozenset[str] | None = None
    ) -> Generator[Event, Any, Failure | None]:
        """Wait until a client that serves a stage comes; return why the wait ends, or None.

        near: names of the clients that may serve it; None: any.
        """

    def after_visit(self, visit: Visit, client: Client) -> tuple[Stage, ...] | Failure:
        """Return stages that redo the lost work of a visit, or the failure of its request."""

    def after_hand_over(
        self, request: Request, stage: Stage, kv: HeldKv
    ) -> tuple[Stage, ...] | Failure:
        """Return the same for a stage whose KV entries were lost before it could continue."""


class PromptVisit(NamedTuple):
    """A visit about to begin: client, stages, later stages, and whether its token is dropped."""

    request: Request
    client: Client
    stages: tuple[Stage, ...]
    later: tuple[Stage, ...]
    is_silent: bool


class Place(NamedTuple):
    """The outcome of taking a place ahead of a prompt.

    begins: whether the prompt begins now. ahead: the place; None: no place was taken.
    num_over: stages after the prompt that are done. failure: how the request failed.
    """

    begins: bool
    ahead: Reservation | None = None
    num_over: int = 0
    failure: Failure | None = None


class PlacesAhead:
    """Takes places at the clients that the dispatch chooses.

    absences: handles requests whose client is gone; None: clients never leave.
    """

    def __init__(self, env: Environment, dispatch: Dispatch) -> None:
        self.absences: Absences | None = None
        self._env = env
        self._dispatch = dispatch

    def take(self, prompt: PromptVisit, visits: list[Visit]) -> Generator[Event, Any, Place]:
        """Take a place where a request will decode, and wait for its memory before the prompt.

        If clients leave meanwhile, the walk chooses again.
        """
        request, source = prompt.request, prompt.client
        roster = self._dispatch.roster
        if self.absences is not None:
            kind, near = prompt.later[0].kind, roster.neighbours(source.name)
            if not roster.near(kind, source.name, request.model):
                return Place(False, failure=(yield from self.absences.wait(request, kind, near)))
        try:
            ahead = self._reserve(prompt)
        except RefusalError as refusal:
            now = self._env.now
            return Place(False, failure=Failure("rejected", now, str(refusal), is_busy=True))
        if ahead is None:
            return Place(True)
        if not (yield from ahead.has_memory(visits)):
            return self._without_memory(ahead, visits[-1])
        if roster.get(source.client_id) is not source:
            gone = Lost(f"{source.name}: left before it began with the prompt")
            yield from ahead.cancel(gone, visits)
            return Place(False)
        return Place(True, ahead)

    def _reserve(self, prompt: PromptVisit) -> Reservation | None:
        """Queue a request at its decode client; None if that client reserves no memory ahead."""
        later, source = prompt.later, prompt.client.name
        client = self._dispatch.route(prompt.request, later[0], source)
        num_stages = client.takes(later) if client and client.traits.reserves else 0
        num_tokens = sum([s.num_prompt_tokens for s in prompt.stages if isinstance(s, Prefill)])
        if client is None or not num_stages or not num_tokens:
            return None
        return Reservation(
            self._env,
            client,
            prompt.request,
            later[:num_stages],
            source=source,
            num_prompt_tokens=num_tokens,
            num_output_tokens=int(not prompt.is_silent),
        )

    def _without_memory(self, ahead: Reservation, visit: Visit) -> Place:
        """Return how to continue after a visit that ended before it had memory."""
        if isinstance(visit.outcome, Lost) and self.absences is not None:
            rest = self.absences.after_visit(visit, ahead.client)
            return Place(False, failure=rest if isinstance(rest, Failure) else None)
        return Place(visit.failure is None, None, len(ahead.stages), visit.failure)

    def keep(
        self, ahead: Reservation, prompt: Visit, visits: list[Visit]
    ) -> Generator[Event, Any, Reservation | None]:
        """Return the place of a request after its prompt; cancel it if the prompt was lost."""
        if not isinstance(prompt.outcome, Lost):
            return ahead
        yield from ahead.cancel(prompt.outcome, visits)
        return None
