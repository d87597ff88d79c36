"""Damaged input: a message, never a traceback, a hang or a silent loss.

The gate tries a few of the cases that `python -m tests.damage` makes from numbers, any number of
them; `make fuzz` runs that on new seeds. FUZZ multiplies the number here, FUZZ_SEED makes others.
"""

import os
from collections import Counter
from typing import Any

import pytest

from mist_sim import Result, Scenario, simulate
from mist_sim.scenario.build import build
from tests.damage.cases import KINDS, attempt, furnish
from tests.damage.draws import SEED
from tests.damage.scenarios import extreme_scenario, scenarios_at_bounds

FUZZ = int(os.environ.get("FUZZ", "1"))
NUM_RUNS = 12 * FUZZ  # that are not refused, of at most five times as many; four in ten are not

# cases by kind, and the least and the largest share of them that may be taken
SOME = {
    "scenario": (300, 0.03, 0.5),
    "text": (60, 0.0, 0.5),
    "bomb": (15, 0.0, 0.2),
    "trace": (150, 0.05, 0.6),
    "file": (150, 0.05, 0.6),
    "run": (20, 0.2, 0.95),
}


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    furnish()
    print(f"FUZZ_SEED={SEED}")  # noqa: T201 - pytest shows it where a test fails


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_input_is_read_or_refused_with_message(kind):
    number, least, most = SOME[kind]
    taken = Counter(KINDS[kind][0](case) for case in range(number * FUZZ))
    assert least * number * FUZZ <= taken[True] <= most * number * FUZZ, taken


def test_every_number_may_be_as_large_as_its_bound():
    loaded: Counter[bool] = Counter()
    for case, data in scenarios_at_bounds():
        made = attempt(case, lambda data=data: build(Scenario.from_dict(data)))
        loaded[made is not None] += 1
    assert min(loaded[True], loaded[False]) > 100


def test_short_runs_of_extremes_end_and_lose_nothing():
    outcomes: Counter[str] = Counter()
    for number in range(5 * NUM_RUNS):
        if outcomes["ran"] == NUM_RUNS:
            break
        data = extreme_scenario(number)

        def run(data: dict[str, Any] = data) -> tuple[Scenario, Result]:
            scenario = Scenario.from_dict(data)
            result = simulate(scenario)
            _ = result.summary
            return scenario, result

        done = attempt(f"run {number}", run)
        outcomes["ran" if done else "refused"] += 1
        if done:
            scenario, result = done
            num_requests = len(result.requests)
            assert num_requests == scenario.workload.num_requests, f"run {number} lost a request"
            assert result.requests["status"].notna().all(), f"run {number}"
    assert outcomes["ran"] == NUM_RUNS, outcomes
