"""Runs configurations in parallel: at a given rate, to find their goodput, or at that goodput."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mist_sim.scenario.loading import as_data
from mist_sim.search.at_goodput import at_goodput
from mist_sim.search.goodput import GoodputOptions, search_goodputs, so_far
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.spaces.prepared import Prepared
from mist_sim.search.verdicts.trials import Trial
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver
from mist_sim.studies.rates import Rates
from mist_sim.studies.replicating import run_with_seed
from mist_sim.studies.task import Failure, Key, Row, Task

_NO_RUN = Failure("ScenarioError", "a run failed")

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Runs:
    """Runs of a study.

    options: how rates are judged and searched. tried: of the goodputs that are searched now, the
    trials so far, by position in `names` and seed.
    """

    options: GoodputOptions
    driver: Driver
    names: list[str] = field(default_factory=list)
    tried: dict[tuple[int, int], list[Trial]] = field(default_factory=dict)

    @property
    def so_far(self) -> str:
        """The present bounds of the goodputs that are searched; empty if nothing is."""
        return so_far(self.tried, self.names)

    def at_own_rate(
        self, several: Sequence[Prepared]
    ) -> Iterator[tuple[Prepared, Summary | Failure]]:
        """Yield each with the summary of a run of it as it stands, as the runs finish."""
        by_key: dict[Key, Prepared] = {(*_key(each), "at rate"): each for each in several}
        tasks = [
            Task(key, run_with_seed, (as_data(each.scenario), each.seed))
            for key, each in by_key.items()
        ]
        for row in self.driver.stream(tasks, keep_errors=True):
            yield by_key[row.key], row.failure or row.result

    def at_goodput(self, several: Sequence[tuple[Prepared, Goodput]]) -> list[Summary | Failure]:
        """Return the spending of a run of each at its goodput."""
        tasks = [
            at_goodput((*_key(each), "at goodput"), Built(each.scenario), goodput)
            for each, goodput in several
        ]
        return self._results(tasks)

    def trials(self, several: Sequence[tuple[Prepared, float]]) -> list[Trial | Failure]:
        """Run each at a rate (requests per second) until the verdict is known."""
        tasks = []
        for each, rate in several:
            built = Built(each.scenario)
            rates, target = Rates(each.scenario, built), self.options.target(each.scenario)
            tasks.append(
                self.options.trial((*_key(each), rate), built, rates, each.seed, rate, target)
            )
        found = self._results(tasks)
        return [each if isinstance(each, Failure) else Trial.of(each) for each in found]

    def goodputs(self, several: Sequence[Prepared]) -> list[Goodput | Failure]:
        """Search the goodput of each, as `find_goodput` does."""
        builts = [Built(each.scenario) for each in several]
        self.tried.clear()
        self.names[:] = [each.name for each in several]
        found = search_goodputs(
            builts, self.options, self.driver, keep_errors=True, tried=self.tried
        )
        self.tried.clear()
        return [(each.failure or _NO_RUN) if isinstance(each, Row) else each for each in found]

    def _results(self, tasks: Sequence[Task]) -> list[Any]:
        rows = self.driver.run(tasks, keep_errors=True)
        return [row.failure or row.result for row in rows]


def _key(prepared: Prepared) -> tuple[int, str]:
    return prepared.configuration.number, prepared.name
