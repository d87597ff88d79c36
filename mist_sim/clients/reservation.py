"""A visit that begins ahead of its time: memory for a decode is reserved before the prompt."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import AwaitedKv, Failure, HeldKv, Lost, Outcome, Visit
from mist_sim.environment import MOVE, Environment


class Reservation:
    """A request's place at its decode client, while another client computes its prompt.

    client: the decode client. stages: the stages of the visit there.
    source: name of the client that computes the prompt. num_output_tokens: tokens emitted there.
    """

    def __init__(
        self,
        env: Environment,
        client: Client,
        request: Request,
        stages: tuple[Stage, ...],
        *,
        source: str,
        num_prompt_tokens: int,
        num_output_tokens: int,
    ) -> None:
        """Queue the request at the client."""
        self.client = client
        self.stages = stages
        self._env = env
        self._request = request
        self._is_reserved = reserved = Event(env)
        self._kv = AwaitedKv(
            source,
            lambda: env.trigger(reserved, env.now, MOVE),
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
        )
        self._end = client.serve(request, stages, self._kv)

    def has_memory(self, visits: list[Visit]) -> Generator[Event, Any, bool]:
        """Wait until there is memory; False: the visit ended first, and is added to `visits`."""
        yield self._is_reserved
        if not self._kv.is_dropped:
            return True
        yield from self.wait(visits)
        return False

    def fill(self, prompt: Visit) -> None:
        """Send the entries of the prompt's visit, or stop waiting if it left none."""
        if prompt.held_kv is not None:
            self._take(prompt.held_kv)
        elif prompt.failure is None:
            reason = f"{self._kv.source} left no KV entries for {self.client.name}"
            self.client.cancel(self._request, Failure("rejected", self._env.now, reason))

    def _take(self, held: HeldKv) -> None:
        """Let entries be sent that are there, unless they or the place for them are lost."""
        kv, lost = self._kv, self._lost_visit
        if held.is_lost:
            kv.describe(held)
            reason = f"{kv.source}: failed while it kept KV entries of the request"
            self.client.cancel(self._request, Lost(reason))
        elif lost is not None:
            kv.describe(held)
            lost.held_kv = held
        elif kv.is_dropped:
            held.drop()
        else:
            kv.fill(held)

    @property
    def _lost_visit(self) -> Visit | None:
        """The visit, if it has ended because the client failed."""
        visit: Visit | None = self._end.value if self._end.triggered else None
        return visit if visit is not None and isinstance(visit.outcome, Lost) else None

    def wait(self, visits: list[Visit]) -> Generator[Event, Any, Visit]:
        """Wait for the end of the visit, and add it to others."""
        visit: Visit = yield self._end
        visits.append(visit)
        return visit

    def cancel(self, outcome: Outcome, visits: list[Visit]) -> Generator[Event, Any, None]:
        """End the visit, since there will be no prompt, and add it when it has ended."""
        self.client.cancel(self._request, outcome)
        yield from self.wait(visits)
