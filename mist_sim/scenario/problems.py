"""What is wrong in a scenario, and where: every problem one line, all of them in one message.

Pydantic finds the problems; this module says them in plain words. Errors travel upwards as
pydantic's own `ValidationError`, whose texts are final from the innermost model on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from mist_sim.errors import ScenarioError, did_you_mean

Location = tuple[str | int, ...]

_SAID = "said"  # the type of an error whose text is final


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: `location` is the path of keys and list positions, `text` the rule."""

    location: Location
    text: str

    def line(self, source: str) -> str:
        """Return "SOURCE: a.0.b: text"; empty parts are left out."""
        place = ".".join(map(str, self.location))
        return ": ".join(part for part in (source, place, self.text) if part)


def failure(problems: Iterable[Problem]) -> ValidationError:
    """Return the error to raise for problems that a validator found."""
    details = [
        InitErrorDetails(
            type=PydanticCustomError(_SAID, "{text}", {"text": problem.text}),
            loc=problem.location,
            input=None,
        )
        for problem in problems
    ]
    return ValidationError.from_exception_data("scenario", details)


def problems_of(error: ValidationError) -> list[Problem]:
    """Return the problems of an error whose texts are final."""
    return [Problem(details["loc"], details["msg"]) for details in error.errors()]


def explained(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """Return the error with every text final; `model` is the one that was being read."""
    return failure(
        _at_field(Problem(details["loc"], _text(details, model)), model)
        for details in error.errors()
    )


def said_by(error: ValueError, model: type[BaseModel], location: Location = ()) -> Problem:
    """Return the problem of a dataclass that refused its parameters, at the field it names."""
    return _at_field(Problem(location, str(error)), model)


def summed_up(
    problems: Iterable[Problem], source: str, overrides: Iterable[Location] = ()
) -> ScenarioError:
    """Return one error for all problems, a line each.

    source: the file; "" when there is none. overrides: paths that were set from outside, so
    that the file is not blamed for them.
    """
    set_from_outside = list(overrides)

    def origin(problem: Problem) -> str:
        own = any(problem.location[: len(path)] == path for path in set_from_outside)
        return "override" if own else source

    return ScenarioError("\n".join(problem.line(origin(problem)) for problem in problems))


def keys_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the keys that a mapping for `model` may have, each with its description."""
    return {
        info.alias or name: info.description or "" for name, info in model.model_fields.items()
    }


def _at_field(problem: Problem, model: type[BaseModel]) -> Problem:
    """Move the name of a field from the beginning of a text into the path."""
    name, _, rest = problem.text.partition(" ")
    key = name.rpartition(".")[2]  # "slo.ttft must be" is about ttft
    if key in keys_of(model) and rest.startswith("must "):
        return Problem((*problem.location, key), rest)
    return problem


def _text(details: ErrorDetails, model: type[BaseModel]) -> str:
    kind = details["type"]
    if kind == _SAID:
        return details["msg"]
    if kind == "value_error":
        return str(details["ctx"]["error"])
    if kind == "extra_forbidden":
        return unknown_key(str(details["loc"][-1]), keys_of(model))
    if kind == "missing":
        description = keys_of(model).get(str(details["loc"][-1]), "")
        return f"is required{description and f' ({description})'}"
    rule = _RULES.get(kind, lambda _: details["msg"])(details.get("ctx", {}))
    return f"{rule}, got {_shown(details['input'])}{_hint(details)}"


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the text about a key that a mapping cannot have."""
    names = list(known)
    if not names:
        return "unknown key; there are no keys here"
    return f"unknown key{did_you_mean(key, names) or '.'} Known: {', '.join(names)}"


_RULES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_type": lambda _: "must be true or false",
    "finite_number": lambda _: "must be a finite number",
    "float_type": lambda _: "must be a number",
    "greater_than": lambda ctx: f"must be > {ctx['gt']}",
    "greater_than_equal": lambda ctx: f"must be >= {ctx['ge']}",
    "int_type": lambda _: "must be a whole number",
    "invalid_key": lambda _: "keys must be text",
    "literal_error": lambda ctx: f"must be {ctx['expected']}",
    "model_type": lambda _: "must be a mapping of keys to values",
    "none_required": lambda _: "must be null",
    "string_too_short": lambda _: "must not be empty",
    "string_type": lambda _: "must be text",
    "too_short": lambda ctx: f"must have at least {ctx['min_length']}",
    "tuple_type": lambda _: "must be a list",
}


def _hint(details: ErrorDetails) -> str:
    """Return what to do about a value of the wrong type, where that is clear."""
    value = details["input"]
    if details["type"] == "string_type" and value is not None and not isinstance(value, dict | list):
        return "; write it in quotes"
    if details["type"] in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        return "; write it without quotes" if _is_plain(value) else ""
    if details["type"] == "literal_error" and isinstance(value, str):
        choices = str(details.get("ctx", {}).get("expected", "")).replace("'", "")
        return did_you_mean(value, choices.replace(" or ", ", ").split(", "))
    return ""


def _is_plain(text: str) -> bool:
    return text in ("true", "false") or text.lstrip("+-").replace(".", "", 1).isdecimal()


def _shown(value: object) -> str:
    """Return a value as a user would recognise it, cut to a readable length."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str | int | float | dict | list | tuple) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
