"""Winners of pruned searches beside long runs, in the random spaces of the tests.

In each space a search finds a winner with its goodput, as `mist search` does by default: in steady
state, with bounds, a race and runs that end early. Then come long runs with a seed of their own, as
they stand. The winner has to attain the rate at which it was found, but for the tolerance of the
search; and no other configuration may attain a rate at which it would be ahead of the winner by
more than that tolerance, but for those of which a bound proves that they do not. `python -m
benchmarks.winners [FIRST [LAST]]` prints a row of a table as each space is done. Processor times
are of one core; a space that takes more than three minutes is left.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from time import process_time
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.scenario.load import as_data
from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.spaces import SearchOptions, Space, search_space
from mist_sim.search.spaces.prepared import Preparation, Prepared
from mist_sim.search.trials import Trial, try_rate
from mist_sim.studies.rates import Rates
from tests.reference.random_spaces import random_space

NUM_SPACES = 50
COUNTS = (1, 2)  # of engines: 8 or 16 configurations a space
MOST_SECONDS = 180  # of a processor, for a space
LONG = 30_000  # requests
SEED = 20_000  # of the long runs: another one than that of the search
OPTIONS = GoodputOptions()
TOLERANCE = OPTIONS.tolerance


def long_run(prepared: Prepared, rate: float) -> Trial:
    """Run a configuration at a rate, requests per second; a hopeless run ends early."""
    scenario = prepared.scenario
    changes = Rates(scenario).at(rate) | {"workload.lengths.num_requests": LONG}
    return try_rate(as_data(scenario), changes, SEED, rate, OPTIONS.target(scenario), LONG)


def ahead(
    space: Space, winner: Mapping[str, Any], best: Prepared, others: Sequence[Prepared]
) -> Iterator[tuple[float, str]]:
    """Yield (by which share, name) of the configurations that are ahead in long runs.

    Ahead of the rate that was found, or of a higher one that the winner attains in a long run.
    """
    (objective,) = space.objectives
    value = winner["figures"][objective.name]
    while long_run(best, value * (1 + TOLERANCE) * objective.scale(best.known)).attained:
        value *= 1 + TOLERANCE
    for each in others:
        by, rate = 0.0, value * objective.scale(each.known)
        while (at := rate * (1 + by + TOLERANCE)) <= each.bound and long_run(each, at).attained:
            by += TOLERANCE
        if by:
            yield by, each.name


def row(number: int) -> Iterator[str]:
    """Yield the cells of a space: winner, its objective, share of good requests, who is ahead."""
    space = random_space(number, counts=COUNTS)
    begin = process_time()
    yield f"{number}"
    try:
        (winner, *_) = search_space(space, SearchOptions(), jobs=1).front
    except ScenarioError as error:
        yield f"{error}"[:60]
        return
    took = process_time() - begin
    judge = Preparation(space.objectives, space.constraints, OPTIONS, judged=True)
    several = judge.all(space.configurations())
    best = several[winner["number"]]
    begin = process_time()
    trial = long_run(best, winner["figures"]["goodput"] * (1 - TOLERANCE))
    others = [each for each in several if each is not best and each.failure is None]
    found = sorted(ahead(space, winner, best, others), reverse=True)
    long = process_time() - begin
    (objective,) = winner["figures"].keys() & {each.name for each in space.objectives}
    yield f"{winner['name']}"
    yield f"{winner['figures'][objective]:.4g} {objective}"
    yield f"{trial.verdict}, {100 * trial.attainment:.1f} %"
    yield ", ".join(f"{name} by {100 * by:.0f} %" for by, name in found) or "nobody"
    yield f"{len(several)}"
    yield f"{took:.0f} s"
    yield f"{long:.0f} s"


def main() -> None:
    """Print a row a space."""
    last = NUM_SPACES - 1
    first, last = map(int, (*sys.argv[1:], *("0", str(last))[len(sys.argv) - 1 :]))
    signal.signal(signal.SIGPROF, _too_long)
    for number in range(first, last + 1):
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        try:
            told = " | ".join(row(number))
        except _TooLong:
            told = f"{number} | took more than {MOST_SECONDS} s"
        print(f"| {told} |", flush=True)


class _TooLong(BaseException):
    """A space takes too long; no search takes it for a run that failed."""


def _too_long(*_: object) -> None:
    raise _TooLong


if __name__ == "__main__":
    main()
