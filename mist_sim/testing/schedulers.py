"""What a scheduler has to hold to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mist_sim.clients.kv_cache import BlockPool, PrefixCachingManager
from mist_sim.clients.scheduling import Scheduler, StepPlan
from mist_sim.clients.sequence import Sequence
from mist_sim.core.events import Visit
from mist_sim.core.request import Request
from mist_sim.stages import completion
from mist_sim.testing.rules import name_of, require, stream_of


@dataclass(frozen=True, slots=True)
class _Load:
    """Sequences as (step at which it arrives, prompt tokens, output tokens), and the memory."""

    arrivals: list[tuple[int, int, int]]
    num_blocks: int
    block_size: int


_Trace = list[tuple[object, ...]]

_ENOUGH = 50_000  # plans or steps: ten times what the loads take with one slot


def check_scheduler(factory: Callable[[], Scheduler]) -> None:
    """Check that a scheduler serves everything within its limits, and that its plans are true.

    Under random loads with ample and with scarce memory: never more than `max_num_seqs` run; all
    blocks come back, and at any time there are enough for the tokens in the cache; every
    sequence is finished, refused or dropped, none waits for ever; nothing finishes before the
    last step of a plan; plans of many steps are those of single steps put together; decisions
    do not depend on output lengths; sequences that are given up leave nothing behind.
    """
    require(isinstance(factory(), Scheduler), f"{name_of(factory())} must extend Scheduler")
    for load in _loads():
        singly = _Engine(factory(), load).serve(1)
        together = _Engine(factory(), load).serve(64)
        _same_steps(factory(), singly, together, "plans of many steps differ from single steps")
        reversed_lengths = [(at, prompt, 120 - output) for at, prompt, output in load.arrivals]
        blind = _Engine(factory(), replace(load, arrivals=reversed_lengths)).serve(1)
        num_alike = min(_steps_to_first_finish(singly), _steps_to_first_finish(blind))
        rule = "decisions depend on output lengths before any sequence finishes"
        _same_steps(factory(), singly[:num_alike], blind[:num_alike], rule)
        _Engine(factory(), load, gives_up=True).serve(64)


def _loads() -> Iterator[_Load]:
    draws = stream_of("check_scheduler")
    for num_blocks, block_size, last in ((2_000, 16, 300), (60, 4, 200), (40, 4, 0), (150, 1, 400)):
        for _ in range(3):
            times = np.sort(draws.integers(0, last + 1, 40)).tolist()
            prompts = draws.integers(1, 100, 40).tolist()
            outputs = draws.integers(30, 91, 40).tolist()
            yield _Load(list(zip(times, prompts, outputs, strict=True)), num_blocks, block_size)


def _steps_to_first_finish(trace: _Trace) -> int:
    return next((position for position, step in enumerate(trace) if step[-1]), len(trace))


def _same_steps(scheduler: Scheduler, one: _Trace, other: _Trace, rule: str) -> None:
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            raise AssertionError(
                f"{name_of(scheduler)}: {rule}; step {position} is (prefills, decodes, running, "
                f"finished) = {left} and then {right}"
            )
    require(
        len(one) == len(other), f"{name_of(scheduler)}: {rule}; {len(one)} and {len(other)} steps"
    )


class _Engine:
    """Drives a scheduler as a client does, in steps without time."""

    def __init__(self, scheduler: Scheduler, load: _Load, *, gives_up: bool = False) -> None:
        self.scheduler = scheduler
        self.gives_up = gives_up
        self.pool = BlockPool(load.num_blocks, load.block_size)
        self.arrivals = list(reversed(load.arrivals))
        self.steps = 0
        self.ids: dict[Sequence, int] = {}
        self.left: set[Sequence] = set()
        self.trace: _Trace = []
        scheduler.start(PrefixCachingManager(self.pool))

    def require(self, holds: object, rule: str) -> None:
        require(holds, f"{name_of(self.scheduler)}: {rule} (at step {self.steps})")

    def serve(self, limit: int) -> _Trace:
        """Serve the load in plans of at most `limit` steps; return what each step did."""
        num_plans = 0
        while self.arrivals or len(self.left) < len(self.ids):
            num_plans += 1
            too_many = num_plans > _ENOUGH or len(self.trace) > _ENOUGH
            self.require(
                not too_many, f"sequences starve: {_ENOUGH} plans or steps did not serve 40"
            )
            while self.arrivals and self.arrivals[-1][0] <= self.steps:
                self.arrive()
            plan = self.scheduler.schedule(limit)
            self.check(plan, limit)
            if plan is None:
                if self.arrivals:
                    self.steps = self.arrivals[-1][0]
            elif plan.prefills or plan.decodes:
                self.execute(plan)
            if self.gives_up and num_plans % 3 == 0:
                self.abort_one()
        self.require(self.pool.num_free == self.pool.num_blocks, "not all blocks came back")
        return self.trace

    def abort_one(self) -> None:
        """Give up a sequence that waits or runs, now an early and now a late one."""
        inside = [sequence for sequence in self.ids if sequence not in self.left]
        if inside:
            sequence = inside[len(self.trace) % len(inside)]
            self.scheduler.abort(sequence)
            self.left.add(sequence)
            self.check_memory()

    def arrive(self) -> Sequence | None:
        """Queue the next sequence and return it; None when it is refused."""
        _, prompt, output = self.arrivals.pop()
        number = len(self.ids)
        request = Request(number, 0.0, completion(prompt, output), prompt, output)
        sequence = Sequence(Visit(request, request.stages, 0.0), prompt, output)
        self.ids[sequence] = number
        if self.scheduler.refusal(sequence) is not None:
            self.left.add(sequence)
            return None
        self.scheduler.add_request(sequence)
        return sequence

    def execute(self, plan: StepPlan) -> None:
        """Run a plan; an arrival that would be admitted cuts it, as in a client."""
        members = self.members(plan)
        num_steps = plan.num_steps
        while self.arrivals and self.arrivals[-1][0] < self.steps + num_steps:
            ahead = self.arrivals[-1][0] - self.steps
            sequence = self.arrive()
            if sequence is not None and self.scheduler.would_admit(sequence, ahead):
                num_steps = ahead
        emitted, finished = self.scheduler.update(plan, num_steps)
        cut = num_steps < plan.num_steps
        self.require(
            not (cut and (emitted or finished)),
            f"{len(finished)} sequences finished in step {num_steps} of a plan of {plan.num_steps}",
        )
        for sequence in finished:
            target, got = sequence.num_target_tokens, sequence.num_output_tokens
            self.require(got == target, f"a sequence finished with {got} of {target} tokens")
            self.require(sequence not in self.left, "a sequence finished twice")
            self.left.add(sequence)
        for step in range(num_steps):
            last = step == num_steps - 1
            done = tuple(self.ids[sequence] for sequence in finished) if last else ()
            self.trace.append((*members(step), done))
        self.steps += num_steps
        self.check_memory()

    def members(self, plan: StepPlan) -> Callable[[int], tuple[object, ...]]:
        """Return what a step of the plan computes, by its position in the plan."""
        prefills = [
            (self.ids[sequence], num_new, sequence.num_computed_tokens)
            for sequence, num_new in plan.prefills
        ]
        running = tuple(sorted(self.ids[sequence] for sequence in self.scheduler.running))
        decodes = plan.decodes

        def at(step: int) -> tuple[object, ...]:
            chunks = tuple((number, new, done + step * new) for number, new, done in prefills)
            return chunks, decodes, running

        return at

    def check(self, plan: StepPlan | None, limit: int) -> None:
        """Check a plan, and the queues after it was made."""
        scheduler = self.scheduler
        if plan is None:
            self.require(
                not scheduler.waiting and not scheduler.running,
                f"idle with {len(scheduler.waiting)} waiting, {len(scheduler.running)} running",
            )
            return
        self.left.update(plan.dropped)
        works = plan.prefills or plan.decodes
        self.require(works or plan.dropped, "a plan does nothing; return None when idle")
        self.require(
            1 <= plan.num_steps <= limit, f"num_steps must be in 1..{limit}, got {plan.num_steps}"
        )
        for sequence, num_new in plan.prefills:
            remaining = sequence.num_tokens - sequence.num_computed_tokens
            self.require(
                num_new >= 1 and num_new * plan.num_steps <= remaining,
                f"{plan.num_steps} steps of {num_new} prompt tokens, {remaining} remain",
            )
        num_running = len(scheduler.running)
        self.require(
            num_running <= scheduler.max_num_seqs,
            f"{num_running} run, max_num_seqs is {scheduler.max_num_seqs}",
        )
        inside = [*scheduler.waiting, *scheduler.running]
        self.require(
            len(set(inside)) == len(inside) and set(inside) == set(self.ids) - self.left,
            "every sequence must be waiting, running, finished or dropped, and only once",
        )
        self.check_memory()

    def check_memory(self) -> None:
        """Check that blocks are conserved and hold the tokens in the cache."""
        scheduler, pool = self.scheduler, self.pool
        self.require(0 <= pool.num_free <= pool.num_blocks, f"{pool.num_free} blocks are free")
        num_cached = scheduler.clock.context_sum
        num_cached += sum(sequence.num_computed_tokens for sequence in scheduler.prefilling)
        self.require(
            num_cached <= pool.num_used * pool.block_size,
            f"{num_cached} tokens in {pool.num_used} blocks of {pool.block_size}",
        )
        self.require(
            scheduler.running or not pool.num_used, f"nothing runs, {pool.num_used} blocks are held"
        )
