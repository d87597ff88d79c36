"""A run of one client under the coordinator, which looks at each visit that it hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, cast

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.clients.kv_cache import ContentHistory
from mist_sim.clients.roster import Roster
from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.request import Limits, Request, Stage
from mist_sim.core.visit import Failure, HeldKv, Moved, Served, Visit
from mist_sim.environment import Environment
from mist_sim.load_generation import OpenLoop
from mist_sim.metrics import ColumnRecorder
from mist_sim.network import Link
from mist_sim.rng import Streams
from mist_sim.routers import RoundRobinRouter
from mist_sim.testing.rules import name_of, require, stream_of

_BANDWIDTH = 1e10  # bytes/s, of the network over which KV entries come
_COPY_TIME = 0.05  # s in which others copy KV entries of the client


@dataclass(frozen=True, slots=True)
class ReturnedVisit:
    """A visit as it was when the client handed it back."""

    request_id: int
    num_stages: int
    queued_at: float
    started_at: str  # as text: NaN where work never began, and NaN is not equal to itself
    returned_at: float
    status: str
    gave_up_at: float
    limit_at: float


class Others(Client):
    """Serves all other stages at once, and keeps or copies KV entries by the rules.

    num_kept: entries kept for the client and not released yet.
    """

    def start(self, *args: Any) -> None:
        """Start with no entries kept."""
        super().start(*args)
        self.num_kept = 0

    def accept(self, visit: Visit) -> None:
        """Serve a visit at once, or after copying the KV entries it continues from."""
        self.begin(visit)
        kv = visit.kv
        num_prompt_tokens = kv.num_prompt_tokens if kv else 0
        num_prompt_tokens += sum(getattr(stage, "num_prompt_tokens", 0) for stage in visit.stages)
        if kv is not None:
            kv.begin_copy()
            copied = self.env.at(self.env.now + _COPY_TIME)
            copied.callbacks.append(lambda _: kv.release())
        if visit.is_followed:
            self.num_kept += 1
            visit.held_kv = HeldKv(
                self.name,
                self._let_go,
                num_tokens=num_prompt_tokens,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=1,
                last_token_at=self.env.now,
            )
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        """No time passes in which a visit could be given up."""

    def _let_go(self) -> None:
        self.num_kept -= 1


@dataclass
class WatchedRun:
    """One run of a client, which checks everything that the client returns.

    It is the object that the coordinator asks for a client's stages and sends visits to.
    """

    client: Client
    env: Environment
    history: ContentHistory | None = None
    stays: list[ReturnedVisit] = field(default_factory=list)
    num_open: int = 0

    def __getattr__(self, name: str) -> Any:
        """Return the client's own attribute."""
        return getattr(self.client, name)

    def rule(self, holds: object, rule: str) -> None:
        """Raise AssertionError unless a rule about the client holds."""
        require(holds, f"{name_of(self.client)} {rule}, at {self.env.now} s")

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return the client's answer, after checking that it takes the first stages."""
        num_stages = self.client.takes(stages)
        self.rule(
            0 < num_stages <= len(stages),
            f"must take at least the first of the stages that it serves, {stages}, "
            f"got {num_stages}",
        )
        return num_stages

    def serve(
        self,
        request: Request,
        stages: tuple[Stage, ...],
        kv: HeldKv | None = None,
        is_followed: bool = False,
        is_silent: bool = False,
    ) -> Event:
        """Send a visit to the client, and check what it returns."""
        self.num_open += 1
        end = self.client.serve(request, stages, kv, is_followed, is_silent)
        end.callbacks.append(partial(self._returned, request, self.env.now))
        return end

    def _returned(self, request: Request, sent_at: float, end: Event) -> None:
        self.num_open -= 1
        visit = cast(Visit, end.value)
        now, begun = self.env.now, visit.started_at == visit.started_at
        self.rule(visit.request is request, "must hand back the visit of the request it was sent")
        self.rule(
            visit.queued_at == sent_at <= now and visit.finished_at == now,
            f"must hand a visit back when it ends and not before it was sent; sent at {sent_at} s, "
            f"finished_at {visit.finished_at}",
        )
        self.rule(
            sent_at <= visit.started_at <= now if begun else visit.failure,
            f"must begin a visit that it serves between the sending ({sent_at} s) and the end, "
            f"got started_at {visit.started_at}",
        )
        self._check_outcome(visit)
        status, gave_up_at = "served", inf
        if visit.failure is not None:
            status, gave_up_at = visit.failure.status, visit.failure.time
        self.stays.append(
            ReturnedVisit(
                request.request_id,
                len(visit.stages),
                sent_at,
                repr(visit.started_at),
                now,
                status,
                gave_up_at,
                _limit_at(request),
            )
        )

    def _check_outcome(self, visit: Visit) -> None:
        """Check the outcome, which the coordinator uses next."""
        outcome, goes_on = visit.outcome, visit.is_followed
        self.rule(
            isinstance(outcome, Served | Moved | Failure),
            f"must set visit.outcome to Served, Moved or Failure, got {outcome!r}",
        )
        if isinstance(outcome, Moved):
            last = visit.stages[-1]
            most = getattr(last, "num_tokens", inf)
            self.rule(
                1 <= outcome.num_tokens <= most,
                f"must leave 1 to {most} tokens of {last} to others, got {outcome}",
            )
            goes_on = last.with_rest(outcome.num_tokens).continues
        self.rule(
            not goes_on or visit.failure or visit.held_kv,
            "must leave its KV entries in visit.held_kv when the next stage goes on from them",
        )


def start(run: WatchedRun, others: Others, requests: list[Request]) -> None:
    """Put a simulation together and let it send the requests."""
    env, recorder, roster = run.env, ColumnRecorder(), Roster()
    client = run.client
    client.network = Link(bandwidth=_BANDWIDTH)
    client.network.start(env)
    client.streams = Streams(0)
    client.start(env, roster.next_id(), recorder)
    others.start(env, roster.next_id(), recorder)
    roster.join(cast(Client, run))
    roster.join(others)
    coordinator = Coordinator(env, roster, RoundRobinRouter())
    load = OpenLoop(env, coordinator, recorder, None, stream_of("check_client: retries"))
    coordinator.spawn = load.spawn
    load.start(iter(requests))


def _limit_at(request: Request) -> float:
    """Return when a request is given up, seconds."""
    limits = request.limits or Limits()
    return (request.arrival_time or 0.0) + min(limits.timeout, limits.patience)
