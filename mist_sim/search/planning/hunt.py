"""Simulates candidates until the answer cannot change, or the work is done.

The answer is the cheapest candidate that seems to keep the limits; it is sure if a run was long
enough to tell. Runs go where they may change the answer: to cheaper candidates, and to the answer
itself until it is sure. First comes a roomy candidate of each kind, so that there is an answer
early; then untried ones, the likely ones before others; then those whose runs do not tell, the most
promising first.

Candidates excluded without a run: those that a bound proves impossible (`bounds`), and those
with no more of any resource than one of their family that missed, assuming that more engines of a
kind serve no less. All others that cost less than the answer are tried, so a search that ends by
itself has passed over no cheaper solution.

Rounds have a fixed number of runs, and work is counted in simulated requests, so that the answer
depends neither on the machine nor on the number of cores.

Estimated requests per second of an engine, to order the tries.

Estimates only order the tries and exclude no candidate. They assume that every request has the mean
lengths, and that an engine is as full as memory, seats and the limits allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, inf, isnan, nan
from time import monotonic
from typing import Any, Literal

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.metrics.expected_errors import expected_ranges, is_far
from mist_sim.metrics.latency import ALL, limit_of, limit_title, metric_of
from mist_sim.metrics.requests import OTHERS
from mist_sim.metrics.stability import AT_END, grows
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.at_goodput import at_goodput, summary_at
from mist_sim.search.goodput import GoodputOptions, goodputs_so_far, search_goodputs
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.planning.bounds import Demand, Needs, alone, fewest, least_of
from mist_sim.search.planning.candidates import Candidate, Engine, scenario_of
from mist_sim.search.planning.question import Question
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver, OutOfTimeError
from mist_sim.studies.task import Failure, Task
from mist_sim.studies.verdicts.trials import Trial, trial_data
from mist_sim.traces.arrivals import DailyArrivals, ScheduledArrivals
from mist_sim.units import DURATION

_TAIL = 1.5  # waits that nine in ten are below, over the mean, about: prompts differ in length
_BETWEEN = 0.9  # estimated share of the better of together and apart that hybrids and bundles reach
_STEP = 1.15  # from one number of sequences to the next


@dataclass
class Estimates:
    """Estimates for one demand; each engine is asked once."""

    demand: Demand
    _known: dict[tuple[int, str, int | None], float] = field(default_factory=dict)

    def rate(self, candidate: Candidate) -> float:
        """Return about how many requests a second a candidate serves within the limits."""
        engine, first, second = candidate.engine, candidate.first, candidate.second
        if candidate.design == "together":
            chunk = candidate.chunks[0] if candidate.chunks else None
            return first * self._of(engine, "both", chunk)
        if candidate.design == "reshard":
            stages = self._of(engine, "prompts"), self._of(engine, "answers")
            return first / sum(1 / rate for rate in stages) if min(stages) else 0.0
        apart = min(first * self._of(engine, "prompts"), second * self._of(engine, "answers"))
        if candidate.design == "apart":
            return apart
        if candidate.design == "afd":
            return _BETWEEN * apart
        both = first * self._of(engine, "both", candidate.chunks[0])
        both += second * self._of(engine, "both", candidate.chunks[1])
        return _BETWEEN * max(both, apart)

    def _of(self, engine: Engine, what: str, chunk: int | None = None) -> float:
        key = id(engine), what, chunk
        if key not in self._known:
            if what == "both":
                found = self._fullest(engine, chunk or engine.client.max_model_len)
            elif what == "prompts":
                found = self._prompts(engine)
            else:
                found = self._fullest(engine, None)
            self._known[key] = found
        return self._known[key]

    def _prompts(self, engine: Engine) -> float:
        """Return the prompts per second at which waits stay below the limit on TTFT."""
        seconds = engine.step_time(StepBatch(chunks=((round(self.demand.mean_prompt) or 1, 0),)))
        limit = self.demand.limits.ttft
        if limit is None:
            return 1 / seconds
        spare = max(limit - seconds, 0.0)
        return spare / (spare + _TAIL * seconds) / seconds

    def _fullest(self, engine: Engine, chunk: int | None) -> float:
        """Return the requests a second of an engine with the best number of sequences.

        chunk: tokens of a step; None: prompts are computed by others.
        """
        tokens = self.demand.mean_prompt + self.demand.mean_answer
        most = min(engine.client.scheduler.max_num_seqs, engine.kv_tokens / tokens)
        if chunk is not None:
            most = min(most, chunk - 1)
        best, number = 0.0, 1.0
        while number <= most:
            best = max(best, self._with(engine, int(number), chunk))
            number = max(number * _STEP, number + 1)
        if chunk is not None:
            best = min(best, self._prompts(engine))
        return best

    def _with(self, engine: Engine, number: int, chunk: int | None) -> float:
        """Return the requests a second with so many sequences; 0 where a limit is not kept."""
        demand = self.demand
        answer = max(demand.mean_answer, 1.0)
        context = round(number * (demand.mean_prompt + answer / 2))
        seconds = engine.step_time(StepBatch(num_decodes=number, context_sum=context))
        if chunk is not None:
            pieces = ceil(demand.mean_prompt / max(chunk - number, 1))
            size = max(round(demand.mean_prompt / pieces), 1)
            mixed = engine.step_time(
                StepBatch(chunks=((size, 0),), num_decodes=number, context_sum=context)
            )
            often = number / answer * pieces  # steps with a prompt for each step
            if often > 1:  # prompts wait for one another
                seconds = mixed * often
            else:
                seconds += often * (mixed - seconds)
        whole = demand.limits.e2el
        limit = demand.limits.tpot if demand.limits.tpot is not None else inf
        if seconds > limit or (whole is not None and seconds * answer > whole):
            return 0.0
        return number / (answer * seconds)


_ROUND = 4  # runs at a time: two rounds of two cores, one of four
_LONG_ROUND = 2  # of those longer than usual
_SHORT = 6_000  # requests of a first run; undecided candidates run longer later
_SHORTER = 1_500  # those of a slow design, so that all of them are looked at before one runs long
_LIKELY = 0.9  # of the rate that is asked for: an estimate from which on a candidate may do
_MORE, _MOST_ROOM = 1.15, 3.0  # times the rate: from one round of a race to the next, and the last
_TIE = 0.05  # of the rate: a race that is open between a kept and a missed one so near is a tie
_OTHER_GPUS = 3  # rounds of runs for the cheapest with each GPU but the answer's
_EQUALS = 6  # candidates of the winner's price that are tried as well
_SLOW = ("hybrid", "afd", "reshard")  # designs that come last
_SLOWER = 10  # a run of these takes about so many times as long as one of other designs
_LONGER = 4  # times the requests: from one run of a slow design to the next, and for one near its
# limits, of a usual longest run


@dataclass
class Tried:
    """A candidate that was simulated, or that proved impossible.

    trial: None if impossible; `problem` gives the reason. may_tell: requests of a longer run that
        may decide it; 0: none may. room, missed: largest multiple of the rate that it served, and
        the next one tried, which it missed, in the race among candidates of its price; infinite: it
        missed none. last: distance below its limits at the last one, as `slack`.
    """

    candidate: Candidate
    trial: Trial | None
    problem: str = ""
    may_tell: int = 0
    room: float = 1.0
    missed: float = inf
    last: float = 0.0

    @property
    def attained(self) -> bool:
        """Whether a run showed that it keeps the limits."""
        return self.trial is not None and self.trial.attained is True

    @property
    def seems_to_keep(self) -> bool:
        """Whether its run kept the limits, even if that is not sure."""
        return self.trial is not None and self.trial.seems_attained

    @property
    def is_undecided(self) -> bool:
        """Whether its run did not tell."""
        return self.trial is not None and self.trial.attained is None

    @property
    def rank(self) -> tuple[object, ...]:
        """Key to order those that seem to keep: dollars, sure ones, simple designs, room.

        Of two at one price, the simpler design assumes less, such as no network between engines. Of
        two with as much room, as far as is known, the one that keeps the engine's own chunk sets
        less.
        """
        price, design, *rest = self.candidate.rank
        is_slow = self.candidate.design in _SLOW
        room = -round(self.room, 6), not self.candidate.keeps_chunk, round(self.last, 1)
        return price, not self.attained, is_slow, design, *room, rest

    @property
    def slack(self) -> float:
        """How far nine in ten are below their limits: a logarithm, of which less is better."""
        return _slack(self.trial) if self.trial else 0.0


def _slack(trial: Trial) -> float:
    """Return `Tried.slack` of a run; infinite if it tells nothing, since too many never ended."""
    found = sum(trial.margins) / 2 if trial.margins is not None else -trial.attainment
    return inf if isnan(found) else found


@dataclass
class Budget:
    """What a search may take.

    requests: simulated ones; those of slow designs count as ten. seconds: of a clock. None: any
    number.
    """

    requests: int | None = None
    seconds: float | None = None
    num_spent: int = 0
    begin: float = field(default_factory=monotonic)

    @property
    def deadline(self) -> float | None:
        """When the time is up, of `time.monotonic`; None: never."""
        return None if self.seconds is None else self.begin + self.seconds

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and monotonic() > self.deadline

    @property
    def is_spent(self) -> bool:
        """Whether the search has to end."""
        return self.is_late or (self.requests is not None and self.num_spent >= self.requests)


class Hunt:
    """The search for the cheapest candidate that keeps the limits.

    tried: by candidate. excluded: how many candidates each proved bound leaves out. possible: all
    others.
    """

    def __init__(
        self,
        question: Question,
        demand: Demand,
        space: Iterable[Candidate],
        driver: Driver,
        budget: Budget | None = None,
    ) -> None:
        self._question = question
        self._driver = driver
        self.rate = demand.rate
        self.budget = budget or Budget()
        self._estimates = Estimates(demand)
        self._demand = demand
        self.tried: dict[Candidate, Tried] = {}
        self.overruled: dict[Candidate, str] = {}  # by a longer run, and by how much they miss
        self.excluded: Counter[str] = Counter()
        self.impossible: dict[Engine, str] = {}
        self._needs: dict[Engine, Needs | None] = {}
        self.possible: list[Candidate] = []
        for candidate in space:
            if reason := self._excluding(candidate):
                self.excluded[reason] += 1
            else:
                self.possible.append(candidate)

    @property
    def num_candidates(self) -> int:
        """Candidates in all."""
        return len(self.possible) + self.excluded.total()

    @property
    def best(self) -> Tried | None:
        """The cheapest that keeps the limits, as far as its runs tell; None: none seems to.

        Ties go to a sure one, to one that vLLM serves unchanged, to the simpler design, then to the
        one with most room.
        """
        found = [each for each in self.tried.values() if each.seems_to_keep]
        return min(found, key=lambda each: each.rank, default=None)

    @property
    def sure(self) -> Tried | None:
        """The cheapest candidate that a run showed to keep the limits; None if there is none."""
        found = [each for each in self.tried.values() if each.attained]
        return min(found, key=lambda each: each.rank, default=None)

    @property
    def so_far(self) -> str:
        """The best that is known now, for a stopped search; empty before the first run."""
        nearest = self.nearest
        if nearest is None or nearest.trial is None:
            return ""
        proved = self.excluded.total()
        told = f"{len(self.tried)} of {self.num_candidates:,} candidates tried"
        told += f", {proved:,} excluded without a run; " if proved else "; "
        best = self.best
        if best is not None:
            verb = "keeps" if best.attained else "seems to keep"
            price = f"{best.candidate.name} for {best.candidate.dollars:.4g} $/h"
            return f"{told}the cheapest so far that {verb} the limits is {price}"
        name, good = nearest.candidate.name, 100 * nearest.trial.attainment
        return f"{told}none keeps the limits so far; nearest is {name}, with {good:.1f} % good"

    @property
    def nearest(self) -> Tried | None:
        """The one with most good requests; None before the first run."""
        known = [(each.trial.attainment, each) for each in self.tried.values() if each.trial]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    def estimate(self, candidate: Candidate) -> float:
        """Return the rate that a candidate serves by estimate, requests per second."""
        return self._estimates.rate(candidate)

    def search(self) -> None:
        """Try candidates until the answer cannot change, or the budget is spent."""
        self.run(self._roomy())
        while not self.budget.is_spent and (lengths := self._next_runs()):
            self._run(lengths)
        self._shrink()

    def go_on(self, good: float, number: int, what: str) -> None:
        """Note that the best misses in a run with reported figures; look for the next one.

        good: share of good requests of that run, of so many. what: it missed, in words.
        """
        best = self.best
        if best is None or best.trial is None:
            return
        self.overruled[best.candidate] = what
        trial = replace(best.trial, attained=False, attainment=good, num_requests=number)
        self.tried[best.candidate] = replace(best, trial=trial, may_tell=0)
        self.search()
        self.equals()
        self.other_gpus()

    def _roomy(self) -> list[Candidate]:
        """Return the candidate with most room, by estimate, of each kind that is not slow."""
        found: dict[tuple[str, str], Candidate] = {}
        for each in self._by_estimate(self.possible):
            if each.design not in _SLOW:
                found.setdefault((each.engine.gpu, each.design), each)
        return list(found.values())

    def _next_runs(self) -> dict[Candidate, int]:
        """Return the candidates of the next round, each with the requests of its run.

        Those that seem to keep the limits run longer before slow designs are tried. Smaller chunks
        of engines for prompts change little, and come after the largest.
        """
        usual = self._question.options.longest
        undecided = self._undecided()
        hopeful = [each for each in undecided if each.seems_to_keep and each.may_tell <= usual]
        untried = self.open
        quick = [each for each in untried if each.design not in _SLOW]
        if quick:
            usual_ones = [each for each in quick if not each.has_smaller_chunk]
            return self._first_runs(self._in_turn(usual_ones or quick)[:_ROUND])
        if untried and not hopeful:
            return self._first_runs(self._in_turn(untried)[:_ROUND])
        chosen = hopeful or undecided
        num = _ROUND if chosen and chosen[0].may_tell <= usual else _LONG_ROUND
        return {each.candidate: each.may_tell for each in chosen[:num]}

    def _shrink(self) -> None:
        """Run the answer without one of its engines until that is not seen to keep the limits.

        A search that ended early buys no engine too many.
        """
        before = None
        while (best := self.best) is not None and best is not before and not self.budget.is_late:
            before, left = best, set(self.left)
            fewer = [each for each in best.candidate.without_one.values() if each in left]
            self.run(fewer, self._question.options.longest)

    def equals(self) -> None:
        """Try others of the answer's price, and let those that attain race for room."""
        best = self.best
        if best is None or self.budget.is_late:
            return
        price = best.candidate.price
        others = [
            each
            for each in self.possible
            if each.price == price and each not in self.tried and each.design not in _SLOW
        ]
        self.run(self._by_estimate(others)[:_EQUALS])
        if best.candidate.design not in _SLOW:
            self._race(price)

    def _race(self, price: float) -> None:
        """Raise the rate until one of the candidates of a price is left.

        Where all that are left miss a rate, one between it and the last that they kept follows, if
        the budget allows, until both are near.
        """
        attained = [
            each.candidate
            for each in self.tried.values()
            if each.attained and each.candidate.price == price
        ]
        field = self._by_estimate(each for each in attained if each.design not in _SLOW)[:_EQUALS]
        factor, missed = 1.0, inf
        while len(field) > 1 and not self.budget.is_late:
            if missed == inf:
                if factor >= _MOST_ROOM:
                    break
                rate = factor * _MORE
            elif missed - factor > _TIE * factor and not self.budget.is_spent:
                rate = (factor + missed) / 2
            else:
                break
            if kept := self._kept_at(rate, field):
                field, factor = kept, rate
            else:
                missed = rate

    def _kept_at(self, factor: float, field: Sequence[Candidate]) -> list[Candidate]:
        """Run candidates at a multiple of the rate; note results, return those that seem to keep.

        Near the limits short runs differ by chance: undecided ones run longer, if the budget
        allows. When the time is up, a round without all of its runs tells nothing.
        """
        longest = self._question.options.longest
        found: dict[Candidate, Trial] = {}
        unsure = [*field]
        for length in (_SHORT, longest) if longest > _SHORT else (longest,):
            trials = self._trials(unsure, length, self._question.times(factor))
            if len(trials) < len(unsure):
                return []
            told = {each: trial for each, trial in trials.items() if isinstance(trial, Trial)}
            self.budget.num_spent += sum(trial.num_requests for trial in told.values())
            found |= told
            unsure = [each for each, trial in told.items() if trial.attained is None]
            if not unsure or self.budget.is_spent:
                break
        for candidate, trial in found.items():
            each = self.tried[candidate]
            each.last = _slack(trial)
            if trial.seems_attained:
                each.room = factor
            else:
                each.missed = factor
        return [each for each, trial in found.items() if trial.seems_attained]

    def other_gpus(self) -> None:
        """Look for the cheapest candidate with each GPU but the answer's, from its price on."""
        if (best := self.best) is None:
            return
        for gpu in dict.fromkeys(each.engine.gpu for each in self.possible):
            for _ in range(_OTHER_GPUS if gpu != best.candidate.engine.gpu else 0):
                if self.budget.is_late:
                    return
                top = self.cheapest(gpu)
                most = inf if top is None else top.candidate.price
                likely: dict[float, Candidate] = {}  # of each price the one with most room
                for each in self._by_estimate(self.dearer):
                    is_likely = self.estimate(each) >= _LIKELY * self.rate
                    is_quick = is_likely and each.design not in _SLOW
                    if each.engine.gpu == gpu and is_quick and each.price < most:
                        likely.setdefault(each.price, each)
                self.run([likely[price] for price in sorted(likely)[:_ROUND]])

    def cheapest(self, gpu: str) -> Tried | None:
        """Return the cheapest candidate with a GPU that was seen to keep the limits, if any."""
        found = [
            e for e in self.tried.values() if e.seems_to_keep and e.candidate.engine.gpu == gpu
        ]
        return min(found, key=lambda each: each.rank, default=None)

    @property
    def dearer(self) -> list[Candidate]:
        """Candidates from the answer's price on, without a run, of which no other settles it."""
        least = best.candidate.price if (best := self.best) else 0.0
        return [each for each in self.untried if each.price >= least]

    def _by_estimate(self, among: Iterable[Candidate]) -> list[Candidate]:
        return sorted(among, key=lambda each: (-self._estimates.rate(each), each.rank))

    def run(self, candidates: Iterable[Candidate], most: int = _SHORT) -> None:
        """Try candidates of any price; undecided ones again if `most` requests may decide."""
        tried = self.tried
        chosen = [c for c in candidates if c not in tried or 0 < tried[c].may_tell <= most]
        self._run(self._first_runs(chosen, most))

    def _first_runs(self, chosen: Iterable[Candidate], most: int = _SHORT) -> dict[Candidate, int]:
        """Return the requests of first runs; fewer for slow designs."""
        found = {}
        for each in chosen:
            is_brief = most == _SHORT and each.design in _SLOW
            number = max(_SHORTER if is_brief else most, self._question.least_requests)
            found[each] = min(number, self._question.options.longest)
        return found

    @property
    def open(self) -> list[Candidate]:
        """Candidates without a run that may change the answer."""
        best = self.best
        return [each for each in self.untried if _may_change(best, each)]

    @property
    def untried(self) -> list[Candidate]:
        """Candidates without a run, and with more of something than any that missed."""
        missed: dict[tuple[object, ...], list[Candidate]] = {}
        for each in self.tried.values():
            if each.trial is not None and each.trial.attained is False:
                missed.setdefault(each.candidate.family, []).append(each.candidate)
        return [
            c
            for c in self.possible
            if c not in self.tried
            and not any(other.covers(c) for other in missed.get(c.family, ()))
        ]

    @property
    def left(self) -> list[Candidate]:
        """Candidates cheaper than the answer and not known to miss, the most promising first."""
        price = best.candidate.price if (best := self.best) else inf
        undecided = [each for each in self.tried.values() if each.is_undecided]
        undecided.sort(key=lambda each: (each.slack, each.candidate.rank))
        both = [*(each.candidate for each in undecided), *self._by_estimate(self.open)]
        return [each for each in both if each.price < price]

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

    def _in_turn(self, among: Iterable[Candidate]) -> list[Candidate]:
        """Return untried candidates in the order in which they are tried.

        Those likely to do come first, the cheapest before others; then those that no other covers,
        the most promising first: if one of these misses, the rest of its family is settled.
        """
        among = list(among)
        if likely := [each for each in among if self.estimate(each) >= _LIKELY * self.rate]:
            return sorted(likely, key=lambda each: each.rank)
        by_family: dict[tuple[object, ...], list[Candidate]] = {}
        for each in among:
            by_family.setdefault(each.family, []).append(each)
        return self._by_estimate(
            each
            for family in by_family.values()
            for each in family
            if not any(other is not each and other.covers(each) for other in family)
        )

    def _undecided(self) -> list[Tried]:
        """Return undecided candidates that a longer run may decide, if that may change the answer.

        The most promising come first, and runs of usual length before longer ones.
        """
        best, usual = self.best, self._question.options.longest
        found = [
            each
            for each in self.tried.values()
            if each.may_tell and _may_change(best, each.candidate)
        ]
        return sorted(found, key=lambda e: (e.may_tell > usual, e.slack, e.candidate.rank))

    def _run(self, lengths: Mapping[Candidate, int]) -> None:
        """Simulate candidates with at most so many requests at the required rate; note results."""
        by_length: dict[int, list[Candidate]] = {}
        for candidate, length in lengths.items():
            by_length.setdefault(length, []).append(candidate)
        for length, several in by_length.items():
            for candidate, found in self._trials(several, length, None).items():
                if isinstance(found, Trial):
                    may_tell = self._next(candidate, found, length)
                    self.tried[candidate] = Tried(candidate, found, may_tell=may_tell)
                    each = _SLOWER if candidate.design in _SLOW else 1
                    self.budget.num_spent += each * found.num_requests
                else:
                    self.tried[candidate] = Tried(candidate, None, found)

    def _next(self, candidate: Candidate, trial: Trial, length: int) -> int:
        """Return the requests of a longer run that may decide one of `length`; 0: none may.

        Where so many may tell, a run may be longer than is usual, as at the ends of a goodput.
        Slow designs get there step by step: in overload their runs take minutes.
        """
        options = self._question.options
        if trial.attained is not None:
            return 0
        if length < options.longest:
            is_slow = candidate.design in _SLOW
            return min(_LONGER * length, options.longest) if is_slow else options.longest
        most = _LONGER * options.longest
        can_tell = trial.needs is not None and length < trial.needs <= most
        return most if can_tell and options.most_requests is None else 0

    def _trials(
        self, chosen: Iterable[Candidate], most: int, rate: float | None
    ) -> dict[Candidate, Trial | str]:
        """Simulate candidates in parallel; return each one's result, or why it is impossible.

        most: requests of the longest run. rate: requests per second; None: the required rate. When
        the time is up, only what finished by then.
        """
        question = self._question
        found: dict[Candidate, Trial | str] = {}
        tasks: dict[Candidate, Task] = {}
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
            tasks[candidate] = Task(key, trial_data, arguments)
        for candidate, row in self._driver.finished(tasks).items():
            if row.failure is None:
                found[candidate] = Trial.of(row.result)
            elif row.failure.is_told:
                found[candidate] = str(row.failure).splitlines()[0]
            else:
                raise row.failure.exception
        return found


def _may_change(best: Tried | None, candidate: Candidate) -> bool:
    """Tell whether a candidate may be the answer in place of the best."""
    if best is None:
        return True
    price = best.candidate.price
    return candidate.price < price or (candidate.price == price and not best.attained)


_LONG_RUN = 3000  # requests of a run with reported figures, so that its ramp counts for little
_TOLERANCE = 0.05  # of the goodput, by which headroom is told
_GOODPUT_RUN = 10_000  # requests of the longest run of that search


@dataclass(frozen=True)
class Refining:
    """Runs of single scenarios. is_steady: whether the workload may be longer than it stands."""

    question: Question
    driver: Driver
    is_steady: bool

    def lengths(self, arrivals: object) -> list[int]:
        """Return the requests of a run with reported figures, and of one that overrules it.

        In one where many arrive, chance may make a good design miss. Where arrivals change with
        time, the workload's own ones count.
        """
        own = self.question.num_requests
        if not self.is_steady:
            return [own]
        usual = max(own, _LONG_RUN)
        is_even = not isinstance(arrivals, DailyArrivals | ScheduledArrivals)
        longer = self.question.options.longest
        return [usual, longer] if is_even and longer > usual else [usual]

    def figures(
        self, cases: Mapping[str, Scenario], number: int = _LONG_RUN
    ) -> dict[str, dict[str, Any]]:
        """Return the summaries of runs by name; limits are of the share that has to be good.

        number: requests at least, where the workload may be longer than it stands. Dollars and
        joules a token are of the rate that is asked for, without ramp and end. When the time is up,
        only those that finished by then.
        """
        tasks = {}
        for name, scenario in cases.items():
            data = as_data(self.as_run(scenario, number))
            rate = self.question.rate if self.question.loop is None else None
            key = name, "figures", number
            tasks[name] = Task(key, summary_at, (data, scenario.seed, rate))
        done = self.driver.finished(tasks)
        return {name: _asked(row.result) for name, row in done.items() if row.failure is None}

    def as_run(self, scenario: Scenario, number: int = _LONG_RUN) -> Scenario:
        """Return a scenario as `figures` runs it: long enough, judged by the shares asked for."""
        target = self.question.target
        shares = {share.group or 0: share.asked for share in target.shares.values()}
        changes: dict[str, Any] = {"slo.percentiles": None}
        changes |= {"slo.attainment": target.attainment, "slo.each": target.each}
        if target.slo.itl is not None:  # of gaps, no share of requests: it keeps its percentiles
            at = {name: DURATION.format(limit) for name, limit in target.slo.figures.items()}
            changes |= {"slo.itl": None, "slo.at": at}
        for place, name in enumerate(target.slo.classes, start=1):
            own = {"percentiles": None, "attainment": shares[place]}
            changes |= {f"slo.classes.{name}.{key}": value for key, value in own.items()}
        if self.is_steady:
            least = max(self.question.num_requests, number, self.question.least_requests)
            changes["workload.lengths.num_requests"] = least
        return Scenario.from_dict(as_data(scenario), changes)

    def goodput(self, scenario: Scenario, known: Trial) -> Goodput:
        """Return the goodput of a scenario, near enough for its headroom.

        known: the run at the rate that is asked for, which is all that is known when time is up.
        """
        options = self.question.options
        question = self.question
        most = max(_GOODPUT_RUN, question.target.least_requests, question.least_requests)
        how = GoodputOptions(
            attainment=options.attainment,
            tolerance=_TOLERANCE,
            most_requests=options.most_requests and min(options.most_requests, most),
            usual_requests=most,
            as_is=options.as_is,
        )
        built = Built(scenario)
        tried: dict[tuple[int, int], list[Trial]] = {}
        try:
            (found,) = search_goodputs([built], how, self.driver, tried=tried, takes_users=True)
        except OutOfTimeError:
            key = 0, scenario.seed
            (so_far,) = goodputs_so_far([built], how, {key: [known, *tried.get(key, ())]})
            if so_far is None:
                raise
            return so_far
        if isinstance(found, Failure):
            raise ScenarioError(str(found))
        return found

    def at_goodput(self, scenario: Scenario, goodput: Goodput) -> dict[str, Any] | None:
        """Return the spending of a run at the goodput (`spending_at`); None without goodput."""
        if isnan(goodput.rate):
            return None
        task = at_goodput(("at goodput", "figures"), Built(scenario), goodput)
        return next((row.result for row in self.driver.finished({"": task}).values()), None)

    def one_less(
        self, fewer: Mapping[str, Candidate | None], tried: Mapping[Candidate, Tried]
    ) -> dict[str, dict[str, Any]]:
        """Return the effect of losing one engine of a candidate, by kind of engine.

        fewer: `Candidate.without_one`. tried: the runs of these, without those that time has left
            out.
        `good`: the share of good requests in a run until the verdict is known, 0 if no engine is
        left. `attains`: whether that is enough; only an estimate if `undecided`. `slo`: as
        in a summary. `goodput`: where it is not enough, the load up to which it is, unless
        designs are slow; NaN: not found.
        """
        trials: dict[str, Trial] = {}
        cases: dict[str, Scenario] = {}
        found: dict[str, dict[str, Any]] = {}
        for name, left in fewer.items():
            if left is not None and left not in tried:
                continue
            trial = tried[left].trial if left is not None else None
            if left is None or trial is None:
                found[name] = {"good": 0.0, "slo": {}, "nobody": True, "attains": False}
            else:
                trials[name], cases[name] = trial, scenario_of(left, self.question)
        for name, summary in self.figures(cases).items():
            trial = trials[name]
            missed = trial.attained is None and bool(missed_in(summary))
            good = trial.attainment if trial.is_steady and not missed else nan
            found[name] = {
                "good": summary["good_request_fraction"] if isnan(good) else good,
                "slo": summary["slo"],
                "nobody": False,
                "unstable": grows(summary),
                "attains": trial.seems_attained and not missed,
                "undecided": trial.attained is None or bool(doubt_of(trial)),
            }
            left = fewer[name]
            if left is not None and left.design not in _SLOW and not found[name]["attains"]:
                with suppress(OutOfTimeError):
                    found[name]["goodput"] = self.goodput(cases[name], trial).rate
        return found


def missed_in(summary: Mapping[str, Any]) -> str:
    """Return which limits a run misses as simulated, in words; "" if none."""
    limits = [
        f"{limit_of(name)[1]} {limit_title(limit_of(name)[0])} {each['value']:,.0f} of "
        f"{each['limit']:,g} ms"
        for name, each in summary["slo"].items()
        if not each["kept"] and each["value"] is not None
    ]
    shares = [
        f"{100 * each['value']:.1f} % good{'' if name == ALL else f' of {name}'} of "
        f"{100 * each['asked']:g} % asked"
        for name, each in summary.get("slo_shares", {}).items()
        if not each["kept"] and each["value"] is not None
    ]
    return ", ".join([*limits, *shares])


def doubt_of(trial: Trial) -> str:
    """Return why limits kept in a run of the workload as it stands may not last; "" if they do."""
    if trial.stability == "too short to tell":
        return (
            "Too short to tell whether the engines keep up with the arrivals: the workload has too "
            "few requests, or they take too large a part of it. More requests would tell."
        )
    if trial.stability == AT_END:
        return "Overloaded at the end: more and more requests waited until the last arrival."
    if trial.stability == "unstable":
        return "Unstable: more work arrives than the engines can do; a longer workload would wait."
    return ""


def _asked(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary without the limits that no request has, since all are of classes."""
    classes = summary.get("classes")
    if not classes or OTHERS in classes:
        return summary
    slo = {name: each for name, each in summary["slo"].items() if "." in limit_of(name)[0]}
    return {**summary, "slo": slo}


Confidence = Literal["sure", "likely", "unsure"]
"""Sure: the limits are kept even if step times are off as far as nine in ten are. Likely: the
simulated times keep them, but within that error. Unsure: nothing like it was measured, or no
run told."""


def confidence_of(summary: Mapping[str, Any], *, kept: bool = True) -> Confidence:
    """Return how certain the verdict on the limits is, given the error of the step times.

    summary: of a run with `slo`. Ranges are those of means, as in `verdict_of`.
    """
    ranges = expected_ranges(summary)
    limits = summary.get("slo", {})
    if not limits or any(ranges.get(metric_of(name)) is None for name in limits):
        return "unsure"
    verdicts = {found["verdict"] for found in limits.values()}
    if not kept:
        return "sure" if "miss" in verdicts and not is_far(summary) else "likely"
    if "miss" in verdicts:
        return "unsure"
    return "likely" if "within error" in verdicts or is_far(summary) else "sure"
