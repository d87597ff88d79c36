"""The keys of a scenario file. Docstrings and descriptions end up in its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue

from mist_sim.bounds import COPIES, SEED
from mist_sim.core.front_end import FrontEnd
from mist_sim.core.hand_over import HandOver
from mist_sim.errors import brief, did_you_mean
from mist_sim.metrics import CostOptions, PowerOptions, Slo
from mist_sim.reconfiguration import Change, OnChange, Reconfigure
from mist_sim.scenario.format.families import ADMISSION, ROUTER
from mist_sim.scenario.format.fields import Duration, as_tuple
from mist_sim.scenario.format.parts import Part, Settings, Strict, part_type, settings
from mist_sim.scenario.format.problems import Problem, failure
from mist_sim.scenario.sections.clients import AnyClient, EngineName, ModelName, with_engine
from mist_sim.scenario.sections.lifecycles import LIFECYCLE
from mist_sim.scenario.sections.networks import NETWORK
from mist_sim.scenario.sections.workload import WorkloadSpec
from mist_sim.scenario.slo_presets import slo_preset, slo_preset_names

PARTS: Mapping[str, type[Part]] = {
    "schedule": settings(Change).model,
    "on_change": settings(OnChange).model,
}
"""The mappings that lie in `reconfigure`, by key; `schedule` is a list of them."""


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
