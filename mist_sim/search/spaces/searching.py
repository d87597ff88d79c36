"""Searches a space: facts that need no run first, then the runs that a method proposes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Annotated, Literal, Unpack

from mist_sim.bounds import COPIES
from mist_sim.checks import Range, check_fields
from mist_sim.errors import ScenarioError
from mist_sim.metrics.keeping import LimitOnShare
from mist_sim.metrics.tables import UnansweredError
from mist_sim.scenario.loading import as_data
from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.spaces.evaluation import Evaluation, prepare, race
from mist_sim.search.spaces.objectives import Objective
from mist_sim.search.spaces.space import Configuration, Space
from mist_sim.search.spaces.space_result import SpaceSearch, front
from mist_sim.studies.decided_question import named_files
from mist_sim.studies.driver import How, studying

Method = Literal["exhaustive", "tpe", "nsga2"]
_SIDE_BY_SIDE = 8
_TOLD = 3  # configurations that a stopped search names
_FIRST = 2  # configurations with searched goodput before the race begins


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of the search of a space.

    method: "exhaustive" tries all configurations; "tpe" and "nsga2" learn which to try, and take
        Optuna. trials: how many configurations those two run; None: a fifth of the space.
    thorough: search the goodput of every configuration, also of those that one run shows to be
        behind. side_by_side: configurations that run against the same best; the result depends on
        it, and on nothing that computes them. tolerance, most_requests, as_is: of goodputs, as in
        `GoodputOptions`.

    Raises ScenarioError for values that make no search.
    """

    method: Method = "exhaustive"
    trials: Annotated[int, Range(f"[1, {COPIES}]")] | None = None
    thorough: bool = False
    side_by_side: Annotated[int, Range(f"[1, {COPIES}]")] = _SIDE_BY_SIDE
    tolerance: float = 0.02
    most_requests: int | None = None
    as_is: bool = False

    def __post_init__(self) -> None:
        check_fields(self, ScenarioError)
        if self.trials is not None and self.method == "exhaustive":
            raise ScenarioError("trials has no effect with method exhaustive, which tries all")
        self.goodput(None)

    def goodput(
        self, attainment: float | None, percentiles: tuple[LimitOnShare, ...] = ()
    ) -> GoodputOptions:
        """Return how rates are judged. Raises ScenarioError for values that make no search."""
        return GoodputOptions(
            attainment=attainment,
            percentiles=percentiles,
            tolerance=self.tolerance,
            most_requests=self.most_requests,
            as_is=self.as_is,
        )


def search_space(
    space: Space,
    options: SearchOptions | None = None,
    **how: Unpack[How],
) -> SpaceSearch:
    """Return the outcome of every configuration of a space, and the best ones.

    how: see `How`.

    A configuration that fails is a row with its error. Raises UnansweredError, which has all rows,
    where none keeps the constraints, with what excludes most, where all fail, and where no goodput
    is known; ScenarioError for the journal of another search, and a method whose package is not
    installed.
    """
    options = options or SearchOptions()
    if space.scenario.replications > 1:
        raise ScenarioError(
            f"replications must be 1 to search a space, got {space.scenario.replications}; compare "
            "the best ones with mist compare --goodput --replications"
        )
    prepared = space.configurations()
    known = [as_data(each.found) for each in prepared if each.found is not None]
    constraints = space.constraints
    identity = {
        "vary": space.vary,
        "cases": space.cases,
        "designs": space.designs,
        **vars(constraints),
        "objectives": [each.name for each in space.objectives],
        **vars(options),
        "files": named_files(known),
    }
    with studying("search", {"scenario": as_data(space.scenario)}, identity, **how) as driver:
        goodput = options.goodput(constraints.attainment, constraints.at_goodput)
        asked = space.objectives, constraints
        evaluation = Evaluation(*asked, goodput, driver, not options.thorough)
        prepare(prepared, *asked, goodput, judged=evaluation.judges)
        driver.so_far = lambda: _so_far(prepared, space, evaluation)
        _run(prepared, space, evaluation, options)
    problem = _problem(prepared)
    for each in front([e for e in evaluation.told if e.status == "kept"], space.objectives):
        each.status = "front"
    found = SpaceSearch.of(space, vars(options), prepared, evaluation.told, problem)
    if problem:
        raise UnansweredError(problem, found.warnings, found)
    return found


def _run(
    prepared: Sequence[Configuration], space: Space, evaluation: Evaluation, options: SearchOptions
) -> None:
    left = [each for each in prepared if not evaluation.note(each)]
    left.sort(key=lambda each: _promise(each, space.objectives))
    if options.method == "exhaustive":
        if not evaluation.races:  # no task waits for another
            evaluation.run(left)
            return
        race(evaluation, left, _FIRST, options.side_by_side)
        return
    from mist_sim.search.spaces.learning import sample

    most = options.trials or max(-(-len(left) // 5), 1)
    sample(options.method, left, evaluation, most, options.side_by_side, space.scenario.seed)


def _promise(prepared: Configuration, objectives: Iterable[Objective]) -> tuple[float, ...]:
    """Return the order of configurations: those first that may be best by known figures."""
    found = []
    for each in objectives:
        if each.source == "rate":
            found.append(-prepared.bound / each.scale(prepared.known))
        elif each.source == "known":
            found.append(prepared.known[each.name])
    return (*[inf if isnan(value) else value for value in found], prepared.number)


def _so_far(prepared: Sequence[Configuration], space: Space, evaluation: Evaluation) -> str:
    """Return the front of the configurations that are known; empty if none is."""
    known = [
        each for each in evaluation.told if each.status != "not tried" or each.summary is not None
    ]
    now = f"; under way: {now}" if (now := evaluation.under_way) else ""
    if not known:
        return f"0 of {len(prepared)} configurations known{now}" if now else ""
    seen = [each for each in known if each.is_fit or each.status == "not tried"]
    best = [
        ", ".join([each.name, *(f"{o.title} {each.figures[o.name]:.4g}" for o in space.objectives)])
        for each in front(seen, space.objectives)
    ]
    told = f"{len(known)} of {len(prepared)} configurations known; "
    if not best:
        return f"{told}none keeps the constraints so far{now}"
    more = f"; and {len(best) - _TOLD} more" if len(best) > _TOLD else ""
    return f"{told}the best so far: {'; '.join(best[:_TOLD])}{more}{now}"


def _problem(prepared: Sequence[Configuration]) -> str:
    """Return why no configuration is the best; empty if one is."""
    known = [each for each in prepared if each.status != "not tried"]
    if any(each.status == "kept" for each in known):
        return ""
    failed = [each for each in known if each.failure is not None]
    if known and len(failed) == len(prepared):
        first = prepared[0]
        return f"all {len(prepared)} configurations failed; {first.name}: {known[0].failure}"
    unknown = [each for each in known if each.status == "undecided"]
    if unknown:
        most = max(each.guess for each in unknown)
        return (
            f"no goodput is known: of {len(prepared)} configurations, {len(unknown)} attain all "
            f"rates that were tried, up to {most:.4g} /s; send more requests, or set tighter limits"
        )
    reasons: Counter[str] = Counter(name for each in known for name in each.broken)
    told = [f"{name} excludes {count}" for name, count in reasons.most_common()]
    if failed:
        told.append(f"{len(failed)} cannot be, such as: {failed[0].reason}")
    if len(known) < len(prepared):
        told.append(f"{len(prepared) - len(known)} were not tried")
    return (
        f"no configuration keeps the constraints: of {len(prepared)}, {', '.join(told)}; "
        "relax the first of these, or try other values"
    )
