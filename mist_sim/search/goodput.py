"""Goodput: the largest rate of arrivals at which a scenario attains its SLO.

Of a closed loop, which has no rate, it is the largest number of users. They are searched and judged
in the same way, and are an int wherever a rate is a float.

Each rate is one run with the same requests and random streams (common random numbers), in which
only the arrivals scale. It goes on until it is known whether the rate is attained in steady state;
a workload that is a certain one, such as a trace, is judged as it stands. BestServe's Algorithms 8
and 9, with the corrections that `bracketing` and `Target` name; the definition is DistServe's
(Zhong et al., OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from time import monotonic
from typing import Annotated, Any, Unpack

from mist_sim.checks import Range, check_fields
from mist_sim.errors import ScenarioError, in_words, listed
from mist_sim.metrics.expected_errors import expected_ranges
from mist_sim.metrics.keeping import LimitOnShare
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.at_goodput import at_goodput
from mist_sim.search.binding import lone_run, search_binding
from mist_sim.search.binding_result import LoneRequests
from mist_sim.search.bracketing import (
    COARSE,
    SHORT,
    Asked,
    Race,
    Search,
    SearchKey,
    SeedGoodput,
    SureSearch,
    around,
    between,
    drive,
    near,
    once_each,
    seeming,
    settable,
    take,
    until_sure,
)
from mist_sim.search.goodput_result import Goodput
from mist_sim.studies.built import Built, Users, check_rates, load_in_words
from mist_sim.studies.driver import Driver, How, OutOfTimeError, studying
from mist_sim.studies.subjects import check_scenarios, seeds_from
from mist_sim.studies.task import Failure, Key, Row, Task
from mist_sim.studies.verdicts.request_times import Target, target_of
from mist_sim.studies.verdicts.trials import Trial, trial_data

_TOLD = 3  # scenarios that a stopped search names
_FEWEST = 1000  # requests of the longest run; fewer tell little of any rate
_NEAR, _ENDS = 1.1, 0.05  # steps from a goodput to that of other step times; width of its bracket
_NARROWEST = 1e-4  # tolerance; rates have six digits
_TIME_UP = "The time of --seconds was up"

USUAL_REQUESTS = 30_000
"""Of the longest run, unless the interval of a goodput would be wide."""


@dataclass(frozen=True, kw_only=True)
class GoodputOptions:
    """Options of a search for goodput.

    attainment, relaxation, each: as in `Target`; None: the scenario's slo, or 0.9. The slo may also
        require each limit on its own.
    percentiles: as in `Target`. rates: the lowest and the highest rate to try, requests per second;
        by default the search begins at the scenario's own; of a closed loop, numbers of users.
        tolerance: largest gap between the
        attained and the missed rate, as a share of the latter.
    most_requests: of any run, which continues until its verdict is known (>= 1,000, and so many
        as can tell of the attainment). None: `usual_requests`, or as many as can tell, and four
        times as many at the two undecided rates if the interval would be wider than 8 %.
    as_is: judge the workload as it stands, with its ramp and its end, however short it is.

    Raises ScenarioError for values that make no search.
    """

    attainment: float | None = None
    relaxation: float = 0.0
    each: bool = False
    percentiles: tuple[LimitOnShare, ...] = ()
    rates: tuple[float, float] | None = None
    tolerance: Annotated[float, Range(f"[{_NARROWEST}, 1)")] = 0.02
    most_requests: Annotated[int, Range(f"[{_FEWEST}, inf)")] | None = None
    usual_requests: int = USUAL_REQUESTS
    as_is: bool = False

    def __post_init__(self) -> None:
        check_fields(self, ScenarioError)
        if self.rates is not None:
            check_rates(self.rates)

    def target(self, scenario: Scenario) -> Target:
        """Return the target of a scenario.

        Raises ScenarioError without limits, and if the longest run is too short to tell of it.
        """
        target = target_of(
            scenario.slo.make(),
            self.attainment,
            self.relaxation,
            each=self.each,
            percentiles=self.percentiles,
        )
        most, least = self.most_requests, target.least_requests
        if most is not None and most < least and not self.as_is:
            if scenario.workload.trace is not None:
                raise ScenarioError(
                    "most_requests has no effect on a trace, which is judged as it stands, got "
                    f"{most}; leave it out"
                )
            raise ScenarioError(
                f"most_requests must be >= {least} where {100 * target.hardest:g} % must be "
                f"good, got {most}: fewer tell too little; raise it, or ask for a smaller share"
            )
        return target

    def longest(self, target: Target) -> int:
        """Return the requests of the longest run that judges a target."""
        return self.most_requests or max(self.usual_requests, target.least_requests)

    def pause(self, targets: Collection[Target]) -> int | None:
        """Return the requests of a short run, as many as can tell; None: no run takes more."""
        short = max(SHORT, *(target.least_requests for target in targets))
        most = min(self.longest(target) for target in targets)
        return None if self.as_is or most <= short else short

    def trial(
        self,
        key: Key,
        built: Built,
        seed: int,
        rate: float,
        target: Target,
        times: int = 1,
        pause: int | None = None,
    ) -> Task:
        """Return the task of trying a rate (requests per second) with a seed.

        times: so many times as many requests as others have at most. pause: as in `try_rate`.
        """
        most = None if self.as_is else self.longest(target) * (1 if self.most_requests else times)
        load = built.load
        arguments = built.data, load.at(rate), seed, rate, target, load.num_requests, most
        if pause is not None:
            return Task((*key, "short"), trial_data, (*arguments, pause))
        return Task(key, trial_data, arguments)

    def search(self, own_rate: float, tolerance: float | None = None) -> Search:
        """Return a search over rates, or users for an int. tolerance: None: that of the options."""
        tolerance = self.tolerance if tolerance is None else tolerance
        if self.rates is None:
            return around(own_rate, tolerance)
        low, high = self.rates
        if not isinstance(own_rate, int):
            return between(float(low), float(high), tolerance)
        if not (1 <= low < high and float(low).is_integer() and float(high).is_integer()):
            raise ScenarioError(
                "rates must be LOW:HIGH in whole numbers of users for a closed loop, 1 <= LOW < "
                f"HIGH, got {low:g}:{high:g}"
            )
        return between(int(low), int(high), tolerance)


def find_goodput(
    scenario: Scenario,
    options: GoodputOptions | None = None,
    *,
    why: bool = False,
    seconds: float | None = None,
    **how: Unpack[How],
) -> Goodput:
    """Return the largest arrival rate, or number of users, at which a scenario attains its SLO.

    With replications every seed is searched, and the result is their mean.

    why: find what binds as well (`Goodput.binding`), in a dozen runs more. seconds: of a clock,
        after which the search ends with the run that finishes next, and says what it leaves open;
        its result then depends on the speed of the machine. how: see `How`.
    Raises ScenarioError for arrivals without a rate, no limits, the journal of another study, too
    few seconds for a run, and what `simulate` raises.
    """
    return find_goodputs([scenario], options, why=why, seconds=seconds, **how)[0]


def find_goodputs(
    scenarios: Sequence[Scenario],
    options: GoodputOptions | None = None,
    *,
    why: bool = False,
    seconds: float | None = None,
    **how: Unpack[How],
) -> list[Goodput]:
    """Return the goodput of each scenario, searched side by side; see `find_goodput`."""
    check_scenarios(scenarios)
    if seconds is not None and not 0 < seconds < inf:
        raise ScenarioError(f"seconds must be finite and > 0, got {seconds:g}")
    options = options or GoodputOptions()
    subjects = {str(k): as_data(scenario) for k, scenario in enumerate(scenarios)}
    with studying("goodput", subjects, vars(options), **how) as driver:  # why only adds runs
        builts = [Built(scenario) for scenario in scenarios]
        if why and any(isinstance(built.load, Users) for built in builts):
            raise ScenarioError(
                "why must be False for the users of a closed loop, where what binds is not known; "
                "leave --why out, or give workload.arrivals a rate"
            )
        tried: dict[SearchKey, list[Trial]] = {}
        several = len(builts) > 1
        names = [f"scenario {k}" if several else "" for k in range(len(builts))]
        driver.so_far = lambda: so_far(tried, names)
        driver.deadline = None if seconds is None else monotonic() + seconds
        try:
            rows = search_goodputs(builts, options, driver, tried=tried, takes_users=True)
        except OutOfTimeError:
            return _out_of_time(builts, options, tried)
        found = [each for each in rows if isinstance(each, Goodput)]
        steps: dict[str, Callable[[], list[Goodput]]] = {
            "the goodput of slower and faster steps": lambda: with_step_ends(
                builts, found, options, driver
            ),
            "what binds": lambda: [
                with_binding(*each, driver) for each in zip(builts, found, strict=True)
            ],
            "dollars and joules there": lambda: _with_spending(builts, found, driver),
        }
        left = []
        for what, more in steps.items():
            try:
                found = more() if why or what != "what binds" else found
            except OutOfTimeError:
                left.append(what)
        told = f"{_TIME_UP}; not run: {listed(left)}." if left else ""
        return [replace(each, out_of_time=told) for each in found]


def _out_of_time(
    builts: Sequence[Built],
    options: GoodputOptions,
    tried: Mapping[SearchKey, Sequence[Trial]],
) -> list[Goodput]:
    """Return what is known when time is up. Raises ScenarioError where a scenario has no run."""
    found = []
    for k, each in enumerate(goodputs_so_far(builts, options, tried)):
        if each is None:
            raise ScenarioError(
                "seconds must be enough for a run of each scenario, and none finished of "
                f"scenario {k}; give more"
            )
        known = so_far({(0, seed): of for (n, seed), of in tried.items() if n == k}, [""])
        told = f"{_TIME_UP}: {known}; rates between these are undecided."
        found.append(replace(each, out_of_time=told))
    return found


def with_step_ends(
    builts: Sequence[Built], found: Sequence[Goodput], options: GoodputOptions, driver: Driver
) -> list[Goodput]:
    """Return goodputs with those of slower and faster steps, where the error of TPOT is known.

    All step times of a scenario are multiplied by the ends of the range in which nine in ten
    measured TPOTs lie, over the simulated one. Short runs with the same seeds search near the
    goodput, up to a twentieth; the outer end of each bracket counts (`_end_of`).
    """
    factors: dict[int, float] = {}
    scaled: dict[int, Built] = {}
    searches: dict[SearchKey, SureSearch] = {}
    trials: dict[SearchKey, list[Trial]] = {}
    for k, (built, goodput) in enumerate(zip(builts, found, strict=True)):
        error = expected_ranges({"expected_errors": goodput.expected_errors})["tpot"]
        if goodput.status != "found" or error is None or error.low <= -1:
            continue
        for end, factor in ((2 * k, 1 + error.high), (2 * k + 1, 1 + error.low)):
            factors[end] = factor
            scaled[end] = _with_steps(built.scenario, factor)
            for search in goodput.searches:
                start = search.bracket.low or goodput.rate
                key = end, search.seed
                trials[key] = []
                first = settable(start / factor, start)
                searches[key] = once_each(near(first, _NEAR, _ENDS), trials[key])

    def run(asked: Sequence[tuple[SearchKey, Asked]]) -> list[Trial | None]:
        tasks = []
        for (end, seed), (rate, _) in asked:
            target, key = found[end // 2].target, (end // 2, ("slow", "fast")[end % 2], seed, rate)
            pause = options.pause([target])
            tasks.append(options.trial(key, scaled[end], seed, rate, target, pause=pause))
        rows = driver.run(tasks, keep_errors=True)
        return [None if row.failure else Trial.of(row.result) for row in rows]

    brackets, _ = drive(searches, run, trials)
    told = list(found)
    for k in {end // 2 for end in scaled}:
        several = found[k].searches
        if any((end, each.seed) not in brackets for end in (2 * k, 2 * k + 1) for each in several):
            continue
        slow, fast = (
            [
                _end_of(
                    SeedGoodput.of(each.seed, brackets[end, each.seed], trials[end, each.seed]),
                    each.bracket.low or 0.0,
                    is_slower=factors[end] > 1,
                )
                for each in several
            ]
            for end in (2 * k, 2 * k + 1)
        )
        lows = [low for low, _ in slow]
        low, high = fmean(lows) if all(lows) else 0.0, fmean(high for _, high in fast)
        if low > 0 or high < inf:
            told[k] = replace(found[k], step_ends=(low, high))
    return told


def _end_of(found: SeedGoodput, rate: float, *, is_slower: bool) -> tuple[float, float]:
    """Return the bracket of a goodput with other step times; 0 and infinity: not known.

    rate: the goodput with the times as they are. Slower steps serve no more, and faster ones no
    less: where undecided short runs seem to tell otherwise, what is sure counts.
    """
    low, high = found.bracket.low or 0.0, found.bracket.high or inf
    if is_slower:
        return (low if low <= rate else min(found.sure, rate)), high
    return low, (high if high >= rate else max(found.surely_missed, rate))


def _with_steps(scenario: Scenario, factor: float) -> Built:
    """Return a scenario whose engines take so many times as long for a step."""
    changes = {
        f"clients.{number}.step_time_scale": factor
        for number, part in enumerate(scenario.clients)
        if hasattr(part, "step_time_scale")
    }
    return Built(Scenario.from_dict(as_data(scenario), changes))


def with_binding(built: Built, found: Goodput, driver: Driver) -> Goodput:
    """Return a goodput with what binds it, if there is a goodput."""
    if found.status != "found":
        return found
    return replace(found, binding=search_binding(built, found, driver))


def _with_spending(
    builts: Sequence[Built], found: Sequence[Goodput], driver: Driver
) -> list[Goodput]:
    """Return goodputs with the spending of a run there, where their scenarios ask for it."""
    tasks = [
        at_goodput((k, "at goodput"), built, each)
        for k, (built, each) in enumerate(zip(builts, found, strict=True))
        if built.asks_for_spending and each.status == "found"
    ]
    told = {row.key[0]: row.value for row in driver.run(tasks)}
    return [replace(each, spending=told.get(k, {})) for k, each in enumerate(found)]


def search_goodputs(
    builts: Sequence[Built],
    options: GoodputOptions,
    driver: Driver,
    *,
    keep_errors: bool = False,
    race: bool = False,
    tried: dict[SearchKey, list[Trial]] | None = None,
    takes_users: bool = False,
) -> list[Goodput | Failure]:
    """Return the goodput of each scenario, searched side by side in a study.

    keep_errors: if a run fails, that scenario has its failure in place of a goodput, and the others
        continue; by default the error is raised. race: designs that surely serve less than another
        are searched only as finely as needed (`Race`). tried: takes the trials of each scenario,
        by position and seed, as they finish. takes_users: whether closed loops are searched, too;
        else they raise ScenarioError.
    """
    if not takes_users:
        for built in builts:
            built.rates  # noqa: B018 - raises for a closed loop
    scenarios = [built.scenario for built in builts]
    targets = [options.target(scenario) for scenario in scenarios]
    all_seeds = [seeds_from(scenario.seed, scenario.replications) for scenario in scenarios]
    failed: dict[int, Failure] = {}

    def run(
        asked: Sequence[tuple[SearchKey, Asked]], pause: int | None = None
    ) -> list[Trial | None]:
        tasks = []
        for (k, seed), (rate, times) in asked:
            key = (k, seed, rate) if times == 1 else (k, seed, rate, times)
            tasks.append(options.trial(key, builts[k], seed, rate, targets[k], times, pause))
        done: dict[Key, Row] = {}
        try:
            rows = driver.run(tasks, keep_errors=keep_errors, rows=done)
        except OutOfTimeError:
            for (search, _), task in zip(asked, tasks, strict=True):
                if task.key in done and not done[task.key].failure:
                    take(trials[search], Trial.of(done[task.key].result))
            raise
        failed.update({int(row.key[0]): row.failure for row in reversed(rows) if row.failure})
        return [None if row.failure else Trial.of(row.result) for row in rows]

    trials = {} if tried is None else tried
    own = {(k, s): builts[k].load.own for k, seeds in enumerate(all_seeds) for s in seeds}
    trials |= {key: [] for key in own}

    def whole(key: SearchKey) -> SureSearch:
        may_lengthen = options.most_requests is None
        return until_sure(
            options.search(own[key]),
            trials[key],
            options.tolerance,
            may_lengthen=may_lengthen,
            sees_queues=targets[key[0]].sees_queues,
        )

    out: set[SearchKey] = set()
    if race:
        coarse = {key: options.search(rate, COARSE) for key, rate in own.items()}
        raced = Race(run, trials, options.tolerance, options.pause(targets))
        raced.go(coarse, whole)
        brackets, out = raced.brackets, raced.out
    else:
        brackets, _ = drive({key: whole(key) for key in own}, run, trials)
    found = {key: SeedGoodput.of(key[1], each, trials[key]) for key, each in brackets.items()}
    lone = [
        lone_run((k, "alone"), builts[k], targets[k], as_is=options.as_is)
        for k, seeds in enumerate(all_seeds)
        if k not in failed and any(found[k, seed].bracket.low is None for seed in seeds)
    ]
    rows = driver.run(lone, keep_errors=True)
    alone = {int(row.key[0]): LoneRequests.of(row.result) for row in rows if not row.failure}
    return [
        failed.get(k)
        or _goodput_of(
            built,
            targets[k],
            options,
            [found[k, seed] for seed in all_seeds[k]],
            is_coarse=any((k, seed) in out for seed in all_seeds[k]),
            lone_requests=alone.get(k),
        )
        for k, built in enumerate(builts)
    ]


def _goodput_of(
    built: Built,
    target: Target,
    options: GoodputOptions,
    searches: Sequence[SeedGoodput],
    **more: Any,
) -> Goodput:
    return Goodput(
        searches=tuple(searches),
        target=target,
        tolerance=options.tolerance,
        num_requests=built.load.num_requests,
        num_gpus=built.num_gpus,
        scenario=built.scenario.resolved(),
        title=built.scenario.headline,
        expected_errors=built.expected_errors,
        assumed_host=built.assumed_host,
        rent=built.rent,
        known_warnings=built.warnings,
        settings=_settings(built, searches),
        longer=_longer(built.scenario, options),
        **more,
    )


def goodputs_so_far(
    builts: Sequence[Built],
    options: GoodputOptions,
    tried: Mapping[SearchKey, Sequence[Trial]],
) -> list[Goodput | None]:
    """Return what a stopped search knows of each scenario; None before its first run.

    tried: as in `search_goodputs`.
    """
    found: list[Goodput | None] = []
    for k, built in enumerate(builts):
        known = {seed: trials for (number, seed), trials in tried.items() if number == k and trials}
        searches = [SeedGoodput.seeming(each, seed) for seed, each in known.items()]
        target = options.target(built.scenario)
        found.append(
            _goodput_of(built, target, options, searches, is_stopped=True) if known else None
        )
    return found


def so_far(tried: Mapping[SearchKey, Sequence[Trial]], names: Sequence[str]) -> str:
    """Return the brackets that are known of a stopped search; empty before the first run.

    names: of the scenarios; "" for a single one. Of several, those with the largest rates.
    """
    found = []
    for k, name in enumerate(names):
        of_seeds = [trials for (number, _), trials in tried.items() if number == k and trials]
        if of_seeds:
            several = [trial for trials in of_seeds for trial in trials]
            bracket, number = seeming(several), len({trial.rate for trial in several})
            low, high = bracket.low, bracket.high
            least = "none attained yet" if low is None else f"attained up to {load_in_words(low)}"
            most = "none missed yet" if high is None else f"missed at {load_in_words(high)}"
            told_of = f"{name}: " if name else ""
            what = "number of users" if isinstance(several[0].rate, int) else "rate"
            words = f"{told_of}{in_words(number, what)} tried, {least}, {most}"
            found.append((low or 0.0, words))
    found.sort(key=lambda each: -each[0])
    return "; ".join(words for _, words in found[:_TOLD])


def _longer(scenario: Scenario, options: GoodputOptions) -> str:
    """Return how a workload that is judged as it stands would be longer."""
    if scenario.workload.trace is not None:
        return " A longer trace tells: mist trace synth makes one like it."
    lasts = options.as_is and scenario.lifecycle is None
    return " Without --as-is runs are as long as it takes to know." if lasts else ""


def _settings(built: Built, searches: Sequence[SeedGoodput]) -> dict[str, Any]:
    """Return the scenario settings for the rate that one search found."""
    low = searches[0].bracket.low
    is_one = [search.status for search in searches] == ["found"]
    return built.load.at(low) if is_one and low is not None else {}
