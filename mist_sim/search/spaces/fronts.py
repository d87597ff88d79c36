"""Who is on the front, and what rate a configuration must serve to get there.

A figure that is a goodput over something known, such as GPUs or dollars an hour, decides at which
rate a configuration would have to serve: against one that is as good or better in all that is
known, it has to be ahead in one of the goodputs. So one run at that rate tells whether it is worth
a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

from mist_sim.search.spaces.objectives import Objective


@dataclass(frozen=True)
class Rival:
    """A configuration whose goodput is known. rate: requests per second. known: without a run."""

    rate: float
    known: Mapping[str, float]


def front(figures: Mapping[int, Mapping[str, float]], objectives: Sequence[Objective]) -> list[int]:
    """Return those that no other is ahead of: as good in everything, and better in one.

    figures: by number; who lacks one of the objectives is on no front.
    """
    fit = {
        number: values
        for number, values in figures.items()
        if not any(isnan(values[each.name]) for each in objectives)
    }
    return [
        number
        for number, values in fit.items()
        if not any(dominates(other, values, objectives) for other in fit.values())
    ]


def dominates(
    one: Mapping[str, float], other: Mapping[str, float], objectives: Iterable[Objective]
) -> bool:
    """Tell whether one is as good as another in everything, and better in something."""
    is_better = False
    for each in objectives:
        mine, yours = one[each.name], other[each.name]
        if each.ahead(yours, mine):
            return False
        is_better = is_better or each.ahead(mine, yours)
    return is_better


def rate_to_beat(
    known: Mapping[str, float], rivals: Iterable[Rival], objectives: Sequence[Objective]
) -> float:
    """Return the rate that a configuration has to exceed, or some rival dominates or equals it.

    known: of the configuration. objectives: known ones and goodputs. 0: nobody is in its way.
    """
    of_rate = [each for each in objectives if each.source == "rate"]
    fixed = [each for each in objectives if each.source == "known"]
    highest = 0.0
    for rival in rivals:
        if any(each.ahead(known[each.name], rival.known[each.name]) for each in fixed):
            continue
        needed = min(
            (rival.rate * each.scale(known) / each.scale(rival.known) for each in of_rate),
            default=inf,
        )
        highest = max(highest, needed)
    return highest
