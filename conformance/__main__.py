"""Compare mist-sim with an installed vLLM: `python -m conformance --python VENV/bin/python`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from conformance import logs
from conformance.report import Tally, compare, table
from conformance.workloads import CLASSES, workload

_ROOT = Path(__file__).resolve().parents[1]


def vllm_runs(
    python: str, specs: list[dict[str, Any]], asynchronous: bool, first_chunk: bool
) -> dict[str, Any]:
    """Return vLLM's version and what it did with workloads. Raises typer.Exit where it fails."""
    flags = ["--async"] * asynchronous + ["--first-chunk"] * first_chunk
    done = subprocess.run(
        [python, "-m", "conformance.vllm_side", *flags],
        input=json.dumps(specs),
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
    )
    if done.returncode:
        Console(stderr=True).print(done.stderr[-2_000:], markup=False)
        Console(stderr=True).print(f"vLLM's side failed under {python}; is vllm installed there?")
        raise typer.Exit(2)
    return dict(json.loads(done.stdout))


def main(
    number: Annotated[int, typer.Option(help="Workloads of each short class.")] = 100,
    number_long: Annotated[int, typer.Option(help="Workloads of each long class.")] = 8,
    first: Annotated[int, typer.Option(help="The first of their seeds.")] = 0,
    only: Annotated[
        str, typer.Option(help="Classes whose names begin so; several apart by |.")
    ] = "",
    asynchronous: Annotated[bool, typer.Option("--async", help="Plan one step ahead.")] = False,
    first_chunk: Annotated[
        bool, typer.Option("--first-chunk", help="scheduler_reserve_full_isl: false.")
    ] = False,
    python: Annotated[str, typer.Option(help="A Python that has vLLM.")] = sys.executable,
    seeds: Annotated[bool, typer.Option(help="Name the workloads that differ.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="A file for vLLM's results, which is read if it is there.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Write a log of small workloads.")] = None,
) -> None:
    """Run random workloads through vLLM's scheduler and through mist-sim; print what is equal."""
    most = logs.MOST_JOBS if log else 16
    specs = [
        workload(name, seed, most)
        for name, kind in CLASSES.items()
        if name.startswith(tuple(only.split("|"))) and not (log and kind.long)
        for seed in range(first, first + (number_long if kind.long else number))
    ]
    if keep and keep.exists():
        found = json.loads(keep.read_text())
    else:
        found = vllm_runs(python, specs, asynchronous, first_chunk)
        if keep:
            keep.write_text(json.dumps(found))
    options = found["options"]
    tallies: dict[str, Tally] = {}
    small = []
    for spec, result in zip(specs, found["results"], strict=True):
        name, seed = spec["name"], spec["seed"]
        if result["stuck"]:
            Console().print(f"{name}, seed {seed}: vLLM is stuck")
            continue
        difference = compare(
            spec,
            result,
            release=found["version"],
            asynchronous=asynchronous,
            options=options,
        )
        tallies.setdefault(name, Tally()).found.append(difference)
        if seeds and difference.times:
            Console().print(f"{name}, seed {seed}: differs from {difference.first:.4f} s on")
        if log and logs.is_small(result):
            small.append((name, seed, result))
    mode = "asynchronous" if asynchronous else "synchronous"
    gate = "" if options["scheduler_reserve_full_isl"] else ", admitted by the first chunk"
    title = f"equal to vLLM {found['version']}, {mode}{gate}"
    Console(width=132).print(table(title, tallies.items()))
    if log:
        logs.write(log, {"vllm": found["version"], "options": options}, small)


if __name__ == "__main__":
    typer.run(main)
