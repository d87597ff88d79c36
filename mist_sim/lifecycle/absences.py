"""Requests whose client is gone: they wait, are sent to another client, or are lost."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import Failure, HeldKv, Lost, Visit
from mist_sim.environment import Environment
from mist_sim.lifecycle.failures import OnFailure
from mist_sim.lifecycle.gateway import Gateway
from mist_sim.lifecycle.recovery import num_lost_tokens, rest, rest_of


class Policy:
    """The coordinator's `Absences`: a gateway where requests wait, and the recovery from a loss.

    numbers: client numbers by name.
    """

    def __init__(
        self,
        env: Environment,
        recorder: Recorder,
        gateway: Gateway,
        on_failure: OnFailure,
        numbers: dict[str, int],
    ) -> None:
        self._env = env
        self._recorder = recorder
        self._gateway = gateway
        self._on_failure = on_failure
        self._numbers = numbers

    def wait(
        self, request: Request, kind: str, near: frozenset[str] | None = None
    ) -> Generator[Event, Any, Failure | None]:
        """Wait at the gateway until a client is up; return a Failure if none will be."""
        return self._gateway.wait(request, kind, near)

    def after_visit(self, visit: Visit, client: Client) -> tuple[Stage, ...] | Failure:
        """Return stages for another client after a lost visit, or the request's failure."""
        reason = visit.outcome.reason if isinstance(visit.outcome, Lost) else ""
        kept = visit.held_kv if self._on_failure.policy == "resume" else None
        num_tokens = 0 if kept else num_lost_tokens(visit)
        failure = self._after(visit.request, client.client_id, num_tokens, reason)
        if kept is not None and failure is None:
            return visit.stages
        if visit.held_kv is not None:
            visit.held_kv.drop()
        return failure or rest_of(visit)

    def after_hand_over(
        self, request: Request, stage: Stage, kv: HeldKv
    ) -> tuple[Stage, ...] | Failure:
        """Return stages that recompute lost entries, or the request's failure."""
        reason = f"{kv.source}: failed while it kept KV entries of the request"
        failure = self._after(request, self._numbers[kv.source], kv.num_tokens, reason)
        return failure or rest((stage,), kv)

    def _after(
        self, request: Request, client_id: int, num_tokens: int, reason: str
    ) -> Failure | None:
        """Note a loss; return how the request ends, None when it goes on."""
        request.num_losses += 1
        retries = self._on_failure.max_retries if self._on_failure.policy != "fail" else 0
        is_retried = request.num_losses <= retries
        now = self._env.now
        self._recorder.record_loss(
            client_id, request.request_id, now, num_tokens, retried=is_retried
        )
        if is_retried:
            return None
        if retries:
            reason += f", after {retries} retries elsewhere"
        return Failure("lost", now, reason)
