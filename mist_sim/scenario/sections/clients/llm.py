"""Engines of a language model in a scenario file; defaults come from the engine's version."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue

from mist_sim.checks import Positive
from mist_sim.clients import Client, EngineConfig
from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.clients.traits import ROLES, ClientTraits, Role
from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.hardware.predictors.scaled import StepTimeScale
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.registry import comes_with_package
from mist_sim.scenario.engines.defaults import (
    kv_cache_by_version,
    lacking,
    predictor_by_version,
    scheduler_by_version,
    with_version_defaults,
)
from mist_sim.scenario.engines.llm_client import llm_clients
from mist_sim.scenario.engines.server_start import LENGTH, SEQUENCES, longest_that_fits
from mist_sim.scenario.engines.versions import EngineVersion, version_of
from mist_sim.scenario.format.families import PREDICTOR, SCHEDULER
from mist_sim.scenario.format.fields import Choice, as_tuple
from mist_sim.scenario.format.parts import Part, Settings, built, part_type
from mist_sim.scenario.format.problems import Problem, said_by, shown
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import (
    AtLeastOne,
    ContextTokens,
    EngineName,
    GpuName,
    HostName,
    ModelName,
)
from mist_sim.stages import Decode, Prefill

LLM_STAGES = (Prefill.kind, Decode.kind)
_SIZES = (
    "tensor_parallel_size",
    "prefill_context_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
)  # their product is the number of GPUs
_ENGINE_KEY = "engine_"  # the property `engine` has the shorter name


class LlmPart(ClientPart):
    """A client of type llm; its other keys are the fields of `EngineConfig`."""

    needs_model: ClassVar[bool] = True
    names_engine: ClassVar[bool] = True

    place: Annotated[str | tuple[str, ...] | None, Choice(), BeforeValidator(as_tuple)] = Field(
        None,
        description="where its GPUs are in network.topology: node1, or node1/gpu4 for those from "
        "there on; a list has a place for each copy. Without it, the first node with room",
    )

    if TYPE_CHECKING:
        model: str | None
        gpu: str | dict[str, Any]
        engine_: str | None
        tensor_parallel_size: int
        pipeline_parallel_size: int
        data_parallel_size: int
        prefill_context_parallel_size: int
        role: Role | None
        scheduler: Part
        kv_cache: Any
        predictor: Part

    @field_validator("scheduler", mode="before", check_fields=False)
    @classmethod
    def _scheduler_by_version(cls, scheduler: object, info: ValidationInfo) -> object:
        if info.data.get("role") == "d_heavy":
            _check_chunk(scheduler)
        gpu, drafts = info.data.get("gpu"), info.data.get("speculative_config")
        if not gpu or _ENGINE_KEY not in info.data:  # missing where they are wrong
            return scheduler
        version = version_of(info.data[_ENGINE_KEY])
        num_drafts = getattr(drafts, "num_speculative_tokens", 0)
        return scheduler_by_version(scheduler, load_gpu(gpu), num_drafts, version)

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
        """The stages that its role serves, in order."""
        return [kind for kind in LLM_STAGES if kind in ROLES[self.role]]

    @property
    def is_ours(self) -> bool:
        """Whether its scheduler, which sees requests, came with the package."""
        return comes_with_package(self.scheduler.plugin)

    def describe(self, model: str | None) -> ClientTraits:
        """Return what an engine with these keys is. model: the scenario's."""
        return self._config(model).traits

    def title(self, model: str | None, varied: Collection[str] = ()) -> str:
        """Return its part of a headline: model and GPUs; see `ClientPart.title`."""
        num = prod(getattr(self, size) for size in _SIZES if not {*_SIZES} & {*varied})
        gpu = self.gpu if isinstance(self.gpu, str) else load_gpu(self.gpu).name
        gpus = f"{num} x {gpu}" if num > 1 else gpu
        what = "" if "model" in varied else self.model or model
        where = "" if "gpu" in varied else f"on {gpus}"
        told = " ".join(filter(None, (what, where)))
        return f"{self.name} ({told})" if told else self.name

    @property
    def prices(self) -> Mapping[str, float | None]:
        """Dollars an hour of its GPUs, by key; None where the file does not say."""
        return {"gpu_price": self.engine.gpu_price}

    def said_to_start(self, model: str | None) -> Mapping[str, int]:
        """Return a longest context, and sequences with states, that fit; none that fit anyway.

        None of engines that re-shard: vLLM has none.
        """
        if self.engine.resharding is not None:
            return {}
        made = llm_clients(self.names[:1], self._config(model))[0]
        times, memory = made.traits.times, made.memory
        assumed = times.assumed if times else ()
        found: dict[str, int] = {}
        if LENGTH in assumed:
            found[LENGTH] = longest_that_fits(memory, made.max_model_len or 1)
        if SEQUENCES in assumed:
            found[SEQUENCES] = memory.num_in_all + NULL_BLOCKS
        return found

    def needing_topology(self) -> Iterable[Problem]:
        """Yield places of its GPUs and of its tiers."""
        for number, tier in enumerate(self.engine.kv_cache.tiers):
            if tier.at is not None:
                place = ("kv_cache", "tiers", number, "at")
                yield Problem(place, "has no effect: the network has no topology")
        if self.place is not None:
            yield Problem(("place",), "has no effect: the network has no topology")

    def on_topology(self) -> ClientPart:
        """Return the client; tiers that leave loads_in_step open have their default place."""
        tiers = tuple(
            tier.model_copy(update={"at": tier.at or "host"})
            if tier.loads_in_step is None and not tier.shared
            else tier
            for tier in self.kv_cache.tiers
        )
        kv_cache = self.kv_cache.model_copy(update={"tiers": tiers})
        return self.model_copy(update={"kv_cache": kv_cache})

    @property
    def version(self) -> EngineVersion:
        """The engine version whose defaults it has."""
        return version_of(self.engine_)

    @property
    def engine(self) -> EngineConfig:
        """The engine of its keys, with a placeholder model if only the scenario names it."""
        said = self.parameters()
        if self.model is None:
            del said["model"]
        return EngineConfig(**said)

    def _config(self, model: str | None) -> EngineConfig:
        """Return the engine, with the scenario's model if it names none."""
        config = self.engine
        return replace(config, model=model) if self.model is None and model is not None else config

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies, which share a predictor. model: the scenario's."""
        clients = llm_clients(self.names, self._config(model))
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


def _check_chunk(scheduler: object) -> None:
    """Raise ValueError for a client with role d_heavy and a chunk of 0."""
    if isinstance(scheduler, Mapping) and scheduler.get("max_num_batched_tokens") == 0:
        raise ValueError(
            "max_num_batched_tokens must be >= 1 with role d_heavy, got 0; for TaiChi's S_D = 0, "
            "prefill and decode apart, write role: decode here, and role: prefill for the p_heavy "
            "clients, with max_num_batched_tokens of the longest prompt, and leave "
            "hand_over.policy out"
        )


@dataclass(frozen=True, eq=False)
class _Factors(Settings):
    """Marks factors of which one number may say both."""

    def read(self, value: object, info: ValidationInfo) -> Part:
        """Return the factors that a value in a file describes."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number and not isinstance(value, dict | Part):
            raise ScenarioError(f"must be a number, or prompts and decodes, got {shown(value)}")
        return super().read({"prompts": value, "decodes": value} if is_number else value, info)

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the choice of both."""
        number = {"type": "number", "exclusiveMinimum": 0}
        return {"anyOf": [number, super().schema(handler)]}


_DRAFTING = Settings(part_type(SpeculativeConfig, meanings={"model": ModelName | None}))
_ENGINE = {
    "model": ModelName | None,
    "engine": EngineName | None,
    "async_scheduling": bool,
    "gpu": GpuName,
    "host": HostName,
    "scheduler": Annotated[Part, SCHEDULER],
    "predictor": Annotated[Part, PREDICTOR],
    "speculative_config": Annotated[Part, _DRAFTING] | None,
    "step_time_scale": Annotated[Part, _Factors(part_type(StepTimeScale))] | None,
    "max_model_len": ContextTokens | None,
    Positive[int]: AtLeastOne,
}


def _plans_ahead(data: Mapping[str, Any]) -> bool:
    """Return whether an engine plans ahead, of whose file the options before this were read.

    A part that is {} was not read, as where `mist list` asks for the defaults.
    """
    said = {field.name: data.get(field.name, data.get(f"{field.name}_")) for field in _FIELDS}
    said = {name: built(value) for name, value in said.items() if value not in (None, {})}
    try:
        return bool(with_version_defaults(EngineConfig(**said)).async_scheduling)
    except ValueError:  # which the checks of the whole say
        return False


_FIELDS = fields(EngineConfig)
_IN_A_FILE = {
    "model": None,
    "gpu": ...,
    "async_scheduling": _plans_ahead,
    "scheduler": SCHEDULER.default,
    "predictor": PREDICTOR.default,
}


def llm_part(name: str) -> type[Part]:
    """Return the schema of an engine."""
    return part_type(
        EngineConfig, name, meanings=_ENGINE, defaults=_IN_A_FILE, is_default=True, base=LlmPart
    )
