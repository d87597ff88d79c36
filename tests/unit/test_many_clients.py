"""What a client costs beside its requests, in Python's calls: sums are taken over many at once."""

from __future__ import annotations

import cProfile
import pstats

from mist_sim import Result, Scenario, simulate
from tests.reference.scenarios import of_profile


def result_of(num_clients: int) -> Result:
    client = {"name": "llm", "gpu": "h100-sxm", "count": num_clients}
    workload = of_profile(200, "200 /s", name="azure-conv-2023")
    scenario = {"model": "llama-3.1-8b", "workload": workload, "clients": [client]}
    return simulate(Scenario.from_dict(scenario))


def calls_of_summary(num_clients: int) -> int:
    result, profile = result_of(num_clients), cProfile.Profile()
    profile.enable()
    assert result.summary["completed"] == 200
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_client_adds_few_calls_to_a_summary() -> None:
    """Each added 1,000 calls while its steps were looked at by themselves."""
    calls_of_summary(2)  # what is imported or remembered is there
    few, many = calls_of_summary(10), calls_of_summary(50)
    assert (many - few) / 40 < 500
