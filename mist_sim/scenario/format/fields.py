"""Values of scenario files that are no mappings: bounded, with units, in several forms."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from mist_sim.bounds import COUNT, NUMBER, TEXT_LENGTH
from mist_sim.errors import ScenarioError, brief
from mist_sim.scenario.format.problems import Problem, failure, rule_of, shown, text_of
from mist_sim.units import DURATION, Kind


def _in_bounds(value: float) -> float:
    smallest, largest = NUMBER
    if value and not smallest <= abs(value) <= largest:
        raise ValueError(f"must be 0 or from {smallest:g} to {largest:g} in size, got {value:g}")
    return value


Whole = Annotated[int, Field(ge=-COUNT, le=COUNT)]
Number = Annotated[float, AfterValidator(_in_bounds)]
Text = Annotated[str, Field(max_length=TEXT_LENGTH)]


class Marker(ABC):
    """Marks a value in a file that has its own way of being read and written."""

    @abstractmethod
    def read(self, value: Any, info: ValidationInfo) -> object:
        """Return what a value in a file describes."""

    @abstractmethod
    def write(self, value: Any) -> object:
        """Return its value as a file writes it."""

    @abstractmethod
    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return its JSON Schema."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return self.schema(handler)


@dataclass(frozen=True, slots=True)
class Quantity(Marker):
    """Marks a float that a file writes with a unit ("2 s"); bare numbers are refused."""

    kind: Kind

    def read(self, value: object, info: ValidationInfo) -> float:
        """Return the value in the base unit."""
        return self.kind.parse(value)

    def write(self, value: float) -> str:
        """Return it with the base unit."""
        return self.kind.format(value)

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the pattern of a number with one of the units."""
        units = "|".join(re.escape(unit) for unit, _ in self.kind.factors)
        number = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
        return {
            "type": "string",
            "pattern": rf"^\s*{number}\s*({units})\s*$",
            "description": f"a {self.kind.name} with its unit",
            "examples": [f"1 {self.kind.base}"],
        }


SECONDS = Quantity(DURATION)
Duration = Annotated[float, SECONDS]


@dataclass(frozen=True, slots=True)
class ByPriority(Marker):
    """Marks a duration ("2 s") that may be given for each priority ({0: 1 s, 10: 5 s})."""

    def read(self, value: object, info: ValidationInfo) -> float | dict[int, float]:
        """Return the seconds, or those of each priority."""
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

    def write(self, value: float | dict[int, float]) -> str | dict[str, str]:
        """Return the time, or the times by priority."""
        if not isinstance(value, dict):
            return DURATION.format(value)
        return {str(priority): DURATION.format(seconds) for priority, seconds in value.items()}

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the choice of both forms."""
        time = SECONDS.schema(handler)
        return {"anyOf": [time, {"type": "object", "additionalProperties": time}]}


def as_tuple(value: object) -> object:
    """Return a list as a tuple, for frozen models; other values unchanged."""
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Choice:
    """Marks a union: if no form fits, the message is about the value and not about each form.

    Pydantic would name the forms in the path, as types of Python.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(_read, handler(source))


def _read(value: object, handler: ValidatorFunctionWrapHandler) -> object:
    try:
        return handler(value)
    except ValidationError as error:
        raise failure(_problems(value, error.errors())) from None


def _problems(value: object, found: list[ErrorDetails]) -> list[Problem]:
    """Return the problems of the form that the value has; a location begins with its form."""
    inside = [details for details in found if len(details["loc"]) > 1]
    if inside:
        form = inside[0]["loc"][0]
        mine = [details for details in inside if details["loc"][0] == form]
        return [Problem(details["loc"][1:], text_of(details)) for details in mine]
    of_form = [details for details in found if not details["type"].endswith("_type")]
    if of_form:
        return [Problem((), text_of(of_form[0]))]
    rules = dict.fromkeys(rule_of(details).removeprefix("must be ") for details in found)
    return [Problem((), f"must be {' or '.join(rules)}, got {shown(value)}")]
