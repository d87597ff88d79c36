"""The clients of a scenario file: what may be said about a language model's engine, and others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WrapValidator,
    field_validator,
)

from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.overload import AdmissionControl
from mist_sim.errors import did_you_mean
from mist_sim.hardware import load_gpu
from mist_sim.hardware.memory import MemoryTier
from mist_sim.hardware.predictors import EngineOverhead
from mist_sim.hardware.specs import AllReduce
from mist_sim.models import load_model
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.scenario.engines.server_defaults import with_server_limits
from mist_sim.scenario.format import paths
from mist_sim.scenario.format.families import PREDICTOR, SCHEDULER, STAGE, Settings
from mist_sim.scenario.format.fields import Duration, as_tuple
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem, failure
from mist_sim.scenario.format.strict import Strict
from mist_sim.stages import Decode, Prefill

_TIER = Annotated[Part, Settings(part_type(MemoryTier))]
_KV_CACHE = part_type(
    KvCacheConfig,
    meanings={tuple[MemoryTier, ...]: Annotated[tuple[_TIER, ...], BeforeValidator(as_tuple)]},
)

LLM_STAGES = (Prefill.kind, Decode.kind)


def _model(text: str, info: ValidationInfo) -> str:
    return paths.spec(text, info, ".json", load_model)


def _gpu(text: str, info: ValidationInfo) -> str:
    return paths.spec(text, info, ".toml", load_gpu)


ModelName = Annotated[
    str,
    AfterValidator(_model),
    Field(description="a catalog name, a Hugging Face id, or the path of a config.json"),
]
GpuName = Annotated[
    str,
    AfterValidator(_gpu),
    Field(description="a catalog name, or the path of a .toml spec"),
]
Name = Annotated[str, Field(min_length=1, description="unique in the scenario")]
Count = Annotated[int, Field(ge=1, le=10**9)]
Weights = Literal["fp8", "int8", "int4"]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


SPECULATION = part_type(SpeculativeConfig, meanings={"model": ModelName | None})


class ClientSpec(Strict):
    """What all clients have: a name, and how many copies there are."""

    name: Name
    type: str
    count: int = Field(
        1,
        ge=1,
        le=10_000,
        description="copies of the client; more than one are called NAME-0, NAME-1, ...",
    )

    @property
    def names(self) -> list[str]:
        """The names of all copies."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{copy}" for copy in range(self.count)]


class LlmClientSpec(ClientSpec):
    """Engines that serve prefill and decode of a language model."""

    type: Literal["llm"] = "llm"
    model: ModelName | None = Field(None, description="served instead of the scenario's model")
    gpu: GpuName
    quantization: Weights | None = Field(
        None, description="stores the weights so instead of as the checkpoint does"
    )
    tensor_parallel_size: Count = Field(1, description="GPUs that share every layer")
    pipeline_parallel_size: Count = Field(1, description="ranks that each have some of the layers")
    data_parallel_size: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="engines of the client, each with that many GPUs and a cache of its own"
    )
    enable_expert_parallel: bool = Field(
        False, description="spreads whole experts over the GPUs instead of slices of each"
    )
    expert_load_imbalance: float = Field(
        1.0, description="tokens of the GPU with the busiest experts over the mean (>= 1)"
    )
    all_reduce: AllReduce | None = Field(
        None,
        description="how ranks sum their parts of a layer, where the GPU's entry says otherwise",
    )
    speculative_config: Annotated[Part, Settings(SPECULATION)] | None = Field(
        None, description="drafts tokens, and verifies several of a request in one step"
    )
    scheduler: Annotated[Part, SCHEDULER] = Field(SCHEDULER.default, validate_default=True)
    kv_cache: Annotated[Part, Settings(_KV_CACHE)] = Field({}, validate_default=True)
    predictor: Annotated[Part, PREDICTOR] = Field(PREDICTOR.default, validate_default=True)
    overhead: Annotated[Part, Settings(part_type(EngineOverhead))] = Field(
        {}, validate_default=True
    )
    async_scheduling: bool = Field(
        False,
        description="a step is planned while the step before it runs: host time hides behind the "
        "GPU's, requests join and seats change hands one step later (vLLM has it on by default "
        "from 0.14 on, where it is supported)",
    )
    admission: Annotated[Part, Settings(part_type(AdmissionControl))] = Field(
        {}, validate_default=True
    )
    max_model_len: Count | None = Field(
        None,
        description="most tokens of a prompt and its answer; without it, the model's own, which "
        "it may exceed (vLLM: VLLM_ALLOW_LONG_MAX_MODEL_LEN)",
    )

    @field_validator("scheduler", mode="before")
    @classmethod
    def _limits_of_the_gpu(cls, scheduler: object, info: ValidationInfo) -> object:
        gpu, drafts = info.data.get("gpu"), info.data.get("speculative_config")
        if not gpu:  # missing where it is wrong
            return scheduler
        num_drafts = getattr(drafts, "num_speculative_tokens", 0)
        return with_server_limits(scheduler, load_gpu(gpu), num_drafts)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that the client serves."""
        return LLM_STAGES

    @property
    def turns_away(self) -> bool:
        """Whether the engine may turn requests away because it is busy."""
        return bool(self.admission.make() != AdmissionControl())

    @property
    def uses_priorities(self) -> bool:
        """Whether the engine looks at the requests' priorities."""
        return getattr(self.scheduler, "order", "") == "priority"

    @property
    def uses_deadlines(self) -> str:
        """The option with which the engine looks at deadlines; empty when it does not."""
        control: AdmissionControl = self.admission.make()
        if control.drop_expired:
            return "admission.drop_expired"
        if control.early_rejection:
            return "admission.early_rejection"
        by_deadline = getattr(self.scheduler, "order", "") == "earliest_deadline_first"
        return "scheduler.order: earliest_deadline_first" if by_deadline else ""


class SequentialClientSpec(ClientSpec):
    """Workers that take one visit each: text processing, tools, retrieval."""

    type: Literal["sequential"]
    serves: Names = Field(
        description="the stages that it serves, such as [preprocess]",
        json_schema_extra={"minItems": 1},
    )
    num_workers: Count = Field(1, description="visits served at once")
    base_time: Duration | None = Field(
        None, description="time that every stage takes; a tool_call takes its own without it"
    )
    time_per_token: Duration | None = Field(
        None, description="time for each of a stage's num_tokens, on top"
    )

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that the client serves."""
        return self.serves

    @property
    def kinds(self) -> list[str]:
        """The stages as clients call them."""
        return [STAGE.registry[name].kind for name in self.serves]

    def problems(self) -> Iterable[Problem]:
        """Yield what is wrong with stages and times."""
        if not self.serves:
            yield Problem(("serves",), "must have at least one entry, got []")
        for name in ("base_time", "time_per_token"):
            if (getattr(self, name) or 0.0) < 0:
                yield Problem((name,), f"must be >= 0 s, got {getattr(self, name)}")
        for position, stage in enumerate(self.serves):
            if problem := _not_served(stage):
                yield Problem(("serves", position), problem)
            elif self.base_time is None and not self._has_time(stage):
                yield Problem(("base_time",), f"is required, since {stage} has no other time")
        if (
            self.serves
            and self.time_per_token is not None
            and not any(map(has_tokens, self.serves))
        ):
            yield Problem(
                ("time_per_token",), f"has no effect: {', '.join(self.serves)} has no num_tokens"
            )

    def _has_time(self, stage: str) -> bool:
        per_token = self.time_per_token is not None and has_tokens(stage)
        return per_token or stage == "tool_call"


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
        return f"no stage named {stage!r}{did_you_mean(stage, STAGE.registry)} Known: {known}"
    return ""


_TYPES: dict[object, type[ClientSpec]] = {"llm": LlmClientSpec, "sequential": SequentialClientSpec}


def _by_type(value: Any, _handler: object, info: ValidationInfo) -> ClientSpec:
    """Read a client with the model that its type names, so that errors speak of it alone."""
    if isinstance(value, ClientSpec):
        return value
    name = value.get("type", "llm") if isinstance(value, dict) else "llm"
    if name not in ("llm", "sequential"):
        known = ", ".join(map(str, _TYPES))
        hint = did_you_mean(str(name), map(str, _TYPES))
        raise failure([Problem(("type",), f"no client type {name!r}{hint} Known: {known}")])
    return _TYPES[name].model_validate(value, context=info.context)


AnyClient = Annotated[LlmClientSpec | SequentialClientSpec, WrapValidator(_by_type)]
"""A client of either type."""
