"""Compares what a plan says of one engine less with long runs without that engine.

For each task of `benchmarks.plans` a plan says what share of the requests is good when one of its
engines is gone, and whether that is enough. A run of 30,000 requests with another seed, as they
stand, tells whether it is right. Engines have one GPU, so that there are more of them. `python -m
benchmarks.one_less [FIRST [LAST]]` prints a row of a table for each engine that may be missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.plans import DESIGNS, MAX_GPUS, TASKS, scenario_for
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.planning import PlanOptions, plan
from mist_sim.search.planning.candidates import Candidate, candidates, engines_of, scenario_of
from mist_sim.search.planning.question import Question
from mist_sim.studies.verdicts.trials import Trial, try_rate

LONG = 30_000
SEED = 20_000
TOTAL = 200_000  # requests of a plan: what it says of one engine less needs no longer search


def long_run(candidate: Candidate, question: Question) -> Trial:
    """Run a candidate at the rate that is asked for; a hopeless run ends early."""
    scenario: Scenario = scenario_of(candidate, question)
    changes = {"workload.lengths.num_requests": LONG}
    target = question.target
    return try_rate(as_data(scenario), changes, SEED, question.rate, target, LONG)


def rows(number: int) -> Iterator[str]:
    """Yield a row for each engine that may be missing from the answer to a task."""
    task = TASKS[number - 1]
    options = PlanOptions(
        gpus=task[-1],
        max_gpus=MAX_GPUS,
        designs=DESIGNS,
        tensor_parallel_sizes=(1,),
        total_requests=TOTAL,
    )
    scenario = scenario_for(task)
    found = plan(scenario, options, jobs=1)
    question = Question(scenario, options)
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    chosen = next(e for e in candidates(shop.engines, question) if e.name == found.name)
    for name, left in chosen.without_one.items():
        said = found.one_less[name]
        before = f"{number} | {found.name} | {name}"
        if left is None:
            yield f"{before} | nobody is left | nobody is left | yes"
            continue
        trial = long_run(left, question)
        is_right = "yes" if said["attains"] == trial.attained else "no"
        share = f"{'' if trial.is_whole else '≤ '}{100 * trial.attainment:.1f} %"
        yield f"{before} | {100 * said['good']:.1f} % | {trial.verdict}, {share} | {is_right}"


def main() -> None:
    """Print a table."""
    first, last = map(int, (*sys.argv[1:], *("1", str(len(TASKS)))[len(sys.argv) - 1 :]))
    for number in range(first, last + 1):
        for row in rows(number):
            print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
