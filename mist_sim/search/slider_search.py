"""The best position of TaiChi's sliders, of each design: a race instead of a search for each.

A position is tried once at a rate a little above the best one's goodput. If it misses the target
there, its goodput is lower, and nobody searches it: such a run ends as soon as it has missed. What
attains it is searched from there on, and is the best from then on. While no position attains any
rate, the next ones are tried at the lowest that the first one missed. So the race finds what a
search of every position finds, to within the tolerance, wherever attainment falls with the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.metrics.findings import Findings
from mist_sim.output.texts import json_text, write_text
from mist_sim.scenario import Scenario
from mist_sim.scenario.load import as_data
from mist_sim.scenario.parallel.runs import each_in_parallel
from mist_sim.search.counting import Counted
from mist_sim.search.goodput import GoodputOptions, find_goodputs
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.rates import Rates
from mist_sim.search.sliders import DESIGNS, Design, Slidable, Sliders, all_sliders
from mist_sim.search.trials import Trial, try_rate

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

CHUNKS = (128, 256, 512, 1024, 2048)
"""Chunks to try: those of TaiChi's Figures 5 and 15, and twice the largest."""

_SIDE_BY_SIDE = 4  # positions tried against the same best; a number of its own, so that the result
# does not depend on how many processes there are


@dataclass(frozen=True)
class Entry:
    """What became of a position.

    goodput: of one that was searched. missed_at: the rate (requests per second) that another one
    missed at once. num_runs: of both.
    """

    sliders: Sliders
    goodput: Goodput | None
    missed_at: float = nan
    num_runs: int = 1

    @property
    def rate(self) -> float:
        """The goodput, requests per second; NaN where it was not searched."""
        return self.goodput.rate if self.goodput else nan


@dataclass(frozen=True, repr=False)
class SliderSearch(Findings):
    """The race: every position, in the order in which they were tried."""

    entries: tuple[Entry, ...]
    title: str

    @property
    def best(self) -> dict[Design, Entry]:
        """The best position of each design; none where no goodput was found."""
        found: dict[Design, Entry] = {}
        for design in DESIGNS:
            mine = [e for e in self.entries if e.sliders.design == design and e.rate == e.rate]
            if mine:
                found[design] = max(mine, key=lambda entry: entry.rate)
        return found

    @property
    def num_runs(self) -> int:
        """How many runs were made, those that were ended early included."""
        return sum(entry.num_runs for entry in self.entries)

    @property
    def table(self) -> pd.DataFrame:
        """A row a position: its design, sliders, goodput, and the rate that it missed at once."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "design": entry.sliders.design,
                    "num_p": entry.sliders.num_p,
                    "num_d": entry.sliders.num_d,
                    "s_p": entry.sliders.s_p,
                    "s_d": entry.sliders.s_d,
                    "watermark": entry.sliders.watermark,
                    "goodput": entry.rate,
                    "missed_at": entry.missed_at,
                    "num_runs": entry.num_runs,
                }
                for entry in self.entries
            ]
        )

    @property
    def summary(self) -> dict[str, Any]:
        """Everything as plain data; rates in requests per second."""
        return {
            "best": {
                design: {
                    "name": entry.sliders.name,
                    "goodput": entry.rate,
                    "sliders": asdict(entry.sliders),
                    "search": entry.goodput.summary if entry.goodput else None,
                }
                for design, entry in self.best.items()
            },
            "num_runs": self.num_runs,
            "positions": self.table.to_dict("records"),
        }

    def _shown(self) -> tuple[str, RenderableType]:
        from mist_sim.report.sliders import sliders_table

        return self.title, sliders_table(self.summary)

    def __repr__(self) -> str:
        return f"<SliderSearch: {len(self.entries)} positions, {self.num_runs} runs>"

    def write_files(self, folder: Path) -> None:
        """Write sliders.json, sliders.csv and the best scenario of each design."""
        write_text(folder / "sliders.json", json_text(self.summary))
        write_text(folder / "sliders.csv", self.table.to_csv(index=False, lineterminator="\n"))
        for design, entry in self.best.items():
            if entry.goodput is not None:
                write_text(folder / f"{design}.yaml", entry.goodput.scenario)


def search_sliders(
    scenario: Scenario,
    options: GoodputOptions | None = None,
    *,
    chunks: Sequence[int] = CHUNKS,
    watermarks: Sequence[float | None] = (None,),
    designs: Sequence[Design] = DESIGNS,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> SliderSearch:
    """Return the best sliders of each design for a workload and its limits.

    scenario: a hybrid (see `Slidable`), whose own rate is the first to be tried. chunks: tokens.
    watermarks: parts of a D-heavy client's blocks above which answers leave it (> 0, <= 1), each
    tried with every hybrid; None: as it is.
    jobs: processes at a time, by default one a core; the result does not depend on it.
    progress: called with the runs done.
    Raises ScenarioError for scenarios without sliders, several replications, and what
    `find_goodput` raises.
    """
    if scenario.replications > 1:
        raise ScenarioError(
            f"replications must be 1 to search sliders, got {scenario.replications}; "
            "`mist goodput --replications` gives the interval of the best ones"
        )
    slidable, options = Slidable(scenario), options or GoodputOptions()
    positions = list(all_sliders(slidable.num_clients, chunks, watermarks))
    race = _Race(slidable, options, jobs, Counted(progress))
    entries: list[Entry] = []
    for design in designs:
        entries += race.run([each for each in positions if each.design == design])
    return SliderSearch(tuple(entries), scenario.headline)


class _Race:
    """Positions of one design after the other, against the best so far."""

    def __init__(
        self, slidable: Slidable, options: GoodputOptions, jobs: int | None, count: Counted
    ) -> None:
        self._slidable = slidable
        self._options = options
        self._jobs = jobs
        self._count = count

    def run(self, positions: Sequence[Sliders]) -> list[Entry]:
        """Return what became of each; the first one is searched in any case."""
        if not positions:
            return []
        entries = self._search(positions[:1], None)
        best, lowest = entries[0].rate, _missed_below(entries[0])
        for first in range(1, len(positions), _SIDE_BY_SIDE):
            some = positions[first : first + _SIDE_BY_SIDE]
            rate = _six_digits(best * (1 + self._options.tolerance)) if best == best else lowest
            if rate is not None:
                verdicts = self._try_each(some, rate)
                entries += [
                    Entry(each, None, rate if best == best else nan)
                    for each, trial in zip(some, verdicts, strict=True)
                    if not trial.attained
                ]
                some = [s for s, trial in zip(some, verdicts, strict=True) if trial.attained]
            entries += self._search(some, rate)
            rates = [entry.rate for entry in entries if entry.rate == entry.rate]
            best = max(rates, default=nan)
        return entries

    def _search(self, some: Sequence[Sliders], rate: float | None) -> list[Entry]:
        """Search the goodput of each, from a rate on that it attains; None: from its own."""
        scenarios = [self._at(each, rate) for each in some]
        found = find_goodputs(scenarios, self._options, jobs=self._jobs, progress=self._count.more)
        self._count.done()
        tried = int(rate is not None)
        return [
            Entry(each, goodput, num_runs=goodput.num_runs + tried)
            for each, goodput in zip(some, found, strict=True)
        ]

    def _try_each(self, some: Sequence[Sliders], rate: float) -> list[Trial]:
        arguments = []
        for each in some:
            scenario = self._slidable.at(each)
            rates, target = Rates(scenario), self._options.target(scenario)
            data = as_data(scenario), rates.at(rate), scenario.seed
            arguments.append((*data, rate, target, rates.num_requests))
        found = each_in_parallel(
            try_rate, arguments, what="sliders", jobs=self._jobs, progress=self._count.more
        )
        self._count.done()
        return found

    def _at(self, sliders: Sliders, rate: float | None) -> Scenario:
        scenario = self._slidable.at(sliders)
        if rate is None:
            return scenario
        return Scenario.from_dict(as_data(scenario), Rates(scenario).at(rate))


def _missed_below(entry: Entry) -> float | None:
    """Return the lowest rate tried, requests per second, if it was missed; None: it was not.

    Who misses it as well has no goodput that a search would find.
    """
    trials = entry.goodput.searches[0].trials if entry.goodput else ()
    return trials[0].rate if trials and not trials[0].attained else None


def _six_digits(rate: float) -> float:
    return float(f"{rate:.6g}")
