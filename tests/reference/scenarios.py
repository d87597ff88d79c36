"""A small scenario under pressure, from which tests change one thing at a time."""

from __future__ import annotations

import copy
from typing import Any

from mist_sim import Scenario

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "num_requests": 50},
        "arrivals": {"type": "poisson", "rate": "5 /s"},
    },
    "clients": [{"name": "llm", "gpu": "l40s"}],
}
PRESSED: dict[str, Any] = {
    "clients__0__scheduler": {"type": "chunked", "max_num_batched_tokens": 300},
    "clients__0__kv_cache__num_gpu_blocks_override": 60,
    "workload": {
        "lengths": {
            "type": "synthetic",
            "num_requests": 60,
            "prompt": {"type": "uniform", "low": 20, "high": 500},
            "output": {"type": "uniform", "low": 10, "high": 200},
        },
        "arrivals": {"type": "poisson", "rate": "60 /s"},
    },
}
"""Requests that wait, and preempt one another."""


def scenario(**overrides: object) -> Scenario:
    """Return the base with overrides, whose keys have "__" for a dot."""
    changes = {path.replace("__", "."): value for path, value in overrides.items()}
    return Scenario.from_dict(copy.deepcopy(BASE), changes)
