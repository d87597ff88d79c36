"""Bracketing and bisection: the next rate to try, given the verdicts so far.

BestServe's Algorithm 8 bisects between a rate that is attained and one that is missed. As printed
its loop never runs (`while high - low < tolerance`), and its upper end, 1.2 over the time of one
request, is below the goodput of several instances that batch. So the loop here runs as long as the
ends are further apart, and the upper end doubles until a rate is missed. Bisection alone never
sees a rate that is attained above one that is missed; a ladder of rates before it may.

A search over the users of a closed loop is the same: where it begins with an int, it stays with
whole numbers from 1 on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mist_sim.bounds import QUANTITIES

LADDER = 8
"""Rates between given ends, the ends included, that are tried before the bisection."""

_STEPS_OF_TWO = 4  # rates from an attained rate to its double are apart by the fourth root of 2
_MOST_DOUBLINGS = 20  # a millionth of the rate to begin with, or a million times as much
_DIGITS = 6  # of a rate, so that people can set it again

Verdicts = Mapping[float, bool]
"""Whether rates that were tried were attained."""

Search = Generator[list[float], Verdicts, "Bracket"]
"""Yields rates to try, which may be tried side by side; is sent the verdicts."""


@dataclass(frozen=True)
class Bracket:
    """Where attainment ends.

    low: the largest rate tried up to which all rates tried were attained; None: not even the
    lowest. high: the next one, which was missed; None: all were attained. attained_above: rates
    tried that were attained, although a lower one was missed.
    """

    low: float | None
    high: float | None
    attained_above: tuple[float, ...] = ()

    @classmethod
    def of(cls, tried: Verdicts) -> Bracket:
        """Return the bracket of all rates tried."""
        rates = sorted(tried)
        missed = [rate for rate in rates if not tried[rate]]
        high = missed[0] if missed else None
        below = [rate for rate in rates if high is None or rate < high]
        above = tuple(rate for rate in rates if tried[rate] and rate not in below)
        return cls(below[-1] if below else None, high, above)

    def middle(self, tolerance: float) -> float | None:
        """Return the rate to try next; None where one end is not known, or they are near.

        tolerance: ends may lie apart by this share of the upper one.
        """
        if self.low is None or self.high is None:
            return None
        middle = settable((self.low + self.high) / 2, self.low)
        is_narrow = self.high - self.low <= tolerance * self.high
        return None if is_narrow or middle in (self.low, self.high) else middle


def between(low: float, high: float, tolerance: float) -> Search:
    """Search between two rates: a ladder over them, then bisection.

    tolerance: as in `Bracket.middle`.
    """
    tried = dict((yield rounded(np.geomspace(low, high, LADDER).tolist(), low)))
    return (yield from _bisect(tried, tolerance))


def around(start: float, tolerance: float) -> Search:
    """Search from a rate: doubling, or halving, until attainment ends; a ladder; bisection."""
    tried = yield from _until_it_ends(start, 2.0)
    bracket = Bracket.of(tried)
    if bracket.low is not None and bracket.high is not None:
        rungs = np.geomspace(bracket.low, bracket.high, _STEPS_OF_TWO + 1)[1:-1]
        tried.update((yield [each for each in rounded(rungs.tolist(), start) if each not in tried]))
    return (yield from _bisect(tried, tolerance))


def near(start: float, ratio: float, tolerance: float) -> Search:
    """Search from a rate that may be near: steps of a ratio until attainment ends; bisection."""
    tried = yield from _until_it_ends(start, ratio)
    return (yield from _bisect(tried, tolerance))


def _until_it_ends(
    start: float, ratio: float
) -> Generator[list[float], Verdicts, dict[float, bool]]:
    """Try a rate, and go up if it is attained, or down, until the next one is not, or is."""
    smallest, largest = QUANTITIES["rate"]
    tried = dict((yield rounded([start], start)))
    factor = ratio if all(tried.values()) else 1 / ratio
    for step in range(1, _MOST_DOUBLINGS + 1):
        rate = start * factor**step
        if not smallest <= rate <= largest:
            break
        asked = rounded([rate], start)
        if asked[0] in tried:  # of a few users
            break
        found = yield asked
        tried.update(found)
        if all(found.values()) != (factor > 1):
            break
    return tried


def _bisect(tried: dict[float, bool], tolerance: float) -> Search:
    """Halve the lowest bracket until it is narrow."""
    while (middle := Bracket.of(tried).middle(tolerance)) is not None:
        tried.update((yield [middle]))
    return Bracket.of(tried)


def rounded(rates: Iterable[float], like: float = 0.0) -> list[float]:
    """Return rates that people can set again, each once; numbers of users where `like` is one."""
    return list(dict.fromkeys(settable(rate, like) for rate in rates))


def settable(rate: float, like: float = 0.0) -> float:
    """Return a rate that people can set again; a whole number of users where `like` is an int."""
    return max(round(rate), 1) if isinstance(like, int) else float(f"{rate:.{_DIGITS}g}")
