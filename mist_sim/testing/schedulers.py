"""Rules that every scheduler keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from unittest.mock import patch

import numpy as np

from mist_sim.clients.engine import stepped
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.testing.doubles import Arrival, Load, Setting, served
from mist_sim.testing.rules import name_of, require, stream_of


def check_scheduler(factory: Callable[[], Scheduler]) -> None:
    """Check that a scheduler serves all requests within its limits, with correct plans.

    Engines serve crowds with it: with full seats, full memory, long prompts and prefixes, planned
    as steps begin and a step ahead, in a pipeline of two, and above a tier. The rules: every
    request is finished or rejected, and none waits for ever; all blocks come back; steps taken many
    at a time give the times of single ones; decisions do not depend on output lengths; runs that
    share the scheduler do not affect one another. A `plan` that breaks a rule of the lane stops
    with a sentence.
    """
    scheduler = factory()
    require(isinstance(scheduler, Scheduler), f"{name_of(scheduler)} must extend Scheduler")
    for load, setting in _in_engines(scheduler):
        _check(factory, load, setting)


def _in_engines(scheduler: Scheduler) -> Iterator[tuple[Load, Setting]]:
    """Yield loads: full seats with prefixes, full memory, long prompts, and all at once."""
    draws = stream_of("check_scheduler in engines")
    for num_blocks, block_size, longest, num_seats, last in (
        (4_000, 16, 90, 3, 120),
        (60, 4, 90, None, 120),
        (600, 16, 3_000, 5, 120),
        (60, 4, 90, None, 1),
    ):
        times = np.sort(draws.integers(0, last, 40)).tolist()
        prompts = draws.integers(9, longest, 40).tolist()
        outputs = draws.integers(5, 60, 40).tolist()
        prefixes = draws.integers(1, 4, 40).tolist()
        arrivals = [
            Arrival(time, prompt, output, (prefix, 8) if longest < 100 else None)
            for time, prompt, output, prefix in zip(times, prompts, outputs, prefixes, strict=True)
        ]
        load = Load(arrivals, num_blocks, block_size)
        for setting in (Setting(num_seats=num_seats), Setting(ahead=True, num_seats=num_seats)):
            yield load, setting
        if scheduler.max_num_seqs > 1:
            yield load, Setting(num_ranks=2, num_seats=num_seats)
            if isinstance(scheduler, ChunkedScheduler) and not scheduler.swaps:
                yield load, Setting(ahead=True, num_ranks=2, num_seats=num_seats)
        if longest < 100 and not scheduler.swaps:
            yield load, Setting(num_seats=num_seats, has_tier=True)
            yield load, Setting(ahead=True, num_seats=num_seats, has_tier=True)


def _check(factory: Callable[[], Scheduler], load: Load, setting: Setting) -> None:
    """Check that all requests of a load end, whatever the scheduler served before, and when."""
    scheduler, name = factory(), name_of(factory())
    rows = served(scheduler, load, setting)
    for number, row in enumerate(rows):
        is_over = row.status in ("finished", "rejected")
        require(is_over, f"{name}: request {number} is {row.status} ({setting})")
    rule = "runs that share it disturb one another; keep what it remembers in lane.notes"
    require(rows == served(scheduler, load, setting), f"{name}: {rule} ({setting})")
    if not (isinstance(scheduler, ChunkedScheduler) and "plan" in scheduler.own_methods):
        with patch.object(stepped, "FAST_FORWARD", False):
            singly = served(factory(), load, setting)
        rule = "quiet steps differ from single steps; have a `begin`, so that every step asks"
        require(rows == singly, f"{name}: {rule} ({setting})")
    others = [replace(one, num_output=61 - one.num_output) for one in load.arrivals]
    blind = served(factory(), load._replace(arrivals=others), setting)
    first = min(each.finished_at or inf for each in (*rows, *blind))
    for one, other in zip(rows, blind, strict=True):
        times = one.first_token_at or inf, other.first_token_at or inf
        rule = "decisions depend on output lengths before any request finishes"
        require(min(times) >= first or times[0] == times[1], f"{name}: {rule} ({setting})")
