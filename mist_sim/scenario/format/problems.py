"""Problems of a scenario with their places: a line each, all of them in one message.

Pydantic finds the problems; this module says them in plain words. Errors travel upwards as
pydantic's own `ValidationError`, whose texts are final from the innermost model on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from mist_sim.errors import ScenarioError, brief, cut, did_you_mean
from mist_sim.scenario.format.paths import Origin

Location = tuple[str | int, ...]

_LONGEST = 60  # characters of a value that a message shows
_SHORT = 2  # letters of units and the like, of which one is not the other misspelt
_LONGEST_LINE = 1_500  # characters of one problem: a place in the file, and the keys allowed there
_MOST_SHOWN = 20  # problems; a file of equal mistakes has as many as lines
_SAID = "said"  # the type of an error whose text is final
_NO_DEFAULT = "default_factory_not_called"  # follows from another error


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: `location` is the path of keys and list positions, `text` the rule."""

    location: Location
    text: str

    @property
    def place(self) -> str:
        """The path with dots, long keys cut; "" for the whole scenario."""
        return ".".join(cut(str(step)) for step in self.location)


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
        _at_field(Problem(*_of_key(details["loc"], _text(details, model))), model)
        for details in error.errors()
        if details["type"] != _NO_DEFAULT
    )


def _of_key(location: Location, text: str) -> tuple[Location, str]:
    """Return a problem's place in the file and its text; pydantic marks keys in the path."""
    return (location[:-1], f"the key {text}") if location[-1:] == ("[key]",) else (location, text)


def said_by(error: ValueError, model: type[BaseModel], location: Location = ()) -> Problem:
    """Return a dataclass's ValueError as a problem, at the field that it names."""
    return _at_field(Problem(location, str(error)), model)


def summed_up(problems: Iterable[Problem], origin: Origin) -> ScenarioError:
    """Return one error for all problems, a line each: "FILE: a.0.b: what is wrong"."""
    lines = [
        _cut(": ".join(part for part in (*_blamed(problem, origin), problem.text) if part))
        for problem in problems
    ]
    if (num_more := len(lines) - _MOST_SHOWN) > 0:
        lines[_MOST_SHOWN:] = [f"{origin.source or 'scenario'}: {num_more} more problems"]
    return ScenarioError("\n".join(lines))


def _cut(line: str) -> str:
    """Return a line as long as a terminal shows well, with its beginning and its end."""
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"


def _blamed(problem: Problem, origin: Origin) -> tuple[str, str]:
    """Return the source and the place of a value: the file, or an override of it."""
    place = problem.place
    if origin.sets(problem.location):
        return "", f"override {place}"
    if any(f"{path}.".startswith(f"{place}.") for path in origin.overrides):
        return f"{origin.source} with overrides".strip(), place
    return origin.source, place


def keys_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the keys that a mapping for `model` may have, each with its description."""
    return {info.alias or name: info.description or "" for name, info in model.model_fields.items()}


def _at_field(problem: Problem, model: type[BaseModel]) -> Problem:
    """Move the name of a field from the beginning of a text into the path."""
    name, _, rest = problem.text.partition(" ")
    key = name.rpartition(".")[2]  # "slo.ttft must be" is about ttft
    if key in keys_of(model) and rest.startswith("must "):
        return Problem((*problem.location, key), rest)
    return problem


def _text(details: ErrorDetails, model: type[BaseModel]) -> str:
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown_key(str(details["loc"][-1]), model)
    if kind == "missing":
        description = keys_of(model).get(str(details["loc"][-1]), "")
        return f"is required{description and f' ({description})'}"
    return text_of(details)


def text_of(details: ErrorDetails) -> str:
    """Return what is wrong with a value: the rule, the value, and perhaps what to do."""
    kind = details["type"]
    if kind == _SAID:
        return details["msg"]
    if kind == "value_error":
        return str(details["ctx"]["error"])
    return f"{rule_of(details)}, got {shown(details['input'])}{_hint(details)}"


def rule_of(details: ErrorDetails) -> str:
    """Return the rule that a value breaks, such as "must be a number"."""
    said = _RULES.get(details["type"])
    return said(details.get("ctx", {})) if said else details["msg"]


def _unknown_key(key: str, model: type[BaseModel]) -> str:
    known = keys_of(model)
    of_type = f" for type {model.__name__}" if "type_" in model.model_fields else ""
    inside = [place for place, part in _parts_of(model) if key in keys_of(part)]
    if inside:
        return f"unknown key{of_type}; it belongs in {inside[0]}. Known: {', '.join(known)}"
    longer = [name for name in known if name.endswith(f"_{key}")]
    meant = f"; did you mean {longer[0]!r}?" if len(longer) == 1 else ""
    hint = meant or _where(key) or did_you_mean(key, known)
    return f"unknown key{of_type}{hint} Known: {', '.join(known)}"


def _parts_of(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the mappings inside a model with their keys; of a choice, the default."""
    for key, info in model.model_fields.items():
        default = info.get_default(call_default_factory=False)
        for mark in info.metadata:
            part = getattr(mark, "model", None)
            if part is None and isinstance(default, str) and hasattr(mark, "part_type"):
                part = mark.part_type(default)
            if part is not None:
                yield info.alias or key, part


_RULES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_type": lambda _: "must be true or false",
    "dict_type": lambda _: "must be a mapping of keys to values",
    "finite_number": lambda _: "must be a finite number",
    "float_type": lambda _: "must be a number",
    "greater_than": lambda ctx: f"must be > {ctx['gt']}",
    "greater_than_equal": lambda ctx: f"must be >= {ctx['ge']}",
    "int_type": lambda _: "must be a whole number",
    "invalid_key": lambda _: "keys must be text",
    "less_than": lambda ctx: f"must be < {ctx['lt']}",
    "less_than_equal": lambda ctx: f"must be <= {ctx['le']}",
    "literal_error": lambda ctx: f"must be {ctx['expected']}",
    "model_type": lambda _: "must be a mapping of keys to values",
    "none_required": lambda _: "must be null",
    "string_too_long": lambda ctx: f"must have <= {ctx['max_length']} characters",
    "string_too_short": lambda _: "must not be empty",
    "string_type": lambda _: "must be text",
    "tuple_type": lambda _: "must be a list",
}


def _hint(details: ErrorDetails) -> str:
    """Return what to do about a value of the wrong type, if that is clear."""
    value = details["input"]
    if details["type"] == "string_type" and not isinstance(value, dict | list | NoneType):
        return "; write it in quotes"
    if details["type"] in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        return "; write it without quotes" if _is_plain(value) else ""
    if details["type"] == "tuple_type" and isinstance(value, str) and value:
        return f"; write [{shown(value)[1:-1]}]" if len(value) < _LONGEST else ""
    if details["type"] == "literal_error" and isinstance(value, str):
        choices = str(details.get("ctx", {}).get("expected", "")).replace("'", "")
        known = choices.replace(" or ", ", ").split(", ")
        words = [each for each in known if len(each) > _SHORT]
        return instead(value, known) or did_you_mean(value, words)
    return ""


def _is_plain(text: str) -> bool:
    return text in ("true", "false") or text.lstrip("+-").replace(".", "", 1).isdecimal()


def shown(value: object) -> str:
    """Return a value as a user would recognise it, cut to a readable length."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return brief(value, _LONGEST - 3)


# --- words of other tools, as `other_words.toml` has them ---------------------------------------


@cache
def keys_of_others() -> Mapping[str, str]:
    """Return the path that keys have here, by the keys of others or of other places."""
    own = {key: f"{path}.{key}" for key, path in _words("misplaced").items()}
    return own | _words("keys")


def _words(table: str) -> dict[str, str]:
    """Return what is written in place of each word."""
    data = tomllib.loads(Path(__file__).with_name("other_words.toml").read_text("utf-8"))
    return {word: ours for ours, words in data[table].items() for word in words.split()}


def _where(key: str) -> str:
    """Return a sentence with the key here for another tool's key; empty if there is none."""
    place = keys_of_others().get(_plain(key))
    return f"; here it is {place}." if place else ""


def instead(value: str, known: Iterable[str]) -> str:
    """Return a sentence with the value to write in place of another tool's; empty if unknown.

    known: what may be written there.
    """
    values = _words("values")
    text = values.get(_plain(value)) or values.get(value.lower(), "")
    return f"; here write {text}." if any(name in text for name in known) else ""


def _plain(word: str) -> str:
    return word.lower().lstrip("-").replace("-", "_")
