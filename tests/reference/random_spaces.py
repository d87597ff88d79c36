"""Small spaces of configurations, one by hand and others drawn from a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from mist_sim import Scenario
from mist_sim.rng import Streams
from mist_sim.search.spaces import Space
from mist_sim.search.spaces.objectives import constraints_of, objectives_of
from tests.reference.scenarios import of_profile

ASKED: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": of_profile(60, "20 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms", "tpot": "25 ms"},
}


def space(
    objectives: str | Sequence[str] = "goodput_per_usd",
    constraints: Mapping[str, Any] | None = None,
    vary: Mapping[str, Any] | None = None,
    scenario: Mapping[str, Any] | None = None,
    **more: Any,
) -> Space:
    """Return a space of two GPUs and two counts, or of what is varied in its place."""
    return Space(
        scenario=Scenario.from_dict(scenario or ASKED),
        vary=vary or {"clients.0.gpu": ["h100-sxm", "l40s"], "clients.0.count": [1, 2]},
        constraints=constraints_of(constraints or {}),
        objectives=objectives_of(objectives),
        **more,
    )


def random_space(
    number: int, objectives: str | None = None, counts: Sequence[int] = (1, 2, 3)
) -> Space:
    """Return a small space drawn from a number: GPUs, counts, chunks, routers, limits."""
    rng = Streams(number).generator("spaces")
    scenario = deepcopy(ASKED)
    scenario["workload"]["lengths"]["name"] = str(rng.choice(["azure-conv-2023", "sharegpt-300"]))
    scenario["slo"] = {
        "ttft": f"{rng.choice([100, 300, 1000])} ms",
        "tpot": f"{rng.choice([12, 20, 40])} ms",
    }
    gpus = rng.choice(["h100-sxm", "l40s", "a100-80gb-sxm", "h200"], 2, replace=False).tolist()
    vary = {
        "clients.0.gpu": gpus,
        "clients.0.count": list(counts),
        "clients.0.scheduler.max_num_batched_tokens": rng.choice(
            [256, 512, 1024, 2048, 8192], 2, replace=False
        ).tolist(),
    }
    if rng.random() < 0.5:
        vary["router"] = ["round_robin", "least_outstanding"]
    drawn = str(rng.choice(["goodput", "goodput_per_gpu", "goodput_per_usd"]))
    return space(objectives or drawn, vary=vary, scenario=scenario)
