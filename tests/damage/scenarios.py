"""Damaged scenarios: wrong values in a few places, or characters lost, each made from a number."""

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mist_sim import Scenario
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.presets import preset_names, preset_path
from tests.conftest import ROOT
from tests.damage.draws import EXTREME, WRONG, Draw, worn

Place = tuple[str | int, ...]


@cache
def _bases() -> list[dict[str, Any]]:
    """Scenarios that load: presets and examples, and one with much in it; defaults written out."""
    files = [
        *map(preset_path, preset_names()),
        *sorted((ROOT / "examples/scenarios").glob("*.yaml")),
    ]
    found = [MUCH]
    for file in files:
        text = Path(str(file)).read_text("utf-8")
        if "trace:" not in text and "path:" not in text:  # files that lie elsewhere
            found += [yaml_text.parse(text, str(file)), _written_out(yaml_text.parse(text, "base"))]
    return [*found, _written_out(MUCH)]


def _written_out(data: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = yaml_text.parse(Scenario.from_dict(data).resolved(), "base")
    return whole


MUCH: dict[str, Any] = {
    "model": "qwen3-0.6b",
    "engine": "vllm-0.12",
    "seed": 3,
    "warmup": "1 s",
    "replications": 1,
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
    "network": {"bandwidth": "400 Gb/s", "latency": "1 ms"},
    "workload": {
        "lengths": {
            "type": "synthetic",
            "num_requests": 20,
            "prompt": {"type": "lognormal", "mean": 300, "std": 200},
            "output": {"type": "uniform", "low": 1, "high": 60},
        },
        "arrivals": {"type": "gamma", "rate": "20 /s", "burstiness": 0.5},
        "pipeline": [{"type": "preprocess", "num_tokens": 5}, "prefill", "decode"],
        "priorities": {0: 0.5, 5: 0.5},
        "timeout": "60 s",
        "ttft_timeout": "30 s",
        "patience": {"type": "exponential", "mean": "20 s"},
        "retries": {"max_attempts": 3},
    },
    "clients": [
        {
            "name": "first",
            "gpu": "rtx-4090",
            "role": "prefill",
            "scheduler": {"type": "chunked", "max_num_batched_tokens": 512, "order": "priority"},
        },
        {
            "name": "second",
            "gpu": "l4",
            "role": "decode",
            "kv_cache": {
                "num_gpu_blocks_override": 300,
                "tiers": [{"name": "host", "capacity": "1 GiB"}],
            },
        },
        {
            "name": "whole",
            "gpu": "a10g",
            "count": 2,
            "tensor_parallel_size": 2,
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "acceptance_rate": [0.7, 0.4],
            },
            "admission": {"max_num_waiting": 50},
        },
        {
            "name": "cpu",
            "type": "sequential",
            "serves": ["preprocess"],
            "base_time": {"type": "lognormal", "mean": "1 ms", "std": "1 ms"},
            "time_per_token": "1 us",
        },
    ],
}


# ------------------------------------------------------------------ scenarios


def damaged_scenario(number: int) -> dict[str, Any]:
    """Return what a scenario file would hold, wrong in one to three places."""
    return _damaged(Draw(f"scenario {number}"), WRONG, alike=0.4)


def extreme_scenario(number: int) -> dict[str, Any]:
    """Return the same, with values that may be right, and few requests on few clients."""
    draw = Draw(f"run {number}")
    data = _damaged(draw, EXTREME, alike=0.9)
    workload = data.get("workload")
    lengths = workload.get("lengths") if isinstance(workload, dict) else None
    if isinstance(lengths, dict):
        lengths["num_requests"] = draw.choice([1, 5, 30])
    clients = data.get("clients")
    for client in clients if isinstance(clients, list) else []:
        if isinstance(client, dict) and client.get("count", 1) not in (1, 2, 3):
            client["count"] = 2
    return {**data, "replications": 1}


def scenarios_at_bounds() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a scenario with every single number, in turn, as small and as large as it may be."""
    whole = _written_out(MUCH)
    for place in list(places(whole)):
        value = at(whole, place)
        if isinstance(value, str) and " " in value:
            unit = value.rpartition(" ")[2]
            found = [f"{number} {unit}" for number in ("1e-12", "1e-9", "1", "1e9", "1e18")]
        elif isinstance(value, int | float | None) and not isinstance(value, bool):
            found = [10**9, 2**20, 1, 1e12, 1e-12]
        else:
            found = []
        for bound in found:
            data = _plain(whole)
            put(data, place, bound)
            yield f"{'.'.join(map(str, place))}={bound}", data


def damaged_text(number: int) -> bytes:
    """Return the bytes of a scenario file with characters, lines or its end lost or added."""
    draw = Draw(f"text {number}")
    text = yaml_text.dump(_plain(draw.choice(_bases()))).encode()
    return worn(draw, text)


def _damaged(draw: Draw, values: list[Any], alike: float) -> dict[str, Any]:
    """Change one to three places; that share of the cases gets values of the right form."""
    bases = draw.choice(_bases()), draw.choice(_bases())
    data = _plain(min(bases, key=lambda base: len(str(base))))  # short ones are read faster
    gentle = draw.share() < alike
    for _ in range(draw.choice([1, 1, 2, 3])):
        found = list(places(data))
        if gentle:
            place = draw.choice([place for place in found if _like(at(data, place), values)])
            put(data, place, draw.choice(_like(at(data, place), values)))
        else:
            _damage(draw, data, draw.choice(found), values)
    return data


@cache
def _keys() -> list[str]:
    """Return the keys that scenarios have anywhere."""
    found = {str(step) for base in _bases() for place in places(base) for step in place}
    return sorted(found)


def put(data: Any, place: Place, value: Any) -> None:
    """Set a value in a scenario."""
    at(data, place[:-1])[place[-1]] = value


def at(data: Any, place: Place) -> Any:
    """Return what stands at a place."""
    for step in place:
        data = data[step]
    return data


def _damage(draw: Draw, data: Any, place: Place, values: list[Any]) -> None:
    data, last = at(data, place[:-1]), place[-1]
    how = draw.share()
    if how < 0.75:
        data[last] = copy.deepcopy(draw.choice(values))
    elif how < 0.85:
        del data[last]
    elif isinstance(data, list):
        data += copy.deepcopy(data[:1]) * draw.choice([1, 30])
    elif how < 0.93:
        key = draw.choice(["x", f"{last}x", "type", "name", "", draw.choice(_keys())])
        data[key] = copy.deepcopy(draw.choice([data[last], draw.choice(values)]))
    else:
        data[last] = draw.choice(
            [[data[last]], {"type": data[last]}, {last: data[last]}, str(data[last])]
        )


def _like(value: Any, values: list[Any]) -> list[Any]:
    """Return the values of the same form: numbers, quantities of a kind, truth; or none."""
    if isinstance(value, bool):
        return [True, False]
    if isinstance(value, int | float):
        return [other for other in values if type(other) in (int, float)]
    if isinstance(value, str) and " " in value:
        end = value.rpartition(" ")[2][-2:]
        return [other for other in values if isinstance(other, str) and other.endswith(end)]
    return []


def places(data: Any, above: Place = ()) -> Iterator[Place]:
    """Yield the place of every value in a scenario."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))


def _plain(data: Any) -> Any:
    return copy.deepcopy(data)
