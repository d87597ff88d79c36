"""The keys of a scenario file. Docstrings and descriptions end up in its JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue

from mist_sim.bounds import COPIES, SEED, TEXT_LENGTH
from mist_sim.core.front_end import FrontEnd
from mist_sim.core.hand_over import HandOver
from mist_sim.errors import brief, did_you_mean
from mist_sim.lifecycle import Autoscaling, Drain, Failures, Lifecycle, OnFailure, StartUp
from mist_sim.metrics import CostOptions, PowerOptions, Slo
from mist_sim.network import Fabric, Link, load_topology
from mist_sim.reconfiguration import Change, OnChange, Reconfigure
from mist_sim.scenario.format.families import ADMISSION, ROUTER
from mist_sim.scenario.format.fields import Duration, Marker, as_tuple
from mist_sim.scenario.format.parts import Part, Settings, Strict, part_type, settings, written
from mist_sim.scenario.format.paths import named
from mist_sim.scenario.format.problems import Problem, failure
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.family import AnyClient, with_engine
from mist_sim.scenario.sections.clients.keys import EngineName, ModelName
from mist_sim.scenario.sections.workload import WorkloadSpec
from mist_sim.scenario.slo_presets import slo_preset, slo_preset_names

# --- the network: one link for all, or a topology in which clients have places ------------------

_KEY = "topology"


_TOPOLOGY = Annotated[
    str, Field(max_length=TEXT_LENGTH), AfterValidator(named(".toml", load_topology))
]


@dataclass(frozen=True, eq=False)
class NetworkSettings(Marker):
    """Marks a `Part` that is a fabric if it names a topology, else a link."""

    link: type[Part]
    fabric: type[Part]

    def read(self, value: object, info: ValidationInfo) -> Part:
        """Return the part that a value in a file describes."""
        if isinstance(value, Part):
            return value
        model = self.fabric if isinstance(value, dict) and _KEY in value else self.link
        return model.model_validate(value, context=info.context)

    def write(self, value: Any) -> object:
        """Return it with every default."""
        return written(value)

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the choice of both."""
        models = (self.link, self.fabric)
        return {"anyOf": [handler(model.__pydantic_core_schema__) for model in models]}


NETWORK = NetworkSettings(part_type(Link), part_type(Fabric, meanings={_KEY: _TOPOLOGY}))


def has_topology(network: Part | None) -> bool:
    """Tell whether clients have places in a network."""
    return network is not None and network.plugin.has_topology


# --- the life of clients: failures, drains, starts, autoscaling ---------------------------------


def _several(value: object) -> object:
    """Return one value, or a list of them, as a tuple."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


_NAMES = Annotated[tuple[str, ...], BeforeValidator(_several)]
_INSTANTS = Annotated[tuple[Duration, ...], BeforeValidator(_several)]
_WHO = {"clients": _NAMES}
_LISTED = {
    "failures": part_type(Failures, meanings={**_WHO, "at": _INSTANTS, "link": _NAMES | None}),
    "drains": part_type(Drain, meanings=_WHO),
    "autoscaling": part_type(Autoscaling, meanings=_WHO),
}
LIFECYCLE = part_type(
    Lifecycle,
    meanings={
        key: Annotated[
            tuple[Annotated[Part, Settings(model)], ...],
            BeforeValidator(_several),
        ]
        for key, model in _LISTED.items()
    },
)
PARTS: Mapping[str, Mapping[str, type[Part]]] = {
    "lifecycle": {
        "failures": _LISTED["failures"],
        "on_failure": settings(OnFailure).model,
        "drains": _LISTED["drains"],
        "autoscaling": _LISTED["autoscaling"],
        "start_up": settings(StartUp).model,
    },
    "reconfigure": {
        "schedule": settings(Change).model,
        "on_change": settings(OnChange).model,
    },
}
"""The mappings that lie in sections, by key; lists have many of them."""


def made(part: Part, clients: Sequence[ClientPart]) -> Lifecycle:
    """Return a file's lifecycle with group names replaced by names of clients."""
    said: Lifecycle = part.make()
    groups = {client.name: tuple(client.names) for client in clients}

    def named(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for name in names for one in groups.get(name, (name,))))

    return replace(
        said,
        failures=tuple(replace(each, clients=named(each.clients)) for each in said.failures),
        drains=tuple(replace(each, clients=named(each.clients)) for each in said.drains),
        autoscaling=tuple(replace(each, clients=named(each.clients)) for each in said.autoscaling),
    )


# --- limits, and all keys -----------------------------------------------------------------------


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

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the choice of both."""
        return {"anyOf": [{"enum": slo_preset_names()}, super().schema(handler)]}


LIMITS = LimitsOrPreset(part_type(Slo, defaults={"classes": {}, "at": {}}))


class ScenarioKeys(Strict):
    """A workload, the clients that serve it, and the router between them."""

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
    hand_over: Annotated[Part, settings(HandOver)] = Field(
        {}, validate_default=True, description="how requests go from prefill to decode"
    )
    front_end: Annotated[Part, settings(FrontEnd)] = Field(
        {}, validate_default=True, description="times between users and engines: HTTP, tokenizing"
    )
    slo: Annotated[Part, LIMITS] = Field(
        {},
        validate_default=True,
        description="limits that a good request keeps, or the name of a preset (mist list slos)",
    )
    power: Annotated[Part, settings(PowerOptions)] | None = Field(
        None, description="parts that draw power beside the GPUs, where joules are asked for"
    )
    cost: Annotated[Part, settings(CostOptions)] | None = Field(
        None,
        validate_default=True,
        description="which prices count, where the cost of the run is asked for; {} is also what "
        "a gpu_price of a client asks for",
    )
    lifecycle: Annotated[Part, Settings(LIFECYCLE)] | None = Field(
        None, description="clients that fail, start, drain or are scaled"
    )
    reconfigure: Annotated[Part, settings(Reconfigure)] | None = Field(
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
    may_split: ClassVar[bool] = False  # whether its network is for designs made of it

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

    @property
    def all_routers(self) -> list[Part]:
        """The router, and those of single stages."""
        return [self.router, *self.routers.values()]
