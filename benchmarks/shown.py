"""The budgets of speed: `python -m benchmarks.shown [ROW ...]`, all rows without a name.

Each is a run of `simulate()` with its summary in a process of its own (microseconds and T a
request, peak memory), or a whole `mist run` with its results written (seconds of processor time).
Ends with 1 where a row is over its budget. Budgets in seconds and ratios hold on a quiet machine
whose T is 0.47 us; those in T on any. `MIST_SIM_CORE=python` asks the uncompiled core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import measure
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
from mist_sim import compiled

MOONCAKE = AZURE.with_name("mooncake_synthetic_trace.jsonl")
_NO_CACHE = "PYTHONDONTWRITEBYTECODE"
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
        # a machine that keeps no compiled sources would time their compilation
        here = {name: value for name, value in os.environ.items() if name != _NO_CACHE}
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=here)
        least = min(least, os.times().children_user - before)
    return least


@dataclass(frozen=True)
class Row:
    """What is measured, and at most how much it may be.

    run: returns the figure, in T, seconds or as a ratio, and the words about it. budget: of the
    compiled core; uncompiled: of the same files run as Python, None where nothing is promised.
    """

    run: Callable[[Path], tuple[float, str]]
    budget: float
    uncompiled: float | None = None


def _timed(scenario: dict[str, Any], repeats: int = 3) -> tuple[float, str]:
    found = measure(scenario, repeats)
    each, often = 1e6 / found.requests_per_s, found.num_preemptions / found.num_requests
    return found.t_per_request, (
        f"{found.t_per_request:.0f} T, {each:.0f} us a request, {found.cpu_s:.2f} s, "
        f"{found.rss_bytes / 2**20:.0f} MiB, {often:.2f} preemptions a request "
        f"(T = {found.t_s * 1e6:.2f} us)"
    )


def _ratio(scenario: dict[str, Any], base: dict[str, Any]) -> tuple[float, str]:
    first, then = measure(base, 1), measure(scenario, 1)
    ratio = then.t_per_request / first.t_per_request
    return ratio, f"{ratio:.2f} x ({first.t_per_request:.0f} -> {then.t_per_request:.0f} T)"


def _process(scenario: dict[str, Any], folder: Path) -> tuple[float, str]:
    seconds = process_s(scenario, folder)
    return seconds, f"{seconds:.2f} s"


ROWS = {
    "one": Row(lambda _: _timed(azure(**AHEAD), 5), 55, 140),
    "process": Row(lambda folder: _process(azure(**AHEAD), folder), 1.1),
    "few": Row(
        lambda folder: _process(ahead(lognormal(num_requests=20, num_clients=4)), folder), 0.56
    ),
    "prefixes": Row(lambda folder: _process(few_prompts(), folder), 2.5),
    "mooncake": Row(lambda _: _timed(mooncake()), 200),
    "pressed": Row(lambda folder: _timed(pressed("chunked", folder)), 90, 652),
    "swapping": Row(lambda folder: _timed(pressed("chunked, swapping", folder)), 100),
    "pressed pipelines": Row(
        lambda folder: _timed(pressed("chunked, pipelines of 2", folder), 2), 200
    ),
    "apart": Row(lambda _: _timed(apart()), 130),
    "taichi": Row(lambda _: _timed(flowing()), 150),
    "pipelines": Row(lambda _: _timed(pipelines()), 130),
    "million": Row(lambda _: _timed(many(16, 1_000_000), 1), 55),  # 26 s at T = 0.47 us
    "clients": Row(lambda _: _ratio(many(2048), many(4)), 1.3),
    "longer": Row(
        lambda folder: _ratio(azure(longer_answers(folder, 8), **AHEAD), azure(**AHEAD)), 1.2, 1.3
    ),
}


def main() -> int:
    """Print the rows named on the command line, or all; return 1 where one is over its budget."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shown",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    rows = parser.parse_args().rows
    if unknown := [name for name in rows if name not in ROWS]:
        parser.error(f"no row {unknown[0]!r}; known: {', '.join(ROWS)}")
    is_over = False
    is_compiled = compiled.state() == compiled.COMPILED
    for name in rows or ROWS:
        row = ROWS[name]
        budget = row.budget if is_compiled else row.uncompiled
        with tempfile.TemporaryDirectory() as folder:
            try:
                figure, words = row.run(Path(folder))
            except subprocess.CalledProcessError as error:
                said = (error.stderr or "").strip().splitlines()[-1:] or ["no reason said"]
                print(f"{name:18} did not run: {said[0]}", flush=True)
                is_over = True
                continue
        if budget is not None:
            words += f"; budget {budget:g}"
            if figure > budget:
                words, is_over = f"{words}: OVER", True
        print(f"{name:18} {words}", flush=True)
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
