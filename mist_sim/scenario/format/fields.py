"""Translates a dataclass field's annotation into the values that a scenario file may have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from mist_sim.bounds import COUNT, NUMBER, TEXT_LENGTH
from mist_sim.errors import ScenarioError, brief
from mist_sim.scenario.format.choices import Choice
from mist_sim.units import DURATION, Kind

_PLAIN = (bool, NoneType)


def _in_bounds(value: float) -> float:
    smallest, largest = NUMBER
    if value and not smallest <= abs(value) <= largest:
        raise ValueError(f"must be 0 or from {smallest:g} to {largest:g} in size, got {value:g}")
    return value


Whole = Annotated[int, Field(ge=-COUNT, le=COUNT)]
Number = Annotated[float, AfterValidator(_in_bounds)]
Text = Annotated[str, Field(max_length=TEXT_LENGTH)]
_BOUNDED = {int: Whole, float: Number, str: Text}


@dataclass(frozen=True, slots=True)
class Quantity:
    """Marks a float that a file writes with a unit ("2 s"); bare numbers are refused."""

    kind: Kind

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.kind.parse,
            serialization=core_schema.plain_serializer_function_ser_schema(self.kind.format),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        units = "|".join(re.escape(unit) for unit, _ in self.kind.factors)
        number = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
        return {
            "type": "string",
            "pattern": rf"^\s*{number}\s*({units})\s*$",
            "description": f"a {self.kind.name} with its unit",
            "examples": [f"1 {self.kind.base}"],
        }


Duration = Annotated[float, Quantity(DURATION)]


@dataclass(frozen=True, slots=True)
class ByPriority:
    """Marks a duration ("2 s") that may be given for each priority ({0: 1 s, 10: 5 s})."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _durations, serialization=core_schema.plain_serializer_function_ser_schema(_written)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        duration = Quantity(DURATION).__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [duration, {"type": "object", "additionalProperties": duration}]}


def _durations(value: object) -> float | dict[int, float]:
    if not isinstance(value, dict):
        return DURATION.parse(value)
    found = {}
    for key, text in value.items():
        if not str(key).lstrip("-").isdecimal():
            raise ScenarioError(f"a priority must be a whole number, got {brief(key)}")
        if len(str(key)) > len(str(COUNT)):
            raise ScenarioError(f"a priority must be <= {COUNT}, got {brief(key)}")
        found[int(key)] = DURATION.parse(text)
    return found


def _written(value: float | dict[int, float]) -> str | dict[str, str]:
    if not isinstance(value, dict):
        return DURATION.format(value)
    return {str(priority): DURATION.format(seconds) for priority, seconds in value.items()}


def as_tuple(value: object) -> object:
    """Return a list as a tuple, for frozen models; other values unchanged."""
    return tuple(value) if isinstance(value, list) else value


def file_type(hint: Any) -> Any:
    """Return the type with which pydantic reads a field of this annotation from a file.

    Raises TypeError for an annotation that cannot be written in a file.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kinds = [mark for mark in args[1:] if isinstance(mark, Kind)]
        return Annotated[float, Quantity(kinds[0])] if kinds else file_type(args[0])
    if hint in _BOUNDED:
        return _BOUNDED[hint]
    if hint in _PLAIN or origin is Literal:
        return hint
    if origin in (Union, UnionType):
        choice = reduce(or_, (file_type(arg) for arg in args))
        return Annotated[choice, Choice()] if len(args) > 1 + (NoneType in args) else choice
    if origin in (tuple, list, Sequence):
        items = [arg if arg is Ellipsis else file_type(arg) for arg in args]
        whole = items if origin is tuple else [*items, Ellipsis]
        return Annotated[tuple[tuple(whole)], BeforeValidator(as_tuple)]  # type: ignore[misc]
    raise TypeError(f"a scenario file has no form for {brief(hint)}")
