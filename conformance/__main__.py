"""Compare mist-sim with an installed vLLM: `python -m conformance --python VENV/bin/python`.

By default a sample of each class runs, which takes minutes; `--number 100 --number-long 8` takes
hours. Workloads run seed by seed through all classes, so what ran before a stop is a sample, too.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from conformance import logs
from conformance.jobs import Spec
from conformance.report import Tally, compare, table
from conformance.runs import FailedError, Result, Runs
from conformance.workloads import CLASSES, workload

_STOPPED = 130  # exit code, as of a shell's


@dataclass
class Findings:
    """The workloads that are equal, by class, and those that could not be compared.

    small: results for a log; None: none is written. seeds: whether workloads that differ are named.
    """

    runs: Runs
    small: list[logs.Entry] | None = None
    seeds: bool = False
    tallies: dict[str, Tally] = field(default_factory=dict)
    left_out: dict[str, Result] = field(default_factory=dict)

    def add(self, spec: Spec, result: Result) -> None:
        """Compare a workload with what vLLM did, and say at once what is odd."""
        name, seed, say = spec["name"], spec["seed"], Console().print
        version = self.runs.header["version"]
        if "failed" in result:
            if name not in self.left_out:
                cannot = "fails in it" if result["built"] else "cannot build it"
                say(f"{name}: left out, vLLM {version} {cannot} ({result['failed']})", markup=False)
            self.left_out[name] = result
            return
        if result["stuck"]:
            say(f"{name}, seed {seed}: vLLM is stuck")
            return
        difference = compare(
            spec,
            result,
            release=version,
            asynchronous=self.runs.asynchronous,
            options=self.runs.header["options"],
        )
        self.tallies.setdefault(name, Tally()).found.append(difference)
        if self.seeds and difference.times:
            say(f"{name}, seed {seed}: differs from {difference.first:.4f} s on")
        if self.small is not None and logs.is_small(result):
            self.small.append((name, seed, result))

    def show(self, *, stopped: bool) -> None:
        """Print what is equal, by class."""
        if not self.tallies:
            return
        header = self.runs.header
        mode = "asynchronous" if self.runs.asynchronous else "synchronous"
        gate = ", admitted by the first chunk"
        title = f"equal to vLLM {header['version']}, {mode}"
        title += gate * (not header["options"]["scheduler_reserve_full_isl"])
        title += ", as far as it ran" * stopped
        in_order = sorted(self.tallies.items(), key=lambda each: list(CLASSES).index(each[0]))
        Console(width=132).print(table(title, in_order))


def specs_of(only: str, seeds: range, number_long: int, *, is_log: bool) -> list[dict[str, Any]]:
    """Return workloads of the classes whose names begin so, seed by seed.

    number_long: seeds of long classes. is_log: whether they are for a log, which has short ones.
    """
    most = logs.MOST_JOBS if is_log else 16
    last_long = 0 if is_log else seeds.start + number_long
    names = [name for name in CLASSES if name.startswith(tuple(only.split("|")))]
    return [
        workload(name, seed, most)
        for seed in range(seeds.start, max(seeds.stop, last_long))
        for name in names
        if (seed < last_long if CLASSES[name].long else seed < seeds.stop)
    ]


def main(
    number: Annotated[int, typer.Option(help="Workloads of each short class.")] = 3,
    number_long: Annotated[int, typer.Option(help="Workloads of each long class.")] = 1,
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
        Path | None,
        typer.Option(help="A file of vLLM's results: each is added as it runs, none runs twice."),
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Write a log of small workloads.")] = None,
) -> None:
    """Run random workloads through vLLM's scheduler and through mist-sim; print what is equal."""
    specs = specs_of(only, range(first, first + number), number_long, is_log=log is not None)
    stopped = False
    try:
        runs = Runs(python, asynchronous, first_chunk, keep)
        findings = Findings(runs, [] if log else None, seeds)
        try:
            for spec, result in runs.of(specs):
                findings.add(spec, result)
        except KeyboardInterrupt:
            stopped = True
        except FailedError:
            findings.show(stopped=True)
            raise
    except FailedError as error:
        Console(stderr=True).print(str(error), markup=False)
        raise typer.Exit(2) from None
    findings.show(stopped=stopped)
    if stopped:
        again = f"; --keep {keep} goes on" if keep else "; with --keep FILE it would go on"
        Console(stderr=True).print(f"stopped{again}", markup=False)
        raise typer.Exit(_STOPPED)
    if log:
        header = {"vllm": runs.header["version"], "options": runs.header["options"]}
        logs.write(log, header, sorted(findings.small or [], key=_in_order))
    left_out = findings.left_out.values()
    if any(result["built"] for result in left_out) or (left_out and not findings.tallies):
        raise typer.Exit(1)


def _in_order(entry: logs.Entry) -> tuple[int, int]:
    """Return where an entry stands in a log: by class, then by seed."""
    return list(CLASSES).index(entry[0]), entry[1]


if __name__ == "__main__":
    typer.run(main)
