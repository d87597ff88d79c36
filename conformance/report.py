"""Compares what vLLM and mist-sim did, workload by workload, and counts by class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from math import inf
from typing import Any, Literal

import numpy as np
from rich.table import Table

from conformance import mist_side

Step = list[Any]
"""[[request, tokens, tokens computed before], ...], who is preempted, and blocks."""


@dataclass
class Difference:
    """How one workload differed: token times, preemptions, cached tokens; TTFT and E2E, in parts.

    By step, where vLLM's side tells its steps: the tokens that each request gets, who is preempted,
    what those who are admitted find in the cache, and the blocks that are taken.
    first: when the first token came at another time (seconds), None where none did.
    """

    times: bool
    preemptions: bool
    cached: bool
    tokens: bool = False
    blocks: bool = False
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


def ends_of(spec: dict[str, Any], arrivals: list[float]) -> list[float]:
    """Return when the senders of a workload's jobs went away; infinite: never."""
    waits = [job.get("abort") for job in spec["jobs"]]
    return [inf if wait is None else t + wait for t, wait in zip(arrivals, waits, strict=True)]


def _of(numbers: list[int], values: list[int]) -> list[int]:
    return [values[number] for number in numbers]


def compare(
    spec: dict[str, Any],
    theirs: dict[str, Any],
    *,
    release: str,
    asynchronous: bool,
    options: dict[str, Any] | None = None,
) -> Difference:
    """Run a workload here and compare with what a release of vLLM did; times to the bit."""
    ours = mist_side.run(
        spec,
        theirs["arrivals"],
        asynchronous=asynchronous,
        rules=mist_side.rules_of(release),
        options=options,
    )
    ends = ends_of(spec, theirs["arrivals"])
    expected, got = (
        [[time for time in each if time < end] for each, end in zip(times, ends, strict=True)]
        for times in (token_times(theirs), ours["token_times"])
    )
    served = [number for number, end in enumerate(ends) if end == inf]
    found = Difference(
        times=got != expected,
        preemptions=_of(served, ours["preemptions"]) != _of(served, theirs["preemptions"]),
        cached=_of(served, ours["cached"]) != _of(served, theirs["cached"]),
    )
    if "steps" in theirs and mist_side.has_steps(spec):
        compare_steps(found, ours["steps"], theirs["steps"])
    if found.times:
        begins = np.array(theirs["arrivals"])
        kept = [n for n, pair in enumerate(zip(got, expected, strict=True)) if all(pair)]
        begins = begins[kept]
        for name, place in (("ttft", 0), ("e2e", -1)):
            here, there = (np.array([times[n][place] for n in kept]) for times in (got, expected))
            difference = abs((here - begins).mean() / (there - begins).mean() - 1) if kept else 0.0
            setattr(found, name, float(difference))
        found.first = min(
            min(one, other)
            for mine, its in zip(got, expected, strict=True)
            for one, other in zip_longest(mine, its, fillvalue=inf)
            if one != other
        )
    return found


def compare_steps(found: Difference, ours: list[Step], theirs: list[Step]) -> None:
    """Note how steps differ."""
    mine, its = _by_step(ours), _by_step(theirs)
    found.tokens = mine[0] != its[0]
    found.preemptions = mine[1] != its[1]
    found.cached = mine[2] != its[2]
    found.blocks = len(mine[3]) != len(its[3]) or any(
        one is not None and one != other for one, other in zip(mine[3], its[3], strict=True)
    )


def _by_step(steps: list[Step]) -> tuple[list[Any], list[Any], list[Any], list[int | None]]:
    """Return, for each step, who gets tokens, who is preempted, who finds what, and blocks."""
    tokens, preempted, hits = [], [], []
    computed: dict[int, int] = {}
    for rows, names, _ in steps:
        for name in names:
            computed.pop(name, None)
        tokens.append(sorted(row[:2] for row in rows))
        preempted.append(sorted(names))
        hits.append(sorted([name, n] for name, _, n in rows if computed.get(name) != n))
        computed |= {name: new + before for name, new, before in rows}
    return tokens, preempted, hits, [blocks for _, _, blocks in steps]


def table(title: str, tallies: Iterable[tuple[str, Tally]]) -> Table:
    """Return the shares of equal workloads by class."""
    grid = Table(title=title)
    columns = ("class", "of", "times", "tokens", "preempted", "hits", "blocks", "TTFT", "E2E")
    for name in columns:
        justify: Literal["left", "right"] = "left" if name == "class" else "right"
        grid.add_column(name, justify=justify, no_wrap=True)
    for name, tally in tallies:
        parts = ("times", "tokens", "preemptions", "cached", "blocks")
        shares = [f"{tally.share(what):.1%}" for what in parts]
        errors = [f"{tally.error(what):.2%}" for what in ("ttft", "e2e")]
        grid.add_row(name, str(len(tally.found)), *shares, *errors)
    return grid
