"""Parallel searches: a design that surely serves less than another is searched less finely.

Most of a comparison's time went into the last two percent of goodputs that are half of the best. A
design is out of the race once a rate at which it is known to miss lies below one at which another
is known to attain. Its search ends as soon as it is known as finely as it is behind.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from mist_sim.search.bracketing import Bracket
from mist_sim.search.verdicts.trials import Trial

_COARSEST = 1.5  # missed rate over attained rate of a design that is out, however far behind

Key = TypeVar("Key", bound=Hashable)


def beaten(trials: Mapping[Key, Sequence[Trial]]) -> list[Key]:
    """Return the searches that may end, since another one surely serves more.

    trials: of each search so far. A search that has not found a promising rate yet goes on,
        whatever the others serve.
    """
    attained = {key: _known(found, attained=True) for key, found in trials.items()}
    leader = max((max(rates) for rates in attained.values() if rates), default=0.0)
    return [key for key, found in trials.items() if _is_out(found, leader)]


def _is_out(found: Sequence[Trial], leader: float) -> bool:
    """Tell whether a search is as fine as it is behind the leader's rate."""
    bracket = Bracket.of({trial.rate: trial.seems_attained for trial in found})
    missed = _known(found, attained=False)
    if bracket.low is None or not missed or bracket.attained_above:
        return False
    high = min(missed)
    return high < leader and high / bracket.low <= min(leader / high, _COARSEST)


def _known(found: Sequence[Trial], *, attained: bool) -> list[float]:
    """Return the rates with this verdict."""
    return [trial.rate for trial in found if trial.attained is attained]
