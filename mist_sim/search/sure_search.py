"""A search that goes on until the interval of a goodput is known, and narrow where runs can tell.

Bisection ends where two rates are near. In steady state the verdict of both may be unknown, and
the interval of the goodput between rates further apart. Longer runs at these two halve it.

Searches are driven side by side: each round of runs answers what all of them ask.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from mist_sim.search.bracketing import Bracket, Search, rounded
from mist_sim.search.goodput_result import SeedGoodput
from mist_sim.search.verdicts.trials import Trial, told

_OUTWARD = 1.06  # ratio from one rate to the next, if the interval extends beyond the rates tried
_MOST_OUTWARD = 4
_WIDE = 0.08  # of the rate: an interval that runs of more requests should narrow
_LONGER = 4  # so many times as many, which halve it
_FULL = 3  # rates, each the double of the one before, at which overload changes times no more
_FLAT = 0.05  # logarithm of a time: a change that is none

Asked = tuple[float, int]
"""A rate, and so many times as many requests as others have at most."""

SureSearch = Generator[list[Asked], Mapping[float, bool], Bracket]
"""Yields what to try; is sent the verdicts."""


def until_sure(
    search: Search,
    trials: Sequence[Trial],
    tolerance: float,
    *,
    may_lengthen: bool = True,
    sees_queues: bool = True,
) -> SureSearch:
    """Search until the ends are near, then further out until both ends of the interval are known.

    Undecided ends need not be as near: halving them tells little. But if the interval is wide, they
    are tried again with more requests, and so is a rate between the ends of which nothing is known.
    trials: of the rates tried so far. may_lengthen: whether they may be. sees_queues: as in
    `Target`; if no limit sees them, the search ends where they are kept in overload.
    """
    bracket = yield from _until_near(search, trials, tolerance, sees_queues)
    yield from _outward(bracket, trials)
    found = SeedGoodput.of(0, bracket, trials)
    if not may_lengthen or not (found.untold or _is_wide(found)):
        return bracket
    ends = [trial for trial in trials if trial.rate in (bracket.low, bracket.high)]
    yield [(trial.rate, _LONGER) for trial in found.untold or ends if trial.margins]
    while (middle := seeming(trials).middle(2 * tolerance)) is not None:
        if SeedGoodput.of(0, seeming(trials), trials).untold:
            break
        yield [(rate, _LONGER) for rate in rounded([middle])]
    yield from _outward(seeming(trials), trials)
    return seeming(trials)


def known(trials: Sequence[Trial]) -> Bracket:
    """Return the largest rate known to be attained, and the next one that seems to be missed."""
    missed = min((trial.rate for trial in trials if trial.attained is False), default=inf)
    attained = [trial.rate for trial in trials if trial.attained and trial.rate < missed]
    low = max(attained, default=None)
    above = [t.rate for t in trials if not t.seems_attained and t.rate > (low or 0.0)]
    return Bracket(low, min(above, default=None))


def seeming(trials: Sequence[Trial]) -> Bracket:
    """Return the bracket of a search so far; an undecided run counts as it seems."""
    return Bracket.of(told(trials))


def is_in_vain(trials: Sequence[Trial]) -> bool:
    """Tell whether a search must end: only more requests would tell of a rate that matters."""
    found = SeedGoodput.of(0, seeming(trials), trials)
    return any(trial.is_too_short for trial in found.untold)


def _are_full(trials: Sequence[Trial]) -> bool:
    """Tell whether the highest rates keep the limits in overload, each by as much."""
    highest = sorted(trials, key=lambda trial: trial.rate)[-_FULL:]
    margins = [trial.margin for trial in highest if trial.keeps_in_overload]
    known = [margin for margin in margins if margin is not None]
    return len(known) == _FULL and max(known) - min(known) <= _FLAT


def _is_wide(found: SeedGoodput) -> bool:
    """Tell whether longer runs at the ends of a bracket may narrow its interval."""
    bracket = found.bracket
    if bracket.low is None or bracket.high is None:
        return False
    ends = [trial for rate in (bracket.low, bracket.high) if (trial := found.at(rate))]
    low, high = found.interval
    can_tell = any(trial.attained is None and trial.margins is not None for trial in ends)
    return can_tell and high - low > _WIDE * bracket.low


def _until_near(
    search: Search, trials: Sequence[Trial], tolerance: float, sees_queues: bool
) -> SureSearch:
    """Search until the ends of the bracket are near or both undecided, or runs are too short."""
    asked = next(search)
    while True:
        answers = yield _once(asked)
        bracket = seeming(trials)
        if is_in_vain(trials) or (not sees_queues and _are_full(trials)):
            return bracket
        undecided = {trial.rate for trial in trials if trial.attained is None}
        if {bracket.low, bracket.high} <= undecided and bracket.middle(2 * tolerance) is None:
            return bracket
        try:
            asked = search.send(answers)
        except StopIteration:
            return seeming(trials)


def _outward(bracket: Bracket, trials: Sequence[Trial]) -> Iterator[list[Asked]]:
    """Ask for rates further out until both ends of the interval are known."""
    for _ in range(_MOST_OUTWARD):
        found = SeedGoodput.of(0, bracket, trials)
        if found.status != "found" or ((ends := found.interval)[0] > 0 and ends[1] < inf):
            break
        rates = [trial.rate for trial in found.trials]
        yield _once(rounded([rates[-1] * _OUTWARD if ends[0] > 0 else rates[0] / _OUTWARD]))


def _once(rates: Iterable[float]) -> list[Asked]:
    return [(rate, 1) for rate in rates]


SearchKey = tuple[int, int]
"""Position of a scenario, and a seed."""

Run = Callable[[Sequence[tuple[SearchKey, Asked]]], list[Trial | None]]
"""Runs what is asked, side by side; None for a run that failed."""

Trials = dict[SearchKey, list[Trial]]
Brackets = dict[SearchKey, Bracket]


def drive(
    searches: Mapping[SearchKey, SureSearch],
    run: Run,
    trials: Trials,
    may_end: Callable[[], Iterable[SearchKey]] = tuple,
) -> tuple[Brackets, set[SearchKey]]:
    """Run all searches to their end; return their brackets, and which of them were ended early.

    A search whose run fails ends without a bracket. trials: takes those of each search, one a rate.
    may_end: returns searches that need not go on, after each round.
    """
    ended: Brackets = {}
    early: set[SearchKey] = set()
    answers: dict[SearchKey, Any] = dict.fromkeys(searches)  # None: begin
    while answers:
        asked: dict[SearchKey, list[Asked]] = {}
        for key, answer in answers.items():
            try:
                asked[key] = searches[key].send(answer)
            except StopIteration as end:
                ended[key] = end.value
        for key in [key for key in may_end() if key in asked]:
            del asked[key]
            ended[key] = known(trials[key])
            early.add(key)
        pairs = [(key, each) for key, several in asked.items() for each in several]
        answers = {key: {} for key in asked}
        for (key, (rate, _)), trial in zip(pairs, run(pairs), strict=True):
            if trial is None:
                answers.pop(key, None)
            elif key in answers:
                take(trials[key], trial)
                answers[key][rate] = trial.seems_attained
    return ended, early


def take(trials: list[Trial], trial: Trial) -> None:
    """Add a trial, in place of another one at its rate."""
    trials[:] = [each for each in trials if each.rate != trial.rate] + [trial]
