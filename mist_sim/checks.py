"""Checks of a dataclass's fields by their annotations: ranges of numbers, words, tuples.

An annotation says the range: `Positive[Seconds]`, `Share`, `Annotated[int, Range("[1, 64]")]`.
A class derived from `Checked` refuses other values, and the schema of scenario files has the
range for editors. Rules of several fields at once stand in `__post_init__`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from math import inf
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from mist_sim.bounds import COUNT
from mist_sim.errors import brief, require_known
from mist_sim.units import Kind, is_number, require_number

_Check = Callable[[str, Any], None]
_T = TypeVar("_T")


class Range:
    """Marks a number with its range, written as an interval: "(0, 1]", "[1, inf)".

    low, high: its ends; an infinite one is no limit, but no value is infinite itself. hint: what
    messages say of other values.
    """

    def __init__(self, interval: str, hint: str = "") -> None:
        self.interval, self.hint = interval, hint
        self.low, self.high = map(float, interval[1:-1].split(","))
        self.has_low, self.has_high = interval[0] == "[", interval[-1] == "]"

    def __contains__(self, value: float) -> bool:
        above = self.low <= value if self.has_low else self.low < value
        return above and (value <= self.high if self.has_high else value < self.high)

    def rule(self, unit: str, *, is_whole: bool) -> str:
        """Return what a value must be, in words. unit: of its ends; "" for none."""
        if self.high < inf:
            return f"in {self.interval}{unit}"
        if is_whole:
            return f">= {self.low + (not self.has_low):g}"
        return f"finite and {'>=' if self.has_low else '>'} {self.low:g}{unit}"

    @property
    def json_schema(self) -> dict[str, Any]:
        """Its ends in words of JSON Schema."""
        low = "minimum" if self.has_low else "exclusiveMinimum"
        high = "maximum" if self.has_high else "exclusiveMaximum"
        ends = {low: self.low, high: self.high}
        return {
            name: int(end) if end.is_integer() else end
            for name, end in ends.items()
            if abs(end) < inf
        }


Positive = Annotated[_T, Range("(0, inf)")]
NotNegative = Annotated[_T, Range("[0, inf)")]
Count = Annotated[int, Range(f"[1, {COUNT}]")]
Share = Annotated[float, Range("(0, 1]")]
Fraction = Annotated[float, Range("[0, 1]")]


def check_fields(part: object, error: type[ValueError] = ValueError, prefix: str = "") -> None:
    """Refuse a dataclass with a field that its annotation excludes; None is always allowed.

    Refused are numbers out of a `Range`, also in tuples and mappings; words that no `Literal` has;
    and texts that are for scenario files: "100 GB/s", and one name for a tuple of names.

    prefix: before the names of fields. Raises error, which names field, rule and value.
    """
    for name, check in _checks(cast("Hashable", type(part))):  # as mypy asks of what is cached
        value = getattr(part, name)
        if value is not None:
            try:
                check(prefix + name, value)
            except ValueError as problem:
                if error is ValueError:
                    raise
                raise error(str(problem)) from None


class Checked:
    """A dataclass whose fields are checked by their annotations when it is made.

    One with further rules has a `__post_init__` of its own, which calls `check_fields`.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)


def check_name(name: str, value: str, known: Iterable[str]) -> None:
    """Raise ValueError with the known names unless `value` is one of them."""
    require_known(value, list(known), f"{name} has no")


def range_of(hint: object) -> Range | None:
    """Return the range that an annotation marks; None for one without."""
    return next((mark for mark in get_args(hint)[1:] if isinstance(mark, Range)), None)


@cache
def hints_of(kind: type[Any]) -> Mapping[str, Any]:
    """Return the annotations of a class by field. Raises NameError for names not known there."""
    return get_type_hints(kind, include_extras=True)


@cache
def _checks(kind: type[Any]) -> Sequence[tuple[str, _Check]]:
    """Return what each init field of a class must keep, for fields that have a rule."""
    try:
        hints = hints_of(cast("Hashable", kind))
    except NameError:  # a user's subclass, made in a function of names that only it knows
        base = next(filter(is_dataclass, kind.__mro__[1:]), None)
        return _checks(cast("Hashable", base)) if base else ()
    found = ((each.name, _check_of(hints[each.name])) for each in fields(kind) if each.init)
    return [(name, check) for name, check in found if check is not None]


def _check_of(hint: Any) -> _Check | None:
    """Return what refuses values that an annotation excludes; None if it excludes none."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind = next((mark for mark in args[1:] if isinstance(mark, Kind)), None)
        limits = range_of(hint)
        if limits is None and kind is None:
            return _check_of(args[0])
        unit = f" {kind.base}" if kind else ""
        rule = limits.rule(unit, is_whole=args[0] is int) if limits else ""
        return partial(_check_number, limits, rule)
    if origin is Literal:
        return partial(_check_word, args)
    if origin in (Union, UnionType):
        checks = [_check_of(each) for each in args if each is not NoneType]
        return checks[0] if len(checks) == 1 else _one_of([each for each in checks if each])
    if origin in (tuple, Sequence):
        inner = _check_of(args[0]) if len(args) < 2 or args[1] is Ellipsis else None
        return partial(_check_items, inner) if inner or origin is tuple else None
    if origin is Mapping and (inner := _check_of(args[1])):
        return partial(_check_values, inner)
    return None


def _one_of(checks: list[Any]) -> _Check | None:
    """Return what refuses the words, numbers and mappings that no form of a union takes."""
    by_form = {each.func: each for each in checks}
    word, number, values = (
        by_form.get(each) for each in (_check_word, _check_number, _check_values)
    )

    def check(name: str, value: Any) -> None:
        found = number if is_number(value) else None
        if isinstance(value, str):
            found = word or number
        elif isinstance(value, Mapping):
            found = values
        if found:
            found(name, value)

    return check


def _check_word(known: Collection[str], name: str, value: str) -> None:
    check_name(name, value, known)


def _check_number(limits: Range | None, rule: str, name: str, value: Any) -> None:
    require_number(name, value)
    if limits is not None and value not in limits:
        hint = limits.hint and f"; {limits.hint}"
        raise ValueError(f"{name} must be {rule}, got {value}{hint}")


def _check_items(inner: _Check | None, name: str, values: Any) -> None:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a tuple, got {brief(values)}; write {brief((values,))}")
    for each in values if inner else ():
        inner(name, each)  # type: ignore[misc]


def _check_values(inner: _Check, name: str, values: Mapping[str, Any]) -> None:
    for key, each in values.items():
        inner(f"{name}.{key}", each)
