"""Winners of pruned searches beside long runs, in the random spaces of the tests.

In each space a search finds a winner with its goodput, as `mist search` does by default: in steady
state, with bounds, a race and runs that end early. Then come long runs with a seed of their own, as
they stand, which find goodputs to half a percent. The winner has to attain the rate at which it was
found, but for the tolerance of the search; and no other configuration may serve more than the
winner by more than that tolerance. Those of which a bound proves that they do not are left out.
Where one does, both are run again with four times as many requests.

`python -m benchmarks.winners FILE [NUMBER ...]` prints a row of a table as each space is done, of
all 50 or of those named, and appends it to the file; spaces that the file has are not done again.
Processor times are of one core.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.long_runs import LONGER, OPTIONS, TOLERANCE, LongRuns
from mist_sim.errors import ScenarioError
from mist_sim.search.spaces import SearchOptions, Space, SpaceSearch, search_space
from mist_sim.search.spaces.evaluation import prepare
from mist_sim.search.spaces.space import Configuration
from tests.reference.random_spaces import random_space

NUM_SPACES = 50
COUNTS = (1, 2)  # of engines: 8 or 16 configurations a space


@dataclass(frozen=True)
class Judge:
    """Judges configurations of a space by long runs, in values of its objective."""

    space: Space
    runs: LongRuns

    def goodput(self, prepared: Configuration, near: float) -> tuple[float, float]:
        """Return the value that is attained and the one that is missed, half a percent apart."""
        scale = self._scale(prepared)
        low, high = self.runs.goodput(prepared.scenario, near * scale)
        return low / scale, high / scale

    def ahead(
        self, best: Configuration, near: float, others: Mapping[str, Configuration]
    ) -> tuple[float, dict[str, float]]:
        """Return the winner's goodput, and those that serve more by more than the tolerance.

        near: about the winner's goodput. The values are the least and the most that are ahead of
        it: of the winner what it misses, of the others what they attain.
        """
        _, missed = self.goodput(best, near)
        found = {}
        for name, each in others.items():
            least = missed * (1 + TOLERANCE)
            rate = least * self._scale(each)
            if rate <= each.bound and self.runs.attains(each.scenario, rate):
                found[name] = self.goodput(each, least)[0] / missed - 1
        return missed, found

    def _scale(self, prepared: Configuration) -> float:
        (objective,) = self.space.objectives
        return objective.scale(prepared.known)


def judged(space: Space, found: SpaceSearch) -> dict[str, Any]:
    """Return what long runs say of the winner of a search."""
    begin = process_time()
    winner, (objective,) = found.front[0], space.objectives
    configurations = space.configurations()
    prepare(configurations, space.objectives, space.constraints, OPTIONS, judged=True)
    several = {each.name: each for each in configurations}
    best = several.pop(winner["name"])
    others = {name: each for name, each in several.items() if each.failure is None}
    value = winner["figures"][objective.name]
    runs = LongRuns()
    trial = runs.run(best.scenario, winner["figures"]["goodput"] * (1 - TOLERANCE))
    missed, ahead = Judge(space, runs).ahead(best, value, others)
    longer: dict[str, float] = {}
    if ahead:
        rivals = {name: others[name] for name in ahead}
        missed, longer = Judge(space, LongRuns(LONGER)).ahead(best, missed, rivals)
    return {
        "winner": winner["name"],
        "objective": objective.name,
        "value": value,
        "verdict": "attained" if trial.attained else "missed",
        "good": trial.attainment,
        "long": missed,
        "ahead": ahead,
        "longer": longer,
        "said": found.sentence.partition(f"{value:.4g}")[2].strip(" ,;."),
        "configurations": len(several) + 1,
        "long_seconds": process_time() - begin,
    }


def row(number: int, search: Callable[[Space], SpaceSearch]) -> dict[str, Any]:
    """Return what became of a space."""
    space, begin = random_space(number, counts=COUNTS), process_time()
    try:
        found = search(space)
    except ScenarioError as error:
        return {"number": number, "error": str(error)}
    took = process_time() - begin
    return {"number": number, "seconds": took, **judged(space, found)}


def cells(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cells of a row: winner, its goodput, share of good requests, which is ahead."""
    yield f"{data['number']}"
    if "error" in data:
        yield data["error"][:60]
        return
    yield f"{data['winner']}"
    yield f"{data['value']:.4g} {data['objective']}"
    yield f"{data['long']:.4g}"
    yield f"{data['verdict']}, {100 * data['good']:.1f} %"
    for ahead in (data["ahead"], data["longer"]):
        yield ", ".join(f"{name} by {100 * by:.1f} %" for name, by in ahead.items()) or "-"
    yield data["said"]
    yield f"{data['seconds']:.0f} s + {data['long_seconds']:.0f} s"


def main() -> None:
    """Print a row a space."""
    log, numbers = Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    known = {data["number"]: data for data in map(json.loads, lines)}
    for number in numbers or range(NUM_SPACES):
        if number not in known:
            known[number] = row(number, lambda space: search_space(space, SearchOptions(), jobs=1))
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[number]) + "\n")
        print(f"| {' | '.join(cells(known[number]))} |", flush=True)


if __name__ == "__main__":
    main()
