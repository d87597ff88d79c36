"""Python calls a request, which no other process can disturb: `python -m benchmarks.calls`.

Counted by cProfile, those of built-in functions as well, in a run that was made before, so that
what is remembered between runs is there. `tests/unit/test_calls.py` holds them against `RECORDED`,
with `MIST_SIM_CORE=python`: compiled modules make no calls that are counted.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
from typing import Any

from benchmarks.workloads import apart, flowing, lognormal, prefixes

NUM_REQUESTS = 2_000

COUNTED_ON = (3, 11)
"""The Python whose calls are recorded: others inline comprehensions, or more."""

RECORDED = {
    "default": 318.3,
    "no step planned ahead": 286.1,
    "general loop": 336.9,
    "prefixes in common": 378.7,
    "short of memory": 370.7,
    "swapping": 327.7,
    "prefill and decode apart": 797.0,
    "TaiChi": 1116.1,
    "pipelines of two": 1783.5,
    "pipelines short of memory": 14987.0,
}
"""Calls a request as they were when this was last changed, a summary and its set-up among them."""

MOST_MORE = 0.01
"""By what part they may grow before the test fails."""


def scenarios() -> dict[str, dict[str, Any]]:
    """Return what is counted, by name; the first is row one of the budgets."""
    ahead = {"async_scheduling": True}
    few = {"num_requests": NUM_REQUESTS}
    default = lognormal(**few, num_clients=4)
    default["clients"][0] |= ahead
    synchronous = lognormal(**few, num_clients=4)
    general = lognormal(**few, num_clients=4)
    general["clients"][0] |= ahead | {"step_loop": "general"}
    cached = prefixes("chunked", **few)
    cached["clients"][0] |= ahead
    pressed = lognormal(**few, num_clients=4)
    pressed["clients"][0] |= ahead | {"kv_cache": {"num_gpu_blocks_override": 700}}
    swapping = lognormal(**few, num_clients=4)
    swapping["clients"][0] |= {"kv_cache": {"num_gpu_blocks_override": 700}}
    swapping["clients"][0]["scheduler"]["preemption"] = "swap"
    split = apart() | {"workload": default["workload"]}
    taichi = flowing() | {"workload": default["workload"]}
    ranks = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    piped = lognormal(**few, num_clients=4)
    piped["clients"][0] |= ahead | ranks
    long = lognormal(num_requests=NUM_REQUESTS // 10, num_clients=4, output_factor=8)
    long["workload"]["arrivals"]["rate"] = "5.52 /s"
    long["clients"][0] |= ahead | ranks | {"kv_cache": {"num_gpu_blocks_override": 1500}}
    return {
        "default": default,
        "no step planned ahead": synchronous,
        "general loop": general,
        "prefixes in common": cached,
        "short of memory": pressed,
        "swapping": swapping,
        "prefill and decode apart": split,
        "TaiChi": taichi,
        "pipelines of two": piped,
        "pipelines short of memory": long,
    }


def calls_a_request(scenario: dict[str, Any]) -> float:
    """Return the calls of a run with its summary, over its requests."""
    from mist_sim import Scenario, simulate

    said = Scenario.from_dict(scenario)
    simulate(said)  # so that all modules are there, and what is remembered
    profile = cProfile.Profile()
    num_finished = profile.runcall(lambda: simulate(said).summary["completed"])
    return float(pstats.Stats(profile).total_calls / num_finished)


if __name__ == "__main__":
    calls = {name: round(calls_a_request(each), 1) for name, each in scenarios().items()}
    if "--json" in sys.argv:
        print(json.dumps(calls))
    else:
        print(*(f'    "{name}": {number},' for name, number in calls.items()), sep="\n")
