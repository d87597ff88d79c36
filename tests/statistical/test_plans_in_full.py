"""Random questions for `mist plan`, beside runs in full of every count of GPUs up to four.

The questions follow from their numbers. `python -m tests.statistical.test_plans_in_full` prints a
row for each: the answer of full runs, that of the plan, and whether it is right.
"""

from __future__ import annotations

import sys
from itertools import groupby
from math import inf
from typing import NamedTuple

import pytest

from mist_sim import Scenario, ScenarioError
from mist_sim.rng import Streams
from mist_sim.scenario.loading import as_data
from mist_sim.search import PlanOptions, plan
from mist_sim.search.planning.candidates import Candidate, candidates, engines_of, scenario_of
from mist_sim.search.planning.question import Question
from mist_sim.studies.verdicts.trials import try_rate

QUESTIONS = range(10)
REPORTED = ("many", "short runs", "near")  # that a plan once answered wrong
SEEDS = (20_001, 20_002)  # of full runs; plans have seed 0
NUM = 20_000  # requests of a full run

MODELS = ("llama-3.1-8b", "qwen2.5-14b", "mistral-small-24b")
GPUS = ("h100-sxm", "a100-80gb-sxm", "a100-40gb-sxm", "l40s", "l4")
PROFILES = ("azure-conv-2023", "azure-code-2023", "sharegpt-2048", "sharegpt-300")


def reported(name: str) -> tuple[Scenario, PlanOptions]:
    """Return a question that was once answered "none", or with half too many GPUs."""
    fixed = {key: {"type": "fixed", "tokens": n} for key, n in (("prompt", 1000), ("output", 150))}
    lengths, rate, limits, gpus = {"type": "synthetic", **fixed}, 20, ("2 s", "50 ms"), ("l40s",)
    more = {"max_gpus": 4, "designs": ("together",), "most_requests": 6000}
    if name == "many":
        lengths, limits = {"type": "profile", "name": "sharegpt-2048"}, ("1 s", "50 ms")
        more = {"max_gpus": 8, "attainment": 0.95}
    elif name == "near":
        rate, limits, gpus = 14, ("1 s", "30 ms"), ("l40s", "a100-80gb-sxm")
        more = {"max_gpus": 4}
    scenario = Scenario.from_dict(
        {
            "model": "llama-3.1-8b",
            "workload": {
                "lengths": {**lengths, "num_requests": 400},
                "arrivals": {"type": "poisson", "rate": f"{rate} /s"},
            },
            "clients": [{"name": "llm", "gpu": gpus[0], "max_model_len": 8192}],
            "slo": dict(zip(("ttft", "tpot"), limits, strict=True)),
        }
    )
    return scenario, PlanOptions(gpus=gpus, **more)


def question_of(number: int | str) -> tuple[Scenario, PlanOptions]:
    """Return a question: model, GPUs, lengths, rate, limits and share are drawn."""
    if isinstance(number, str):
        return reported(number)
    rng = Streams(number).generator("questions in full")
    gpus = tuple(rng.choice(GPUS, int(rng.integers(1, 3)), replace=False).tolist())
    rate = f"{3 * 15 ** rng.uniform():.3g} /s"
    scenario = Scenario.from_dict(
        {
            "model": str(rng.choice(MODELS)),
            "workload": {
                "lengths": {
                    "type": "profile",
                    "name": str(rng.choice(PROFILES)),
                    "num_requests": 400,
                },
                "arrivals": {"type": "poisson", "rate": rate},
            },
            "clients": [{"name": "llm", "gpu": gpus[0], "max_model_len": 16384}],
            "slo": {
                "ttft": f"{rng.choice([300, 500, 1000, 2000])} ms",
                "tpot": f"{rng.choice([20, 30, 50, 80])} ms",
            },
        }
    )
    options = PlanOptions(
        gpus=gpus,
        max_gpus=4,
        designs=("together", "apart"),
        tensor_parallel_sizes=(1, 2, 4),
        attainment=float(rng.choice([0.9, 0.95])),
    )
    return scenario, options


class Truth(NamedTuple):
    """What full runs say, by candidate: the share of seeds that keep the limits.

    usd_per_hour: of the cheapest that all seeds keep; infinite: none is.
    """

    kept: dict[str, float]
    usd_per_hour: float


def kept_in_full(candidate: Candidate, question: Question) -> float:
    """Return in which share of full runs a candidate keeps the limits."""
    try:
        data = as_data(scenario_of(candidate, question))
    except ScenarioError:
        return 0.0
    changes = {"workload.lengths.num_requests": NUM}
    kept = []
    for seed in SEEDS:
        found = try_rate(data, changes, seed, question.rate, question.target, NUM)
        kept.append(found.attained is True)
    return sum(kept) / len(kept)


def truth_of(scenario: Scenario, options: PlanOptions) -> Truth:
    """Run all candidates in full, the cheapest first, to the price of the first that is kept."""
    question = Question(scenario, options)
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    space = sorted(candidates(shop.engines, question), key=lambda each: each.rank)
    kept: dict[str, float] = {}
    for price, several in groupby(space, key=lambda each: each.rank[0]):
        found = {each.name: kept_in_full(each, question) for each in several}
        kept |= found
        if 1.0 in found.values():
            return Truth(kept, price)
    return Truth(kept, inf)


def answer_to(scenario: Scenario, options: PlanOptions, jobs: int = 1) -> tuple[str, float]:
    """Return the name and the dollars an hour of a plan's answer; "none", infinite."""
    try:
        found = plan(scenario, options, jobs=jobs)
    except ScenarioError as error:
        if not str(error).startswith("no deployment"):
            raise
        return "none", inf
    return found.name, found.usd_per_hour


def is_right(name: str, usd_per_hour: float, truth: Truth) -> bool:
    """Tell whether an answer keeps the limits and nothing cheaper surely does.

    Where the seeds differ either answer is right. "none" is where no candidate ever keeps them.
    """
    if name == "none":
        return not any(truth.kept.values())
    return truth.kept.get(name, 0.0) > 0 and usd_per_hour <= truth.usd_per_hour + 1e-9


@pytest.mark.deep
@pytest.mark.parametrize("number", [*QUESTIONS, *REPORTED])
def test_plans_answer_as_runs_in_full(number):
    scenario, options = question_of(number)
    answer = answer_to(scenario, options)
    assert answer_to(scenario, options, jobs=2) == answer
    assert is_right(*answer, truth_of(scenario, options))


def main() -> None:
    """Print a row a question; words: their numbers or names."""
    for number in [int(w) if w.isdigit() else w for w in sys.argv[1:]] or QUESTIONS:
        scenario, options = question_of(number)
        truth, (name, price) = truth_of(scenario, options), answer_to(scenario, options)
        kept = [f"{each} ({share:g})" for each, share in truth.kept.items() if share]
        right = "right" if is_right(name, price, truth) else "WRONG"
        row = number, ", ".join(kept) or "none", f"{name} {price:.4g}", right
        sys.stdout.write(" | ".join(map(str, row)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
