"""Plugins in a scenario file: `type` picks the class, the other keys are its parameters.

The schema of a plugin is made from its dataclass fields when it is first asked for, so plugins
stay free of pydantic, and one that was registered a moment ago can be used at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal, get_type_hints

from pydantic import (
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    create_model,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.registry import Registry
from mist_sim.scenario.fields import file_type
from mist_sim.scenario.problems import Problem, failure, said_by
from mist_sim.scenario.strict import Strict


class Part(Strict):
    """The parameters of one object; `make` makes the object.

    Subclasses are made from dataclasses by `part_type`, and have a field for each parameter.
    """

    plugin: ClassVar[type[Any]]
    needs: ClassVar[tuple[str, ...]] = ()

    def make(self, **context: object) -> Any:
        """Return a new object with these parameters.

        context: what the file does not say, such as a predictor's model; only what the class
        asks for is passed on. Raises ValueError for parameters that the class refuses.
        """
        given = {name: value for name, value in context.items() if name in self.needs}
        values = {
            info.alias or name: _made(getattr(self, name))
            for name, info in type(self).model_fields.items()
            if info.alias != "type"
        }
        return self.plugin(**given, **values)

    def problems(self) -> Iterable[Problem]:
        if not self.needs:
            try:
                self.make()
            except ValueError as error:
                return [said_by((), error, type(self))]
        return ()


def _made(value: object) -> object:
    if isinstance(value, Part):
        return value.make()
    return tuple(map(_made, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Family:
    """Marks a `Part` that is one of a family's plugins.

    needs: init fields that the file does not set. fields: types of parameters by name, for
    those that mean more than their annotation says. nested: the family that an annotation
    stands for. words: plain strings that stand for themselves.
    """

    registry: Registry
    needs: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    nested: Mapping[Any, Any] = field(default_factory=dict, hash=False)
    words: tuple[str, ...] = ()

    def part_type(self, name: str) -> type[Part]:
        """Return the schema of a plugin. Raises ScenarioError for a class without one."""
        return part_type(self, name, self.registry[name])

    def read(self, value: object, info: ValidationInfo) -> Part | str:
        """Return the part that a value of a file describes."""
        if isinstance(value, Part):
            return value
        written = {"type": value} if isinstance(value, str) else value
        if not isinstance(written, dict) or "type" not in written:
            raise failure([Problem((), self._rule(value))])
        name = written["type"]
        if name in self.words and len(written) == 1:
            return str(name)
        if not isinstance(name, str) or name not in self.registry:
            raise failure([Problem(("type",), self._unknown(name))])
        try:
            model = self.part_type(name)
        except ScenarioError as error:
            raise failure([Problem(("type",), str(error))]) from error
        return model.model_validate(written, context=info.context)

    def _rule(self, value: object) -> str:
        return (
            f"must be a name or a mapping with a type, such as {{type: {next(iter(self._names()))}}},"
            f" got {value!r}. Known: {', '.join(self._names())}"
        )

    def _unknown(self, name: object) -> str:
        hint = did_you_mean(str(name), self._names()) or "."
        return f"no {self.registry.family} named {name!r}{hint} Known: {', '.join(self._names())}"

    def _names(self) -> list[str]:
        return [*self.words, *(name for name in self.registry if name not in self.words)]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return _schema(self.read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        models = {name: self.part_type(name) for name in self.registry}
        bare = [name for name, model in models.items() if _has_defaults(model)]
        choices = [handler(model.__pydantic_core_schema__) for model in models.values()]
        return {"anyOf": [{"enum": sorted({*bare, *self.words})}, *choices]}


@dataclass(frozen=True)
class Settings:
    """Marks a `Part` that is always of the same class, so that it has no `type`."""

    plugin: type[Any]

    def part_type(self) -> type[Part]:
        """Return the schema."""
        return part_type(Family(Registry(self.plugin.__name__)), None, self.plugin)

    def read(self, value: object, info: ValidationInfo) -> Part:
        """Return the part that a value of a file describes."""
        return self.part_type().model_validate(value, context=info.context)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return _schema(self.read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(self.part_type().__pydantic_core_schema__)


def _schema(read: Callable[[Any, ValidationInfo], Part | str]) -> CoreSchema:
    return core_schema.with_info_plain_validator_function(
        read, serialization=core_schema.plain_serializer_function_ser_schema(written)
    )


def written(part: Part | str) -> object:
    """Return what a file says for a part, with every default."""
    return part if isinstance(part, str) else part.model_dump(mode="json", by_alias=True)


def _has_defaults(model: type[BaseModel]) -> bool:
    return all(
        info.alias == "type" or not info.is_required() for info in model.model_fields.values()
    )


@cache
def part_type(family: Family, name: str | None, plugin: type[Any]) -> type[Part]:
    """Return the schema made from a plugin's dataclass fields.

    Raises ScenarioError when the class has a parameter that a file cannot express.
    """
    title = name or plugin.__name__
    fields: dict[str, Any] = {}
    if name is not None:
        fields["type_"] = (Literal[name], Field(alias="type"))
    parameters = _parameters(plugin, title)
    for item in parameters:
        if item.name in family.needs:
            continue
        try:
            hint = family.fields.get(item.name) or family.nested.get(item.type)
            read = hint or file_type(item.type)
        except TypeError as error:
            raise ScenarioError(f"{title}: parameter {item.name}: {error}") from None
        if item.name == "type":
            raise ScenarioError(f"{title}: a parameter cannot be called 'type'; rename it")
        own = f"{item.name}_" if hasattr(Part, item.name) else item.name
        fields[own] = (read, _field(item))
    model: type[Part] = create_model(title, __base__=Part, __doc__=plugin.__doc__, **fields)
    model.plugin = plugin
    model.needs = tuple(item.name for item in parameters if item.name in family.needs)
    return model


@dataclass(frozen=True)
class _Parameter:
    name: str
    type: Any
    field: dataclasses.Field[Any]


def _parameters(plugin: type[Any], title: str) -> list[_Parameter]:
    """Return the init fields of a dataclass; a class that is none has no parameters."""
    if not dataclasses.is_dataclass(plugin):
        return []
    try:
        hints = get_type_hints(plugin, include_extras=True)
    except NameError as error:
        raise ScenarioError(
            f"{title}: {error}; import what annotates parameters at run time"
        ) from None
    return [
        _Parameter(item.name, hints[item.name], item)
        for item in dataclasses.fields(plugin)
        if item.init
    ]


def _field(item: _Parameter) -> Any:
    source = item.field
    if source.default_factory is not MISSING:
        return Field(alias=item.name, default_factory=source.default_factory)
    default = ... if source.default is MISSING else source.default
    return Field(default, alias=item.name)
