"""Shared by the checks of all families: a rule that fails, and random cases that repeat."""

from __future__ import annotations

from numpy.random import Generator

from mist_sim.rng import Streams


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
