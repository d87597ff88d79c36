"""Damaged input: scenarios and traces with wrong values, each made from a number."""

from __future__ import annotations

import copy
import json
import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim import Scenario
from mist_sim.rng import Streams
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.presets import preset_names, preset_path
from tests.conftest import ROOT
from tests.contract.test_registered_plugins import TRACES

Place = tuple[str | int, ...]

SECONDS = 5.0
"""Processor time that nothing may exceed: of a load, of a trace, of a short run."""

_NUMBERS: list[Any] = [
    *(0, -1, 1, 2, 3, 7, 1000, 2**31, 2**53, 2**63, 2**64, -(2**64), 10**9, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.5, -2.5, 1e-300, 5e-324, 1e300, -1e300, 1e9, 1e-12, 1.0),
    *(math.nan, math.inf, -math.inf, True, False, None),
]
_TEXTS: list[Any] = [
    *(
        "",
        " ",
        "x",
        "x" * 300,
        "x" * 5_000,
        "9" * 200_000,
        "\0",
        "\ud800",
        "\n",
        "a.b",
        "-",
        "type",
    ),
    *("0 s", "1 s", "-1 ms", "1e300 s", "1e-300 s", "1e9 s", "1e-12 s", "nan s", "5", "1 parsec"),
    *("1 /s", "1e300 /s", "1e-300 /s", "1e9 /s", "0 /s", "5 GiB", "0 B", "1e18 B", "1e300 B"),
    *("1 Gb/s", "0 B/s", "llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "no-such-model", "h100-sxm"),
    *("rtx-3090", "/", ".", "~", "~nobody/x", "./x", "../x", "/dev/null", "x.json", "x.toml"),
    *("chunked", "static", "mixed", "continuous", "roofline", "bestserve", "poisson", "trace"),
    *("all_at_once", "closed_loop", "synthetic", "profile", "prefill", "decode", "rag", "true"),
]
_CONTAINERS: list[Any] = [
    *([], {}, [[]], [None], {"type": "x"}, {"type": None}, {1: 2}, {None: 1}, [1, 2, 3]),
    *([{}] * 50, ["prefill"] * 50, {"type": "roofline", "enforce_eager": True}, {"a": {"b": {}}}),
]
_WRONG = [*_NUMBERS, *_TEXTS, *_CONTAINERS]
# What may well be right, and is as small or as large as it may be.
_EXTREME: list[Any] = [
    *(0, 1, 2, 3, 8, 16, 100, 3_000, 10**6, 10**9, 0.0, 1e-12, 0.1, 0.5, 1.0, 2.0, 1e12),
    *("0 s", "1e-12 s", "1 ms", "1 s", "1e9 s", "1e-9 /s", "1 /s", "1e9 /s", "1 B", "1 MiB"),
    *("1e18 B", "0.1 B/s", "1e18 B/s", None, True, False, "static", "mixed", "continuous"),
    *("poisson", "all_at_once", "closed_loop", "priority", "least_work_left", "swap"),
]
_MARKS = "{}[]:,#&*!|>'\"%@`-? \t\n\r\0é\u2028"


class Draw:
    """Random choices of one case."""

    def __init__(self, case: str) -> None:
        self._rng: np.random.Generator = Streams(0).generator(case)

    def choice(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]

    def below(self, number: int) -> int:
        return int(self._rng.integers(number))

    def share(self) -> float:
        return float(self._rng.random())


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
    return _damaged(Draw(f"scenario {number}"), _WRONG, alike=0.4)


def extreme_scenario(number: int) -> dict[str, Any]:
    """Return the same, with values that may be right, and few requests on few clients."""
    draw = Draw(f"run {number}")
    data = _damaged(draw, _EXTREME, alike=0.9)
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
    for place in list(_places(whole)):
        value = _at(whole, place)
        if isinstance(value, str) and " " in value:
            unit = value.rpartition(" ")[2]
            found = [f"{number} {unit}" for number in ("1e-12", "1e-9", "1", "1e9", "1e18")]
        elif isinstance(value, int | float | None) and not isinstance(value, bool):
            found = [10**9, 2**20, 1, 1e12, 1e-12]
        else:
            found = []
        for bound in found:
            data = _plain(whole)
            _at(data, place[:-1])[place[-1]] = bound
            yield f"{'.'.join(map(str, place))}={bound}", data


def damaged_text(number: int) -> bytes:
    """Return the bytes of a scenario file with characters, lines or its end lost or added."""
    draw = Draw(f"text {number}")
    text = yaml_text.dump(_plain(draw.choice(_bases()))).encode()
    return _worn(draw, text)


def _damaged(draw: Draw, values: list[Any], alike: float) -> dict[str, Any]:
    """Change one to three places; that share of the cases gets values of the right form."""
    data = _plain(draw.choice(_bases()))
    gentle = draw.share() < alike
    for _ in range(draw.choice([1, 1, 2, 3])):
        places = list(_places(data))
        if gentle:
            place = draw.choice([place for place in places if _like(_at(data, place), values)])
            _at(data, place[:-1])[place[-1]] = draw.choice(_like(_at(data, place), values))
        else:
            _damage(draw, data, draw.choice(places), values)
    return data


def _at(data: Any, place: Place) -> Any:
    for step in place:
        data = data[step]
    return data


def _damage(draw: Draw, data: Any, place: Place, values: list[Any]) -> None:
    data, last = _at(data, place[:-1]), place[-1]
    how = draw.share()
    if how < 0.75:
        data[last] = copy.deepcopy(draw.choice(values))
    elif how < 0.85:
        del data[last]
    elif isinstance(data, list):
        data += copy.deepcopy(data[:1]) * draw.choice([1, 30])
    elif how < 0.93:
        data[draw.choice(["x", f"{last}x", "type", "name", ""])] = data[last]
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


def _places(data: Any, above: Place = ()) -> Iterator[Place]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*above, key))


def _plain(data: Any) -> Any:
    return copy.deepcopy(data)


# ------------------------------------------------------------------ traces


def damaged_trace(number: int) -> tuple[str, bytes]:
    """Return the type of a reader, and the bytes of a file for it."""
    draw = Draw(f"trace {number}")
    kind = draw.choice(sorted(TRACES))
    text = TRACES[kind]
    for _ in range(draw.choice([0, 1, 1, 2])):
        text = _with_another_value(draw, text)
    content = text.encode("utf-8", "surrogatepass")
    return kind, _worn(draw, content) if draw.share() < 0.5 else content


def _with_another_value(draw: Draw, text: str) -> str:
    """Replace a number or a word of a text by another one."""
    words = [k for k in range(len(text)) if text[k].isalnum() and not text[k - 1 : k].isalnum()]
    start = draw.choice(words or [0])
    end = start
    while end < len(text) and (text[end].isalnum() or text[end] in ".-"):
        end += 1
    value = draw.choice([*_NUMBERS, *_TEXTS])
    new = value if isinstance(value, str) and draw.share() < 0.5 else _as_json(value)
    return text[:start] + new + text[end:]


def _as_json(value: Any) -> str:
    return json.dumps(value)


def _worn(draw: Draw, content: bytes) -> bytes:
    """Lose or add a few bytes, or the end, or double a line."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        start = draw.below(len(content) + 1)
        how = draw.share()
        if how < 0.3:
            content = content[:start] + content[start + draw.choice([1, 1, 2, 20]) :]
        elif how < 0.7:
            content = content[:start] + draw.choice(_MARKS).encode() + content[start:]
        elif how < 0.8:
            content = content[:start] + bytes([draw.below(256)]) + content[start + 1 :]
        elif how < 0.9:
            content = content[:start]
        else:
            lines = content.splitlines(keepends=True) or [b""]
            content += draw.choice(lines) * draw.choice([1, 2, 200])
    return content


# ------------------------------------------------------------------ limits


@contextmanager
def time_limit(what: str) -> Iterator[None]:
    """Raise TimeoutError when what is done inside takes more processor time than `SECONDS`."""
    if not hasattr(signal, "SIGPROF"):  # Windows
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"{what} takes more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
