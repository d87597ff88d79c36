"""Rules that every scheduler keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest
from math import inf
from unittest.mock import patch

import numpy as np

from mist_sim.clients.engine import stepped
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler, own_methods_of
from mist_sim.testing.doubles import (
    Arrival,
    Load,
    Setting,
    SteppingEngine,
    Trace,
    served,
    served_in_core,
)
from mist_sim.testing.rules import name_of, require, stream_of


def check_scheduler(factory: Callable[[], Scheduler]) -> None:
    """Check that a scheduler serves all requests within its limits, with correct plans.

    The rules, under random loads with ample and with scarce memory, without and with a tier below
    it: at most `max_num_seqs` run, and at most a lane's share of these; all blocks come back, and
    there are always enough for the tokens in the cache; every sequence is finished, refused or
    dropped, and none waits for ever; none finishes before the last step of a plan; plans of many
    steps equal single steps put together; decisions do not depend on output lengths; abandoned
    sequences leave no blocks behind; no tokens are computed that could be loaded from the tier;
    lanes that share the scheduler do not affect one another.

    Engines then serve crowds with it: with full seats, full memory, long prompts and prefixes,
    planned as steps begin and a step ahead, and in a pipeline of two. All requests end, blocks add
    up, and plans of many steps give the times of single steps. One of your own, with a `plan` or a
    part of one that the engine core asks for, such as `piece`, is checked there alone, above a tier
    as well; a `plan` that breaks a rule of the lane stops with a sentence.
    """
    scheduler = factory()
    require(isinstance(scheduler, Scheduler), f"{name_of(scheduler)} must extend Scheduler")
    if own_methods_of(scheduler):
        for load, setting in _in_engines(scheduler, is_own=True):
            _check_own(factory, load, setting)
        return
    for load in (*_loads(), *_loads_with_prefixes()):
        singly = SteppingEngine(factory(), load).serve(1)
        together = SteppingEngine(factory(), load).serve(64)
        _same_steps(factory(), singly, together, "plans of many steps differ from single steps")
        others = [replace(one, num_output=120 - one.num_output) for one in load.arrivals]
        blind = _until_first_finish(SteppingEngine(factory(), load._replace(arrivals=others)))
        num_alike = min(_steps_to_first_finish(singly), _steps_to_first_finish(blind))
        rule = "decisions depend on output lengths before any sequence finishes"
        _same_steps(factory(), singly[:num_alike], blind[:num_alike], rule)
        SteppingEngine(factory(), load, gives_up=True).serve(64)
        SteppingEngine(factory(), load, max_num_seqs=min(3, factory().max_num_seqs)).serve(64)
        rule = "lanes that share it disturb one another; keep what it remembers in lane.notes"
        for shared in _side_by_side(factory(), load):
            _same_steps(factory(), together, shared, rule)
    for load, setting in _in_engines(factory()):
        _check_ends(factory, load, setting)


def _loads() -> Iterator[Load]:
    draws = stream_of("check_scheduler")
    for num_blocks, block_size, last in ((2_000, 16, 300), (60, 4, 200), (40, 4, 0), (150, 1, 400)):
        for _ in range(3):
            times = np.sort(draws.integers(0, last + 1, 40)).tolist()
            prompts = draws.integers(1, 100, 40).tolist()
            outputs = draws.integers(30, 91, 40).tolist()
            arrivals = list(map(Arrival, times, prompts, outputs))
            yield Load(arrivals, num_blocks, block_size)


def _loads_with_prefixes() -> Iterator[Load]:
    """Yield loads with shared prompt prefixes; memory evicts these, and a tier keeps them.

    Prefixes of 16 to 56 tokens, six of them.
    """
    draws = stream_of("check_scheduler with a tier")
    for num_blocks, block_size, last in ((60, 4, 1_500), (45, 4, 400), (160, 1, 800)):
        times = np.sort(draws.integers(0, last + 1, 40)).tolist()
        prefixes = draws.integers(1, 7, 40).tolist()
        own = draws.integers(1, 40, 40).tolist()
        outputs = draws.integers(30, 91, 40).tolist()
        arrivals = [
            Arrival(time, 8 + 8 * prefix + num_own, num_output, (prefix, 8 + 8 * prefix))
            for time, prefix, num_own, num_output in zip(times, prefixes, own, outputs, strict=True)
        ]
        yield Load(arrivals, num_blocks, block_size, has_tier=True)


def _in_engines(scheduler: Scheduler, *, is_own: bool = False) -> Iterator[tuple[Load, Setting]]:
    """Yield loads of engines: full seats with prefixes, full memory, and long prompts.

    is_own: whether the core asks it, which serves it above a tier as well.
    """
    draws = stream_of("check_scheduler in engines")
    for num_blocks, block_size, longest, num_seats in (
        (4_000, 16, 90, 3),
        (60, 4, 90, None),
        (600, 16, 3_000, 5),
    ):
        times = np.sort(draws.integers(0, 120, 40)).tolist()
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
        if is_own and longest < 100:
            yield load, Setting(num_seats=num_seats, has_tier=True)
            yield load, Setting(ahead=True, num_seats=num_seats, has_tier=True)


def _check_ends(factory: Callable[[], Scheduler], load: Load, setting: Setting) -> None:
    """Check that all requests of a load end in an engine, and when."""
    scheduler = factory()
    together = served(scheduler, load, setting)
    singly = served(factory(), load, setting, singly=True)
    for number, (one, other) in enumerate(zip(together, singly, strict=True)):
        require(
            one.status in ("finished", "rejected"),
            f"{name_of(scheduler)}.schedule: request {number} is {one.status} ({setting})",
        )
        require(
            one == other,
            f"{name_of(scheduler)}.schedule: plans of many steps differ from single steps: request "
            f"{number} is {one} and then {other} ({setting}). Nothing asks would_admit where seats "
            "are full or steps are planned ahead, so plan one step at a time",
        )


def _check_own(factory: Callable[[], Scheduler], load: Load, setting: Setting) -> None:
    """Check that all requests of a load end in the core, whatever it served before, and when."""
    scheduler, name = factory(), name_of(factory())
    rows = served_in_core(scheduler, load, setting)
    for number, row in enumerate(rows):
        is_over = row.status in ("finished", "rejected")
        require(is_over, f"{name}: request {number} is {row.status} ({setting})")
    rule = "runs that share it disturb one another; keep what it remembers in lane.notes"
    require(rows == served_in_core(scheduler, load, setting), f"{name}: {rule} ({setting})")
    if "plan" not in own_methods_of(scheduler):  # which every step asks
        with patch.object(stepped, "FAST_FORWARD", False):
            singly = served_in_core(factory(), load, setting)
        rule = "quiet steps differ from single steps; have a `begin`, so that every step asks"
        require(rows == singly, f"{name}: {rule} ({setting})")
    others = [replace(one, num_output=61 - one.num_output) for one in load.arrivals]
    blind = served_in_core(factory(), load._replace(arrivals=others), setting)
    first = min(each.finished_at or inf for each in (*rows, *blind))
    for one, other in zip(rows, blind, strict=True):
        times = one.first_token_at or inf, other.first_token_at or inf
        rule = "decisions depend on output lengths before any request finishes"
        require(min(times) >= first or times[0] == times[1], f"{name}: {rule} ({setting})")


def _side_by_side(scheduler: Scheduler, load: Load) -> list[Trace]:
    """Return the work of two lanes that took turns in planning with one scheduler."""
    engines = [SteppingEngine(scheduler, load) for _ in range(2)]
    for _ in zip_longest(*[engine.plans(64) for engine in engines]):
        pass
    return [engine.trace for engine in engines]


def _until_first_finish(engine: SteppingEngine) -> Trace:
    """Return the work of the steps until a sequence finished."""
    for _ in engine.plans(1):
        if engine.trace and engine.trace[-1][-1]:
            break
    return engine.trace


def _steps_to_first_finish(trace: Trace) -> int:
    return next((position for position, step in enumerate(trace) if step[-1]), len(trace))


def _same_steps(scheduler: Scheduler, one: Trace, other: Trace, rule: str) -> None:
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            raise AssertionError(
                f"{name_of(scheduler)}: {rule}; step {position} is (prefills, decodes, running, "
                f"finished) = {left} and then {right}"
            )
    require(
        len(one) == len(other), f"{name_of(scheduler)}: {rule}; {len(one)} and {len(other)} steps"
    )
