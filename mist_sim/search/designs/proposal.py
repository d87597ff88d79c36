"""A design that may prove impossible: its name, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario


class Proposal(NamedTuple):
    """A design by name. make: returns it; raises ScenarioError that says why it cannot be."""

    name: str
    make: Callable[[], Scenario]


def impossible(name: str, error: ScenarioError) -> Proposal:
    """Return a design of which it is known why it cannot be."""

    def refuse() -> NoReturn:
        raise error

    return Proposal(name, refuse)
