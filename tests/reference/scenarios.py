"""A small scenario under pressure, from which tests change one thing at a time."""

import copy
from typing import Any

from mist_sim import Scenario

Tokens = int | tuple[int, int]
"""Of each request; or the fewest and the most, between which they are drawn."""


def synthetic(
    num_requests: int, prompt: Tokens, output: Tokens, arrivals: Any, **more: Any
) -> dict[str, Any]:
    """Return a workload of a scenario. arrivals: of Poisson ones the rate, or what a file says."""
    lengths = {"num_requests": num_requests, "prompt": _law(prompt), "output": _law(output)}
    return {"lengths": {"type": "synthetic", **lengths}, "arrivals": _arrivals(arrivals), **more}


def of_profile(num_requests: int, arrivals: Any, **lengths: Any) -> dict[str, Any]:
    """Return a workload with the lengths of a profile; the default one without `name`."""
    lengths = {"type": "profile", "num_requests": num_requests, **lengths}
    return {"lengths": lengths, "arrivals": _arrivals(arrivals)}


def _arrivals(said: Any) -> Any:
    is_rate = isinstance(said, str) and said.endswith("/s")
    return {"type": "poisson", "rate": said} if is_rate else said


def _law(tokens: Tokens) -> dict[str, Any]:
    if isinstance(tokens, int):
        return {"type": "fixed", "tokens": tokens}
    low, high = tokens
    return {"type": "uniform", "low": low, "high": high}


BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": of_profile(50, "5 /s"),
    "clients": [{"name": "llm", "gpu": "l40s"}],
}
PRESSED: dict[str, Any] = {
    "clients__0__scheduler": {"type": "chunked", "max_num_batched_tokens": 300},
    "clients__0__kv_cache__num_gpu_blocks_override": 60,
    "workload": synthetic(60, (20, 500), (10, 200), "60 /s"),
}
"""Requests that wait, and preempt one another."""


def changed(data: dict[str, Any], **overrides: object) -> Scenario:
    """Return a scenario with overrides, whose keys have "__" for a dot."""
    changes = {path.replace("__", "."): value for path, value in overrides.items()}
    return Scenario.from_dict(copy.deepcopy(data), changes)


def scenario(**overrides: object) -> Scenario:
    """Return the base with overrides (see `changed`)."""
    return changed(BASE, **overrides)
