"""Values with several possible forms, such as a number or a list of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from mist_sim.scenario.format.problems import Problem, failure, rule_of, shown, text_of


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
