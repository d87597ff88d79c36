"""Simulates candidates until the cheapest that keeps the limits is known, or time is up.

Candidates excluded without a run: those that cost at least as much as one that keeps the limits;
those that a bound proves impossible (`upper_bounds`); and those with no more of any resource than
one of their family that missed, assuming that more engines of a kind serve no less. All others are
tried, so a hunt that ends by itself has passed over no cheaper solution. Rounds have a fixed number
of runs, so that the result does not depend on the number of cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from time import monotonic
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.metrics.latency import limit_title
from mist_sim.scenario.loading import as_data
from mist_sim.search.planning.demand import Demand
from mist_sim.search.planning.engines import Engine
from mist_sim.search.planning.estimates import Estimates
from mist_sim.search.planning.question import Question
from mist_sim.search.planning.space import Candidate, scenario_of
from mist_sim.search.planning.upper_bounds import Needs, alone, fewest, least_of
from mist_sim.search.verdicts.trials import Trial, trial_data
from mist_sim.studies.driver import Driver
from mist_sim.studies.task import Task

_ROUND = 4  # runs at a time: two rounds of two cores, one of four
_SHORT = 6_000  # requests of a first run; undecided candidates run longer later
_SHORTER = 1_500  # those of a slow design, so that all of them are looked at before one runs long
_LIKELY = 0.9  # of the rate that is asked for: an estimate from which on a candidate may do
_MORE, _MOST_ROOM = 1.15, 3.0  # times the rate: from one round of a race to the next, and the last
_EQUALS = 6  # candidates of the same price that are tried beside the winner
# designs whose runs take ten times as long: others settle first
_SLOW = ("hybrid", "afd", "reshard")
_LONGER = 4  # times the requests: from one run of a slow design to the next, and for a cheaper one
# that seems to keep the limits, of a usual longest run


@dataclass
class Tried:
    """A candidate that was simulated, or that proved impossible.

    trial: None if impossible; `problem` gives the reason. may_tell: requests of a longer run that
        may decide it; 0: none may. room: largest multiple of the rate that it served, in the race
        among candidates of its price; last: distance below its limits there, as `slack`.
    """

    candidate: Candidate
    trial: Trial | None
    problem: str = ""
    may_tell: int = 0
    room: float = 1.0
    last: float = 0.0

    @property
    def attained(self) -> bool:
        """Whether it keeps the limits, for all that is known."""
        return self.trial is not None and self.trial.attained is True

    @property
    def seems_to_keep(self) -> bool:
        """Whether its run kept the limits, even if that is not sure."""
        return self.trial is not None and self.trial.seems_attained

    @property
    def rank(self) -> tuple[object, ...]:
        """Key to order those that attain: dollars, whether vLLM serves it, room."""
        price, *simpler = self.candidate.rank
        is_slow = self.candidate.design in _SLOW
        return price, is_slow, -round(self.room, 6), round(self.last, 1), simpler

    @property
    def slack(self) -> float:
        """How far nine in ten are below their limits: a logarithm, of which less is better."""
        return _slack(self.trial) if self.trial else 0.0


def _slack(trial: Trial) -> float:
    """Return `Tried.slack` of a run; infinite if it tells nothing, since too many never ended."""
    found = sum(trial.margins) / 2 if trial.margins is not None else -trial.attainment
    return inf if isnan(found) else found


@dataclass
class Clock:
    """The end of a search. seconds: None: never."""

    seconds: float | None
    begin: float = field(default_factory=monotonic)

    def is_up(self, share: float = 1.0) -> bool:
        """Whether so large a part of the time is over."""
        return self.seconds is not None and monotonic() - self.begin > share * self.seconds


class Hunt:
    """The search for the cheapest candidate that keeps the limits.

    tried: by candidate. excluded: how many candidates each proved bound leaves out.
    """

    def __init__(
        self, question: Question, demand: Demand, space: Iterable[Candidate], driver: Driver
    ) -> None:
        self._question = question
        self._driver = driver
        self.rate = demand.rate
        self._estimates = Estimates(demand)
        self._demand = demand
        self.tried: dict[Candidate, Tried] = {}
        self.excluded: Counter[str] = Counter()
        self.impossible: dict[Engine, str] = {}
        self._needs: dict[Engine, Needs | None] = {}
        self.num_candidates = 0
        self.open: list[Candidate] = []
        for candidate in space:
            self.num_candidates += 1
            reason = self._excluding(candidate)
            if reason:
                self.excluded[reason] += 1
            else:
                self.open.append(candidate)
        self._ratios = {each: self._estimates.rate(each) / demand.rate for each in self.open}

    @property
    def best(self) -> Tried | None:
        """The cheapest that keeps the limits; None: none known.

        Ties go to one that vLLM serves unchanged, then to the one with most room.
        """
        found = [each for each in self.tried.values() if each.attained]
        return min(found, key=lambda each: each.rank, default=None)

    @property
    def so_far(self) -> str:
        """The best that is known now, for a stopped search; empty before the first run."""
        known = [each for each in self.tried.values() if each.trial is not None]
        if not known:
            return ""
        proved = sum(self.excluded.values())
        told = f"{len(self.tried)} of {self.num_candidates:,} candidates tried"
        told += f", {proved:,} excluded without a run; " if proved else "; "
        best = self.best
        if best is not None:
            price = f"{best.candidate.name} for {best.candidate.dollars:.4g} $/h"
            return f"{told}the cheapest so far that keeps the limits is {price}"
        nearest = max(known, key=lambda each: each.trial.attainment if each.trial else 0.0)
        good = 100 * nearest.trial.attainment if nearest.trial else 0.0
        name = nearest.candidate.name
        return f"{told}none keeps the limits so far; nearest is {name}, with {good:.1f} % good"

    def estimate(self, candidate: Candidate) -> float:
        """Return the rate that a candidate serves by estimate, requests per second."""
        return self._estimates.rate(candidate)

    def first(self, clock: Clock, share: float) -> None:
        """Find one that attains, by trying the estimated feasible candidates, cheapest first."""
        while self.best is None and not clock.is_up(share):
            self._prune()
            likely = [c for c in self.open if self._ratios[c] >= _LIKELY]
            if likely:
                chosen = sorted(likely, key=lambda c: (c.design in _SLOW, c.rank))
            else:
                chosen = self._tops(self.open)
            undecided = self._undecided()
            if chosen:
                self._try(chosen[:_ROUND], _SHORT)
            elif undecided:
                self._lengthen(undecided, clock, share)
            else:
                return

    def cheaper(self, clock: Clock, share: float) -> None:
        """Look for cheaper ones until none is left to try.

        Undecided ones that seem to keep the limits run longer before slow designs are tried.
        """
        while not clock.is_up(share):
            self._prune()
            tops = self._tops(self.open)
            quick = [each for each in tops if each.design not in _SLOW]
            if quick:
                self._try(quick[:_ROUND], _SHORT)
            elif hopeful := [each for each in self._undecided() if each.seems_to_keep]:
                self._lengthen(hopeful, clock, share)
            elif tops:
                self._try(tops[:_ROUND], _SHORT)
            elif undecided := self._undecided():
                self._lengthen(undecided, clock, share)
            else:
                return

    def equals(self, clock: Clock, share: float, space: Iterable[Candidate]) -> None:
        """Try others of the winner's price, and let those that attain race for room."""
        best = self.best
        if best is None or clock.is_up(share):
            return
        price = best.candidate.rank[0]
        others = [
            each
            for each in space
            if each.rank[0] == price
            and each not in self.tried
            and each.design not in _SLOW
            and not self._excluding(each)
        ]
        self._try(self._by_estimate(others)[:_EQUALS], _SHORT)
        if best.candidate.design not in _SLOW:
            self._race(clock, share, price)

    def _race(self, clock: Clock, share: float, price: float) -> None:
        """Raise the rate until one of the candidates of a price is left."""
        attained = [
            each.candidate
            for each in self.tried.values()
            if each.attained and each.candidate.rank[0] == price
        ]
        field = self._by_estimate(each for each in attained if each.design not in _SLOW)[:_EQUALS]
        factor = 1.0
        while len(field) > 1 and factor < _MOST_ROOM and not clock.is_up(share):
            factor *= _MORE
            trials = self._trials(field, _SHORT, self.rate * factor)
            left = []
            for candidate, trial in trials.items():
                if not isinstance(trial, Trial):
                    continue
                self.tried[candidate].last = _slack(trial)
                if trial.seems_attained:
                    self.tried[candidate].room = factor
                    left.append(candidate)
            field = left

    def _by_estimate(self, among: Iterable[Candidate]) -> list[Candidate]:
        return sorted(among, key=lambda each: (-self._estimates.rate(each), each.rank))

    def run(self, candidates: Iterable[Candidate], most: int = _SHORT) -> None:
        """Try some candidates, whatever they cost; undecided ones again where `most` may tell."""
        tried = self.tried
        self._try([c for c in candidates if c not in tried or 0 < tried[c].may_tell <= most], most)

    @property
    def left(self) -> list[Candidate]:
        """Candidates cheaper than the best and not known to miss: untried or undecided."""
        self._prune()
        best = self.best
        undecided = [each.candidate for each in self._undecided()]
        both = [*self.open, *undecided] if best else [*self.open]
        return sorted(dict.fromkeys(both), key=lambda c: -self._estimates.rate(c))

    def _excluding(self, candidate: Candidate) -> str:
        """Return the bound that excludes a candidate; "" if none does."""
        engine = candidate.engine
        if engine not in self._needs:
            least = least_of(engine)
            self._needs[engine] = None if least is None else fewest(least, self._demand)
            shares = {} if least is None else alone(least, self._demand)
            missed = [name for name, share in shares.items() if share < self._demand.share - 1e-9]
            if missed:
                self.impossible[engine] = limit_title(missed[0])
        if engine in self.impossible and candidate.design != "afd":
            return f"cannot keep {self.impossible[engine]} even for a request alone"
        needs = self._needs[engine]
        if needs is None or candidate.design == "afd":
            return ""
        too_few = candidate.num_engines < needs.together
        if candidate.design == "apart":
            too_few |= candidate.first < needs.prompts or candidate.second < needs.answers
        return "have too few engines for the work" if too_few else ""

    def _prune(self) -> None:
        """Exclude candidates no cheaper than the best, or smaller than one that missed."""
        best = self.best
        price = best.candidate.rank[0] if best else float("inf")
        by_family: dict[tuple[object, ...], list[Candidate]] = {}
        for each in self.tried.values():
            if each.trial is not None and each.trial.attained is False:
                by_family.setdefault(each.candidate.family, []).append(each.candidate)
        self.open = [
            c
            for c in self.open
            if c not in self.tried
            and c.rank[0] < price
            and not any(missed.covers(c) for missed in by_family.get(c.family, ()))
        ]

    def _tops(self, among: Iterable[Candidate]) -> list[Candidate]:
        """Return candidates that no other one covers, the most promising first.

        If such a candidate misses, the rest of its family is settled.
        """
        by_family: dict[tuple[object, ...], list[Candidate]] = {}
        for each in among:
            by_family.setdefault(each.family, []).append(each)
        tops = [
            each
            for family in by_family.values()
            for each in family
            if not any(other is not each and other.covers(each) for other in family)
        ]
        return sorted(tops, key=lambda c: (c.design in _SLOW, -self._ratios[c], c.rank))

    def _undecided(self) -> list[Tried]:
        """Return undecided candidates cheaper than the best that a longer run may decide."""
        best, usual = self.best, self._question.options.longest
        price = best.candidate.rank[0] if best else float("inf")
        found = [
            each for each in self.tried.values() if each.may_tell and each.candidate.rank[0] < price
        ]
        return sorted(found, key=lambda e: (e.may_tell > usual, e.slack, e.candidate.rank))

    def _lengthen(self, undecided: Sequence[Tried], clock: Clock, share: float) -> None:
        """Run a round of undecided candidates longer.

        One such run may take as long as all before it, so the clock may end the round between them.
        """
        chosen, jobs = undecided[:_ROUND], self._driver.jobs
        for first in range(0, len(chosen), jobs):
            if first and clock.is_up(share):
                break
            self._run({each.candidate: each.may_tell for each in chosen[first : first + jobs]})

    def _try(self, chosen: Iterable[Candidate], most: int) -> None:
        """Simulate candidates with at most so many requests, slow designs with fewer at first."""
        lengths = {}
        for candidate in chosen:
            is_brief = most == _SHORT and candidate.design in _SLOW
            lengths[candidate] = min(_SHORTER if is_brief else most, self._question.options.longest)
        self._run(lengths)

    def _run(self, lengths: Mapping[Candidate, int]) -> None:
        """Simulate candidates with at most so many requests at the required rate; note results."""
        by_length: dict[int, list[Candidate]] = {}
        for candidate, length in lengths.items():
            by_length.setdefault(length, []).append(candidate)
        for length, several in by_length.items():
            for candidate, found in self._trials(several, length, None).items():
                if isinstance(found, Trial):
                    self.tried[candidate] = Tried(
                        candidate, found, may_tell=self._next(candidate, found, length)
                    )
                else:
                    self.tried[candidate] = Tried(candidate, None, found)

    def _next(self, candidate: Candidate, trial: Trial, length: int) -> int:
        """Return the requests of a longer run that may decide one of `length`; 0: none may.

        One that seems to keep the limits may run longer than is usual, as the ends of a goodput do.
        Slow designs get there step by step: in overload their runs take minutes.
        """
        options = self._question.options
        if trial.attained is not None:
            return 0
        if length < options.longest:
            is_slow = candidate.design in _SLOW
            return min(_LONGER * length, options.longest) if is_slow else options.longest
        most = _LONGER * options.longest
        can_tell = trial.seems_attained and trial.needs is not None and length < trial.needs <= most
        return most if can_tell and options.most_requests is None else 0

    def _trials(
        self, chosen: Iterable[Candidate], most: int, rate: float | None
    ) -> dict[Candidate, Trial | str]:
        """Simulate candidates in parallel; return each one's result, or why it is impossible.

        most: requests of the longest run. rate: requests per second; None: the required rate.
        """
        question = self._question
        found: dict[Candidate, Trial | str] = {}
        tasks: list[tuple[Candidate, Task]] = []
        for candidate in chosen:
            try:
                scenario = scenario_of(candidate, question, rate)
            except ScenarioError as error:
                found[candidate] = str(error).splitlines()[0]
                continue
            arguments: tuple[Any, ...] = (
                as_data(scenario),
                {},
                scenario.seed,
                rate or question.rate,
                question.target,
                question.num_requests,
                None if question.options.as_is else most,
            )
            key = candidate.name, most, rate or question.rate
            tasks.append((candidate, Task(key, trial_data, arguments)))
        rows = self._driver.run([task for _, task in tasks], keep_errors=True)
        for (candidate, _), row in zip(tasks, rows, strict=True):
            if row.failure is None:
                found[candidate] = Trial.of(row.result)
            elif row.failure.is_told:
                found[candidate] = str(row.failure).splitlines()[0]
            else:
                raise row.error or ScenarioError(str(row.failure))
        return found
