"""The best position of TaiChi's sliders for each design, by the race of `spaces.evaluation`.

It finds the result of searching every position, within the tolerance, wherever attainment falls
with the rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import nan
from typing import Any, Unpack

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_points
from mist_sim.core.sliders import DESIGNS, Design, Sliders, all_sliders
from mist_sim.errors import ScenarioError, in_words
from mist_sim.report.presenters import SLIDERS
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.loading import as_data
from mist_sim.search.designs import Slidable
from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.ranking import Ranked, sentence
from mist_sim.search.spaces.evaluation import Evaluation, race
from mist_sim.search.spaces.objectives import constraints_of, objectives_of
from mist_sim.search.spaces.space import Configuration
from mist_sim.studies.driver import How, studying
from mist_sim.studies.subjects import check_scenarios
from mist_sim.studies.tabled import Tabled
from mist_sim.studies.task import Failure

CHUNKS = (128, 256, 512, 1024, 2048)
"""Chunks to try: those of TaiChi's Figures 5 and 15, and twice the largest."""

_TOLD = 3  # positions that a stopped search names
_SIDE_BY_SIDE = 4  # positions tried against the same best; a number of its own, so that the result
# does not depend on how many processes there are
_OBJECTIVES = objectives_of("goodput")
_NO_CONSTRAINTS = constraints_of({})


@dataclass(frozen=True, repr=False)
class SliderSearch(Tabled):
    """The race: every position, in the order in which they were tried.

    entries: each has its `Sliders` among its values.
    """

    presenter = SLIDERS
    stem = "sliders"

    entries: tuple[Configuration, ...]
    title: str

    @property
    def best(self) -> dict[Design, Configuration]:
        """The best position of each design; absent if none attains a rate."""
        found: dict[Design, Configuration] = {}
        for design in DESIGNS:
            mine = [e for e in self.entries if _sliders(e).design == design and e.lowest > 0]
            if mine:
                found[design] = max(mine, key=lambda entry: (entry.is_open, entry.lowest))
        return found

    @property
    def verdict(self) -> str:
        """The design that serves most, by how much and how certain; or that none attains a rate.

        With one design alone: empty.
        """
        if len({_sliders(entry).design for entry in self.entries}) < 2:
            return ""
        several = self.best.values() or self.entries
        return sentence([Ranked(each.name).by_rate(each.goodput) for each in several])

    @property
    def num_runs(self) -> int:
        """Number of runs, including those ended early."""
        return sum(entry.num_runs for entry in self.entries)

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row a position: its design, sliders, goodput, and the rate that it missed at once.

        attained: the highest rate tried, if all of them are attained.
        error: why it failed; the column is there where one did.
        """
        has_errors = bool(self._failures)
        for entry in self.entries:
            yield {
                "design": _sliders(entry).design,
                **asdict(_sliders(entry)),
                "goodput": entry.rate,
                "missed_at": entry.missed_at,
                "attained": entry.lowest if entry.is_open else nan,
                "num_runs": entry.num_runs,
                **({"error": str(self._failures.get(entry, ""))} if has_errors else {}),
            }

    @property
    def _failures(self) -> dict[Configuration, Failure]:
        """Why positions without a goodput failed."""
        return {e: e.failure for e in self.entries if e.failure and e.goodput is None}

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of the searches of positions, and the positions that failed."""
        failed: dict[str, Sequence[ResultWarning]] = {
            _sliders(each).name: [ResultWarning(kinds.FAILED_RUNS, f"failed: {failure}")]
            for each, failure in self._failures.items()
        }
        searched: dict[str, Sequence[ResultWarning]] = {
            _sliders(each).name: each.goodput.warnings for each in self.entries if each.goodput
        }
        return of_points(failed | searched)

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data; rates in requests per second."""
        return {
            "best": {
                design: {
                    "name": _sliders(entry).name,
                    "goodput": entry.rate,
                    "attained": entry.lowest if entry.is_open else nan,
                    "missed_at": nan,
                    "sliders": asdict(_sliders(entry)),
                    "search": entry.goodput.summary if entry.goodput else None,
                }
                for design, entry in self.best.items()
            },
            "verdict": self.verdict,
            "num_runs": self.num_runs,
            "positions": self.table.to_dict("records"),
        }

    def __repr__(self) -> str:
        return f"<SliderSearch: {len(self.entries)} positions, {self.num_runs} runs>"

    @property
    def files(self) -> dict[str, str]:
        """The best scenario of each design."""
        return {f"{d}.yaml": e.goodput.scenario for d, e in self.best.items() if e.goodput}


def _sliders(entry: Configuration) -> Sliders:
    found: Sliders = entry.values["sliders"]
    return found


def search_sliders(
    scenario: Scenario,
    options: GoodputOptions | None = None,
    *,
    chunks: Sequence[int] = CHUNKS,
    watermarks: Sequence[float | None] = (None,),
    designs: Sequence[Design] = DESIGNS,
    **how: Unpack[How],
) -> SliderSearch:
    """Return the best sliders of each design for a workload and its limits.

    scenario: a hybrid (see `Slidable`), whose own rate is the first to be tried. chunks: tokens.
    watermarks: parts of a D-heavy client's blocks above which answers leave it (> 0, <= 1), each
    tried with every hybrid; None: as it is. how: see `How`.
    A position that fails is left out; the search goes on. Raises ScenarioError for scenarios
    without sliders, several replications, the journal of another study, and what `find_goodput`
    raises where it does for all positions.
    """
    check_scenarios([scenario])
    if scenario.replications > 1:
        raise ScenarioError(
            f"replications must be 1 to search sliders, got {scenario.replications}; "
            "`mist goodput --replications` gives the interval of the best ones"
        )
    slidable, options = Slidable(scenario), options or GoodputOptions()
    positions = list(all_sliders(slidable.num_clients, chunks, watermarks))
    told: list[Configuration] = []
    with studying(
        "sliders",
        {"scenario": as_data(scenario)},
        {**vars(options), "chunks": chunks, "watermarks": watermarks, "designs": designs},
        **how,
    ) as driver:
        for design in designs:
            evaluation = Evaluation(_OBJECTIVES, _NO_CONSTRAINTS, options, driver, told=told)
            driver.so_far = partial(_so_far, evaluation)
            mine = [_at(slidable, each) for each in positions if each.design == design]
            race(evaluation, mine, 1, _SIDE_BY_SIDE)
    failures = [each.failure for each in told if each.failure and each.goodput is None]
    if failures and len(failures) == len(told):
        raise failures[0].exception
    return SliderSearch(tuple(told), scenario.headline)


def _at(slidable: Slidable, sliders: Sliders) -> Configuration:
    """Return a position, which may prove impossible."""
    found = Configuration(0, f"{sliders.design} ({sliders.name})", {"sliders": sliders})
    try:
        scenario = slidable.at(sliders)
        build(scenario)
        found.found = scenario
    except ScenarioError as error:
        found.failure = Failure.of(error)
    return found


def _so_far(evaluation: Evaluation) -> str:
    """Return the best positions that are known of a stopped search; empty before the first run."""
    told, now = evaluation.told, evaluation.under_way
    known = [each for each in told if each.is_fit]
    best = sorted(known, key=lambda each: -each.figures["goodput"])[:_TOLD]
    words = [f"{each.name} {each.figures['goodput']:.4g} /s" for each in best]
    ended = sum(each.status != "not tried" for each in told)
    parts = [f"{in_words(ended, 'position')} known; the best so far: {'; '.join(words)}"]
    return "; under way: ".join([*parts[: len(words)], *([now] if now else [])])
