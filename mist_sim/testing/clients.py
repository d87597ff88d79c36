"""Rules that every stage keeps, and every client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from math import inf
from typing import Any, cast, get_type_hints

from mist_sim.clients import Client
from mist_sim.clients.traits import ClientTraits
from mist_sim.core.request import Limits, Request, Stage
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.stages import STAGES, Decode, Prefill, completion
from mist_sim.testing.doubles import Others, ReturnedVisit, WatchedRun, start
from mist_sim.testing.rules import name_of, require, require_same, stream_of

_EXAMPLES: dict[object, object] = {int: 1, float: 1.0, str: "x", bool: True}


def check_stage(cls: type[Stage], **parameters: object) -> None:
    """Check that a stage is an immutable value with a unique kind, and refuses bad values.

    parameters: values of fields without a default; not needed for numbers and strings. A field that
        counts something (`num_...`) must refuse -1 with a ValueError that names it. A stage with a
        length returns to its old value when lengthened and shortened by the same number, and counts
        the tokens gained.
    """
    name, plugin = cls.__name__, cast(Any, cls)
    require(issubclass(plugin, Stage), f"{name} must be a subclass of Stage")
    require(plugin is not Stage and is_dataclass(plugin), f"{name} must be a frozen dataclass")
    kind = plugin.kind
    require(
        isinstance(kind, str) and kind.isidentifier() and kind != Stage.kind,
        f"{name}.kind must be a word of its own, got {kind!r}",
    )
    require("kind" not in {item.name for item in fields(cls)}, f"{name}.kind must be a ClassVar")
    known = STAGES.loaded().get(cls.kind, cls)
    require(known is cls, f"{name}.kind is {kind!r}, which already names {known.__name__}")
    values = example_values(cls) | parameters
    one, same = cls(**values), cls(**values)
    require(one == same and hash(one) == hash(same), f"{name} must be equal for equal parameters")
    try:
        setattr(one, next(iter(values), "kind"), None)
    except (AttributeError, TypeError):
        pass
    else:
        raise AssertionError(f"{name} must be frozen: @dataclass(frozen=True)")
    _check_length(one)
    for field in values:
        if field.startswith("num_"):
            other = cls(**(values | {field: 7}))
            require(one != other, f"{name} must differ when {field} differs")
            _check_refusal(cls, values | {field: -1}, field)


def _check_length(stage: Stage) -> None:
    name, gained = type(stage).__name__, 3
    try:
        more = stage.longer(gained)
    except TypeError:
        return  # it has no length
    require(type(more) is type(stage), f"{name}.longer must return a stage of its class")
    require(
        stage.longer(0) == stage != more and more.longer(-gained) == stage,
        f"{name}.longer must add what it is told, and take it off where that is below 0",
    )
    for count in ("num_input_tokens", "num_new_tokens"):
        added = getattr(more, count) - getattr(stage, count)
        require(
            added in (0, gained),
            f"{name}.{count} must grow by {gained} with the stage, or not at all, got {added}",
        )


def example_values(cls: type[Stage]) -> dict[str, Any]:
    """Return a value for each parameter that is a number or a string."""
    hints = get_type_hints(cls)
    return {
        item.name: _EXAMPLES[hints[item.name]]
        for item in fields(cls)
        if hints[item.name] in _EXAMPLES
    }


def _check_refusal(cls: type[Stage], values: dict[str, Any], field: str) -> None:
    try:
        cls(**values)
    except ValueError as error:
        require(field in str(error), f"{cls.__name__}: the error must name {field}, got {error}")
    else:
        raise AssertionError(f"{cls.__name__} must refuse {field}=-1 with a ValueError")


Pipeline = Sequence[Stage]
Visits = Sequence[ReturnedVisit]

_NUM_REQUESTS = 120
_LONGEST = 300  # tokens
_MOST_BRANCHES = 3  # of a stage that grows


def check_client(
    factory: Callable[[], Client], pipelines: Sequence[Pipeline] | None = None
) -> None:
    """Check that a client returns every visit once, in time, and repeats its results.

    pipelines: stages of a request, of which each request has one at random. Stages outside the
        client are served by others, at once. Not needed for registered stages whose parameters are
        numbers.

    It checks that every visit is returned exactly once, when it ends and not before it was sent;
    that a served visit was begun in between; that KV entries are left for stages that continue from
    them, and other clients' entries are released; that an abandoned visit is returned while the
    client still does other work, and no visit is served after a limit of its request; that another
    client of the same kind behaves the same; and that `start` resets the client, so that a second
    run equals the first.
    """
    client = factory()
    kind = name_of(client)
    require(isinstance(client, Client), f"{kind} must be a subclass of Client")
    require(client.name, f"{kind} must have a name")
    require(
        isinstance(getattr(client, "traits", None), ClientTraits),
        f"{kind}.traits must be set; call super().__init__(name, traits)",
    )
    hash(client)
    paths = list(pipelines) if pipelines is not None else _pipelines(client)
    at_once = _run(client, _requests(paths, inf))
    remedy = "random numbers must come from self.streams, and start() must begin empty"
    other = _run(factory(), _requests(paths, inf))
    require_same(client, at_once, other, "in another one of its kind", remedy)
    middle = _median([stay.returned_at for stay in at_once])
    if middle > 0:
        _run(client, _requests(paths, inf), until=middle)
    again = _run(client, _requests(paths, inf))
    require_same(client, at_once, again, "after a run that was cut", remedy)
    for stay in at_once:
        require(
            stay.status in ("served", "rejected"),
            f"{kind} must serve or reject visits without limits, got {stay.status}",
        )
    seconds = max(stay.returned_at for stay in at_once)
    rate = len(at_once) / seconds if seconds else inf
    for load in (0.5, 2.0):
        stays = _run(factory(), _requests(paths, load * rate))
        slowest = max(_seconds(stay) for stay in (*at_once, *stays))
        for limit in ("timeout", "patience"):
            seconds = _median([stay.returned_at - stay.queued_at for stay in stays])
            limits = Limits(**{limit: seconds})
            _check_limits(factory(), _requests(paths, load * rate, limits), slowest)


def _check_limits(client: Client, requests: list[Request], slowest: float) -> None:
    """Check a run with requests that are abandoned at a limit.

    slowest: the longest service of a visit without limits, including full batches, since abandoned
        visits change the batches. An abandoned visit may hold the client for the work in flight,
        but not for the time of a queue in addition.
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


def _run(client: Client, requests: list[Request], until: float | None = None) -> Visits:
    """Return the visits that a client returns, in order of time.

    until: time at which the run is cut, in the middle of its work, seconds.
    """
    env = Environment()
    run, others = (
        WatchedRun(client, env),
        Others("others", _kinds(requests) - set(client.traits.serves)),
    )
    try:
        start(run, others, requests)
        env.run(until=until)
    except AssertionError:
        raise
    except ScenarioError as error:
        raise AssertionError(f"{name_of(client)}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{name_of(client)} raised {error!r} at {env.now} s") from error
    if until is None:
        run.rule(run.num_open == 0, f"must hand every visit back; {run.num_open} never came")
        run.rule(run.stays, f"was sent no visit; it serves {client.traits.serves}: pass pipelines")
        run.rule(
            others.num_kept == 0,
            f"must let go of KV entries that others keep (HeldKv.release); {others.num_kept} are "
            "still kept",
        )
    return run.stays


def _kinds(requests: list[Request]) -> set[str]:
    """Return the stages that there are, registered or not."""
    kinds = {stage.kind for request in requests for stage in request.stages}
    return kinds | {stage.kind for stage in STAGES.loaded().values()}


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
    """Return pipelines of the stages that a client serves.

    These are completions, each other stage followed by a completion, and all others in a row.
    """
    draws = stream_of("check_client: lengths")
    found: list[Pipeline] = []
    others = [kind for kind in client.traits.serves if kind not in (Prefill.kind, Decode.kind)]
    for _ in range(8):
        prompt, output = draws.integers(1, _LONGEST, 2).tolist()
        after = completion(prompt, output)  # which the outcome of a stage may lengthen
        if Prefill.kind in client.traits.serves or Decode.kind in client.traits.serves:
            found.append(after)
        singles = [_example(kind, client, draws.integers(1, _LONGEST)) for kind in others]
        found += [(stage, *after) for stage in singles]
        if len(singles) > 1:
            found.append(singles)
    require(
        found, f"{name_of(client)} serves {client.traits.serves}; pass pipelines of these stages"
    )
    return found


def _example(kind: str, client: Client, number: Any) -> Stage:
    """Return a stage of a kind, with `number` as its count."""
    for cls in STAGES.loaded().values():
        if cls.kind == kind:
            values = example_values(cls)
            count = 1 + int(number) % _MOST_BRANCHES if cls.grows else int(number)
            counts = dict.fromkeys((key for key in values if key.startswith("num_")), count)
            stage: Stage = cls(**{**values, **counts})
            return stage.with_lengths(int(number), int(number))
    raise AssertionError(
        f"{name_of(client)} serves {kind!r}, which no registered stage is; pass pipelines"
    )


def _seconds(stay: ReturnedVisit) -> float:
    """Return how long a visit was worked on."""
    started_at = float(stay.started_at)
    return stay.returned_at - started_at if started_at == started_at else 0.0


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
