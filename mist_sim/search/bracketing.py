"""Which rate to try next, given the verdicts so far: bracketing, bisection, and races of designs.

BestServe's Algorithm 8 bisects between a rate that is attained and one that is missed. As printed
its loop never runs (`while high - low < tolerance`), and its upper end, 1.2 over the time of one
request, is below the goodput of several instances that batch. So the loop here runs as long as the
ends are further apart, and the upper end doubles until a rate is missed. Bisection alone never
sees a rate that is attained above one that is missed; a ladder of rates before it may.

A search over the users of a closed loop is the same: where it begins with an int, it stays with
whole numbers from 1 on.

In steady state the verdict of both ends may be unknown, and the interval of the goodput between
rates further apart. Longer runs at these two halve it.

Searches are driven side by side: each round of runs answers what all of them ask. Most of a
comparison's time went into the goodput of designs that serve half of the best, so in a race of
designs most runs go to those near the best:

1. All designs are searched with short runs. One is held back as soon as it seems to miss a rate
   that another seems to attain.
2. The others are searched as if each were alone, but for those that surely serve less. A
   short run whose verdict was known is not repeated, since the whole run begins with it.
3. Those held back are tried at the largest rate that is known to be attained. A design that misses
   this rate is out. Short runs find its goodput, to within its distance from the leader's, and a
   whole run checks that it attains the rate found, or a lower one. Others go to stage 2.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from math import inf, log
from typing import Any, Self, TypeVar

import numpy as np

from mist_sim.bounds import QUANTITIES
from mist_sim.studies.verdicts.trials import Trial, told

LADDER = 8
"""Rates between given ends, the ends included, that are tried before the bisection."""

_STEPS_OF_TWO = 4  # rates from an attained rate to its double are apart by the fourth root of 2
_MOST_DOUBLINGS = 20  # a millionth of the rate to begin with, or a million times as much
_DIGITS = 6  # of a rate, so that people can set it again

Verdicts = Mapping[float, bool]
"""Whether rates that were tried were attained."""

Search = Generator[list[float], Verdicts, "Bracket"]
"""Yields rates to try, which may be tried side by side; is sent the verdicts."""


_FACTOR = log(2.0)


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


@dataclass(frozen=True)
class SeedGoodput:
    """The search with one seed. trials: every run, in order of the rates."""

    seed: int
    bracket: Bracket
    trials: tuple[Trial, ...]

    @classmethod
    def of(cls, seed: int, bracket: Bracket, trials: Iterable[Trial]) -> Self:
        """Return the search of such trials, in any order."""
        return cls(seed, bracket, tuple(sorted(trials, key=lambda trial: trial.rate)))

    @classmethod
    def seeming(cls, trials: Sequence[Trial], seed: int = 0) -> Self:
        """Return a search so far; an undecided run counts as it seems."""
        return cls.of(seed, seeming(trials), trials)

    @property
    def status(self) -> str:
        """State of the search: "found", or why the goodput is not known.

        "all attained", "all missed", "lowest missed"; "undecided": no run tells where it ends.
        """
        if self.untold:
            return "undecided"
        if self.bracket.low is not None:
            return "all attained" if self.bracket.high is None else "found"
        return "lowest missed" if self.bracket.attained_above else "all missed"

    @property
    def untold(self) -> list[Trial]:
        """The runs that say nothing of a rate between the ends of the bracket."""
        low, high = self.bracket.low or 0.0, self.bracket.high or inf
        return [trial for trial in self.trials if low < trial.rate < high and not trial.tells]

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the rate, requests per second; 0 and infinity if unbounded.

        For a workload as it stands: the attained and the missed rate. In steady state: where the 95
        % intervals of the times leave their limits, interpolated between the rates tried, but not
        beyond a rate that is surely attained or missed. An undecided run says less than a longer
        undecided one, and nothing of the lower end unless its clients surely keep up: its times may
        keep the limit only until queues have grown.
        """
        low, high = self.bracket.low or 0.0, self.bracket.high or inf
        steady = [trial for trial in self.trials if trial.margins is not None]
        longest = max((t.num_requests for t in steady if t.attained is None), default=0)
        steady = [
            trial
            for trial in steady
            if trial.attained is not None or 2 * trial.num_requests > longest
        ]
        if not steady:
            return low, high
        lasting = takewhile(lambda trial: trial.attained is not None or trial.lasts, steady)
        kept = [(trial.rate, near_limit(trial.margins[1])) for trial in lasting if trial.margins]
        missed = [(trial.rate, -near_limit(trial.margins[0])) for trial in steady if trial.margins]
        ends = min(last_kept(kept) if kept else 0.0, low), max(last_kept(missed[::-1]), high)
        return max(ends[0], min(self.sure, low)), min(ends[1], max(self.surely_missed, high))

    @property
    def sure(self) -> float:
        """The highest rate known to be attained, and no lower one to be missed; 0: none is."""
        return known(self.trials).low or 0.0

    @property
    def surely_missed(self) -> float:
        """The lowest rate known to be missed; infinite: none is."""
        return least_missed(self.trials)

    def at(self, rate: float | None) -> Trial | None:
        """Return the run at a rate."""
        return next((trial for trial in self.trials if trial.rate == rate), None)


def near_limit(margin: float) -> float:
    """Return a margin, cut to a factor of two: far from the limit, times rise as in no line."""
    return min(max(margin, -_FACTOR), _FACTOR)


def last_kept(margins: Sequence[tuple[float, float]]) -> float:
    """Return the rate up to which a margin is negative, interpolated; 0 or inf if unbounded."""
    if margins[0][1] > 0:
        return 0.0 if margins[0][0] <= margins[-1][0] else inf
    for (rate, margin), (next_rate, next_margin) in pairwise(margins):
        if next_margin > 0:
            return rate + (next_rate - rate) * margin / (margin - next_margin)
    return margins[-1][0]


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
        if SeedGoodput.seeming(trials).untold:
            break
        yield [(middle, _LONGER)]
    yield from _outward(seeming(trials), trials)
    return seeming(trials)


def known(trials: Sequence[Trial]) -> Bracket:
    """Return the largest rate known to be attained, and the next one that seems to be missed."""
    missed = least_missed(trials)
    attained = [trial.rate for trial in trials if trial.attained and trial.rate < missed]
    low = max(attained, default=None)
    above = [t.rate for t in trials if not t.seems_attained and t.rate > (low or 0.0)]
    return Bracket(low, min(above, default=None))


def seeming(trials: Sequence[Trial]) -> Bracket:
    """Return the bracket of a search so far; an undecided run counts as it seems."""
    return Bracket.of(told(trials))


def is_in_vain(trials: Sequence[Trial]) -> bool:
    """Tell whether a search must end: only more requests would tell of a rate that matters."""
    return any(trial.is_too_short for trial in SeedGoodput.seeming(trials).untold)


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

    def may_end() -> bool:
        if is_in_vain(trials) or (not sees_queues and _are_full(trials)):
            return True
        bracket, undecided = seeming(trials), {t.rate for t in trials if t.attained is None}
        return {bracket.low, bracket.high} <= undecided and bracket.middle(2 * tolerance) is None

    return _asking(search, trials, may_end)


def once_each(search: Search, trials: Sequence[Trial]) -> SureSearch:
    """Ask for each rate once, until runs are too short. trials: of the rates tried so far."""
    return _asking(search, trials, lambda: is_in_vain(trials))


def _asking(search: Search, trials: Sequence[Trial], may_end: Callable[[], bool]) -> SureSearch:
    """Ask for the rates of a search, each once, until it ends or may end."""
    asked = next(search)
    while True:
        answers = yield _once(asked)
        if may_end():
            return seeming(trials)
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
        end = rates[-1] * _OUTWARD if ends[0] > 0 else rates[0] / _OUTWARD
        asked = rounded([end], rates[0])
        if asked[0] in rates:  # of a few users
            break
        yield _once(asked)


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
    ends = {key: (known(found).low, least_missed(found)) for key, found in trials.items()}
    return [
        key
        for key, (low, high) in ends.items()
        if low is not None
        and not seeming(trials[key]).attained_above
        and high < leader
        and is_coarse_enough(low, high, leader)
    ]


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


SHORT = 5_000
"""Requests of a short run.

Of 33 verdicts that were known in the comparison of six designs, 29 took no more."""

COARSE = 0.16  # of the first bracket: a rung of `around`, whose rates are a fourth root of 2 apart

DOWN = 1.06  # ratio of a rate that is not known to be attained to the next one
_MOST_DOWN = 4  # rates

_Pairs = Sequence[tuple[SearchKey, Asked]]
RunUpTo = Callable[[_Pairs, int | None], list[Trial | None]]
"""Runs what is asked; a run that is undecided after so many requests ends there (None: goes on)."""


@dataclass
class Race:
    """A race under way.

    run: runs what searches ask for. trials: takes those of each search. tolerance: of a goodput.
    pause: requests of a short run; None: whole runs are as short.
    brackets: of the searches that ended. out: of the designs that surely serve less than another.
    """

    run: RunUpTo
    trials: Trials
    tolerance: float
    pause: int | None
    brackets: Brackets = field(default_factory=dict)
    out: set[SearchKey] = field(default_factory=set)
    _known: dict[tuple[SearchKey, Asked], Trial] = field(default_factory=dict)

    def go(
        self,
        coarse: Mapping[SearchKey, Search],
        whole: Callable[[SearchKey], SureSearch],
    ) -> None:
        """Search all designs. coarse: their searches for a first bracket. whole: makes another."""
        firsts = {key: once_each(search, self.trials[key]) for key, search in coarse.items()}
        first, _ = drive(firsts, self._short, self.trials, lambda: self._by_seed(lagging))
        behind = [key for key in self._by_seed(lagging) if key in first]
        self._contest([key for key in first if key not in behind], whole)
        leaders = {key: self._leader(key) for key in behind}
        behind = self._tried_at(leaders)
        out = [key for key in behind if least_missed(self.trials[key]) <= leaders[key]]
        self._contest([key for key in behind if key not in out], whole)
        placing = {key: self._placed(self.trials[key], leaders[key]) for key in out}
        placed, _ = drive(placing, self._short, self.trials)
        checking = {key: self._checked(self.trials[key]) for key in placed}
        checked, _ = drive(checking, self._whole, self.trials)
        bounded = {key: each for key, each in checked.items() if each.low is not None}
        self.brackets |= bounded
        self.out |= bounded.keys()
        self._contest([key for key in checked if key not in bounded], whole)

    def _contest(
        self, keys: Collection[SearchKey], whole: Callable[[SearchKey], SureSearch]
    ) -> None:
        """Search designs as if each were alone, as long as none surely serves more."""
        for key in keys:
            self.trials[key][:] = []
        searches = {key: whole(key) for key in keys}
        found, out = drive(searches, self._whole, self.trials, lambda: self._by_seed(beaten))
        self.brackets |= found
        self.out |= out

    def _tried_at(self, leaders: Mapping[SearchKey, float]) -> list[SearchKey]:
        """Try designs at a leader's rate, unless they are known to miss it; return those that run.

        A leader's rate of 0 is none.
        """
        pairs: list[tuple[SearchKey, Asked]] = [
            (key, (leader, 1))
            for key, leader in leaders.items()
            if 0 < leader < least_missed(self.trials[key])
        ]
        tried = dict(zip([key for key, _ in pairs], self._whole(pairs), strict=True))
        for key, trial in tried.items():
            if trial is not None:
                take(self.trials[key], trial)
        return [key for key in leaders if tried.get(key, True) is not None]

    def _placed(self, found: list[Trial], leader: float) -> SureSearch:
        """Halve the bracket of a design that is out until it is as fine as that is behind."""
        while (middle := seeming(found).middle(self.tolerance)) is not None:
            low, high = seeming(found).low, seeming(found).high
            near = low is None or high is None or is_coarse_enough(low, high, leader)
            if near or SeedGoodput.seeming(found).untold:
                break
            yield [(middle, 1)]
        return seeming(found)

    def _checked(self, found: list[Trial]) -> SureSearch:
        """Run at the rate that seems attained, and at lower ones until one is known to be."""
        rate = seeming(found).low
        for _ in range(_MOST_DOWN):
            if rate is None or (known(found).low or 0.0) >= rate:
                break
            yield [(each, 1) for each in rounded([rate])]
            rate /= DOWN
        return known(found)

    def _leader(self, key: SearchKey) -> float:
        """Return the largest rate that any is known to attain with the same seed."""
        return leading(found for other, found in self.trials.items() if other[1] == key[1])

    def _by_seed(
        self, choose: Callable[[Mapping[SearchKey, Sequence[Trial]]], list[SearchKey]]
    ) -> list[SearchKey]:
        """Choose among the searches with each seed."""
        seeds = {seed: None for _, seed in self.trials}
        several = ({k: v for k, v in self.trials.items() if k[1] == seed} for seed in seeds)
        return [key for rivals in several for key in choose(rivals)]

    def _short(self, pairs: _Pairs) -> list[Trial | None]:
        found = self.run(pairs, self.pause)
        for pair, trial in zip(pairs, found, strict=True):
            if trial is not None and (trial.attained is not None or self.pause is None):
                self._known[pair] = trial
        return found

    def _whole(self, pairs: _Pairs) -> list[Trial | None]:
        """Run the pairs whose trials are not known yet; return the trials of all."""
        missing = [pair for pair in pairs if pair not in self._known]
        found = dict(zip(missing, self.run(missing, None), strict=True))
        self._known |= {pair: trial for pair, trial in found.items() if trial}
        return [self._known.get(pair) for pair in pairs]
