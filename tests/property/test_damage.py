"""Damaged input: a message, never a traceback, a hang or a silent loss.

The gate tries a small part of what `make fuzz` does: 20,000 loads of scenarios, 5,000 trace files,
1,000 short runs. `tests/damage.py` makes a case from its number.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mist_sim import Result, Scenario, ScenarioError, simulate
from mist_sim.scenario.build import build
from mist_sim.traces import TRACE_READERS, TraceRow
from tests.damage import (
    damaged_scenario,
    damaged_text,
    damaged_trace,
    extreme_scenario,
    scenarios_at_bounds,
    time_limit,
)

FUZZ = int(os.environ.get("FUZZ", "1"))
NUM_SCENARIOS, NUM_TEXTS, NUM_TRACES, NUM_RUNS = 340 * FUZZ, 60 * FUZZ, 100 * FUZZ, 20 * FUZZ


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def attempt(case: str, do: Callable[[], Any], said: str = "") -> Any:
    """Return what `do` does, or None where the input is refused: in time, and with a message.

    said: what the message has to name.
    """
    with time_limit(case):
        try:
            return do()
        except ScenarioError as error:
            message = str(error)
    assert message.strip(), case
    assert said in message, f"{case}: {message[:300]}"
    fits = all(len(line) < 2_000 for line in message.splitlines())  # in a terminal
    assert fits, f"{case}: {message[:300]}"
    return None


def test_scenarios_with_wrong_values_load_or_say_why():
    loaded = 0
    for number in range(NUM_SCENARIOS):
        data = damaged_scenario(number)

        def load(data: dict[str, Any] = data) -> Scenario:
            scenario = Scenario.from_dict(data)
            build(scenario)
            return scenario

        scenario = attempt(f"scenario {number}", load)
        loaded += scenario is not None
        if scenario and loaded % 20 == 0:  # nothing is lost on the way to a file and back
            Path("resolved.yaml").write_text(scenario.resolved(), "utf-8")
            assert Scenario.load("resolved.yaml") == scenario, f"scenario {number}"
    assert NUM_SCENARIOS / 30 < loaded < NUM_SCENARIOS / 2


def test_every_number_may_be_as_large_as_its_bound():
    loaded: Counter[bool] = Counter()
    for case, data in scenarios_at_bounds():
        made = attempt(case, lambda data=data: build(Scenario.from_dict(data)))
        loaded[made is not None] += 1
    assert min(loaded[True], loaded[False]) > 100


def test_files_that_lost_characters_load_or_say_where():
    loaded = 0
    for number in range(NUM_TEXTS):
        Path("s.yaml").write_bytes(damaged_text(number))
        scenario = attempt(f"text {number}", lambda: Scenario.load("s.yaml"), "s.yaml")
        loaded += scenario is not None
    assert loaded < NUM_TEXTS / 2


def test_damaged_traces_are_read_or_say_where():
    outcomes: Counter[bool] = Counter()
    for number in range(NUM_TRACES):
        kind, content = damaged_trace(number)
        path = f"{kind}.trace"
        Path(path).write_bytes(content)

        def read(kind: str = kind, path: str = path) -> list[TraceRow]:
            return list(TRACE_READERS[kind](path=path).rows())

        rows = attempt(f"trace {number}", read, path)
        outcomes[rows is not None] += 1
        if rows is not None and kind == "mooncake":  # a row for each line, and none lost
            lines = [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]
            assert len(rows) == len(lines), f"trace {number}"
    assert min(outcomes[True], outcomes[False]) > NUM_TRACES / 20


def test_short_runs_of_extremes_end_and_lose_nothing():
    outcomes: Counter[str] = Counter()
    for number in range(NUM_RUNS):
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
    assert outcomes["ran"] > NUM_RUNS / 4, outcomes
