"""Puts the life of the clients of one run together, and lets it begin."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.clients.roster import Roster
from mist_sim.coordination.coordinator import Coordinator
from mist_sim.coordination.entrance import Entrance
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import Failure, HeldKv, Lost, Visit
from mist_sim.environment import CHANGE, Environment
from mist_sim.lifecycle.autoscaling import Autoscaling, Controller
from mist_sim.lifecycle.fleet import Endless, Fleet, Gateway, Need
from mist_sim.lifecycle.lifecycle_options import Drain, Failures, Lifecycle, OnFailure
from mist_sim.lifecycle.start_up import Starts
from mist_sim.network import Cable, Network, Ways
from mist_sim.rng import Streams
from mist_sim.stages import Decode, Prefill, Recomputation


def rest_of(visit: Visit) -> tuple[Stage, ...]:
    """Return the stages that redo the unfinished part of a lost visit."""
    stages = rest(visit.stages, visit.kv, visit.num_output_tokens, visit.last_token_at)
    first, *later = stages
    if isinstance(first, Prefill) and not first.is_again and visit.num_queried_tokens:
        return (_again(first.num_prompt_tokens), *later)
    return stages


def rest(
    stages: Sequence[Stage], kv: HeldKv | None, num_new: int = 0, last_token_at: float = 0.0
) -> tuple[Stage, ...]:
    """Return the stages that continue after a loss of all KV entries.

    The prompt and the tokens so far form a new prompt, whose prefill emits the next token. Stages
    of other kinds, and prompts without a token, start again from the beginning.

    kv: the entries with which the stages began, that are lost now. num_new: tokens emitted since
    then, the latest at `last_token_at`, seconds.
    """
    first = stages[0]
    if isinstance(first, Prefill) and num_new:
        num_known, num_left_out = first.num_prompt_tokens, num_new
        num_emitted = first.num_emitted + num_new
    elif isinstance(first, Decode) and kv is not None:
        num_emitted = kv.num_output_tokens + num_new
        if not num_emitted:  # the first token was to come from here, too
            return (_again(kv.num_prompt_tokens), *stages)
        num_known = kv.num_prompt_tokens + kv.num_output_tokens
        num_left_out = num_new + (kv.num_output_tokens > 0)
        last_token_at = last_token_at if num_new else kv.last_token_at
    else:
        return tuple(stages)
    again = _again(num_known + num_new, num_emitted, last_token_at)
    return (again, *_without(stages, num_left_out))


def _again(
    num_prompt_tokens: int, num_before: int = 0, last_token_at: float = nan
) -> Recomputation:
    """Return the prefill of a prompt that was looked up in a prefix cache before."""
    return Recomputation(
        num_prompt_tokens=num_prompt_tokens, num_before=num_before, last_token_at=last_token_at
    )


def _without(stages: Sequence[Stage], num_tokens: int) -> Iterator[Stage]:
    """Yield decodes without their first tokens, dropping decodes with no token left."""
    for stage in stages:
        if isinstance(stage, Decode):
            num_left = stage.num_tokens - num_tokens
            num_tokens = max(-num_left, 0)
            if num_left > 0:
                yield stage.with_rest(num_left)


def num_lost_tokens(visit: Visit) -> int:
    """Return how many tokens had KV entries that were lost with a visit."""
    kv, num_new = visit.kv, visit.num_output_tokens
    first = visit.stages[0]
    if kv is not None and first.continues:
        return kv.num_tokens * kv.is_computed + num_new
    if isinstance(first, Prefill) and num_new:
        return first.num_prompt_tokens + num_new - 1
    return visit.num_computed_tokens


@dataclass(eq=False)
class Policy:
    """The coordinator's `Absences`: a gateway where requests wait, and the recovery from a loss.

    numbers: client numbers by name.
    """

    _env: Environment
    _recorder: Recorder
    gateway: Gateway
    _on_failure: OnFailure
    _numbers: dict[str, int]

    def __post_init__(self) -> None:
        self.wait = self.gateway.wait
        """Waits at the gateway until a client is up; returns a Failure if none will be."""

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
        self._recorder.losses.add((request.request_id, client_id, now, num_tokens, is_retried))
        if is_retried:
            return None
        if retries:
            reason += f", after {retries} retries elsewhere"
        return Failure("lost", now, reason)


class Manager:
    """Lets clients fail, drain and start, and notifies the gateway and autoscalers.

    attainment: returns, for each autoscaler, a function for the share of requests within the limits
        since its last call.
    entrance: where requests wait to be let in; None: all go in.
    struck: positions of the failures that came.
    """

    def __init__(
        self,
        options: Lifecycle,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        streams: Streams,
        network: Network | None,
        attainment: Callable[[], Callable[[], float]],
        entrance: Entrance | None = None,
    ) -> None:
        self.struck: set[int] = set()
        self._options = options
        self._env = env
        self._streams = streams
        self._recorder = recorder
        roster: Roster = coordinator.roster
        starts = Starts(env, options.start_up, streams, network)
        self._fleet = fleet = Fleet(env, roster, recorder, starts.begin)
        self._gateway = gateway = Gateway(env, fleet.why_nobody, self._activate)
        numbers = {client.name: client.client_id for client in roster}
        coordinator.absences = Policy(env, recorder, gateway, options.on_failure, numbers)
        self._entrance = entrance
        self._controllers: list[Controller] = []
        fleet.listener = self
        self._endless = Endless(env, lambda: gateway.anybody_waits)
        fleet.begin([name for group in options.autoscaling for name in _off_at_first(group)])
        for group in options.autoscaling:
            self._controllers.append(self._controller(group, attainment()))
        for position, failure in enumerate(options.failures):
            if failure.cable is not None and network is not None and network.ways is not None:
                env.start(self._fail_link(position, failure.cable, network.ways))
                continue
            names = options.failing(failure, network)
            if failure.mtbf is not None:
                self._endless.failing += [fleet.members[name].client for name in names]
            for number, together in enumerate(failure.together(names)):
                env.start(self._fail(position, together, number))
        for drain in options.drains:
            env.start(self._drain(drain))

    def _controller(self, group: Autoscaling, attainment: Callable[[], float]) -> Controller:
        members = [self._fleet.members[name] for name in group.clients]
        at_gateway = partial(self._num_at_gateway, [member.client for member in members])
        return Controller(
            self._env,
            self._fleet,
            members,
            group,
            self._recorder,
            at_gateway,
            attainment,
            self._endless,
        )

    def _num_at_gateway(self, clients: Sequence[Client]) -> int:
        """Return how many requests wait, for a client or to be let in, that some could serve."""
        number = self._gateway.num_waiting(clients)
        if self._entrance is None:
            return number

        def serves(kind: str, model: str | None) -> bool:
            return any(map(Need(kind, model).is_met_by, clients))

        return number + self._entrance.num_waiting(serves)

    def _fail(
        self, position: int, names: Sequence[str], number: int
    ) -> Generator[Event, Any, None]:
        """Let clients fail together, and be repaired."""
        failure = self._options.failures[position]
        rng = self._streams.generator(f"failures {position}: {number}")
        for time, what in failure.changes(rng):
            yield self._change(failure, time, what)
            self.struck.add(position)
            if what == "repair":
                self._fleet.repair(names)
            else:
                self._fleet.fail(names, for_good=what == "leave")

    def _fail_link(self, position: int, cable: Cable, ways: Ways) -> Generator[Event, Any, None]:
        """Let a cable be down, and be repaired."""
        failure = self._options.failures[position]
        rng = self._streams.generator(f"failures {position}: link")
        for time, what in failure.changes(rng):
            yield self._change(failure, time, what)
            self.struck.add(position)
            if what == "repair":
                ways.repair_link(cable)
            else:
                ways.fail_link(cable)

    def _change(self, failure: Failures, time: float, what: str) -> Event:
        """Return the event of a failure or a repair; random ones always recur."""
        if failure.mtbf is None or what == "repair":
            return self._env.at(max(time, self._env.now), CHANGE)
        return self._endless.at(time)

    def _drain(self, drain: Drain) -> Generator[Event, Any, None]:
        members = [self._fleet.members[name] for name in drain.clients]
        yield self._env.at(drain.at, CHANGE)
        for member in members:
            member.will_return = drain.back is not None
            self._fleet.drain(member)
        if drain.back is not None:
            yield self._env.at(drain.at + drain.back, CHANGE)
            for member in members:
                self._fleet.start(member)

    # --- notifications from the fleet and the gateway ------------------------------------------

    def came_up(self, client: Client) -> None:
        """Let requests go on that wait for a client, or to be let in."""
        self._gateway.came_up(client)
        if self._entrance is not None:
            self._entrance.ask()
        for controller in self._controllers:
            controller.came_up(client.name)

    def went_away(self) -> None:
        """Let autoscalers replace clients, and reject requests that no client will serve."""
        for controller in self._controllers:
            controller.replace()
        self._gateway.went_away()

    def _activate(self) -> None:
        for controller in self._controllers:
            controller.activate()


def _off_at_first(group: Autoscaling) -> Sequence[str]:
    return group.clients[group.num_at_first :]
