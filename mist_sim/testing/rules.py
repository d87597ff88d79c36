"""Shared by the checks of all families: a rule that fails, answers and cases that repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from numpy.random import Generator

from mist_sim.rng import Streams

Plugin = TypeVar("Plugin")
Answers = TypeVar("Answers", bound=Sequence[Any])


def require(holds: object, rule: str) -> None:
    """Raise AssertionError with the rule, unless it holds."""
    if not holds:
        raise AssertionError(rule)


def name_of(plugin: object) -> str:
    """Return the name of a plugin's class, with which messages begin."""
    return type(plugin).__name__


def stream_of(name: str) -> Generator:
    """Return random numbers that are the same at every call with a name."""
    return Streams(0).generator(name)


def require_same(plugin: object, first: Answers, other: Answers, when: str, remedy: str) -> None:
    """Raise AssertionError with the first difference, unless answers of a kind are the same."""
    if first != other:
        pairs = ((one, two) for one, two in zip(first, other, strict=False) if one != two)
        one, two = next(pairs, (len(first), len(other)))
        raise AssertionError(
            f"{name_of(plugin)} answers otherwise {when}, {one!r} and then {two!r}; {remedy}"
        )


def repeated(
    factory: Callable[[], Plugin], answers: Callable[[Plugin], Answers], remedy: str
) -> Answers:
    """Return what a plugin answers, which it has to answer again, as another of its kind has to.

    answers: asks a plugin. remedy: of other answers, for the message.
    """
    plugin = factory()
    first = answers(plugin)
    require_same(plugin, first, answers(plugin), "when it is asked again", remedy)
    require_same(plugin, first, answers(factory()), "in another one of its kind", remedy)
    return first
