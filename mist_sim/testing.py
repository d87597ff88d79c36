"""Contract checks: what a plugin of each family must hold to, as functions for its own tests.

    from mist_sim.testing import check_router

    def test_my_router():
        check_router(MyRouter)

Every check takes a factory that makes a new, equally configured plugin at each call (`check_stage`
takes the class itself) and raises AssertionError with the rule, the case and the values. All
random cases come from fixed seeds, so that a check that passes keeps passing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast, get_type_hints

import numpy as np
from numpy.random import Generator

from mist_sim.clients.kv_cache import BlockPool, PrefixCachingManager
from mist_sim.clients.scheduling import Scheduler, StepPlan
from mist_sim.clients.sequence import Sequence
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.core.events import Visit
from mist_sim.core.request import Request, Stage
from mist_sim.hardware.predictors import Predictor
from mist_sim.rng import Streams
from mist_sim.routers import Router, Seeded
from mist_sim.stages import STAGES, completion
from mist_sim.traces import TraceReader, TraceRow

__all__ = [
    "check_predictor",
    "check_router",
    "check_scheduler",
    "check_stage",
    "check_trace_reader",
]


def _require(holds: object, rule: str) -> None:
    if not holds:
        raise AssertionError(rule)


def _name(plugin: object) -> str:
    return type(plugin).__name__


def _draws(name: str) -> Generator:
    return Streams(0).generator(name)


# --- routers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _View:
    """A client as a router sees it; writing to it raises."""

    client_id: int
    name: str
    num_waiting: int
    num_running: int
    num_outstanding: int


@dataclass(frozen=True, slots=True)
class _Choice:
    """One question to a router, and the same one with other output lengths."""

    request: Request
    twin: Request
    position: int
    candidates: list[_View]


def check_router(factory: Callable[[], Router]) -> None:
    """Check that a router chooses a candidate, by rules, and changes nothing.

    It returns the `client_id` of one of 1 to 8 candidates; leaves request, candidates and views
    as they are; decides the same whatever the output lengths; and repeats its decisions when it
    gets an equal stream (`seed`), or at once when it has no `seed`.
    """
    router = factory()
    _require(
        isinstance(router, Router), f"{_name(router)} needs choose(request, stage, candidates)"
    )
    choices = list(_choices())
    first = _decide(router, choices, twin=False)
    again = _decide(router, choices, twin=False)
    remedy = "use only the stream that seed(rng) gives, and forget earlier runs there"
    _same(router, first, again, f"when the run is repeated; {remedy}")
    other = _decide(factory(), choices, twin=False)
    _same(router, first, other, f"in another object of the same kind; {remedy}")
    blind = _decide(factory(), choices, twin=True)
    _same(router, first, blind, "when output lengths are others; it may not read them")


def _choices() -> Iterator[_Choice]:
    draws = _draws("check_router")
    for k in range(300):
        num_clients = int(draws.integers(1, 9)) if k % 3 else 8
        ids = sorted(draws.choice(20, num_clients, replace=False).tolist())
        views = []
        for client_id in ids:
            waiting, running = draws.integers(0, 5, 2).tolist()
            views.append(
                _View(client_id, f"client{client_id}", waiting, running, waiting + running)
            )
        prompt, output, another = draws.integers(1, 2_000, 3).tolist()
        time = k / 8
        session = k % 5 if k % 2 else None
        yield _Choice(
            Request(k, time, completion(prompt, output), prompt, output, session),
            Request(k, time, completion(prompt, another), prompt, another, session),
            k % 2,
            views,
        )


def _decide(router: Router, choices: list[_Choice], *, twin: bool) -> list[int]:
    """Return a router's decisions, from the beginning of a run."""
    if isinstance(router, Seeded):
        router.seed(_draws("router"))
    decisions = []
    for choice in choices:
        request = deepcopy(choice.twin if twin else choice.request)
        before, candidates = deepcopy(request), list(choice.candidates)
        case = f"{len(candidates)} candidates for {request.stages[choice.position].kind}"
        try:
            client_id: Any = router.choose(request, request.stages[choice.position], candidates)
        except Exception as error:
            raise AssertionError(f"{_name(router)}.choose raised {error!r} with {case}") from error
        ids = [view.client_id for view in choice.candidates]
        _require(
            isinstance(client_id, int) and client_id in ids,
            f"{_name(router)}.choose must return the client_id of a candidate ({ids}), "
            f"got {client_id!r}",
        )
        _require(
            candidates == choice.candidates and _values(request) == _values(before),
            f"{_name(router)}.choose must change neither request nor candidates, with {case}",
        )
        decisions.append(client_id)
    return decisions


def _values(request: Request) -> tuple[object, ...]:
    return tuple(getattr(request, item.name) for item in fields(request))


def _same(router: Router, first: list[int], second: list[int], when: str) -> None:
    for position, (one, other) in enumerate(zip(first, second, strict=True)):
        if one != other:
            raise AssertionError(
                f"{_name(router)} decides differently {when} "
                f"(decision {position}: {one}, then {other})"
            )


# --- schedulers -------------------------------------------------------------------------------


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
    _require(isinstance(factory(), Scheduler), f"{_name(factory())} must extend Scheduler")
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
    draws = _draws("check_scheduler")
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
                f"{_name(scheduler)}: {rule}; step {position} is (prefills, decodes, running, "
                f"finished) = {left} and then {right}"
            )
    _require(
        len(one) == len(other), f"{_name(scheduler)}: {rule}; {len(one)} and {len(other)} steps"
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
        _require(holds, f"{_name(self.scheduler)}: {rule} (at step {self.steps})")

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


# --- predictors -------------------------------------------------------------------------------


def check_predictor(factory: Callable[[], Predictor]) -> None:
    """Check that a predictor's times are sound, and that `run` has the bits of `step_time`.

    Times are positive, finite floats that depend on the batch alone. `run` returns an array of
    float64 of its own for each call, equal to `step_time` of every grown batch. One that says
    `times_drafts` is also asked for batches with drafts.
    """
    predictor, another = factory(), factory()
    _require(
        isinstance(predictor, Predictor),
        f"{_name(predictor)} needs step_time(batch) and run(batch, growth, num_steps)",
    )
    drafts = bool(getattr(predictor, "times_drafts", False))
    for batch, growth, num_steps in _batches(drafts=drafts):
        asked = deepcopy(batch)
        times: Any = predictor.run(batch, growth, num_steps)
        _require(
            isinstance(times, np.ndarray)
            and times.shape == (num_steps,)
            and times.dtype == np.float64,
            f"{_name(predictor)}.run must return float64 of shape ({num_steps},), got {times!r}",
        )
        steps: list[Any] = [predictor.step_time(grown(batch, growth, k)) for k in range(num_steps)]
        for position, (step, time) in enumerate(zip(steps, times.tolist(), strict=True)):
            later = grown(batch, growth, position)
            _require(
                isinstance(step, float) and 0 < step < math.inf,
                f"{_name(predictor)}: times must be finite floats > 0 s, got {step!r} for {later}",
            )
            _require(
                step == time,
                f"{_name(predictor)}: run and step_time must agree to the bit, got {time!r} and "
                f"{step!r} s for step {position} of {num_steps} from {batch} with {growth}",
            )
        _require(batch == asked, f"{_name(predictor)} must not change the batch {asked}")
        times[:] = -1.0
        _require(
            predictor.run(batch, growth, num_steps).tolist() == steps,
            f"{_name(predictor)}.run must give the caller an array of its own, and equal times "
            f"for equal batches, for {batch}",
        )
        _require(
            another.step_time(batch) == steps[0],
            f"{_name(predictor)}: two predictors from the factory differ for {batch}",
        )


def _batches(*, drafts: bool) -> Iterator[tuple[StepBatch, StepGrowth, int]]:
    draws = _draws("check_predictor")
    for k in range(150):
        num_chunks = (0, 1, 1, 3)[k % 4]
        new = draws.integers(1, (9, 600, 5_000)[k % 3], num_chunks).tolist()
        context = (draws.integers(0, 30_000, num_chunks) * (k % 2)).tolist()
        num_decodes = int(draws.integers(0 if num_chunks else 1, (3, 64, 300)[k % 3]))
        contexts = draws.integers(1, 9_000, num_decodes)
        batch = StepBatch(tuple(zip(new, context, strict=True)), num_decodes, int(contexts.sum()))
        growth = StepGrowth(num_decodes)
        if k % 5 == 0:  # as engines count for a model with windows of 1,024 tokens
            batch.window_sum = int(contexts.clip(max=1_023).sum())
            growth.window_sum = int((contexts < 900).sum())
        num_steps = int(draws.integers(1, 40))
        yield batch, growth, num_steps
        if drafts and num_decodes and k % 5 == 1:  # accepted here more and there fewer
            num_drafts = int(draws.integers(1, 8))
            tokens = draws.integers(num_decodes, num_decodes * (1 + num_drafts) + 1, num_steps)
            added = np.concatenate(([0], np.cumsum(tokens[:-1])))
            yield replace(batch, num_drafts=num_drafts), StepGrowth(added), num_steps
    yield StepBatch((), 1, 1), StepGrowth(1), 3_000  # a long run


# --- stages -----------------------------------------------------------------------------------

_EXAMPLES: dict[object, object] = {int: 1, float: 1.0, str: "x", bool: True}


def check_stage(cls: type[Stage], **parameters: object) -> None:
    """Check that a stage is an immutable value with a kind of its own, and refuses nonsense.

    parameters: values of fields without a default; not needed for numbers and strings. A field
    that counts something (`num_...`) must refuse -1 with a ValueError that names it.
    """
    name, plugin = cls.__name__, cast(Any, cls)
    _require(issubclass(plugin, Stage), f"{name} must be a subclass of Stage")
    _require(plugin is not Stage and is_dataclass(plugin), f"{name} must be a frozen dataclass")
    kind = plugin.kind
    _require(
        isinstance(kind, str) and kind.isidentifier() and kind != Stage.kind,
        f"{name}.kind must be a word of its own, got {kind!r}",
    )
    _require("kind" not in {item.name for item in fields(cls)}, f"{name}.kind must be a ClassVar")
    known = dict(STAGES).get(cls.kind, cls)
    _require(known is cls, f"{name}.kind is {kind!r}, which already names {known.__name__}")
    values = _example_values(cls) | parameters
    one, same = cls(**values), cls(**values)
    _require(one == same and hash(one) == hash(same), f"{name} must be equal for equal parameters")
    try:
        setattr(one, next(iter(values), "kind"), None)
    except (AttributeError, TypeError):
        pass
    else:
        raise AssertionError(f"{name} must be frozen: @dataclass(frozen=True)")
    for field in values:
        if field.startswith("num_"):
            other = cls(**(values | {field: 7}))
            _require(one != other, f"{name} must differ when {field} differs")
            _check_refusal(cls, values | {field: -1}, field)


def _example_values(cls: type[Stage]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {
        item.name: _EXAMPLES[hints[item.name]]
        for item in fields(cls)
        if hints[item.name] in _EXAMPLES
    }


def _check_refusal(cls: type[Stage], values: dict[str, Any], field: str) -> None:
    try:
        cls(**values)
    except ValueError as error:
        _require(field in str(error), f"{cls.__name__}: the error must name {field}, got {error}")
    else:
        raise AssertionError(f"{cls.__name__} must refuse {field}=-1 with a ValueError")


# --- trace readers ----------------------------------------------------------------------------


def check_trace_reader(factory: Callable[[], TraceReader]) -> None:
    """Check that a reader gives sound rows, the same at every reading.

    factory: makes a reader of an existing file with at least two requests. Lengths are whole
    numbers >= 1; times are seconds from the first row, never decreasing, or None in every row.
    A reader with a `num_requests` gives the first so many rows.
    """
    reader = factory()
    _require(isinstance(reader, TraceReader), f"{_name(reader)} needs rows()")
    iterator = reader.rows()
    _require(isinstance(iterator, Iterator), f"{_name(reader)}.rows must return an iterator")
    rows = list(iterator)
    _require(len(rows) >= 2, f"{_name(reader)}: the check needs 2 rows or more, got {len(rows)}")
    last = 0.0
    for position, row in enumerate(rows):
        _check_row(f"{_name(reader)}: row {position}", row, last)
        last = row.arrival_time or 0.0
    _require(list(reader.rows()) == rows, f"{_name(reader)}.rows must start anew at each call")
    halted = reader.rows()
    next(halted)
    _require(
        list(factory().rows()) == rows and list(halted) == rows[1:],
        f"{_name(reader)}: readings at the same time must not disturb each other",
    )
    times = [row.arrival_time for row in rows]
    all_or_none = times[0] == 0.0 if None not in times else set(times) == {None}
    rule = "rows have times from 0 s on, or none has a time"
    _require(all_or_none, f"{_name(reader)}: {rule}, got {times[0]} and {times[-1]}")
    if "num_requests" in getattr(reader, "__dataclass_fields__", {}):
        short = replace(cast(Any, reader), num_requests=1)
        _require(
            list(short.rows()) == rows[:1], f"{_name(reader)}: num_requests=1 must give one row"
        )


def _check_row(place: str, row: Any, last: float) -> None:
    _require(isinstance(row, TraceRow), f"{place} must be a TraceRow, got {row!r}")
    for field in ("num_prompt_tokens", "num_output_tokens"):
        count = getattr(row, field)
        _require(
            type(count) is int and count >= 1,
            f"{place}: {field} must be an int >= 1, got {count!r}",
        )
    time = row.arrival_time
    _require(
        time is None or (isinstance(time, float) and last <= time < math.inf),
        f"{place}: times must be finite floats that never decrease, got {time!r} after {last}",
    )
    _require(
        isinstance(row.content, tuple) and all(map(_is_span, row.content)),
        f"{place}: content must be a tuple of (id, tokens >= 1), got {row.content!r}",
    )


def _is_span(span: object) -> bool:
    if not (isinstance(span, tuple) and len(span) == 2):
        return False
    return type(span[0]) is int and type(span[1]) is int and span[1] >= 1
