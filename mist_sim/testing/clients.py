"""What a client has to hold to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.core.request import Limits, Request, Stage
from mist_sim.core.visit import Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import ScenarioError
from mist_sim.metrics import ColumnRecorder
from mist_sim.rng import Streams
from mist_sim.stages import STAGES, Decode, Prefill, completion
from mist_sim.testing.rules import name_of, require, stream_of
from mist_sim.testing.stages import example_values

Pipeline = Sequence[Stage]

_NUM_REQUESTS = 120
_LONGEST = 300  # tokens


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


@dataclass(slots=True)
class _Run:
    """One run of a client alone: the requests that walk it, and what it handed back."""

    client: Client
    env: Environment
    stays: list[_Stay] = field(default_factory=list)
    num_open: int = 0
    most_counted: int = 0

    def rule(self, holds: object, rule: str) -> None:
        """Raise AssertionError unless a rule about the client holds."""
        require(holds, f"{name_of(self.client)} {rule}, at {self.env.now} s")

    def walk(self, request: Request) -> Generator[Event, Visit, None]:
        """Send a request at its time, visit after visit, as the coordinator does."""
        yield self.env.at(request.arrival_time or 0.0, MOVE)
        request.send(self.env.now)
        stages = request.stages
        while stages:
            self.look()
            num_stages = self.client.takes(stages)
            self.rule(
                0 < num_stages <= len(stages),
                f"must take at least the first of the stages that it serves, {stages}, "
                f"got {num_stages}",
            )
            self.num_open += 1
            sent_at = self.env.now
            visit = yield self.client.serve(request, stages[:num_stages])
            self.num_open -= 1
            self._returned(visit, request, num_stages, sent_at)
            if visit.failure is not None:
                return
            stages = stages[num_stages:]

    def look(self) -> None:
        """Check the counts that a router sees now."""
        view = self.client.view
        counts = (view.num_waiting, view.num_running, view.num_outstanding)
        text = f"(waiting, running, outstanding) is {counts}"
        self.rule(min(counts) >= 0, f"must count at least 0 of everything; {text}")
        self.rule(
            view.num_outstanding <= self.num_open,
            f"must count no more visits than it has; {text} with {self.num_open}",
        )
        self.rule(
            view.num_waiting + view.num_running <= view.num_outstanding,
            f"must count a visit as waiting or running, not as both; {text}",
        )
        self.most_counted = max(self.most_counted, view.num_waiting + view.num_running)

    def _returned(self, visit: Visit, request: Request, num_stages: int, sent_at: float) -> None:
        now, begun = self.env.now, visit.started_at == visit.started_at
        self.rule(visit.request is request, "must hand back the visit of the request it was sent")
        self.rule(
            visit.queued_at == sent_at <= now and visit.finished_at == now,
            f"must hand a visit back when it ends and not before it was sent; sent at {sent_at} s, "
            f"finished_at {visit.finished_at}",
        )
        self.rule(
            visit.started_at <= now and visit.started_at >= sent_at if begun else visit.failure,
            f"must set started_at between the sending ({sent_at} s) and the end of a visit that it "
            f"serves, got {visit.started_at}",
        )
        status, gave_up_at = "served", inf
        if visit.failure is not None:
            status, gave_up_at = visit.failure.status, visit.failure.time
        self.stays.append(
            _Stay(
                request.request_id,
                num_stages,
                sent_at,
                repr(visit.started_at),
                now,
                status,
                gave_up_at,
            )
        )


def check_client(
    factory: Callable[[], Client], pipelines: Sequence[Pipeline] | None = None
) -> None:
    """Check that a client hands every visit back once, in time, and does the same again.

    pipelines: stages of a request, of which each request has one at random; all of them must be
    served by the client. Not needed for registered stages whose parameters are numbers.

    Every visit is handed back exactly once, when it ends and not before it was sent; the counts
    that routers see are never negative and are 0 at the end; a visit that is given up is handed
    back while the client still does other work, and no visit is served after a limit of its
    request; another client of the same kind does the same; and `start` begins empty, so that a
    second run of the same client equals the first.
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
    _cut(client, _requests(paths, inf), _median([stay.returned_at for stay in at_once]))
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
            _check_limits(factory(), _requests(paths, load * rate, limits), seconds, slowest)


def _check_limits(client: Client, requests: list[Request], limit: float, slowest: float) -> None:
    """Check a run whose requests are given up `limit` seconds after they arrive.

    slowest: the longest service of a visit without limits. A visit that is given up may hold the
    client as long as what is in flight takes, and not for the time of a queue on top.
    """
    kind = name_of(client)
    arrivals = {request.request_id: request.arrival_time or 0.0 for request in requests}
    for stay in _run(client, requests):
        end = arrivals[stay.request_id] + limit
        if stay.status == "served":
            require(
                stay.returned_at <= end,
                f"{kind} served a visit at {stay.returned_at} s whose request was given up at "
                f"{end} s; _abort must let it go",
            )
        elif stay.status != "rejected":
            require(
                stay.returned_at - stay.gave_up_at <= slowest * (1 + 1e-9),
                f"{kind} handed a visit back at {stay.returned_at} s that was given up at "
                f"{stay.gave_up_at} s, although no service takes longer than {slowest} s; _abort "
                "must take it out of the queue",
            )


def _run(client: Client, requests: list[Request]) -> list[_Stay]:
    """Return what a client hands back of some requests, in order of time."""
    env = Environment()
    run = _Run(client, env)
    client.streams = Streams(0)
    try:
        client.start(env, 0, ColumnRecorder())
        run.look()
        for request in requests:
            env.start(run.walk(request))
        env.run()
    except (AssertionError, ScenarioError):
        raise
    except Exception as error:
        raise AssertionError(f"{name_of(client)} raised {error!r} at {env.now} s") from error
    run.rule(run.num_open == 0, f"must hand every visit back; {run.num_open} never came")
    view = client.view
    counts = (view.num_waiting, view.num_running, view.num_outstanding)
    run.rule(
        counts == (0, 0, 0),
        f"must count nobody when all are gone; (waiting, running, outstanding) is {counts}",
    )
    run.rule(
        run.most_counted > 0 or not any(map(_seconds, run.stays)),
        "must count its visits in view.num_waiting and view.num_running",
    )
    return run.stays


def _cut(client: Client, requests: list[Request], end: float) -> None:
    """Run a client and leave it in the middle of its work."""
    env = Environment()
    client.streams = Streams(0)
    client.start(env, 0, ColumnRecorder())
    run = _Run(client, env)
    for request in requests:
        env.start(run.walk(request))
    if end > 0:
        env.run(until=end)


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
    """Return pipelines of the stages that a client serves, one stage each, and all of them."""
    draws = stream_of("check_client: lengths")
    found: list[Pipeline] = []
    others = [kind for kind in client.serves if kind not in (Prefill.kind, Decode.kind)]
    for _ in range(8):
        if Prefill.kind in client.serves:
            prompt, output = draws.integers(1, _LONGEST, 2).tolist()
            answer = completion(prompt, output)
            found.append(answer if Decode.kind in client.serves else answer[:1])
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
