"""When a design may leave a race for goodput: another one surely serves more.

Most of a comparison's time went into the goodput of designs that serve half of the best, narrowed
to two percent. So a design is out once it misses a rate below one that another design attains, and
its goodput is known to within its distance from the leader's. `race` says what is run for that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import TypeVar

from mist_sim.search.sure_search import known, seeming
from mist_sim.search.verdicts.trials import Trial

_COARSEST = 1.5  # missed rate over attained rate of a design that is out, however far behind

Key = TypeVar("Key", bound=Hashable)


def lagging(trials: Mapping[Key, Sequence[Trial]]) -> list[Key]:
    """Return the searches whose design seems to miss what another one seems to attain.

    trials: of each search so far.
    """
    brackets = {key: seeming(found) for key, found in trials.items()}
    leader = max((each.low or 0.0 for each in brackets.values()), default=0.0)
    return [
        key
        for key, each in brackets.items()
        if each.low is not None
        and each.high is not None
        and each.high <= leader
        and not each.attained_above
    ]


def beaten(trials: Mapping[Key, Sequence[Trial]]) -> list[Key]:
    """Return the searches that may end, since another one surely serves more.

    trials: of each search so far. A search without a promising rate yet goes on, however much the
    other designs serve.
    """
    leader = leading(trials.values())
    return [key for key, found in trials.items() if _is_beaten(found, leader)]


def _is_beaten(found: Sequence[Trial], leader: float) -> bool:
    low, high = known(found).low, least_missed(found)
    if low is None or seeming(found).attained_above:
        return False
    return high < leader and is_coarse_enough(low, high, leader)


def leading(several: Iterable[Sequence[Trial]]) -> float:
    """Return the largest rate that is known to be attained; 0: none."""
    attained = (trial.rate for found in several for trial in found if trial.attained)
    return max(attained, default=0.0)


def least_missed(found: Iterable[Trial]) -> float:
    """Return the lowest rate that is known to be missed; infinite: none."""
    return min((trial.rate for trial in found if trial.attained is False), default=inf)


def is_coarse_enough(low: float, high: float, leader: float) -> bool:
    """Tell whether a goodput is known as finely as it is behind the leader's rate.

    low, high: rates that it attains and misses.
    """
    return high / low <= min(leader / high, _COARSEST)
