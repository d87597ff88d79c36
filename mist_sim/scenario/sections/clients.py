"""The clients of a scenario file: engines of a language model, workers, and plugins of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from mist_sim.bounds import COPIES, COUNT, NAME_LENGTH, TEXT_LENGTH
from mist_sim.clients import CLIENTS, Client, EngineConfig
from mist_sim.clients.engine_config import AUTO_LENGTH, ROLES, Count, Role, TokenLimit
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.overload import AdmissionControl
from mist_sim.clients.scheduling import Scheduler
from mist_sim.clients.workers.fetching import Fetch
from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.hardware import host_from_table, load_gpu, load_host
from mist_sim.hardware.devices.memory import MemoryTier
from mist_sim.hardware.predictors import EngineOverhead
from mist_sim.models import load_model
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.scenario.engines.llm_client import llm_clients
from mist_sim.scenario.engines.server_defaults import with_server_limits
from mist_sim.scenario.engines.version_defaults import (
    async_by_version,
    kv_cache_by_version,
    predictor_by_version,
    scheduler_by_version,
)
from mist_sim.scenario.engines.version_names import NAMES, known_name, version_of
from mist_sim.scenario.engines.version_origins import lacking
from mist_sim.scenario.engines.versions import EngineVersion
from mist_sim.scenario.format import paths
from mist_sim.scenario.format.families import PREDICTOR, SCHEDULER, STAGE, TIMES, Family, Settings
from mist_sim.scenario.format.fields import as_tuple
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem, failure, said_by, shown
from mist_sim.stages import Decode, Prefill

LLM_STAGES = (Prefill.kind, Decode.kind)


def _model(text: str, info: ValidationInfo) -> str:
    return paths.spec(text, info, ".json", load_model)


def _gpu(text: str, info: ValidationInfo) -> str:
    return paths.spec(text, info, ".toml", load_gpu)


def _host(said: object, info: ValidationInfo) -> object:
    if isinstance(said, str):
        return paths.spec(said, info, ".toml", load_host)
    if isinstance(said, dict):
        host_from_table(said, name="host", source="its mapping")
    elif said is not None:
        raise ScenarioError(f"must be a name, a path or a mapping, got {shown(said)}")
    return said


ModelName = Annotated[
    str,
    Field(
        max_length=TEXT_LENGTH,
        description="a catalog name, a Hugging Face id, or the path of a config.json",
    ),
    AfterValidator(_model),
]
HostName = Annotated[str | dict[str, Any] | None, BeforeValidator(_host)]
GpuName = Annotated[str, Field(max_length=TEXT_LENGTH), AfterValidator(_gpu)]
EngineName = Annotated[
    str,
    BeforeValidator(known_name),
    Field(
        description="the version of vLLM whose defaults hold where nothing is said; vllm is the "
        "newest that is known",
        json_schema_extra={"enum": list(NAMES)},
    ),
]
_ENGINE_KEY = "engine_"  # the property `engine` has the shorter name
Name = Annotated[
    str,
    Field(min_length=1, max_length=NAME_LENGTH, description="unique in the scenario"),
]
AtLeastOne = Annotated[int, Field(ge=1, le=COUNT)]
ContextTokens = Annotated[
    int,
    Field(le=COUNT),
    BeforeValidator(lambda said: AUTO_LENGTH if said == "auto" else said),
    WithJsonSchema({"anyOf": [{"maximum": COUNT, "type": "integer"}, {"const": "auto"}]}),
]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


class ClientPart(Part):
    """What all clients have: a name, a type, and how many copies there are.

    `part_type` adds the parameters of a type, which are the fields of its class.
    """

    name: Name
    type_: str = Field(alias="type")
    count: int = Field(
        1,
        ge=1,
        le=COPIES,
        description="copies of the client; more than one are called NAME-0, NAME-1, ...",
    )

    @property
    def names(self) -> list[str]:
        """The names of all copies."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{copy}" for copy in range(self.count)]

    @property
    def stages(self) -> Sequence[str]:
        """The stages that the client serves."""
        return sorted(self.make(name=self.name).serves)

    @property
    def is_ours(self) -> bool:
        """Whether its parts came with the package; those of others may look at anything."""
        return self.plugin.__module__.startswith("mist_sim.")

    @property
    def engine(self) -> EngineConfig | None:
        """What runs a language model; None for a client of another type."""
        return None

    @property
    def part(self) -> str | None:
        """Prefill or decode, where it does that alone for others that do the rest."""
        return self.engine.role if self.engine else None

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies. model: the scenario's."""
        return [self.make(name=name) for name in self.names]

    def problems(self) -> Iterable[Problem]:
        """Return what the class refuses."""
        try:
            self.make(name=self.name)
        except ValueError as error:
            return [said_by(error, type(self))]
        return ()


class LlmPart(ClientPart):
    """A client of type llm; its other keys are the fields of `EngineConfig`."""

    place: Annotated[str | tuple[str, ...] | None, BeforeValidator(as_tuple)] = Field(
        None,
        description="where its GPUs are in network.topology: node1, or node1/gpu4 for those from "
        "there on; a list has a place for each copy. Without it, the first node with room",
    )

    if TYPE_CHECKING:
        model: str | None
        gpu: str
        engine_: str | None
        tensor_parallel_size: int
        pipeline_parallel_size: int
        role: Role | None
        scheduler: Part
        predictor: Part

    @field_validator("scheduler", mode="before", check_fields=False)
    @classmethod
    def _scheduler_by_version(cls, scheduler: object, info: ValidationInfo) -> object:
        gpu, drafts = info.data.get("gpu"), info.data.get("speculative_config")
        if not gpu or _ENGINE_KEY not in info.data:  # missing where they are wrong
            return scheduler
        version = version_of(info.data[_ENGINE_KEY])
        num_drafts = getattr(drafts, "num_speculative_tokens", 0)
        said = with_server_limits(scheduler, load_gpu(gpu), num_drafts, version)
        return scheduler_by_version(said, version)

    @field_validator("kv_cache", mode="before", check_fields=False)
    @classmethod
    def _kv_cache_by_version(cls, kv_cache: object, info: ValidationInfo) -> object:
        return kv_cache_by_version(kv_cache, version_of(info.data.get(_ENGINE_KEY)))

    @field_validator("predictor", mode="before", check_fields=False)
    @classmethod
    def _predictor_by_version(cls, predictor: object, info: ValidationInfo) -> object:
        gpu, scheduler = info.data.get("gpu"), info.data.get("scheduler")
        if not gpu or not scheduler or _ENGINE_KEY not in info.data:
            return predictor
        version = version_of(info.data[_ENGINE_KEY])
        drafts = getattr(info.data.get("speculative_config"), "num_speculative_tokens", 0)
        sizes = (scheduler.max_num_seqs, drafts)
        return predictor_by_version(predictor, version, load_gpu(gpu), *sizes)

    @property
    def stages(self) -> Sequence[str]:
        """Those that its role serves, in their order."""
        return [kind for kind in LLM_STAGES if kind in ROLES[self.role]]

    @property
    def is_ours(self) -> bool:
        """Whether its scheduler, which sees the requests, came with the package."""
        return self.scheduler.plugin.__module__.startswith("mist_sim.")

    @property
    def version(self) -> EngineVersion:
        """Whose defaults it has."""
        return version_of(self.engine_)

    @property
    def engine(self) -> EngineConfig:
        """What its keys say; the model is a default one where only the scenario names it."""
        said = self.parameters()
        if self.model is None:
            del said["model"]
        return EngineConfig(**said)

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies, which share a predictor. model: the scenario's."""
        config = self.engine
        if self.model is None and model is not None:
            config = replace(config, model=model)
        clients = llm_clients(self.names, config)
        places = self.place if isinstance(self.place, tuple) else [self.place] * len(clients)
        for client, place in zip(clients, places, strict=True):
            client.place = place
        return clients

    def problems(self) -> Iterable[Problem]:
        """Return the options that do not go together."""
        if self.pipeline_parallel_size > 1 and "model" not in self.predictor.needs:
            yield Problem(
                ("pipeline_parallel_size",),
                "must be 1 with a predictor that does not look at the model, "
                f"got {self.pipeline_parallel_size}",
            )
        if isinstance(self.place, tuple) and len(self.place) != self.count:
            text = f"must have a place for each of {self.count} copies, got {len(self.place)}"
            yield Problem(("place",), text)
        if self.engine_:
            yield from lacking(self.model_dump(mode="json", by_alias=True), self.version)
        try:
            _ = self.engine
        except ValueError as error:
            yield said_by(error, type(self))


class SequentialPart(ClientPart):
    """A client of type sequential."""

    if TYPE_CHECKING:
        serves: tuple[str, ...]
        base_time: float | Part | None
        time_per_token: float | Part | None
        fetch: Part | None

    @property
    def stages(self) -> Sequence[str]:
        """The stages that the client serves, in the order of the file."""
        return self.serves

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies, which share their laws. model: the scenario's."""
        said = self.parameters()
        return [self.plugin(name=name, **said) for name in self.names]

    def parameters(self) -> dict[str, Any]:
        """Return the parameters, with the stages as clients call them."""
        kinds = [STAGE.registry[name].kind for name in self.serves]
        return {**super().parameters(), "serves": kinds}

    def problems(self) -> Iterable[Problem]:
        """Yield what is wrong with stages and times."""
        if not self.serves:
            yield Problem(("serves",), "must have at least one entry, got []")
        for name in ("base_time", "time_per_token"):
            time = getattr(self, name)
            if isinstance(time, float) and time < 0:
                yield Problem((name,), f"must be >= 0 s, got {time}")
        for position, stage in enumerate(self.serves):
            if problem := _not_served(stage):
                yield Problem(("serves", position), problem)
            elif self.base_time is None and self.fetch is None and not self._has_time(stage):
                yield Problem(("base_time",), f"is required, since {stage} has no other time")
        if (
            self.serves
            and self.time_per_token is not None
            and not any(map(has_tokens, self.serves))
        ):
            yield Problem(
                ("time_per_token",), f"has no effect: {', '.join(self.serves)} has no num_tokens"
            )
        if self.serves and self.fetch is not None and not any(map(has_tokens, self.serves)):
            yield Problem(("fetch",), f"has no effect: {', '.join(self.serves)} has no num_tokens")

    def _has_time(self, stage: str) -> bool:
        per_token = self.time_per_token is not None and has_tokens(stage)
        return per_token or stage == "tool_call"


class AfdPart(ClientPart):
    """A client of type afd, which decodes what clients with role prefill began."""

    if TYPE_CHECKING:
        model: str | None
        kv_cache_dtype: str

    @property
    def stages(self) -> Sequence[str]:
        """Decode alone."""
        return [Decode.kind]

    @property
    def part(self) -> str:
        """Decode."""
        return Decode.kind

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies. model: the scenario's."""
        said = self.parameters()
        said["model"] = self.model or model
        return [self.plugin(name=name, **said) for name in self.names]

    def problems(self) -> Iterable[Problem]:
        """Return what the class refuses."""
        said = self.parameters()
        try:
            self.plugin(name=self.name, **(said | {"model": self.model or _ANY_MODEL}))
        except ValueError as error:
            return [said_by(error, type(self))]
        return ()


_ANY_MODEL = "llama-3.1-8b"  # where the scenario's is not known yet


def has_tokens(stage: str) -> bool:
    """Tell whether a stage has `num_tokens`, for which a client can take time."""
    if stage not in STAGE.registry:
        return True  # an unknown stage has its own problem
    return "num_tokens" in STAGE.part_type(stage).model_fields


def _not_served(stage: str) -> str:
    if stage in LLM_STAGES:
        return f"{stage} is what a client of type llm serves"
    if stage not in STAGE.registry:
        known = ", ".join(name for name in STAGE.registry if name not in LLM_STAGES)
        return f"no stage named {shown(stage)}{did_you_mean(stage, STAGE.registry)} Known: {known}"
    return ""


_TIER = Annotated[Part, Settings(part_type(MemoryTier))]
_TIERS = {tuple[MemoryTier, ...]: Annotated[tuple[_TIER, ...], BeforeValidator(as_tuple)]}
_DRAFTING = part_type(SpeculativeConfig, meanings={"model": ModelName | None})
_ENGINE = {
    "model": ModelName | None,
    "engine": EngineName | None,
    "async_scheduling": bool,
    "gpu": GpuName,
    "host": HostName,
    "predictor": Annotated[Part, PREDICTOR],
    Count: AtLeastOne,
    TokenLimit | None: ContextTokens | None,
    SpeculativeConfig | None: Annotated[Part, Settings(_DRAFTING)] | None,
    Scheduler | None: Annotated[Part, SCHEDULER],
    KvCacheConfig: Annotated[Part, Settings(part_type(KvCacheConfig, meanings=_TIERS))],
    EngineOverhead: Annotated[Part, Settings(part_type(EngineOverhead))],
    AdmissionControl: Annotated[Part, Settings(part_type(AdmissionControl))],
}
_IN_A_FILE = {
    "model": None,
    "gpu": ...,
    "async_scheduling": async_by_version,
    "scheduler": SCHEDULER.default,
    "predictor": PREDICTOR.default,
}


@dataclass(frozen=True, eq=False)
class ClientFamily(Family):
    """The types of clients. Those of others are dataclasses whose first field is the name."""

    def _schema(self, name: str, plugin: type[Any]) -> type[Part]:
        if name == "llm":
            return part_type(
                EngineConfig,
                name,
                meanings=_ENGINE,
                defaults=_IN_A_FILE,
                is_default=True,
                base=LlmPart,
            )
        if name == "sequential":
            needs = ("name", "service_time")
            meanings = {"serves": Names, int: AtLeastOne, **TIMES}
            meanings[Fetch | None] = Annotated[Part, Settings(part_type(Fetch))] | None
            return part_type(plugin, name, needs=needs, meanings=meanings, base=SequentialPart)
        if name == "afd":
            meanings = {"model": ModelName | None}
            defaults = {"model": None}
            return part_type(
                plugin, name, needs=("name",), meanings=meanings, defaults=defaults, base=AfdPart
            )
        schema = part_type(plugin, name, needs=("name",), meanings=TIMES, base=ClientPart)
        if "name" not in schema.needs:
            raise ScenarioError(f"{name}: a client type is a dataclass with a field `name`")
        return schema

    def read(self, value: object, info: ValidationInfo) -> Part | str:
        """Return the client that a mapping in a file describes."""
        if not isinstance(value, dict | Part):
            text = f"must be a mapping of keys to values, got {shown(value)}"
            raise failure([Problem((), text)])
        return super().read(value, info)

    def _unknown(self, name: object) -> str:
        hint, known = did_you_mean(str(name), self.registry), ", ".join(self.registry)
        return f"no client type {shown(name)}{hint} Known: {known}"


CLIENT = ClientFamily(CLIENTS, default="llm")
AnyClient = Annotated[ClientPart, CLIENT]
"""A client of any type."""


def with_engine(client: object, engine: str) -> object:
    """Return what a file says of a client, with the scenario's engine where it may name one."""
    if not isinstance(client, dict) or client.get("type", CLIENT.default) != "llm":
        return client
    return {**client, "engine": client.get("engine") or engine}
