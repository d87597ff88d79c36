"""The keys of a scenario file. Docstrings and descriptions end up in its JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from mist_sim.bounds import COPIES, SEED
from mist_sim.clients.traits import FLOWING_ROLES, ClientTraits
from mist_sim.core.front_end import FrontEnd
from mist_sim.core.hand_over import HandOver, HandOverPolicy
from mist_sim.errors import brief, did_you_mean, listed
from mist_sim.hand_over_rules import are_alike, dtype_name
from mist_sim.metrics import ApiPrices, CostOptions, PowerOptions, Slo
from mist_sim.metrics.goodput import ClassLimits
from mist_sim.reconfiguration import Change, OnChange, Reconfigure
from mist_sim.registry import comes_with_package
from mist_sim.scenario.engines.version_origins import engine_line
from mist_sim.scenario.format.families import ADMISSION, HAND_OVER_POLICY, ROUTER, Settings
from mist_sim.scenario.format.fields import Duration, as_tuple
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import Problem, failure
from mist_sim.scenario.format.strict import Strict
from mist_sim.scenario.loading import as_data, as_text, from_text, load, validated
from mist_sim.scenario.sections.clients import (
    AnyClient,
    ClientPart,
    EngineName,
    ModelName,
    NamedTraits,
    client_problems,
    with_engine,
)
from mist_sim.scenario.sections.lifecycles import LIFECYCLE, names_nodes, problems_of_lives
from mist_sim.scenario.sections.networks import NETWORK, is_shared, places_of_nobody, spanning
from mist_sim.scenario.sections.routing import (
    adapter_problems,
    image_problems,
    model_problems,
    poll_problems,
    router_problems,
    served_models,
)
from mist_sim.scenario.sections.workload import WorkloadSpec
from mist_sim.scenario.slo_presets import slo_preset, slo_preset_names
from mist_sim.stages import Decode, Prefill, Rag


def headline(
    source: str,
    clients: Sequence[ClientPart],
    model: str | None,
    router: str,
    seed: int,
    varied: Collection[str] = (),
) -> str:
    """Return where a scenario comes from, and below it its clients, router and seed.

    varied: dotted keys that a study varies: what the scenario says of them is left out.
    """
    tops = {key.partition(".")[0] for key in varied}
    serving = ", ".join(_client(n, client, model, varied) for n, client in enumerate(clients))
    parts = [serving]
    parts += [] if tops & {"router", "routers"} else [f"router {router}"]
    parts += [] if "seed" in tops else [f"seed {seed}"]
    return "\n".join(line for line in (source, "; ".join(parts)) if line)


def imitated(clients: Sequence[ClientPart]) -> str:
    """Return which engines the options of clients imitate; empty if no client has a model."""
    return engine_line(client.engine for client in clients if client.engine is not None)


def _client(position: int, client: ClientPart, model: str | None, varied: Collection[str]) -> str:
    place = f"clients.{position}."
    mine = {key.removeprefix(place).partition(".")[0] for key in varied if key.startswith(place)}
    mine |= {"model"} & {*varied}
    copies = f"{client.count} x " if client.count > 1 and "count" not in mine else ""
    return f"{copies}{client.title(model, mine)}"


HAND_OVER = part_type(
    HandOver, meanings={HandOverPolicy | None: Annotated[Part, HAND_OVER_POLICY] | None}
)


def idle_options(hand_over: Part) -> Iterable[Problem]:
    """Yield options of hand-overs that have no effect because nothing is handed over."""
    for name, value in hand_over.parameters().items():
        if value != getattr(HandOver(), name):
            yield Problem(("hand_over", name), "has no effect: no client has a role")


def unlike_engines(
    clients: Mapping[int, NamedTraits], *, by_model: bool = False
) -> Iterable[Problem]:
    """Yield clients that cannot take over others' entries, at their positions.

    Any two clients may exchange entries, so all are compared with the first engine. Clients whose
    entries never travel are left out. by_model: whether every request names a model, so that only
    clients of the same model exchange entries.
    """
    firsts: dict[str | None, NamedTraits] = {}
    # a client that takes blocks of any size is compared with those that have a size
    for position in sorted(clients, key=lambda k: _block_size(clients[k].traits) is None):
        named = clients[position]
        if named.traits.entries is None:
            continue
        first = firsts.setdefault(named.traits.model if by_model else None, named)
        for key, text in _differences(first, named):
            yield Problem(("clients", position, *key.split(".")), text)
        if _cannot_take_over(named.traits):
            yield Problem(
                ("clients", position, "scheduler"),
                "must not be static beside clients with a role, which may hand over to it: "
                "no request joins a static batch",
            )


def _block_size(traits: ClientTraits) -> int | None:
    return traits.entries.block_size if traits.entries else None


def _cannot_take_over(traits: ClientTraits) -> bool:
    """Tell whether a client without a role can decode only after its own prefills."""
    return traits.role is None and Decode.kind in traits.serves and not traits.takes_entries


def _differences(first: NamedTraits, other: NamedTraits) -> Iterable[tuple[str, str]]:
    """Yield (key, problem) for each way in which two clients store entries differently."""
    mine, theirs = other.traits, first.traits
    if mine.model != theirs.model:
        others = "as of the other clients, with which it exchanges KV entries"
        yield "model", f"must be {theirs.model} {others}, got {mine.model}"
        return
    exchange = f"as of {first.name}, with which {other.name} exchanges KV entries"
    sizes = _block_size(theirs), _block_size(mine)
    if None not in sizes and sizes[0] != sizes[1]:
        yield "kv_cache.block_size", f"must be {sizes[0]} {exchange}, got {sizes[1]}"
    dtypes = [_dtype(traits) for traits in (theirs, mine)]
    if not are_alike(*dtypes):
        key = "kv_cache_dtype" if sizes[1] is None else "kv_cache.kv_cache_dtype"
        yield key, f"must be {dtypes[0]} {exchange}, got {dtypes[1]}"


def _dtype(traits: ClientTraits) -> str:
    return dtype_name((traits.entries and traits.entries.dtype) or "auto")


@dataclass(frozen=True, eq=False)
class LimitsOrPreset(Settings):
    """Marks limits that a file may give by the name of a preset."""

    def read(self, value: object, info: ValidationInfo) -> Part:
        """Return the limits that a value in a file describes."""
        if not isinstance(value, str):
            return super().read(value, info)
        names = slo_preset_names()
        if value not in names:
            hint = did_you_mean(value, names)
            text = f"no preset of limits named {brief(value)}{hint} Known: {', '.join(names)}"
            raise failure([Problem((), text)])
        return super().read(slo_preset(value), info)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        limits = super().__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"enum": slo_preset_names()}, limits]}


_CLASS = Annotated[Part, Settings(part_type(ClassLimits))]
LIMITS = LimitsOrPreset(
    part_type(
        Slo,
        meanings={"classes": dict[str, _CLASS], "at": dict[str, Duration]},
        defaults={"classes": {}, "at": {}},
    )
)


def class_problems(slo: Slo, workload: WorkloadSpec) -> Iterable[Problem]:
    """Yield classes that no request can belong to."""
    for name, limits in slo.classes.items():
        place = ("slo", "classes", name)
        if limits.priority is not None and limits.priority not in workload.known_priorities:
            known = listed(sorted(workload.known_priorities))
            yield Problem(
                (*place, "priority"),
                f"no request has priority {limits.priority}; they have {known}",
            )
        if limits.model is not None and not workload.may_name(limits.model):
            yield Problem((*place, "model"), f"no request names {brief(limits.model)}")
        by_name = limits.priority is None and limits.model is None
        if by_name and name not in workload.classes:
            known = listed(workload.classes) if workload.classes else "none"
            yield Problem(
                place,
                f"no request is of this class; workload.lengths has {known}; or name the priority "
                "or the model of its requests",
            )


def gateway_problems(gateway: Part | None, workload: WorkloadSpec) -> Iterable[Problem]:
    """Yield shares of an admission for classes that no request is of."""
    shares = getattr(gateway, "shares", None)
    for name in shares if isinstance(shares, Mapping) else ():
        if name not in workload.classes:
            known = listed(workload.classes) if workload.classes else "none"
            yield Problem(
                ("gateway", "shares", name),
                f"no request is of this class; workload.lengths has {known}",
            )


_CHANGE = part_type(Change)
_ON_CHANGE = part_type(OnChange)
RECONFIGURE = part_type(
    Reconfigure,
    meanings={
        "schedule": Annotated[
            tuple[Annotated[Part, Settings(_CHANGE)], ...], BeforeValidator(as_tuple)
        ],
        "on_change": Annotated[Part, Settings(_ON_CHANGE)] | None,
    },
)
PARTS = {"schedule": _CHANGE, "on_change": _ON_CHANGE}
"""The mappings that lie in it, by key; `schedule` is a list of them."""


def problems_of_sliders(
    part: Part | None, roles: Collection[str | None], *, has_slo: bool, has_polls: bool
) -> Iterable[Problem]:
    """Yield problems that keep the sliders of a scenario from moving.

    roles: of its clients. has_slo: whether it has limits. has_polls: whether routers see polled
    views.
    """
    if part is None:
        return
    if not FLOWING_ROLES.intersection(roles):
        text = "has no effect: no client has role p_heavy or d_heavy"
        yield Problem(("reconfigure",), text)
    if has_polls:
        text = (
            "must be left out with reconfigure: the gateway that changes roles knows them at once"
        )
        yield Problem(("view_interval",), text)
    if getattr(part, "on_change", None) is not None and not has_slo:
        text = "must have a limit, which the search of reconfigure.on_change goes by"
        yield Problem(("slo",), text)


def useless_options(
    workload: WorkloadSpec,
    clients: Iterable[ClientPart],
    routers: Iterable[Part],
    model: str | None,
    lives: Part | None = None,
    gateway: Part | None = None,
) -> Iterable[Problem]:
    """Yield options of a workload that no client reads, and those that clients lack.

    model: the scenario's. Plugins may read any option, so with them none counts as useless.
    """
    clients = list(clients)
    engines = [client.describe(model) for client in clients]
    policies = [*routers, *([] if gateway is None else [gateway])]
    are_ours = all(comes_with_package(policy.plugin) for policy in policies)
    if are_ours and all(client.is_ours for client in clients):
        may_fail = any(failure.link is None for failure in getattr(lives, "failures", ()))
        refuses = ("max_waiting", "sheds_from")  # options of a gateway that refuses
        if all(getattr(gateway, name, None) is None for name in refuses):
            yield from _useless_retries(workload, engines, may_fail=may_fail)
    yield from _useless_numbers(workload, clients)
    yield from _useless_times(workload, clients, engines)
    if not workload.has_predictions and any(each.uses_predictions for each in engines):
        yield Problem(
            ("workload", "predictions"),
            "is required for scheduler.order: shortest_predicted_first, such as {sigma: 0.5}, or "
            "a trace of type csv with predicted_column",
        )
    yield from _missing_deadlines(workload, engines)
    yield from _deadlines_of_nobody(workload)


def unread_facts(scenario: Scenario) -> Iterator[str]:
    """Yield what the scenario says of requests and no part of it reads, with what would.

    Plugins may read anything, so with them everything counts as read.
    """
    workload, gateway = scenario.workload, scenario.gateway
    policies = [
        scenario.router,
        *scenario.routers.values(),
        *([] if gateway is None else [gateway]),
    ]
    ours = all(comes_with_package(policy.plugin) for policy in policies)
    if not ours or not all(client.is_ours for client in scenario.clients):
        return
    engines = [client.describe(scenario.model) for client in scenario.clients]
    deadline = workload.ttft_deadline
    if deadline is not None and not any(engine.deadline_option for engine in engines):
        yield (
            "workload.ttft_deadline has no effect: no client has admission.drop_expired, "
            "admission.early_rejection or scheduler.order: earliest_deadline_first."
        )
    counts_tokens = getattr(gateway, "max_tokens", None) is not None
    read_them = counts_tokens or any(engine.uses_predictions for engine in engines)
    if workload.predictions and not read_them:
        yield (
            "workload.predictions has no effect: no client has scheduler.order: "
            "shortest_predicted_first, and no gateway has max_tokens."
        )
    by_priority = isinstance(deadline, dict) or scenario.slo.make().goes_by_priority
    if by_priority or gateway is not None or any(engine.uses_priorities for engine in engines):
        return
    classes = {name: each.priority for name, each in workload.classes.items()}
    if workload.priorities is not None or any(classes.values()):
        yield (
            "Priorities of requests have no effect: no client has scheduler.order: priority, and "
            "neither ttft_deadline nor a class of the slo goes by priority."
        )


def _useless_numbers(workload: WorkloadSpec, clients: list[ClientPart]) -> Iterable[Problem]:
    """Yield keys of a retrieval stage that no client serving it reads."""
    serving = [client for client in clients if Rag.kind in client.stages]
    if not serving or not all(client.is_ours for client in serving):
        return
    for position, stage in enumerate(workload.pipeline):
        if isinstance(stage, str) or stage.plugin is not Rag:
            continue
        for name, value in stage.parameters().items():
            if value is not None and not any(name in client.looks_at for client in serving):
                yield Problem(
                    ("workload", "pipeline", position, name),
                    f"has no effect: {serving[0].name} serves all rag stages alike; leave it out",
                )


def _useless_times(
    workload: WorkloadSpec, clients: list[ClientPart], described: list[ClientTraits]
) -> Iterable[Problem]:
    """Yield times for each token of workers that serve only stages without tokens."""
    for position, (client, traits) in enumerate(zip(clients, described, strict=True)):
        if getattr(client, "time_per_token", None) is None:
            continue
        parts = [part for part in workload.pipeline if not isinstance(part, str)]
        served = [part for part in parts if part.plugin.kind in traits.serves]
        if served and not any(map(_has_tokens, served)):
            kinds = listed(sorted({part.plugin.kind for part in served}))
            yield Problem(
                ("clients", position, "time_per_token"),
                f"has no effect: num_tokens of {kinds} is 0; give the stage num_tokens, or a task, "
                "with which a preprocess or postprocess stage has the tokens of the row",
            )


def _has_tokens(part: Part) -> bool:
    """Tell whether a stage of the pipeline has tokens, set in the stage or in the row."""
    stage = part.make()
    of_a_row = stage.with_lengths(1, 1) if stage.takes_lengths else stage
    return bool(getattr(of_a_row, "num_tokens", 0))


def _missing_deadlines(workload: WorkloadSpec, engines: list[ClientTraits]) -> Iterable[Problem]:
    used = [using for engine in engines if (using := engine.deadline_option)]
    if workload.ttft_deadline is None and used:
        yield Problem(("workload", "ttft_deadline"), f"is required for {used[0]}")


def _deadlines_of_nobody(workload: WorkloadSpec) -> Iterable[Problem]:
    if not isinstance(workload.ttft_deadline, dict):
        return
    known = workload.known_priorities
    said = listed(sorted(known)) if known != {0} else "none, so all have 0"
    for priority in sorted(set(workload.ttft_deadline) - known):
        yield Problem(
            ("workload", "ttft_deadline", str(priority)),
            f"no request has this priority; workload.priorities has {said}",
        )


def _useless_retries(
    workload: WorkloadSpec, engines: list[ClientTraits], *, may_fail: bool
) -> Iterable[Problem]:
    if workload.retries is None:
        return
    why_not = {
        "timed_out": "there is no timeout and no ttft_timeout",
        "rejected": "no client has admission, which turns requests away",
        "lost": "no client fails",
    }
    if may_fail:
        del why_not["lost"]
    if workload.timeout is not None or workload.ttft_timeout is not None:
        del why_not["timed_out"]
    if any(engine.turns_away for engine in engines):
        del why_not["rejected"]
    tried = workload.retries.make().on
    if set(tried) <= set(why_not):
        reasons = ", and ".join(why_not[status] for status in tried)
        yield Problem(("workload", "retries"), f"has no effect: {reasons}")


_API = Annotated[Part, Settings(part_type(ApiPrices))] | None
_ENGINE = re.compile(r"^(clients\.\d+\.)?engine(\.|$)")
_COST = part_type(CostOptions, meanings={"api": _API})


class Scenario(Strict):
    """A workload, the clients that serve it, and the router between them.

    `Scenario.load` reads a file or a preset, `Scenario.from_dict` what a file would hold;
    `simulate` runs one. Two scenarios are equal if their resolved forms are equal.
    """

    seed: int = Field(0, ge=0, le=SEED, description="of all random streams")
    model: ModelName | None = Field(None, description="served by clients that name no other")
    approximate: bool = Field(
        False,
        description="whether to simulate an unknown model as the nearest known one; results name "
        "it, and have no error bar",
    )
    engine: EngineName | None = Field(
        None,
        description="version of vLLM whose defaults hold for clients that name none, such as "
        "vllm-0.19; vllm is the newest known version",
    )
    workload: WorkloadSpec
    clients: Annotated[tuple[AnyClient, ...], BeforeValidator(as_tuple)] = Field(
        json_schema_extra={"minItems": 1}
    )
    router: Annotated[Part, ROUTER] = Field(
        ROUTER.default, validate_default=True, description="which client serves a visit"
    )
    routers: dict[str, Annotated[Part, ROUTER]] = Field(
        {},
        description="routers of visits by the stage that they begin with, such as "
        "{decode: placement_aware}; the others go by `router`",
    )
    view_interval: Duration | None = Field(
        None,
        description="time between two polls, as of which routers see clients; without it, they "
        "see them as they are",
    )
    counts_sent: bool = Field(
        True,
        description="with view_interval, whether a router adds the requests it sent since the poll",
    )
    gateway: Annotated[Part, ADMISSION] | None = Field(
        None, description="which requests wait at the gateway, or are refused there"
    )
    network: Annotated[Part, NETWORK] | None = Field(
        None, description="over which clients with roles hand over KV entries"
    )
    hand_over: Annotated[Part, Settings(HAND_OVER)] = Field(
        {}, validate_default=True, description="how requests go from prefill to decode"
    )
    front_end: Annotated[Part, Settings(part_type(FrontEnd))] = Field(
        {}, validate_default=True, description="times between users and engines: HTTP, tokenizing"
    )
    slo: Annotated[Part, LIMITS] = Field(
        {},
        validate_default=True,
        description="limits that a good request keeps, or the name of a preset (mist list slos)",
    )
    power: Annotated[Part, Settings(part_type(PowerOptions))] | None = Field(
        None, description="parts that draw power beside the GPUs, where joules are asked for"
    )
    cost: Annotated[Part, Settings(_COST)] | None = Field(
        None,
        validate_default=True,
        description="which prices count, where the cost of the run is asked for; {} is also what "
        "a gpu_price of a client asks for",
    )
    lifecycle: Annotated[Part, Settings(LIFECYCLE)] | None = Field(
        None, description="clients that fail, start, drain or are scaled"
    )
    reconfigure: Annotated[Part, Settings(RECONFIGURE)] | None = Field(
        None, description="how clients with roles p_heavy and d_heavy change during the run"
    )
    warmup: Duration = Field(
        0.0, description="time at the start whose arrivals do not count in the summary"
    )
    replications: int = Field(
        1,
        ge=1,
        le=COPIES,
        description="independent runs, each with a seed of its own; more than one give means "
        "with 95 % confidence intervals",
    )
    assumptions: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        (),
        description="what was assumed when the file was written, such as by mist from-vllm; the "
        "warnings of its results repeat it",
    )
    _origin: Origin = PrivateAttr(Origin())
    _may_split: ClassVar[bool] = False

    @field_validator("clients", mode="before")
    @classmethod
    def _of_the_engine(cls, clients: object, info: ValidationInfo) -> object:
        engine = info.data.get("engine")
        if engine is None or not isinstance(clients, list | tuple):
            return clients
        return [with_engine(client, engine) for client in clients]

    @field_validator("cost", mode="before")
    @classmethod
    def _of_own_prices(cls, cost: object, info: ValidationInfo) -> object:
        """Ask for the cost where a client says a price, which nothing else reads."""
        prices = (p for each in info.data.get("clients", ()) for p in each.prices.values())
        return {} if cost is None and any(price is not None for price in prices) else cost

    def model_post_init(self, context: Any) -> None:
        """Keep the origin that the validation context gives."""
        if isinstance(context, Origin):
            self._origin = context

    @classmethod
    def load(
        cls,
        path: str | Path,
        overrides: Mapping[str, Any] | None = None,
        *,
        allow_programs: bool = True,
    ) -> Scenario:
        """Return the scenario of a YAML file, or of a preset that `mist list presets` names.

        overrides: values by dotted path, as `--set` gives them: {"clients.0.count": 8}.
        allow_programs: whether programs that the file names may run, as `--allow-programs` says on
            the command line; False is for files of others.
        Raises ScenarioError that lists every problem of the file, a line each.
        """
        return load(cls, path, overrides or {}, allow_programs=allow_programs)

    @classmethod
    def from_yaml(
        cls,
        text: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        source: str = "scenario",
        allow_programs: bool = True,
    ) -> Scenario:
        """Return the scenario of YAML text; relative paths in it start at the working directory.

        source: what messages call it. allow_programs: as in `load`. Raises ScenarioError as `load`
        does.
        """
        origin = Origin(source, None, tuple(overrides or {}), allow_programs)
        return from_text(cls, text, overrides or {}, origin)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
    ) -> Scenario:
        """Return the scenario of what a file would hold. Raises ScenarioError as `load` does."""
        origin = Origin(overrides=tuple(overrides or {}))
        return validated(cls, deepcopy(dict(data)), overrides or {}, origin)

    def changed(self, overrides: Mapping[str, Any], *, trusted: bool = True) -> Scenario:
        """Return the scenario with more overrides; defaults are worked out again.

        overrides: as in `load`. trusted: False if they come from a file, whose programs then need
            permission. Raises ScenarioError as `load` does.
        """
        origin = self._origin
        data = as_data(self) if origin.said is None else origin.said
        own = overrides if trusted else ()
        more = replace(origin, overrides=(*origin.overrides, *own))
        return validated(type(self), dict(data), overrides, more)

    @property
    def origin(self) -> Origin:
        """Where the scenario was read from, for messages."""
        return self._origin

    def resolved(self) -> str:
        """Return the scenario as YAML text, with every default and with units.

        The text loads to an equal scenario. Relative paths start at the working directory, not at
        the file's folder.
        """
        return as_text(self)

    @property
    def headline(self) -> str:
        """Three lines: its source; clients, router and seed; the engines that it imitates."""
        return self.headline_without(())

    def headline_without(self, varied: Collection[str]) -> str:
        """Return the headline of a study, without what it varies. varied: dotted keys."""
        engines = "" if any(_ENGINE.search(key) for key in varied) else imitated(self.clients)
        return "\n".join(line for line in (self._title(varied), engines) if line)

    def _title(self, varied: Collection[str] = ()) -> str:
        of_stages = {kind: _type(part) for kind, part in self.routers.items()}
        text = ", ".join([_type(self.router), *(f"{r} for {k}" for k, r in of_stages.items())])
        source = self.origin.source
        return headline(source, self.clients, self.model, text, self.seed, varied)

    def __repr__(self) -> str:
        return f"<Scenario: {self._title()}>".replace("\n", ": ")

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the headline, which unfolds to the resolved scenario."""
        head, text = escape(self.headline).replace("\n", "<br>"), escape(self.resolved())
        return f"<details><summary>{head}</summary><pre>{text}</pre></details>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scenario) and self.resolved() == other.resolved()

    def __hash__(self) -> int:
        return hash(self.resolved())

    def problems(self) -> Iterable[Problem]:
        """Yield problems of the scenario as a whole."""
        if not self.clients:
            yield Problem(("clients",), "must have at least one entry, got []")
            return
        if self.warmup < 0:
            yield Problem(("warmup",), f"must be >= 0 s, got {self.warmup}")
        yield from client_problems(self.clients, self.model, self.engine, self.cost)
        yield from self._unserved_stages()
        yield from self._hand_overs()
        yield from places_of_nobody(self.network, self.clients)
        routers = [self.router, *self.routers.values()]
        yield from router_problems(self.routers, self.workload, self.clients, self.model)
        yield from poll_problems(self.view_interval, self.counts_sent, routers)
        yield from model_problems(self.workload, served_models(self.clients, self.model))
        yield from adapter_problems(self.workload, self.clients)
        yield from image_problems(self.workload, self.clients)
        limits = self.slo.make()
        yield from useless_options(
            self.workload,
            self.clients,
            routers,
            self.model,
            self.lifecycle,
            self.gateway,
        )
        yield from gateway_problems(self.gateway, self.workload)
        yield from class_problems(limits, self.workload)
        yield from problems_of_lives(
            self.lifecycle, self.clients, self.network, has_slo=limits.judges_requests
        )
        yield from problems_of_sliders(
            self.reconfigure,
            [client.describe(self.model).role for client in self.clients],
            has_slo=limits.judges_requests,
            has_polls=self.view_interval is not None,
        )

    def _hand_overs(self) -> Iterable[Problem]:
        """Yield problems of roles: no network, different models, a network without roles.

        A user's own types of clients may hand over, too.
        """
        described = [client.describe(self.model) for client in self.clients]
        roles: dict[int, str | None] = {k: c.role for k, c in enumerate(described) if c.role}
        only_ours = all(client.is_ours for client in self.clients)
        if self.hand_over.parameters()["policy"] is not None:
            roles |= {k: c.role for k, c in enumerate(described) if c.entries is not None}
            only_ours = False  # what roles do not say, the policy may
        used = roles or names_nodes(self.lifecycle)
        used = used or is_shared(self.network, described, self.lifecycle)
        if self.network is not None and not used and only_ours and not self._may_split:
            yield Problem(
                ("network",), f"has no effect: no client has a role{spanning(self.network)}"
            )
        if not roles and only_ours:
            yield from idle_options(self.hand_over)
        if self.network is None and roles:
            yield Problem(
                ("network",),
                "is required, since KV entries go from clients with role prefill to those with "
                "role decode; such as {bandwidth: 400 Gb/s, latency: 1 ms}",
            )
        flows = FLOWING_ROLES.intersection(roles.values())  # checked when clients are there
        if roles and only_ours and not flows and "prefill" not in roles.values():
            yield self._nothing_to_decode(next(iter(roles)))
        if roles:
            by_model = self.workload.all_name_models
            named = map(NamedTraits, [client.name for client in self.clients], described)
            yield from unlike_engines(dict(enumerate(named)), by_model=by_model)

    def _nothing_to_decode(self, position: int) -> Problem:
        if "role" not in self.clients[position].parameters():
            text = "decodes what a client with role prefill began, and there is none; add one"
            return Problem(("clients", position), text)
        text = "has no effect: no client has role prefill; the others decode what they prefill"
        return Problem(("clients", position, "role"), text)

    def _unserved_stages(self) -> Iterable[Problem]:
        served = {stage for client in self.clients for stage in client.stages}
        stages = self.workload.stages
        for position, stage in enumerate(stages):
            place = ("workload", "pipeline", position)
            if stage not in served:
                offers = (f"{client.name}: {', '.join(client.stages)}" for client in self.clients)
                yield Problem(
                    place,
                    f"no client serves {brief(stage)}; the clients serve {listed(offers, '; ')}",
                )
            elif lacking := [
                kind for kind in self.workload.leads_to(position) if kind not in served
            ]:
                text = f"leads to {brief(lacking[0])}, which no client serves; add one that does"
                yield Problem(place, text)
            elif stage == Decode.kind and stages[position - 1] not in (Prefill.kind, Decode.kind):
                yield Problem(
                    place,
                    f"decode must follow prefill or decode directly, which leave the KV entries "
                    f"on the client; got it after {brief(stages[position - 1])}",
                )


_ONE_TOKEN = {"type": "fixed", "tokens": 1}
_ONE_REQUEST = {
    "lengths": {
        "type": "synthetic",
        "prompt": _ONE_TOKEN,
        "output": _ONE_TOKEN,
        "num_requests": 1,
    },
    "arrivals": {"type": "all_at_once"},
}


class Engines(Scenario):
    """A scenario of which single steps are asked for: without a workload, one request."""

    workload: WorkloadSpec = Field(_ONE_REQUEST, validate_default=True)


class Splittable(Scenario):
    """A scenario for whose designs its network is, though its own clients may all lack a role."""

    _may_split: ClassVar[bool] = True


def _type(router: Part) -> str:
    return str(router.model_dump(by_alias=True)["type"])
