"""The families of plugins that a scenario file chooses from: `type` picks one by its name.

A family looks into its registry when a file is read, so a plugin can be used as soon as it is
registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue

from mist_sim.admission import ADMISSIONS
from mist_sim.clients.scheduling import SCHEDULERS
from mist_sim.core.hand_over import HandOverPolicy
from mist_sim.durations import DURATIONS, SecondsOrLaw
from mist_sim.errors import ScenarioError
from mist_sim.eviction import EVICTIONS, Eviction
from mist_sim.hardware.predictors import PREDICTORS
from mist_sim.lifecycle import AUTOSCALERS, Autoscaler
from mist_sim.network import CONNECTORS, Connector
from mist_sim.registry import Registry
from mist_sim.routers import HAND_OVER_POLICIES, ROUTERS
from mist_sim.scenario.format.fields import SECONDS, Marker
from mist_sim.scenario.format.parts import FORMS, Part, has_defaults, part_type, written
from mist_sim.scenario.format.paths import named_file
from mist_sim.scenario.format.problems import Problem, failure, instead, shown
from mist_sim.stages import STAGES
from mist_sim.traces import (
    ARRIVALS,
    LENGTHS,
    SAMPLERS,
    TRACE_READERS,
    LengthDistribution,
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

    def write(self, value: Any) -> object:
        """Return it with every default; a bare name unchanged."""
        return written(value)

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the choice of all that are registered."""
        models = {name: self.part_type(name) for name in self.registry.usable()}
        bare = {name for name, model in models.items() if has_defaults(model, name)}
        choices = [handler(model.__pydantic_core_schema__) for model in models.values()]
        words = sorted(bare | set(self.words))
        return {"anyOf": [*([{"enum": words}] if words else []), *choices]}


@dataclass(frozen=True, eq=False)
class OrLaw(Marker):
    """Marks a value that is constant ("20 ms") or drawn from a law ({type: gamma, ...}).

    plain: how a constant is said. laws: the family that the law is one of.
    """

    plain: Marker
    laws: Family

    def read(self, value: object, info: ValidationInfo) -> object:
        """Return the constant or the law that a value in a file describes."""
        is_name = isinstance(value, str) and value in self.laws.registry
        if is_name or isinstance(value, dict | Part):
            return self.laws.read(value, info)
        return self.plain.read(value, info)

    def write(self, value: Any) -> object:
        """Return the constant, or the law, as a file writes them."""
        return written(value) if isinstance(value, Part) else self.plain.write(value)

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the choice of both."""
        return {"anyOf": [self.plain.schema(handler), *self.laws.schema(handler)["anyOf"]]}


_FILE = Annotated[str, AfterValidator(named_file)]
ROUTER = Family(ROUTERS, default="round_robin")
SCHEDULER = Family(SCHEDULERS, default="chunked")
PREDICTOR = Family(
    PREDICTORS, needs=("model", "cluster"), meanings={"path": _FILE}, default="roofline"
)
LENGTH = Family(LENGTHS)
DURATION_LAW = Family(DURATIONS, meanings={"path": _FILE | None})
ARRIVAL = Family(ARRIVALS)
AUTOSCALER = Family(AUTOSCALERS)
SAMPLER = Family(SAMPLERS)
TRACE_READER = Family(TRACE_READERS, meanings={"path": _FILE})
HAND_OVER_POLICY = Family(HAND_OVER_POLICIES)
CONNECTOR = Family(CONNECTORS, default="plain")
EVICTION = Family(EVICTIONS, default="lru")
ADMISSION = Family(ADMISSIONS)
STAGE = Family(STAGES, words=("encode_images", "kv_retrieval", "prefill", "decode"))

_TIME = Annotated[float | Part, OrLaw(SECONDS, DURATION_LAW)]
FORMS.update(
    {
        SecondsOrLaw: _TIME,
        SecondsOrLaw | None: _TIME | None,
        Autoscaler: Annotated[Part, AUTOSCALER],
        Connector: Annotated[Part, CONNECTOR],
        Eviction: Annotated[Part, EVICTION],
        HandOverPolicy: Annotated[Part, HAND_OVER_POLICY],
        LengthDistribution: Annotated[Part, LENGTH],
    }
)
