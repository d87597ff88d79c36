"""Plans beside exhaustive simulation: is the first choice the cheapest that keeps the limits?

For each task every candidate that costs no more than the choice of `plan` is simulated until its
verdict is known, in runs of up to 30,000 requests, without bounds, estimates or families; and the
choice itself in a run of up to 100,000. The choice's `vllm serve` lines are read back as a
scenario. `python -m benchmarks.plans [FIRST [LAST]]` prints a row of
a table as each task is done. Processor times are of one core.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.planning import PlanOptions, plan
from mist_sim.search.planning.candidates import Candidate, candidates, engines_of, scenario_of
from mist_sim.search.planning.deployment import deployment_of
from mist_sim.search.planning.question import Question
from mist_sim.studies.verdicts.trials import Trial, try_rate
from tests.reference.deployed import read_back

# model, lengths, requests a second, TTFT and TPOT in ms, GPUs
TASKS = (
    ("llama-3.1-8b", "azure-conv-2023", 12, 500, 30, ("h100-sxm", "l40s")),
    ("llama-3.1-8b", "azure-code-2023", 8, 1000, 50, ("h100-sxm", "l40s", "a100-80gb-sxm")),
    ("llama-3.1-8b", "sharegpt-2048", 25, 400, 20, ("h100-sxm", "a100-80gb-sxm")),
    ("qwen2.5-14b", "azure-conv-2023", 10, 1000, 40, ("h100-sxm", "l40s")),
    ("qwen2.5-14b", "sharegpt-2048", 12, 800, 30, ("a100-80gb-sxm", "h200")),
    ("qwen2.5-7b", "azure-conv-2023", 30, 300, 15, ("h100-sxm", "h200")),
    ("mistral-small-24b", "azure-conv-2023", 8, 1000, 50, ("h100-sxm", "a100-80gb-sxm")),
    ("qwen3-32b", "sharegpt-2048", 6, 1500, 60, ("h100-sxm", "h200")),
    ("llama-3.1-8b", "azure-code-2023", 20, 300, 100, ("h100-sxm", "l40s")),
    ("qwen3-4b", "sharegpt-300", 30, 500, 25, ("l40s", "h100-sxm", "l4")),
)
MAX_GPUS = 4
DESIGNS = ("together", "apart")  # a run of a hybrid in overload takes ten times as long
LONG, LONGEST = 30_000, 100_000


def scenario_for(task: tuple[Any, ...]) -> Scenario:
    """Return the scenario of a task, on one of its first GPU."""
    model, profile, rate, ttft, tpot, gpus = task
    return Scenario.from_dict(
        {
            "model": model,
            "workload": {
                "lengths": {"type": "profile", "name": profile, "num_requests": 400},
                "arrivals": {"type": "poisson", "rate": f"{rate} /s"},
            },
            "clients": [{"name": "llm", "gpu": gpus[0], "tensor_parallel_size": 1}],
            "slo": {"ttft": f"{ttft} ms", "tpot": f"{tpot} ms"},
        }
    )


def trial(candidate: Candidate, question: Question, most: int) -> Trial:
    """Try the question's rate on a candidate, for at most `most` requests."""
    scenario = scenario_of(candidate, question)
    rate, target = question.rate, question.target
    return try_rate(as_data(scenario), {}, scenario.seed, rate, target, 400, most)


def reads_back(candidate: Candidate, question: Question) -> str:
    """Tell whether the `vllm serve` lines of a choice give its scenario again."""
    scenario = scenario_of(candidate, question)
    deployment = deployment_of(scenario)
    with TemporaryDirectory() as folder:
        again = read_back(scenario, deployment, Path(folder) / "deploy.sh")
    data = as_data(scenario)
    differ = sorted(key for key in data | again if again.get(key) != data.get(key))
    differ = [key for key in differ if key != "model"]  # the hub's name of the same model
    return f"differ in {', '.join(differ)}" if differ else "the same"


def row(number: int, task: tuple[Any, ...]) -> Iterator[str]:
    """Yield the cells of a task's row: the plan, its cost and the cheapest that attains."""
    model, profile, rate, ttft, tpot, gpus = task
    options = PlanOptions(gpus=gpus, max_gpus=MAX_GPUS, designs=DESIGNS)
    scenario = scenario_for(task)
    begin = process_time()
    found = plan(scenario, options, jobs=1)
    took = process_time() - begin
    question = Question(scenario, options)
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    space = sorted(candidates(shop.engines, question), key=lambda each: each.rank)
    chosen = next(each for each in space if each.name == found.name)
    begin = process_time()
    best, undecided = None, 0
    for each in space:
        if each.rank[0] >= chosen.rank[0]:
            break
        verdict = trial(each, question, LONG).attained
        undecided += verdict is None
        if verdict:
            best = each
            break
    exhaustive = process_time() - begin
    best = best or chosen
    long = trial(chosen, question, LONGEST)
    more = 100 * (chosen.dollars / best.dollars - 1)
    yield f"{number}"
    yield f"{model}, {profile}, {rate} /s, {ttft} / {tpot} ms, {', '.join(gpus)}"
    yield f"{found.name}, {found.usd_per_hour:.4g} $/h"
    yield f"{best.name}" if best is not chosen else "the same"
    yield f"{more:.0f} %"
    yield f"{undecided}"
    yield f"{long.verdict}, {100 * long.attainment:.1f} % of {long.num_requests:,}"
    yield reads_back(chosen, question)
    yield f"{took:.0f} s"
    yield f"{exhaustive:.0f} s"


def main() -> None:
    """Print a row for each task, from the first to the last named on the command line."""
    first, last = map(int, (*sys.argv[1:], *("1", str(len(TASKS)))[len(sys.argv) - 1 :]))
    for number, task in enumerate(TASKS, start=1):
        if first <= number <= last:
            print("| " + " | ".join(row(number, task)) + " |", flush=True)


if __name__ == "__main__":
    main()
