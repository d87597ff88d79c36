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
    "default": 333.5,
    "no step planned ahead": 298.3,
    "general loop": 338.4,
    "prefixes in common": 395.9,
    "short of memory": 388.9,
    "swapping": 342.1,
    "prefill and decode apart": 827.6,
    "TaiChi": 1108.7,
    "pipelines of two": 1800.6,
    "pipelines short of memory": 15255.3,
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
