"""The mappings of a file, and the parameters of one object: schemas made from dataclasses.

Plugins stay free of pydantic: a dataclass's init fields are its parameters, its annotations say
what a file may write, and its own checks run as soon as the file is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue

from mist_sim.checks import hints_of, range_of
from mist_sim.errors import ScenarioError, brief
from mist_sim.registry import comes_with_package
from mist_sim.scenario.format.docstrings import documented_with_bases
from mist_sim.scenario.format.fields import (
    Choice,
    Marker,
    Number,
    Quantity,
    Text,
    Whole,
    as_tuple,
)
from mist_sim.scenario.format.problems import Problem, explained, failure, said_by
from mist_sim.units import Kind


class Strict(BaseModel):
    """A frozen mapping: unknown keys and values of another type are refused, in plain words."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # most runs use few of the many mappings that a file may have
    )

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            value = handler(data)
        except ValidationError as error:
            raise explained(error, cls) from None
        if problems := list(value.problems()):
            raise failure(problems)
        return value

    def problems(self) -> Iterable[Problem]:
        """Return problems of values that are valid one by one; locations are relative."""
        return ()


class Part(Strict):
    """The parameters of one object; `make` makes the object.

    Subclasses are made from dataclasses by `part_type`, and have a field for each parameter.
    """

    plugin: ClassVar[type[Any]]
    needs: ClassVar[tuple[str, ...]] = ()

    def make(self, **context: object) -> Any:
        """Return a new object with these parameters.

        context: values from outside the file, such as a predictor's model; only those that the
        class takes are passed on. Raises ValueError for parameters that the class refuses.
        """
        given = {name: value for name, value in context.items() if name in self.needs}
        return self.plugin(**given, **self.parameters())

    def parameters(self) -> dict[str, Any]:
        """Return the parameters by name; a part inside that needs context becomes its `make`."""
        return {
            info.alias: built(getattr(self, name))
            for name, info in type(self).model_fields.items()
            if info.alias and info.alias != "type"
        }

    def problems(self) -> Iterable[Problem]:
        """Return the problems that the class reports; none yet if it needs context."""
        if not self.needs:
            try:
                self.make()
            except ValueError as error:
                return [said_by(error, type(self))]
        return ()


def built(value: object) -> object:
    """Return what a value of a schema stands for; a part that needs context becomes its `make`."""
    if isinstance(value, Part):
        return value.make if value.needs else value.make()
    if isinstance(value, dict):
        return {key: built(each) for key, each in value.items()}
    return tuple(map(built, value)) if isinstance(value, tuple) else value


def written(part: Part | object) -> object:
    """Return a part as written in a file, with every default; a bare name unchanged."""
    return part.model_dump(mode="json", by_alias=True) if isinstance(part, Part) else part


@dataclass(frozen=True, eq=False)
class Settings(Marker):
    """Marks a `Part` that is always of the same class, so that it has no `type`."""

    model: type[Part]

    def read(self, value: object, info: ValidationInfo) -> Part:
        """Return the part that a value in a file describes."""
        return self.model.model_validate(value, context=info.context)

    def write(self, value: Any) -> object:
        """Return it with every default."""
        return written(value)

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of its keys."""
        return handler(self.model.__pydantic_core_schema__)


@cache
def settings(cls: type[Any]) -> Settings:
    """Return what marks the options of a dataclass."""
    return Settings(part_type(cls))


FORMS: dict[Any, Any] = {
    int: Whole,
    float: Number,
    str: Text,
    bool: bool,
    NoneType: NoneType,
}
"""How a file says values, by their annotation in dataclasses; others are worked out."""


def file_type(hint: Any) -> Any:
    """Return the type with which pydantic reads a field of this annotation from a file.

    A dataclass of this package is a mapping of its fields.
    Raises TypeError for an annotation that cannot be written in a file.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint in FORMS:
        return FORMS[hint]
    if origin is Annotated:
        kinds = [mark for mark in args[1:] if isinstance(mark, Kind)]
        read = Annotated[float, Quantity(kinds[0])] if kinds else file_type(args[0])
        limits = range_of(hint)
        if limits is None or kinds:
            return read
        return Annotated[read, Field(json_schema_extra=limits.json_schema)]
    if origin is Literal:
        return hint
    if origin in (Union, UnionType):
        choice = reduce(or_, (file_type(arg) for arg in args))
        return Annotated[choice, Choice()] if len(args) > 1 + (NoneType in args) else choice
    if origin in (tuple, list, Sequence):
        items = [arg if arg is Ellipsis else file_type(arg) for arg in args]
        whole = items if origin is tuple else [*items, Ellipsis]
        return Annotated[tuple[tuple(whole)], BeforeValidator(as_tuple)]  # type: ignore[misc]
    if origin is Mapping and args[0] is str:
        return dict[str, file_type(args[1])]  # type: ignore[misc]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and comes_with_package(hint):
        return Annotated[Part, settings(hint)]
    raise TypeError(f"a scenario file has no form for {brief(hint)}")


def has_defaults(model: type[Part], name: str) -> bool:
    """Tell whether the type can be given alone, without parameters."""
    try:
        model.model_validate({"type": name})
    except ValidationError:
        return False
    return True


def part_type(
    plugin: type[Any],
    name: str | None = None,
    *,
    needs: tuple[str, ...] = (),
    meanings: Mapping[Any, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    is_default: bool = False,
    base: type[Part] = Part,
) -> type[Part]:
    """Return the schema made from a dataclass's init fields; no dataclass, no parameters.

    name: the plugin's name, which becomes its `type`; None if there is nothing to choose.
    needs: init fields that the file does not set.
    meanings: types to read parameters with, by parameter name or annotation, if these differ from
        the annotation's own.
    defaults: of parameters whose default in a file differs; `...` for required ones.
    is_default: whether `type` may be left out.
    base: what the schema derives from, with its keys. Raises ScenarioError if the class has a
    parameter that a file cannot express.
    """
    title = name or plugin.__name__
    fields: dict[str, Any] = {}
    if name is not None:
        fields["type_"] = (Literal[name], Field(name if is_default else ..., alias="type"))
    parameters = _init_fields(plugin, title)
    shown = {key: found for key, found in parameters.items() if key not in needs}
    summary = (plugin.__doc__ or title).split("\n\n", maxsplit=1)[0]
    described: dict[str, str] = {}
    if base is not Part:
        texts, described = documented_with_bases(plugin, shown)
        summary = next(iter(texts), title)
    for parameter, (hint, field) in shown.items():
        if parameter == "type" or parameter in base.model_fields:
            raise ScenarioError(
                f"{title}: a parameter cannot be called {brief(parameter)}; rename it"
            )
        own = f"{parameter}_" if hasattr(base, parameter) else parameter
        read = _read_with(parameter, hint, meanings or {}, title)
        default = (defaults or {}).get(parameter, _default(field))
        fields[own] = (read, _key(parameter, read, default, described.get(parameter)))
    model: type[Part] = create_model(title, __base__=base, __doc__=summary, **fields)
    model.plugin = plugin
    model.needs = tuple(parameter for parameter in parameters if parameter in needs)
    return model


def _init_fields(plugin: type[Any], title: str) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """Return (annotation, field) of the class's init fields, by name and in order."""
    if not dataclasses.is_dataclass(plugin):
        return {}
    try:
        hints = hints_of(plugin)
    except NameError as error:
        raise ScenarioError(
            f"{title}: {error}; import what annotates its parameters at run time"
        ) from None
    return {
        field.name: (hints[field.name], field) for field in dataclasses.fields(plugin) if field.init
    }


def _read_with(parameter: str, hint: Any, meanings: Mapping[Any, Any], title: str) -> Any:
    try:
        return meanings.get(parameter) or meanings.get(hint) or file_type(hint)
    except TypeError as error:
        raise ScenarioError(f"{title}: parameter {parameter}: {error}") from None


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default or default factory; `...` if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory
    return ... if field.default is MISSING else field.default


def _key(parameter: str, read: Any, default: Any, description: str | None) -> Any:
    """Return the field of a schema; settings that a file leaves out have their defaults."""
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        default = {}
    if callable(default):
        return Field(alias=parameter, default_factory=default, description=description)
    of_part = get_origin(read) is Annotated and get_args(read)[0] is Part
    return Field(
        default,
        alias=parameter,
        description=description,
        validate_default=True if of_part and default is not ... else None,
    )
