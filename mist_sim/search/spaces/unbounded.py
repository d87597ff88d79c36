"""Configurations that attain all rates tried: their goodput has a lower end, and no upper one."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan, nan

from mist_sim.search.spaces.objectives import OBJECTIVES, Objective
from mist_sim.search.spaces.outcomes import Outcome
from mist_sim.search.spaces.prepared import Prepared


def at_least(prepared: Prepared, outcome: Outcome) -> dict[str, float]:
    """Return lower bounds of its goodput, and of objectives that divide it by known figures.

    Requests per second, also over GPUs or dollars; empty unless all rates tried are attained.
    """
    if outcome.status != "undecided" or outcome.goodput is None:
        return {}
    low = outcome.goodput.interval[0]
    found = {
        each.name: low / scale
        for each in OBJECTIVES.values()
        if each.source == "rate" and (scale := each.scale(prepared.known))
    }
    return {name: value for name, value in found.items() if not isnan(value)}


class Unbounded:
    """The unbounded configurations of a search. prepared, outcomes: by number."""

    def __init__(self, prepared: Mapping[int, Prepared], outcomes: Mapping[int, Outcome]) -> None:
        mine = [n for n, found in outcomes.items() if found.status == "undecided"]
        self._rates = {number: outcomes[number].guess for number in mine}
        self._least = {number: at_least(prepared[number], outcomes[number]) for number in mine}
        self._name = {number: prepared[number].name for number in mine}

    def __len__(self) -> int:
        return len(self._rates)

    @property
    def words(self) -> str:
        """Which they are, and up to which rate; begins a sentence."""
        rate = max(self._rates.values())
        first = next(number for number, value in self._rates.items() if value == rate)
        more = f" and {len(self) - 1} more" if len(self) > 1 else ""
        verb = "attains" if len(self) == 1 else "attain"
        return f"{self._name[first]}{more} {verb} all rates tried, up to {rate:.4g} /s"

    def beside(self, objective: Objective, value: float) -> str:
        """Return whether they are ahead of a value of an objective, or may be."""
        if any(not each.get(objective.name, nan) > value for each in self._least.values()):
            return "may be ahead of"
        return "is ahead of" if len(self) == 1 else "are ahead of"
