"""The families of plugins that a scenario file chooses from: `type` picks one by its name.

A family looks into its registry when a file is read, so a plugin can be used as soon as it is
registered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from mist_sim.admission import ADMISSIONS
from mist_sim.clients.scheduling import SCHEDULERS
from mist_sim.durations import DURATIONS, SecondsOrLaw
from mist_sim.errors import ScenarioError
from mist_sim.eviction import EVICTIONS
from mist_sim.hardware.predictors import PREDICTORS
from mist_sim.lifecycle import AUTOSCALERS
from mist_sim.network import CONNECTORS
from mist_sim.registry import Registry
from mist_sim.routers import HAND_OVER_POLICIES, ROUTERS
from mist_sim.scenario.format.fields import Duration, Quantity, as_tuple
from mist_sim.scenario.format.other_words import instead
from mist_sim.scenario.format.parts import Part, has_defaults, part_type, written
from mist_sim.scenario.format.paths import named_file
from mist_sim.scenario.format.problems import Problem, failure, shown
from mist_sim.stages import STAGES
from mist_sim.traces import (
    ARRIVALS,
    LENGTHS,
    SAMPLERS,
    TRACE_READERS,
    LengthDistribution,
    RequestClass,
)
from mist_sim.units import DURATION


class Marker(ABC):
    """Marks a value in a file that has its own way of being read and written."""

    @abstractmethod
    def read(self, value: object, info: ValidationInfo) -> object:
        """Return what a value in a file describes."""

    def write(self, value: Any) -> object:
        """Return its value as a file writes it."""
        return written(value)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )


@dataclass(frozen=True, eq=False)
class Family(Marker):
    """Marks a `Part` that is one of a registry's plugins.

    needs: init fields that the file does not set. meanings: see `part_type`. words: names that may
    stand alone although the plugin of that name has parameters; read as plain strings.
    default: the type of a mapping that names none; None if it has to name one.
    """

    registry: Registry
    needs: tuple[str, ...] = ()
    meanings: Mapping[Any, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    default: str | None = None
    _models: dict[tuple[str, type[Any]], type[Part]] = field(default_factory=dict, init=False)

    def part_type(self, name: str) -> type[Part]:
        """Return the schema of a plugin. Raises ScenarioError for a class that has none."""
        plugin = self.registry[name]
        if (name, plugin) not in self._models:
            self._models[name, plugin] = self._schema(name, plugin)
        return self._models[name, plugin]

    def _schema(self, name: str, plugin: type[Any]) -> type[Part]:
        return part_type(
            plugin,
            name,
            needs=self.needs,
            meanings=self.meanings,
            is_default=name == self.default,
        )

    def read(self, value: object, info: ValidationInfo) -> Part | str:
        """Return the part that a value in a file describes; a bare name has all defaults."""
        if isinstance(value, Part):
            return value
        mapping = {"type": value} if isinstance(value, str) else value
        if isinstance(mapping, dict) and self.default is not None:
            mapping = {"type": self.default, **mapping}
        if not isinstance(mapping, dict) or "type" not in mapping:
            raise failure([Problem((), self._rule(value))])
        name = mapping["type"]
        if name in self.words and len(mapping) == 1:
            return str(name)
        try:
            model = self.part_type(name)
        except (ScenarioError, TypeError) as error:
            text = self._unknown(name) if name not in self._names() else str(error)
            raise failure([Problem(("type",), text)]) from error
        return model.model_validate(mapping, context=info.context)

    def _names(self) -> list[str]:
        return [*self.words, *(name for name in self.registry if name not in self.words)]

    def _rule(self, value: object) -> str:
        return (
            f"must be a name or a mapping with a type, got {shown(value)}. "
            f"Known: {', '.join(self._names())}"
        )

    def _unknown(self, name: object) -> str:
        names = self._names()
        hint = instead(str(name), names) or self.registry.hint(str(name), names)
        known = ", ".join(self._names())
        return f"no {self.registry.member} named {shown(name)}{hint} Known: {known}"

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        models = {name: self.part_type(name) for name in self.registry.usable()}
        bare = {name for name, model in models.items() if has_defaults(model, name)}
        choices = [handler(model.__pydantic_core_schema__) for model in models.values()]
        words = sorted(bare | set(self.words))
        return {"anyOf": [*([{"enum": words}] if words else []), *choices]}


@dataclass(frozen=True, eq=False)
class Settings(Marker):
    """Marks a `Part` that is always of the same class, so that it has no `type`."""

    model: type[Part]

    def read(self, value: object, info: ValidationInfo) -> Part:
        """Return the part that a value in a file describes."""
        return self.model.model_validate(value, context=info.context)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)


@dataclass(frozen=True, eq=False)
class OrLaw(Marker):
    """Marks a time that is constant ("20 ms") or drawn from a law ({type: gamma, ...}).

    laws: the family that the law is one of.
    """

    laws: Family

    def read(self, value: object, info: ValidationInfo) -> float | Part | str:
        """Return the seconds or the law that a value in a file describes."""
        is_name = isinstance(value, str) and value in self.laws.registry
        if is_name or isinstance(value, dict | Part):
            return self.laws.read(value, info)
        return DURATION.parse(value)

    def write(self, value: Any) -> object:
        """Return the seconds, or the law, as a file writes them."""
        return written(value) if isinstance(value, Part) else DURATION.format(value)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        time = Quantity(DURATION).__get_pydantic_json_schema__(schema, handler)
        laws = self.laws.__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [time, *laws["anyOf"]]}


ROUTER = Family(ROUTERS, default="round_robin")
SCHEDULER = Family(SCHEDULERS, default="chunked")
_FILE = {"path": Annotated[str, AfterValidator(named_file)]}
PREDICTOR = Family(PREDICTORS, needs=("model", "cluster"), meanings=_FILE, default="roofline")
LENGTH = Family(LENGTHS)
DURATION_LAW = Family(
    DURATIONS, meanings={"path": Annotated[str, AfterValidator(named_file)] | None}
)
_TIME = Annotated[float | Part, OrLaw(DURATION_LAW)]
TIMES: Mapping[Any, Any] = {SecondsOrLaw: _TIME, SecondsOrLaw | None: _TIME | None}
"""Forms in a file of parameters that are a time or a law of times."""
ARRIVAL = Family(ARRIVALS, meanings=TIMES)
AUTOSCALER = Family(
    AUTOSCALERS,
    meanings={"at": Annotated[tuple[Duration, ...], BeforeValidator(as_tuple)]},
)
_LENGTHS: Mapping[Any, Any] = {LengthDistribution: Annotated[Part, LENGTH]}
_CLASS = Annotated[Part, Settings(part_type(RequestClass, meanings=_LENGTHS))]
SAMPLER = Family(SAMPLERS, meanings={**_LENGTHS, Mapping[str, RequestClass]: dict[str, _CLASS]})
TRACE_READER = Family(TRACE_READERS, meanings=_FILE)
HAND_OVER_POLICY = Family(HAND_OVER_POLICIES)
CONNECTOR = Family(CONNECTORS, default="plain")
EVICTION = Family(EVICTIONS, default="lru")
ADMISSION = Family(ADMISSIONS, meanings={"interval": Duration, "shares": dict[str, float]})
STAGE = Family(STAGES, words=("encode_images", "kv_retrieval", "prefill", "decode"))
