"""What a client has to hold to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, cast

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.clients.roster import Roster
from mist_sim.coordinator import Coordinator
from mist_sim.core.request import Limits, Request, Stage
from mist_sim.core.visit import Failure, HeldKv, Moved, Served, Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.load_generation import OpenLoop
from mist_sim.metrics import ColumnRecorder
from mist_sim.network import Link
from mist_sim.rng import Streams
from mist_sim.routers import RoundRobinRouter
from mist_sim.stages import STAGES, Decode, Prefill, completion
from mist_sim.testing.rules import name_of, require, stream_of
from mist_sim.testing.stages import example_values

Pipeline = Sequence[Stage]

_NUM_REQUESTS = 120
_LONGEST = 300  # tokens
_BANDWIDTH = 1e10  # bytes/s, of the network over which KV entries come
_COPY_TIME = 0.05  # s in which others copy KV entries of the client


@dataclass(frozen=True, slots=True)
class _Stay:
    """A visit as it was when the client handed it back."""

    request_id: int
    num_stages: int
    queued_at: float
    started_at: str  # as text: NaN where work never began, and NaN is not equal to itself
    returned_at: float
    status: str
    gave_up_at: float
    limit_at: float


class _Others(Client):
    """Serves at once what the client does not, and keeps or copies KV entries as it should.

    num_kept: how often it keeps entries for the client that nobody let go of yet.
    """

    def start(self, *args: Any) -> None:
        super().start(*args)
        self.num_kept = 0

    def accept(self, visit: Visit) -> None:
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


@dataclass(slots=True)
class _Run:
    """One run of a client, which stands here before it and looks at all that it hands back.

    It is what the coordinator asks for a client's stages and sends visits to.
    """

    client: Client
    env: Environment
    stays: list[_Stay] = field(default_factory=list)
    num_open: int = 0

    def __getattr__(self, name: str) -> Any:
        """Return what is asked of the client itself."""
        return getattr(self.client, name)

    def rule(self, holds: object, rule: str) -> None:
        """Raise AssertionError unless a rule about the client holds."""
        require(holds, f"{name_of(self.client)} {rule}, at {self.env.now} s")

    def takes(self, stages: Sequence[Stage]) -> int:
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
        *,
        is_followed: bool = False,
    ) -> Event:
        self.num_open += 1
        end = self.client.serve(request, stages, kv, is_followed=is_followed)
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
            _Stay(
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
        """Check what the coordinator goes on from."""
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


def check_client(
    factory: Callable[[], Client], pipelines: Sequence[Pipeline] | None = None
) -> None:
    """Check that a client hands every visit back once, in time, and does the same again.

    pipelines: stages of a request, of which each request has one at random. Stages that the client
    does not serve are served by others, at once. Not needed for registered stages whose parameters
    are numbers.

    Every visit is handed back exactly once, when it ends and not before it was sent; one that is
    served was begun in between; KV entries are left for stages that go on from them, and those
    that others keep are let go; a visit that is given up is handed back while the client still
    does other work, and no visit is served after a limit of its request; another client of the
    same kind does the same; and `start` begins empty, so that a second run of the same client
    equals the first.
    """
    client = factory()
    kind = name_of(client)
    require(isinstance(client, Client), f"{kind} must be a subclass of Client")
    require(client.name, f"{kind} must have a name")
    require(
        client.serves and all(isinstance(stage, str) for stage in client.serves),
        f"{kind}.serves must name the kinds of stages it serves, got {client.serves!r}",
    )
    hash(client)
    paths = list(pipelines) if pipelines is not None else _pipelines(client)
    at_once = _run(client, _requests(paths, inf))
    _same(client, at_once, _run(factory(), _requests(paths, inf)), "in another one of its kind")
    middle = _median([stay.returned_at for stay in at_once])
    if middle > 0:
        _run(client, _requests(paths, inf), until=middle)
    again = _run(client, _requests(paths, inf))
    _same(client, at_once, again, "after a run that was cut; start() must begin empty")
    for stay in at_once:
        require(
            stay.status in ("served", "rejected"),
            f"{kind} must serve or reject visits without limits, got {stay.status}",
        )
    seconds = max(stay.returned_at for stay in at_once)
    rate = len(at_once) / seconds if seconds else inf
    for load in (0.5, 2.0):
        stays = _run(factory(), _requests(paths, load * rate))
        slowest = max(_seconds(stay) for stay in stays)
        for limit in ("timeout", "patience"):
            seconds = _median([stay.returned_at - stay.queued_at for stay in stays])
            limits = Limits(**{limit: seconds})
            _check_limits(factory(), _requests(paths, load * rate, limits), slowest)


def _check_limits(client: Client, requests: list[Request], slowest: float) -> None:
    """Check a run whose requests are given up at a limit.

    slowest: the longest service of a visit without limits. A visit that is given up may hold the
    client as long as what is in flight takes, and not for the time of a queue on top.
    """
    kind = name_of(client)
    for stay in _run(client, requests):
        if stay.status == "served":
            require(
                stay.returned_at <= stay.limit_at,
                f"{kind} served a visit at {stay.returned_at} s whose request was given up at "
                f"{stay.limit_at} s; abort must let it go",
            )
        elif stay.status != "rejected":
            require(
                stay.returned_at - stay.gave_up_at <= slowest * (1 + 1e-9),
                f"{kind} handed a visit back at {stay.returned_at} s that was given up at "
                f"{stay.gave_up_at} s, although no service takes longer than {slowest} s; abort "
                "must take it out of the queue",
            )


def _run(client: Client, requests: list[Request], until: float | None = None) -> list[_Stay]:
    """Return what a client hands back of some requests, in order of time.

    until: when the run is cut, in the middle of its work, seconds.
    """
    env = Environment()
    run, others = _Run(client, env), _Others("others", _kinds(requests) - set(client.serves))
    try:
        _start(run, others, requests)
        env.run(until=until)
    except (AssertionError, ScenarioError):
        raise
    except Exception as error:
        raise AssertionError(f"{name_of(client)} raised {error!r} at {env.now} s") from error
    if until is None:
        run.rule(run.stays, f"was sent no visit; it serves {client.serves}: pass pipelines")
        run.rule(run.num_open == 0, f"must hand every visit back; {run.num_open} never came")
        run.rule(
            others.num_kept == 0,
            f"must let go of KV entries that others keep (HeldKv.release); {others.num_kept} are "
            "still kept",
        )
    return run.stays


def _start(run: _Run, others: _Others, requests: list[Request]) -> None:
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


def _kinds(requests: list[Request]) -> set[str]:
    """Return the stages that there are, registered or not."""
    kinds = {stage.kind for request in requests for stage in request.stages}
    return kinds | {stage.kind for stage in STAGES.values()}


def _limit_at(request: Request) -> float:
    """Return when a request is given up, seconds."""
    limits = request.limits or Limits()
    return (request.arrival_time or 0.0) + min(limits.timeout, limits.patience)


def _requests(
    pipelines: Sequence[Pipeline], rate: float, limits: Limits | None = None
) -> list[Request]:
    """Return the same requests at every call; `rate` a second, or all at once."""
    draws = stream_of("check_client")
    gaps = draws.exponential(1.0, _NUM_REQUESTS)
    requests = []
    time = 0.0
    for number in range(_NUM_REQUESTS):
        time += float(gaps[number]) / rate
        stages = tuple(pipelines[int(draws.integers(len(pipelines)))])
        requests.append(Request(number, time, stages, limits=limits))
    return requests


def _pipelines(client: Client) -> list[Pipeline]:
    """Return pipelines of the stages that a client serves: completions, others, all of these."""
    draws = stream_of("check_client: lengths")
    found: list[Pipeline] = []
    others = [kind for kind in client.serves if kind not in (Prefill.kind, Decode.kind)]
    for _ in range(8):
        if Prefill.kind in client.serves or Decode.kind in client.serves:
            prompt, output = draws.integers(1, _LONGEST, 2).tolist()
            found.append(completion(prompt, output))
        singles = [_example(kind, client, draws.integers(1, _LONGEST)) for kind in others]
        found += [(stage,) for stage in singles]
        if len(singles) > 1:
            found.append(singles)
    require(found, f"{name_of(client)} serves {client.serves}; pass pipelines of these stages")
    return found


def _example(kind: str, client: Client, number: Any) -> Stage:
    """Return a stage of a kind, with `number` of what it counts."""
    for cls in STAGES.values():
        if cls.kind == kind:
            values = example_values(cls)
            counts = dict.fromkeys((key for key in values if key.startswith("num_")), int(number))
            stage: Stage = cls(**{**values, **counts})
            return stage
    raise AssertionError(
        f"{name_of(client)} serves {kind!r}, which no registered stage is; pass pipelines"
    )


def _seconds(stay: _Stay) -> float:
    """Return how long a visit was worked on."""
    started_at = float(stay.started_at)
    return stay.returned_at - started_at if started_at == started_at else 0.0


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _same(client: Client, first: list[_Stay], second: list[_Stay], when: str) -> None:
    if first != second:
        pairs = ((one, other) for one, other in zip(first, second, strict=False) if one != other)
        one, other = next(pairs, (len(first), len(second)))
        raise AssertionError(
            f"{name_of(client)} does something else {when}, and random numbers must come from "
            f"self.streams. First {one}, then {other}"
        )
