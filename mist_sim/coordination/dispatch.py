"""Chooses the client of a request's next stages, and how many of them it serves in one visit."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from mist_sim.clients.base import Client
from mist_sim.clients.roster import Roster
from mist_sim.core.candidates import Candidates
from mist_sim.core.events import ROUTED, Events
from mist_sim.core.hand_over import HandOverPolicy
from mist_sim.core.request import Request, Stage
from mist_sim.errors import ScenarioError, brief, listed
from mist_sim.registry import comes_with_package
from mist_sim.routers import RefusalError, Router
from mist_sim.stages import Decode, Prefill
from mist_sim.units import is_whole

_HANDED_OVER = (Prefill.kind, Decode.kind)
_READ = (
    "num_prompt_tokens",
    "num_output_tokens",
    "to_serve",
    "priority",
    "session_id",
    "model",
    "label",
    "content",
    "num_predicted_tokens",
)
_read: Callable[[Request], tuple[object, ...]] = attrgetter(*_READ)


class Dispatch:
    """Asks the hand-over policy which clients may serve a stage, and the router to choose one.

    roster: the clients present. policy: None: roles decide. events: takes each choice; None:
        none is kept.
    """

    def __init__(self, roster: Roster, router: Router, policy: HandOverPolicy | None) -> None:
        self.roster = roster
        self.router = router
        self._is_own = not comes_with_package(type(router))
        self.events: Events | None = None
        self._policy = policy

    def route(self, request: Request, stage: Stage, source: str | None = None) -> Client | None:
        """Return the client that the router chooses for a stage; None if no client serves it.

        source: name of the client that keeps the entries the stage continues from; None: no
            entries.
        Raises RefusalError if the router rejects the request; ScenarioError if it returns no
        candidate, or if no client served the request's model at any time.
        """
        if request.chosen_ahead is not None:
            chosen, request.chosen_ahead = request.chosen_ahead, None
            if (
                client := self.roster.get(chosen)
            ) is not None and stage.kind in client.traits.serves:
                return client
        kind = stage.kind
        if source is not None:
            candidates = self.roster.near(kind, source, request.model)
        else:
            candidates = self.roster.candidates(kind, request.model)
        if not candidates:
            self._check_model(request)
            return None
        if self._policy is not None and kind in _HANDED_OVER:
            candidates = self._policy.among(request, stage, candidates)
        choose = self._watched_choose if self._is_own else self.router.choose
        client_id = choose(request, stage, candidates)
        client = self.roster.get(client_id)
        if client is None or kind not in client.traits.serves:
            raise self._no_candidate(client_id, stage, candidates)
        if self.events is not None:
            why = f"{type(self.router).__name__}: {kind}, one of {len(candidates)}"
            who, tokens = request.request_id, request.num_prompt_tokens
            self.events.note(client.env.now, ROUTED, who, client.client_id, why, tokens)
        return client

    def _watched_choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the choice of a router of one's own, which is a candidate's and changes nothing.

        Raises ScenarioError for others.
        """
        before = _read(request)
        said = self.router.choose(request, stage, candidates)
        if not is_whole(said) or candidates.get(int(said)) is None:
            raise self._no_candidate(said, stage, candidates)
        for name, was, now in zip(_READ, before, _read(request), strict=True):
            if was is not now and was != now:
                raise ScenarioError(
                    f"{type(self.router).__name__}.choose must change nothing, and set {name} of "
                    f"request {request.request_id} from {brief(was)} to {brief(now)}: keep what "
                    "the router remembers in itself"
                )
        return int(said)

    def _no_candidate(self, said: object, stage: Stage, candidates: Candidates) -> ScenarioError:
        known = {view.client_id: view.name for view in candidates}
        return ScenarioError(
            f"{type(self.router).__name__}.choose must return the client_id of a candidate for "
            f"{stage.kind}, one of {listed(known)} ({listed(known.values())}), got {brief(said)}"
        )

    def ask_ahead(self, request: Request, stage: Stage, source: str) -> None:
        """Let the router choose now for a stage that comes after the next visit, at `source`."""
        try:
            client = self.route(request, stage, source if stage.continues else None)
        except RefusalError:
            return  # chosen again when the stage begins
        request.chosen_ahead = client.client_id if client is not None else None

    def num_stages(self, request: Request, client: Client | None, stages: tuple[Stage, ...]) -> int:
        """Return how many of the next stages a client serves in one visit; 0 without a client."""
        num_stages = client.takes(stages) if client else 0
        policy = self._policy
        if client and policy is not None and num_stages > 1 and client.traits.reserves:
            if stages[0].continues or not stages[1].continues:
                return num_stages
            others = self.roster.near(stages[1].kind, client.name, request.model)
            if policy.hands_over(request, client.view, others):
                return 1
        return num_stages

    def _check_model(self, request: Request) -> None:
        """Raise ScenarioError for a request whose model no client served at any time."""
        if request.model is not None and request.model not in self.roster.models:
            known = listed(sorted(self.roster.models)) or "none"
            who = f"request {request.request_id}"
            if request.parent_id is not None:
                who = "a request that an outcome sent"
            raise ScenarioError(
                f"{who} names the model {brief(request.model)}, which no client serves; they serve "
                f"{known}; add a client with this model, or name one of these"
            )
