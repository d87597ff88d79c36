"""The rows by which speed is judged, one after the other: `python -m benchmarks.shown [ROW ...]`.

Each is a run of `simulate()` with its summary in a process of its own (microseconds and T a
request, peak memory), or a whole `mist run` with its results written (seconds of processor time).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Measurement, measure
from benchmarks.workloads import (
    AZURE,
    PRESSED,
    apart,
    azure,
    flowing,
    lognormal,
    longer_answers,
    prefixes,
)

MOONCAKE = AZURE.with_name("mooncake_synthetic_trace.jsonl")
AHEAD: dict[str, Any] = {"async_scheduling": True}


def few_prompts() -> dict[str, Any]:
    """33,600 prompts of 575 tokens that begin with one of 100 texts of 560, one 8B engine."""
    scenario = prefixes("chunked", num_requests=33_600, num_clients=1, num_prefixes=100)
    lengths = scenario["workload"]["lengths"]
    lengths |= {"prefix_len": 560, "suffix": {"type": "fixed", "tokens": 15}}
    scenario["workload"]["arrivals"] = {"type": "poisson", "rate": "14 /s"}
    scenario["clients"][0] |= AHEAD | {"tensor_parallel_size": 1}
    return scenario | {"model": "llama-3.1-8b"}


def mooncake() -> dict[str, Any]:
    """Mooncake's synthetic trace with its prefixes on 16 engines of a 70B model."""
    scenario = azure(num_clients=16, **AHEAD)
    return scenario | {"workload": {"trace": {"type": "mooncake", "path": str(MOONCAKE)}}}


def pipelines() -> dict[str, Any]:
    """Row one on pipelines of two ranks."""
    return azure(tensor_parallel_size=2, pipeline_parallel_size=2, **AHEAD)


def pressed(name: str, folder: Path) -> dict[str, Any]:
    """Answers x 8 with few blocks, see `PRESSED`."""
    return azure(longer_answers(folder, 8), **(PRESSED[name] | AHEAD))


def many(num_clients: int, num_requests: int = 100_000) -> dict[str, Any]:
    """So many clients under the same load each."""
    return ahead(lognormal(num_requests=num_requests, num_clients=num_clients))


def ahead(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario whose clients plan one step ahead, as is the default."""
    scenario["clients"][0] |= AHEAD
    return scenario


def process_s(scenario: dict[str, Any], folder: Path) -> float:
    """Return the user time of `mist run` with its results written, seconds: the least of three."""
    file, least = folder / "scenario.json", float("inf")
    file.write_text(json.dumps(scenario))
    for number in range(3):
        words = ["-m", "mist_sim", "run", str(file), "--out", str(folder / f"out{number}"), "-q"]
        before = os.times().children_user
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        least = min(least, os.times().children_user - before)
    return least


def _cost(found: Measurement) -> str:
    each = 1e6 / found.requests_per_s
    memory = found.rss_bytes / 2**20
    often = found.num_preemptions / found.num_requests
    return (
        f"{found.t_per_request:.0f} T, {each:.0f} us a request, {found.cpu_s:.2f} s, "
        f"{memory:.0f} MiB, {often:.2f} preemptions a request (T = {found.t_s * 1e6:.2f} us)"
    )


def _timed(scenario: dict[str, Any], repeats: int = 3) -> str:
    return _cost(measure(scenario, repeats))


def _ratio(scenario: dict[str, Any], base: dict[str, Any]) -> str:
    first, then = measure(base, 1), measure(scenario, 1)
    ratio = then.t_per_request / first.t_per_request
    return f"{ratio:.2f} x ({first.t_per_request:.0f} -> {then.t_per_request:.0f} T)"


ROWS: dict[str, Callable[[Path], str]] = {
    "one": lambda _: _timed(azure(**AHEAD), 5),
    "process": lambda folder: f"{process_s(azure(**AHEAD), folder):.2f} s",
    "few": lambda folder: (
        f"{process_s(ahead(lognormal(num_requests=20, num_clients=4)), folder):.2f} s"
    ),
    "prefixes": lambda folder: f"{process_s(few_prompts(), folder):.2f} s",
    "mooncake": lambda _: _timed(mooncake()),
    "pressed": lambda folder: _timed(pressed("chunked", folder)),
    "swapping": lambda folder: _timed(pressed("chunked, swapping", folder)),
    "pressed pipelines": lambda folder: _timed(pressed("chunked, pipelines of 2", folder), 2),
    "apart": lambda _: _timed(apart()),
    "taichi": lambda _: _timed(flowing()),
    "pipelines": lambda _: _timed(pipelines()),
    "million": lambda _: _timed(many(16, 1_000_000), 1),
    "clients": lambda _: _ratio(many(2048), many(4)),
    "longer": lambda folder: _ratio(azure(longer_answers(folder, 8), **AHEAD), azure(**AHEAD)),
}


def main() -> None:
    """Print the rows named on the command line, or all."""
    for name in sys.argv[1:] or ROWS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name:18} {ROWS[name](Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
