"""Compares what vLLM and mist-sim did, workload by workload, and counts by class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from rich.table import Table

from conformance import mist_side


@dataclass
class Difference:
    """How one workload differed: token times, preemptions, cached tokens; TTFT and E2E, in parts.

    first: when the first token came at another time (seconds), None where none did.
    """

    times: bool
    preemptions: bool
    cached: bool
    ttft: float = 0.0
    e2e: float = 0.0
    first: float | None = None


@dataclass
class Tally:
    """The workloads of a class."""

    found: list[Difference] = field(default_factory=list)

    def share(self, what: str) -> float:
        """Return the share of workloads in which a thing is equal."""
        return sum(not getattr(each, what) for each in self.found) / len(self.found)

    def error(self, what: str) -> float:
        """Return the mean relative error of a latency over all workloads."""
        return float(np.mean([getattr(each, what) for each in self.found]))


def token_times(theirs: dict[str, Any]) -> list[list[float]]:
    """Return the token times of vLLM's side."""
    ends = theirs["ends"]
    return [[ends[step] for step in steps] for steps in theirs["token_steps"]]


def compare(
    spec: dict[str, Any],
    theirs: dict[str, Any],
    *,
    asynchronous: bool,
    options: dict[str, Any] | None = None,
) -> Difference:
    """Run a workload here and compare; times to the bit."""
    ours = mist_side.run(spec, theirs["arrivals"], asynchronous=asynchronous, options=options)
    expected, got = token_times(theirs), ours["token_times"]
    found = Difference(
        times=got != expected,
        preemptions=ours["preemptions"] != theirs["preemptions"],
        cached=ours["cached"] != theirs["cached"],
    )
    if found.times:
        begins = np.array(theirs["arrivals"])
        for name, place in (("ttft", 0), ("e2e", -1)):
            here, there = (np.array([t[place] for t in times]) for times in (got, expected))
            difference = abs((here - begins).mean() / (there - begins).mean() - 1)
            setattr(found, name, float(difference))
        found.first = min(
            min(one, other)
            for mine, its in zip(got, expected, strict=True)
            for one, other in zip(mine, its, strict=True)
            if one != other
        )
    return found


def table(title: str, tallies: Iterable[tuple[str, Tally]]) -> Table:
    """Return the shares of equal workloads by class."""
    grid = Table(title=title)
    columns = ("class", "workloads", "times", "preempted", "cached", "TTFT off", "E2E off")
    for name in columns:
        justify: Literal["left", "right"] = "left" if name == "class" else "right"
        grid.add_column(name, justify=justify, no_wrap=True)
    for name, tally in tallies:
        shares = [f"{tally.share(what):.1%}" for what in ("times", "preemptions", "cached")]
        errors = [f"{tally.error(what):.2%}" for what in ("ttft", "e2e")]
        grid.add_row(name, str(len(tally.found)), *shares, *errors)
    return grid
