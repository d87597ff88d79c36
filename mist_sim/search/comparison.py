"""Several scenarios on one workload, side by side: goodput, attainment, latencies, spending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Unpack

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_points
from mist_sim.errors import ScenarioError, brief, did_you_mean, in_words, listed
from mist_sim.metrics.replications import estimate
from mist_sim.metrics.tables import Findings
from mist_sim.report.elements import headline_line
from mist_sim.report.presenters import COMPARISON
from mist_sim.rng import Streams
from mist_sim.scenario import Scenario
from mist_sim.search.at_goodput import at_goodput
from mist_sim.search.compared_case import (
    AT_GOODPUT,
    COST,
    COST_AT_GOODPUT,
    FIGURES,
    Case,
    break_even,
    form_of,
)
from mist_sim.search.goodput import (
    GoodputOptions,
    goodputs_so_far,
    search_goodputs,
    so_far,
    with_binding,
    with_step_ends,
)
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.ranking import Better, Ranked, rivals, sentence, starred
from mist_sim.search.side_by_side import run_side_by_side
from mist_sim.search.slo_plane import PlaneOptions, SloPlane, run_plane
from mist_sim.search.splitting import Split, losers, split_of
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver, How, studying
from mist_sim.studies.subjects import check_scenarios, tasks_of
from mist_sim.studies.tabled import Content, Tabled
from mist_sim.studies.task import Failure, Key, Row
from mist_sim.studies.verdicts.request_times import NO_LIMIT, target_of
from mist_sim.studies.verdicts.trials import Trial

if TYPE_CHECKING:
    import pandas as pd

_TITLED = 4  # cases that the title describes


@dataclass(frozen=True, repr=False)
class Comparison(Tabled):
    """Scenarios on one workload. plane: the winner under each pair of limits, if requested.

    left_out: designs that are impossible, with the reason. assumed: assumptions about the
        scenarios.
    uneven: kinds of designs whose step times have another origin. differ: where they serve other
    requests or limits; "" if nowhere. explains: whether the losers are explained (`losers`).
    is_stopped: the comparison was stopped, and has what the runs until then tell.
    """

    presenter = COMPARISON
    stem = "comparison"

    cases: tuple[Case, ...]
    plane: SloPlane | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    uneven: tuple[str, ...] = ()
    differ: str = ""
    explains: bool = False
    is_stopped: bool = False

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row a scenario: its name, and a column a figure."""
        return ({"scenario": case.name, **case.figures} for case in self.cases)

    @property
    def table(self) -> pd.DataFrame:
        """A row a scenario, a column a figure."""
        return super().table.set_index("scenario")

    def differences(self, figure: str, base: str | None = None) -> pd.DataFrame:
        """Return how much each scenario differs from one of them, by runs with the same seed.

        figure: a column of `table` of a run at the scenario's own rate. base: a name; None: the
            first.
        A row a scenario: `difference` (its figure minus the base's), and `low` and `high` of the
        95 % interval over the seeds, NaN for fewer than two.
        Raises ScenarioError for an unknown name or figure.
        """
        import pandas as pd

        known = {
            ranked.name: [run.get(figure, nan) for run in ranked.by_seed] for ranked in self._ranked
        }
        base = base if base is not None else next(iter(known))
        for what, name, names in (("base", base, [*known]), ("figure", figure, [*self.table])):
            if name not in names:
                raise ScenarioError(
                    f"{what} must be one of {', '.join(names)}, got {brief(name)}"
                    f"{did_you_mean(name, names)}"
                )
        rows = []
        for mine in known.values():
            found = estimate([one - two for one, two in zip(mine, known[base], strict=False)])
            rows.append({"difference": found.mean, "low": found.low, "high": found.high})
        return pd.DataFrame(rows, index=pd.Index([*known], name="scenario"))

    @property
    def best(self) -> dict[str, list[str]]:
        """The scenarios with the best value of each figure, among those that keep their limits.

        None if all are equal, for goodput if the best is not certain, and where they serve other
        requests.
        """
        ranked = [] if self.differ else self._ranked
        limits = self.cases[0].limits if self.cases else ()
        asked: dict[str, Better | None] = {**dict.fromkeys(limits, "less"), **FIGURES}
        return {name: starred(name, better, ranked) for name, better in asked.items() if better}

    @property
    def verdict(self) -> str:
        """The winner, by how much and how certain, and what binds it if requested.

        Empty if no comparison was requested.
        """
        is_open = all(case.goodput is None or case.goodput.is_stopped for case in self.cases)
        told = [sentence(self._ranked, is_stopped=self.is_stopped and is_open)]
        if self.differ:
            told = [f"None is best, since their workloads or limits differ: {self.differ}."]
        small = {case.name: [each.kind for each in case.warnings] for case in self.cases}
        if names := [name for name, of_case in small.items() if kinds.TOO_SMALL in of_case]:
            told.append(f"Too little GPU memory (see above): {listed(names)}.")
        bound = [case for case in self.cases if case.binding]
        if bound:
            best = max(bound, key=lambda case: case.figures["goodput"])
            told.append(f"{best.name}: {best.binding.sentence}" if best.binding else "")
        if self.uneven and told[0]:
            told.append(f"Not on the same footing (see the warnings): {' and '.join(self.uneven)}.")
        return " ".join(told)

    @property
    def split(self) -> Split | None:
        """Whether to compute prompts and answers apart; None unless both are compared.

        None, too, where they serve other requests, and if the comparison was stopped.
        """
        return None if self.differ or self.is_stopped else split_of(self.cases, self.plane)

    @property
    def losers(self) -> dict[str, str]:
        """Why each scenario that loses does, a line by name; empty unless requested."""
        if not self.explains or self.differ:
            return {}
        ranked = [each for each in self._ranked if each.interval is not None]
        known = [each for each in ranked if not isnan(each.figures["goodput"])]
        best = max(known, key=lambda each: each.figures["goodput"], default=None)
        near = [best, *rivals(best, "goodput", ranked)] if best is not None else []
        return losers(self.cases, [*self.best["goodput"], *(each.name for each in near)])

    @property
    def break_even(self) -> list[str]:
        """The price at which other GPUs cost as much a token as those of the cheapest, in words.

        Of scenarios that keep their limits: at their goodput where that is known of all.
        """
        kept = [case for case in self.cases if case.ranked.keeps is not False and not self.differ]
        at_goodput = [case.priced(COST_AT_GOODPUT) for case in kept]
        if not any(isnan(each.cost) for each in at_goodput):
            return break_even(at_goodput, "each at its goodput")
        return break_even([case.priced(COST) for case in kept], "both at this rate")

    @property
    def _ranked(self) -> list[Ranked]:
        return [case.ranked for case in self.cases]

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of the scenarios, and what designs without a setting assume."""
        found = [
            ResultWarning(kinds.UNEVEN if name in self.uneven else kinds.DESIGN, text, of=(name,))
            for name, text in self.assumed.items()
        ]
        found += self.plane.warnings if self.plane else ()
        return (*of_points({case.name: case.warnings for case in self.cases}), *found)

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data."""
        cases = self.cases
        limits = cases[0].limits if cases else ()
        judged = {} if self.differ else {case.name: it for case in cases if (it := case.judged)}
        hosts = {case.name: it for case in cases if (it := case.of_first("assumed_host"))}
        beside = {case.name: case.beside._asdict() for case in cases if case.beside}
        return {
            "title": self.title,
            "scenarios": {case.name: case.figures for case in self.cases},
            "limits": list(limits),
            **({"judged": judged} if judged else {}),
            "best": self.best,
            **({"is_stopped": True} if self.is_stopped else {}),
            "verdict": self.verdict,
            "goodput": {case.name: case.goodput.summary for case in self.cases if case.goodput},
            "expected_errors": {case.name: case.of_first("expected_errors") for case in cases},
            "failed": [case.name for case in self.cases if case.failure],
            **({"assumed_host": hosts} if hosts else {}),
            **({"beside": beside} if beside else {}),
            **({"left_out": dict(self.left_out)} if self.left_out else {}),
            **({"assumed": dict(self.assumed)} if self.assumed else {}),
            **({"uneven": list(self.uneven)} if self.uneven else {}),
            **({"split": split.data} if (split := self.split) else {}),
            **({"losers": lines} if (lines := self.losers) else {}),
            **({"break_even": found} if (found := self.break_even) else {}),
            **({"slo_plane": self.plane.summary} if self.plane else {}),
        }

    @property
    def title(self) -> str:  # type: ignore[override]
        """What is compared, of the first cases."""
        shown = [f"{case.name}: {headline_line(case.title)}" for case in self.cases[:_TITLED]]
        left = len(self.cases) - len(shown)
        return "; ".join([*shown, *([f"and {left} more"] if left else [])])

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(case.name for case in self.cases)}>"

    @property
    def files(self) -> Mapping[str, Content]:
        """Those of the plane."""
        return self.plane.files if self.plane is not None else {}


_ASKED = (  # of each request
    "arrival_time",
    "num_prompt_tokens",
    "num_output_tokens",
    "stages",
    "session_id",
    "priority",
    "content",
    "limits",
)


def workloads_differ(scenarios: Mapping[str, Built]) -> str:
    """Return where scenarios have other requests, or send them in another way; "" if none does.

    scenarios: by name, for the message; one or more. The limits of the slo and the warm-up count,
    too.
    """
    (first, one), *others = scenarios.items()
    for name, other in others:
        for difference in _differences(one, other):
            return f"{difference} in {first} and {name}"
    return ""


def _differences(first: Built, second: Built) -> Iterator[str]:
    """Yield the differences of two scenarios, with both values, up to the first other request."""
    one, other = first.scenario, second.scenario
    mine, yours = first.simulation, second.simulation
    for limit in fields(mine.slo):
        yield from _unlike(f"slo.{limit.name}", limit.name, mine.slo, yours.slo)
    for name in ("warmup", "replications"):
        yield from _unlike(name, name, one, other)
    for name in ("closed_loop", "retries", "max_concurrency"):
        yield from _unlike(name, name, mine.workload, yours.workload)
    all_mine = mine.workload.requests(Streams(one.seed))
    all_yours = yours.workload.requests(Streams(other.seed))
    for number, (request, its_like) in enumerate(zip_longest(all_mine, all_yours)):
        if request is None or its_like is None:
            ends = (f"{number}", "more") if request is None else ("more", f"{number}")
            yield f"the number of requests is {' and '.join(ends)}"
            return
        for name in _ASKED:
            yield from _unlike(f"{name} of request {request.request_id}", name, request, its_like)


def _unlike(where: str, name: str, one: object, other: object) -> Iterator[str]:
    """Yield where an attribute is unlike, if it is."""
    mine, yours = getattr(one, name), getattr(other, name)
    if mine != yours:
        yield f"{where} is {brief(mine)} and {brief(yours)}"


def _check_limits(builts: Iterable[Built], *, searches: bool, why: bool) -> None:
    """Raise ScenarioError where nothing says which requests are good, before anything runs."""
    asks = [built.scenario.slo.make().is_set for built in builts]
    if searches and asks and not any(asks):
        raise ScenarioError(NO_LIMIT)
    if why and not searches and not any(asks):
        raise ScenarioError(
            "why must be False without limits and without a search for the goodput; set slo, or "
            "give goodput"
        )


def compare(
    scenarios: Mapping[str, Scenario | ScenarioError],
    *,
    goodput: GoodputOptions | None = None,
    why: bool = False,
    race: bool = False,
    plane: PlaneOptions | None = None,
    same_workload: bool = True,
    left_out: Mapping[str, str] | None = None,
    assumed: Mapping[str, str] | None = None,
    uneven: Sequence[str] = (),
    **how: Unpack[How],
) -> Comparison:
    """Run scenarios and compare them.

    scenarios: by name, two or more. A scenario that fails to build or run has no figures, and a
        warning gives the reason; an error in the place of a scenario is such a reason. goodput:
        search the goodput of each, too; those whose intervals do not tell run beside the best one
        with the same requests (`side_by_side`). why: find what binds the winner, in a dozen more
        runs, and what binds the best of those apart, or together, if these lose; and explain each
        loser. race: search designs that surely serve less than another only as finely as needed.
        plane: compare goodput under many limits, too.
    same_workload: refuse scenarios whose requests, limits or warm-up differ.
    left_out, assumed, uneven: what is told beside the table (`Designs`). how: see `How`.
    Raises ScenarioError for fewer than two, different workloads, `why` without `goodput`, the
    journal of another study, and what `simulate` raises where it does for all.
    """
    if len(scenarios) < 2:
        raise ScenarioError(f"scenarios must be two or more to compare, got {len(scenarios)}")
    errors = {name: it for name, it in scenarios.items() if isinstance(it, ScenarioError)}
    given = {name: it for name, it in scenarios.items() if name not in errors}
    check_scenarios(given.values())
    builts = {name: Built(it) for name, it in given.items() if isinstance(it, Scenario)}
    _check_limits(builts.values(), searches=goodput is not None, why=why)
    going = _Going(builts, next((o.attainment for o in (goodput, plane) if o), None))
    working = going.working
    differ = workloads_differ(working) if working else ""
    if same_workload and differ:
        raise ScenarioError(
            f"scenarios must have the same workload, slo and warmup; {differ}. Give all the same "
            "workload and seed; --any-workload compares them as they are"
        )
    if goodput is not None:
        for built in working.values():
            goodput.target(built.scenario)  # where runs are too short, nothing runs
    subjects: dict[str, Any] = {name: built.data for name, built in builts.items()}
    subjects |= {name: str(error) for name, error in errors.items()}
    options: dict[str, Any] = {"goodput": goodput, "plane": plane}
    options |= {"race": True} if race else {}  # why only adds runs

    def known(found: SloPlane | None = None, *, is_stopped: bool = False) -> Comparison:
        shown = going.shown | {name: Case.failed(name, errors[name]) for name in errors}
        ordered = tuple(shown[name] for name in scenarios if name in shown)
        told = left_out or {}, assumed or {}, tuple(uneven), differ
        return Comparison(ordered, found, *told, explains=why, is_stopped=is_stopped)

    with studying("compare", subjects, options, **how) as driver:
        driver.partial = lambda: known(is_stopped=True) if going.shown else None
        going.run_once(driver)
        if goodput is not None:
            going.search(goodput, driver, race=race)
            if same_workload:
                going.run_beside_the_best(goodput, driver)
            going.search_step_ends(goodput, driver)
            if why:
                going.find_what_binds(driver)
            going.run_at_goodput(driver)
        _raise_if_all_failed(scenarios, going)
        if plane is None:
            return known()
        found, failed = run_plane(going.working, plane, driver)
        for name, failure in failed.items():
            going.fail(name, failure)
        _raise_if_all_failed(scenarios, going)
        return known(found)


def _raise_if_all_failed(scenarios: Mapping[str, Scenario | ScenarioError], going: _Going) -> None:
    if going.working:
        return
    name, first = next(iter(scenarios.items()))
    error = first if isinstance(first, ScenarioError) else going.failures[name].exception
    if not isinstance(error, ScenarioError):
        raise error
    raise ScenarioError(f"all {len(scenarios)} scenarios failed; {name}: {error}") from error


class _Going:
    """A comparison that is going on.

    cases: what is known of each scenario, by name; it grows. failures: after which a scenario runs
    no more. attainment: the share of good requests that is asked for; None: as each slo says.
    """

    def __init__(self, builts: Mapping[str, Built], attainment: float | None) -> None:
        self.builts = builts
        self.cases: dict[str, Case] = {}
        self.failures: dict[str, Failure] = {}
        for name, built in builts.items():
            scenario = built.scenario
            slo = scenario.slo.make()
            target = target_of(slo, attainment) if slo.is_set else None
            self.cases[name] = Case(
                name, scenario.headline, None, (), None, target=target, form=form_of(scenario)
            )
            try:
                built.simulation  # noqa: B018 - builds it
            except ScenarioError as error:
                self.fail(name, Failure.of(error))

    @property
    def working(self) -> dict[str, Built]:
        """The scenarios of which no run failed."""
        return {name: each for name, each in self.builts.items() if name not in self.failures}

    @property
    def shown(self) -> dict[str, Case]:
        """Those of which there is something to show, with the figures beside limits of any."""
        has_run = {n: case for n, case in self.cases.items() if case.summaries or case.failure}
        limits = [
            figure
            for case in has_run.values()
            for summary in case.summaries
            for figure in summary.get("slo", ())
        ]
        each = tuple(dict.fromkeys(limits))
        return {name: replace(case, limits=each) for name, case in has_run.items()}

    def note(self, name: str, **found: Any) -> None:
        """Note what was found of a scenario."""
        self.cases[name] = replace(self.cases[name], **found)

    def fail(self, name: str, failure: Failure) -> None:
        """Note that a scenario failed."""
        self.failures[name] = failure
        self.note(name, failure=failure.plain)

    def run_once(self, driver: Driver) -> None:
        """Run each scenario as it stands, once a seed."""
        tasks = {
            name: [replace(task, key=(name, *task.key)) for task in tasks_of(built.scenario)]
            for name, built in self.working.items()
        }
        every = [task for mine in tasks.values() for task in mine]
        rows: dict[Key, Row] = {}
        driver.so_far = lambda: in_words(len(every) - len(rows), "run") + " missing"
        for row in driver.stream(every, keep_errors=True):
            rows[row.key] = row
            name = str(row.key[0])
            mine = [rows[task.key] for task in tasks[name] if task.key in rows]
            if failure := next((each.failure for each in mine if each.failure), None):
                self.fail(name, failure)
                self.note(name, summaries=(), num_gpus=None, gpu_names=frozenset(), gpu_price=nan)
                continue
            built = self.builts[name]
            self.note(
                name,
                summaries=tuple(each.result for each in mine),
                num_gpus=built.num_gpus,
                gpu_names=built.gpu_names,
                gpu_price=built.gpu_price,
            )
        driver.so_far = str

    def search(self, options: GoodputOptions, driver: Driver, *, race: bool) -> None:
        """Search the goodput of each scenario."""
        working, tried = self.working, dict[tuple[int, int], list[Trial]]()
        names, builts = [*working], [*working.values()]
        driver.so_far = lambda: so_far(tried, names)
        without = driver.partial

        def partial() -> Findings | None:
            self._note_goodputs(names, goodputs_so_far(builts, options, tried))
            return without()

        driver.partial = partial
        found = search_goodputs(builts, options, driver, keep_errors=True, race=race, tried=tried)
        driver.partial = without
        self._note_goodputs(names, found)

    def _note_goodputs(
        self, names: Iterable[str], goodputs: Iterable[Goodput | Failure | None]
    ) -> None:
        for name, found in zip(names, goodputs, strict=True):
            if isinstance(found, Failure):
                self.fail(name, found)
            elif found is not None:
                self.note(name, goodput=found, rate=self.builts[name].rates.own)

    @property
    def _goodputs(self) -> dict[str, Goodput]:
        return {n: case.goodput for n, case in self.cases.items() if case.goodput is not None}

    def run_beside_the_best(self, options: GoodputOptions, driver: Driver) -> None:
        """Run the undecided designs and the best one on the same requests."""
        found = [
            Ranked(name).by_rate(each)
            for name, each in self._goodputs.items()
            if each.status == "found" and each.is_steady
        ]
        if not found or any(each.is_open for each in self._goodputs.values()):
            return
        best = max(found, key=lambda each: each.figures["goodput"])
        several = [best, *rivals(best, "goodput", found)]
        if len(several) == 1:
            return
        rates = {each.name: each.figures["goodput"] for each in several}
        builts = {name: self.builts[name] for name in rates}
        for name, beside in run_side_by_side(best.name, rates, builts, options, driver).items():
            self.note(name, beside=beside)

    def search_step_ends(self, options: GoodputOptions, driver: Driver) -> None:
        """Search with other step times those whose lead is told: the best, the next, each form's.

        Not where the lead is open, or nothing is sure in any case.
        """
        ranked = {name: case.ranked for name, case in self.cases.items()}
        judged = {name: each for name, each in ranked.items() if each.interval is not None}
        known = [name for name, each in judged.items() if each.figures["goodput"] > 0]
        known.sort(key=lambda name: -judged[name].figures["goodput"])
        if not known or any(each.is_open or not each.doubts.has_error for each in judged.values()):
            return
        best = judged[known[0]]
        if not best.is_steady or rivals(best, "goodput", [*judged.values()]):
            return
        others = [n for n in known[1:] if not ((b := self.cases[n].beside) and b.is_equal)]
        of_forms = {self.cases[name].form: name for name in reversed(known)}
        asked = [*dict.fromkeys((best.name, *others[:1], *of_forms.values()))]
        found = [self._goodputs[name] for name in asked]
        builts = [self.builts[name] for name in asked]
        self._note_goodputs(asked, with_step_ends(builts, found, options, driver))

    def find_what_binds(self, driver: Driver) -> None:
        """Find what binds the scenario with the largest goodput, if one is known to have it.

        And the best in the other form, so that the answer to whether to split says what turns it.
        """
        known = {name: each for name, each in self._goodputs.items() if not isnan(each.rate)}
        if any(each.is_open for each in self._goodputs.values()):
            return
        forms = set[str]()
        for name, found in sorted(known.items(), key=lambda pair: -pair[1].rate):
            form = self.cases[name].form
            if form not in forms:
                forms |= {form, "between"}
                self.note(name, goodput=with_binding(self.builts[name], found, driver))

    def run_at_goodput(self, driver: Driver) -> None:
        """Run each scenario at its goodput, where dollars or joules are known."""
        tasks = {
            name: at_goodput((name, "at goodput"), self.builts[name], found)
            for name, found in self._goodputs.items()
            if not isnan(found.rate)
            and any(key in summary for summary in self.cases[name].summaries for key in AT_GOODPUT)
        }
        for name, row in driver.finished(tasks).items():
            if row.failure is None:
                self.note(name, at_goodput=row.result)
