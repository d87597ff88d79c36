"""The front, and the rate that a configuration must serve to join it.

Some figures are known without a run (GPUs, dollars an hour), others are goodput divided by such a
number. A configuration that does not lead in a known figure has to lead in one of the goodputs, and
this gives the rate that it must reach. So one run at that rate shows whether a search can pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

from mist_sim.search.spaces.objectives import Objective


@dataclass(frozen=True)
class Rival:
    """A configuration with a goodput. rate: requests per second. known: figures without a run."""

    rate: float
    known: Mapping[str, float]


def front(figures: Mapping[int, Mapping[str, float]], objectives: Sequence[Objective]) -> list[int]:
    """Return the configurations that no other dominates: equal in all figures and better in one.

    figures: by number; a configuration without one of the objectives is on no front.
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
    """Return the rate that a configuration must exceed so that no rival dominates or equals it.

    known: of the configuration. objectives: known ones and goodputs. 0 if no rival does.
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
