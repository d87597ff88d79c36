"""Plans for numbers of users beside exhaustive simulation: does anything cheaper keep the limits?

Questions are drawn by a seed: model, lengths, limits, users, pauses, two GPUs, and a budget of two
to six. Every candidate that costs less than the answer of `plan` (all, where there is none) is run
until its verdict is known, without bounds, estimates or families, in at most as many requests.
`python -m benchmarks.users [SEED [FIRST [LAST]]]` prints a row of a table as each is done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import inf
from typing import Any

from benchmarks.plans import DESIGNS, scenario_for, trial
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams
from mist_sim.search.planning import Plan, PlanOptions, plan
from mist_sim.search.planning.bounds import demand_of
from mist_sim.search.planning.candidates import candidates, engines_of
from mist_sim.search.planning.question import Question

MOST = 12_000  # requests of a run
NUMBER = 10


def task_of(seed: int, number: int) -> tuple[tuple[Any, ...], PlanOptions]:
    """Return a question: a task as in `benchmarks.plans`, at no rate of its own, and options."""
    rng = Streams(seed * 100 + number).generator("plans for users")
    gpus = tuple(rng.choice(["h100-sxm", "l40s", "a100-80gb-sxm"], 2, replace=False).tolist())
    model = str(rng.choice(["llama-3.1-8b", "qwen2.5-14b", "qwen2.5-7b"]))
    profile = str(rng.choice(["azure-conv-2023", "sharegpt-300", "azure-code-2023"]))
    ttft, tpot = int(rng.choice([300, 600, 1500])), int(rng.choice([15, 25, 50]))
    users, think = int(rng.integers(20, 600)), float(rng.choice([5, 15, 30]))
    options = PlanOptions(
        gpus=gpus,
        users=users,
        think=think,
        max_gpus=int(rng.integers(2, 7)),
        designs=DESIGNS,
        tensor_parallel_sizes=(1,),
        total_requests=None,
        most_requests=MOST,
    )
    return (model, profile, 1, ttft, tpot, gpus), options


def row(seed: int, number: int) -> Iterator[str]:
    """Yield the cells of a question: the answer, what is cheaper and keeps the limits, runs."""
    task, options = task_of(seed, number)
    scenario = scenario_for(task)
    found: Plan | None = None
    try:
        found = plan(scenario, options, jobs=1)
    except ScenarioError:
        price = inf
    else:
        price = round(found.usd_per_hour, 9)
    question = Question(scenario, options)
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    question.begin_over(demand_of(question, shop.engines[0]).turn)
    kept, num_runs, num_requests = "", 0, 0
    for each in sorted(candidates(shop.engines, question), key=lambda each: each.rank):
        if each.price >= price or kept:
            break
        try:
            run = trial(each, question, MOST)
        except ScenarioError:
            continue
        num_runs, num_requests = num_runs + 1, num_requests + run.num_requests
        kept = each.name if run.attained else ""
    model, profile, _, ttft, tpot, gpus = task
    yield f"{number}"
    yield f"{model}, {profile}, {options.users} users, {options.think:g} s, {ttft} / {tpot} ms"
    yield f"{options.max_gpus} of {', '.join(gpus)}"
    yield f"{found.name}, {found.usd_per_hour:.4g} $/h" if found else "none keeps the limits"
    yield kept or "nothing cheaper"
    yield f"{num_runs} runs of {num_requests:,} requests in all"


def main() -> None:
    """Print a row for each question, from the first to the last named on the command line."""
    usual = ("58", "0", str(NUMBER - 1))
    seed, first, last = map(int, (*sys.argv[1:], *usual[len(sys.argv) - 1 :]))
    for number in range(first, last + 1):
        print("| " + " | ".join(row(seed, number)) + " |", flush=True)


if __name__ == "__main__":
    main()
