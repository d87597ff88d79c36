"""Doubles of parts of a simulation, and watchers of them, for checks of plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from typing import Any, ClassVar, NamedTuple, NoReturn, cast

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from mist_sim.clients import Client, EngineConfig, LlmClient
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import (
    BlockPool,
    CacheTier,
    ContentHistory,
    EngineMemory,
    KvCacheConfig,
    PrefixCachingManager,
    SerialLink,
    SwapSpace,
    TieredManager,
)
from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.roster import Roster
from mist_sim.clients.scheduling import LaneState, Scheduler, StepPlan
from mist_sim.clients.scheduling.cadence import cadence_of
from mist_sim.clients.scheduling.update import update
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.request import Limits, Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.core.visit import Failure, HeldKv, Moved, Served, Visit
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.load_generation import OpenLoop
from mist_sim.metrics import ColumnRecorder
from mist_sim.network import Link
from mist_sim.rng import Streams
from mist_sim.routers import RoundRobinRouter
from mist_sim.simulation import Simulation
from mist_sim.stages import completion
from mist_sim.testing.rules import name_of, require, stream_of
from mist_sim.traces import Workload


@dataclass(frozen=True, slots=True)
class FakeView:
    """A `ClientView` with the numbers that a test gives it; writing to it raises.

    num_cached: tokens of any prompt with content that its prefix cache has, at most all but one.

    mean_answer: expected of any request. seconds_away: of the KV entries that a request brings.
    seconds_per_token: of prompts that are still to be computed.

    num_outstanding is the sum of the waiting and the running requests.
    """

    client_id: int
    num_waiting: int = 0
    num_running: int = 0
    num_waiting_tokens: int = 0
    num_kv_blocks: int = 0
    num_kv_tokens: int = 0
    num_cached: int = 0
    role: str | None = None
    pool: str | None = None
    num_prompt_tokens: int = 0
    num_gpu_blocks: int = 0
    block_size: int = 0
    num_remaining_tokens: float = 0
    mean_answer: float = 0
    seconds_away: float = 0
    num_prefill_tokens: int = 0
    seconds_per_token: float = 0

    @property
    def name(self) -> str:
        """The word "client" and its number."""
        return f"client{self.client_id}"

    @property
    def num_outstanding(self) -> int:
        """Requests that wait or run."""
        return self.num_waiting + self.num_running

    def num_answer_tokens(self, request: Request) -> float:
        """Return `mean_answer`."""
        return self.mean_answer

    def transfer_time(self, request: Request) -> float:
        """Return `seconds_away`, of a request that brings KV entries."""
        return self.seconds_away if request.kv else 0.0

    def transfer_time_from(self, source: ClientView, num_tokens: int) -> float:
        """Return `seconds_away`."""
        return self.seconds_away

    def prefill_time(self, request: Request) -> float:
        """Return the seconds of all prompts, at `seconds_per_token`."""
        num_tokens = self.num_prefill_tokens + request.num_prompt_tokens
        return num_tokens * self.seconds_per_token

    def prefix_tokens(self, request: Request) -> int:
        """Return `num_cached`, of a prompt that has content."""
        return min(self.num_cached, request.num_prompt_tokens - 1) if request.content else 0


_TIER = CacheTier("lower tier", 1_000, 3.0, 0.25)  # a load takes 3 steps and one for four blocks


class WatchedTier(TieredManager):
    """A tier with room for all; raises AssertionError, in a scheduler's name, where it is missed.

    Times are in steps.
    """

    def __init__(self, pool: BlockPool, scheduler: str) -> None:
        super().__init__(pool, [_TIER])
        self._link = SerialLink()
        self._scheduler = scheduler
        self._starts_load = False

    def start_load(self, sequence: SequenceState) -> list[tuple[str, int]]:
        """Note, while the load starts, that it does."""
        self._starts_load = True
        counts = super().start_load(sequence)
        self._starts_load = False
        return counts

    def load(self, num_blocks: int, now: float) -> float:
        """Begin to load blocks; return when they are there."""
        return self._link.send(_TIER.latency + num_blocks * _TIER.seconds_per_block, now)

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Let a sequence in, unless it has to be loaded first."""
        num_missing = 0 if self._starts_load else sum(self.missing(sequence))
        require(
            not num_missing,
            f"{self._scheduler}: a sequence is computed whose {num_missing} blocks lie in a tier; "
            f"admit with admit_next, or whom next_to_admit returns",
        )
        super().admit(sequence, most_new)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A sequence: the step at which it arrives, its tokens, and the prefix that others share.

    prefix: (id, tokens); None: its prompt is its own.
    """

    step: int
    num_prompt: int
    num_output: int
    prefix: tuple[int, int] | None = None


class Load(NamedTuple):
    """Sequences in the order in which they arrive, and the memory for them."""

    arrivals: list[Arrival]
    num_blocks: int
    block_size: int
    has_tier: bool = False


Trace = list[tuple[object, ...]]

_ENOUGH = 50_000  # plans or steps: ten times what the loads take with one slot


class SteppingEngine:
    """Drives a scheduler as a client does, in steps without time; raises where a rule is broken.

    gives_up: whether sequences are given up. max_num_seqs: the lane's share of the scheduler's;
    None: all of it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        load: Load,
        *,
        gives_up: bool = False,
        max_num_seqs: int | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.max_num_seqs = max_num_seqs or scheduler.max_num_seqs
        self.gives_up = gives_up
        self.pool = BlockPool(load.num_blocks, load.block_size)
        self.arrivals = list(reversed(load.arrivals))
        # when they end, the last to end first
        self.loads: list[tuple[int, SequenceState]] = []
        self.steps = 0
        self.ids: dict[SequenceState, int] = {}
        self.prefix_tokens: dict[SequenceState, int] = {}
        self.left: set[SequenceState] = set()
        self.trace: Trace = []
        self.tier = WatchedTier(self.pool, name_of(scheduler)) if load.has_tier else None
        self.kv_cache = PrefixCachingManager(self.pool) if self.tier is None else self.tier
        self.lane = LaneState(
            self.kv_cache,
            scheduler.new_queue(),
            max_num_seqs=self.max_num_seqs,
            by_piece=scheduler.by_piece,
            cadence=cadence_of(scheduler),
        )

    def fail(self, rule: str) -> NoReturn:
        """Raise AssertionError for a broken rule. Callers test the rule first, in every step."""
        raise AssertionError(f"{name_of(self.scheduler)}.schedule: {rule} (at step {self.steps})")

    def serve(self, limit: int) -> Trace:
        """Serve the load in plans of at most `limit` steps; return the work of each step."""
        for _ in self.plans(limit):
            pass
        return self.trace

    def plans(self, limit: int) -> Iterator[None]:
        """Serve the load, a plan of at most `limit` steps at a time."""
        num_plans = 0
        while self.arrivals or self.loads or len(self.left) < len(self.ids):
            num_plans += 1
            too_many = num_plans > _ENOUGH or len(self.trace) > _ENOUGH
            if too_many:
                self.fail(f"sequences starve: {_ENOUGH} plans or steps did not serve 40")
            while self.next_news() <= self.steps:
                self.hear()
            if self.scheduler.plans_single_steps:
                limit, self.lane.time = 1, float(self.steps)
            plan = self.scheduler.schedule(self.lane, limit)
            self.check(plan, limit)
            if plan is None:
                if self.arrivals or self.loads:
                    self.steps = int(self.next_news())
            else:
                for move in plan.moves:
                    if not move.is_swap:
                        self.start_load(move)
                if plan.prefills or plan.decodes:
                    self.execute(plan)
            if self.gives_up and num_plans % 3 == 0:
                self.abort_one()
            yield
        if self.pool.num_free != self.pool.num_blocks:
            self.fail("not all blocks came back")

    def abort_one(self) -> None:
        """Give up a sequence that waits or runs, now an early and now a late one."""
        inside = [sequence for sequence in self.ids if sequence not in self.left]
        if inside:
            sequence = inside[len(self.trace) % len(inside)]
            self.lane.abort(sequence)
            self.left.add(sequence)
            self.check_memory()

    # --- arrivals and loads ---------------------------------------------------------------

    def next_news(self) -> float:
        """Return the step at which the next sequence arrives or the next load ends."""
        arrival = self.arrivals[-1].step if self.arrivals else inf
        return min(arrival, self.loads[-1][0]) if self.loads else arrival

    def hear(self) -> SequenceState | None:
        """Tell the scheduler of arrivals and departures; return the requests it may admit then."""
        if self.arrivals and self.arrivals[-1].step <= self.next_news():
            return self.arrive()
        _, sequence = self.loads.pop()
        return sequence if self.lane.coming.finish_load(sequence) else self.lane.head()

    def arrive(self) -> SequenceState | None:
        """Queue the next sequence and return it; None when it is refused."""
        arrival = self.arrivals.pop()
        number = len(self.ids)
        prompt, output = arrival.num_prompt, arrival.num_output
        content = (arrival.prefix,) if arrival.prefix else ()
        stages = completion(prompt, output)
        request = Request(number, 0.0, stages, prompt, output, content=content)
        sequence = SequenceState(Visit(request, request.stages, 0.0), prompt, output)
        self.ids[sequence] = number
        self.prefix_tokens[sequence] = arrival.prefix[1] if arrival.prefix else 0
        if self.scheduler.refusal(self.lane, sequence) is not None:
            self.left.add(sequence)
            return None
        self.lane.add_request(sequence)
        return sequence

    def start_load(self, move: KvMove) -> None:
        """Bring blocks from the tier, in as many steps as it says."""
        if self.tier is None:
            self.fail(f"{move} comes from a tier, of which there is none")
        end = ceil(self.tier.load(move.num_blocks, float(self.steps)))
        self.loads.append((end, move.sequence))
        self.loads.sort(key=lambda load: load[0], reverse=True)

    # --- steps ----------------------------------------------------------------------------

    def execute(self, plan: StepPlan) -> None:
        """Run a plan; an admissible request that arrives before its end cuts it, as in a client."""
        members = self.members(plan)
        num_steps = plan.num_steps
        while (news := self.next_news()) < self.steps + num_steps:
            ahead = int(news) - self.steps
            sequence = self.hear()
            if sequence and self.scheduler.would_admit(self.lane, sequence, ahead):
                num_steps = ahead
        emitted, finished = update(self.lane, plan, num_steps)
        cut = num_steps < plan.num_steps
        if cut and (emitted or finished):
            self.fail(
                f"{len(finished)} sequences finished in step {num_steps} of a plan of "
                f"{plan.num_steps}"
            )
        for sequence in finished:
            target, got = sequence.num_final_tokens, sequence.num_tokens
            if got != target:
                self.fail(f"a sequence finished with {got} of {target} tokens")
            if sequence in self.left:
                self.fail("a sequence finished twice")
            self.left.add(sequence)
        for step in range(num_steps):
            last = step == num_steps - 1
            done = tuple(self.ids[sequence] for sequence in finished) if last else ()
            self.trace.append((*members(step), done))
        self.steps += num_steps
        self.check_memory()

    def members(self, plan: StepPlan) -> Callable[[int], tuple[object, ...]]:
        """Return the work of a step of the plan, by its position in the plan."""
        prefills = [
            (self.ids[sequence], num_new, sequence.num_computed_tokens)
            for sequence, num_new in plan.prefills
        ]
        running = tuple(sorted(self.ids[sequence] for sequence in self.lane.running))
        decodes = plan.decodes

        def at(step: int) -> tuple[object, ...]:
            chunks = tuple((number, new, done + step * new) for number, new, done in prefills)
            return chunks, decodes, running

        return at

    # --- rules ----------------------------------------------------------------------------

    def check(self, plan: StepPlan | None, limit: int) -> None:
        """Check a plan, and the queues after it was made."""
        lane = self.lane
        if plan is None:
            num_waiting, num_running = lane.num_waiting, len(lane.running)
            if (num_waiting or num_running) and not self.loads:
                self.fail(f"idle with {num_waiting} waiting, {num_running} running")
            return
        self.left.update(plan.dropped)
        if plan.is_empty:
            self.fail("a plan does nothing; return None when idle")
        if not 1 <= plan.num_steps <= limit:
            self.fail(f"num_steps must be in 1..{limit}, got {plan.num_steps}")
        for sequence, num_new in plan.prefills:
            remaining = sequence.num_tokens - sequence.num_computed_tokens
            if num_new < 1 or num_new * plan.num_steps > remaining:
                self.fail(f"{plan.num_steps} steps of {num_new} prompt tokens, {remaining} remain")
        num_running = len(lane.running)
        if num_running > self.max_num_seqs:
            self.fail(f"{num_running} run, max_num_seqs is {self.max_num_seqs}")
        inside = [*lane.waiting, *lane.coming.loading, *lane.coming.loaded, *lane.running]
        if len(set(inside)) != len(inside) or set(inside) != set(self.ids) - self.left:
            self.fail("every sequence must be waiting, running, finished or dropped, and only once")
        self.check_memory()

    def check_memory(self) -> None:
        """Check that blocks are conserved and hold the tokens in the cache."""
        lane, pool = self.lane, self.pool
        if not 0 <= pool.num_free <= pool.num_blocks:
            self.fail(f"{pool.num_free} blocks are free")
        num_tokens = lane.clock.context_sum
        num_tokens += sum([sequence.num_computed_tokens for sequence in lane.prefilling])
        num_tokens -= sum([self.prefix_tokens[sequence] for sequence in lane.running])
        if num_tokens > pool.num_used * pool.block_size:
            self.fail(f"{num_tokens} tokens in {pool.num_used} blocks of {pool.block_size}")
        holders = lane.running or lane.coming.loading or lane.coming.loaded or lane.coming.abandoned
        if pool.num_used and not holders:
            self.fail(f"nothing runs, {pool.num_used} blocks are held")


class Setting(NamedTuple):
    """How an engine runs: steps planned ahead, ranks of a pipeline, seats of a lane, and a tier."""

    ahead: bool = False
    num_ranks: int = 1
    num_seats: int | None = None
    has_tier: bool = False

    def __str__(self) -> str:
        return (
            f"async_scheduling {str(self.ahead).lower()}, pipeline_parallel_size {self.num_ranks}"
            + (f", {self.num_seats} seats" if self.num_seats else "")
            + (", a tier" if self.has_tier else "")
        )


class Row(NamedTuple):
    """What became of a request, with times in seconds."""

    status: str
    first_token_at: float | None
    finished_at: float | None
    num_preemptions: int


class _GeneralLane(Lane):
    """A lane that the general loop steps, so that its plans can be checked."""


class _SingleLane(Lane):
    """A lane whose plans are for one step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.run_length.be_single()


class _Seated(LlmClient):
    """Gives its lanes in the core few seats, by `num_seats`; None: as its scheduler says."""

    num_seats: ClassVar[int | None] = None

    def start(self, *arguments: Any) -> None:
        self._shares = [min(share, self.num_seats or share) for share in self._shares]
        super().start(*arguments)

    def num_taken(self) -> int:
        """Return the blocks that requests hold."""
        engines: Any = self._engines
        number = 0
        for lane in engines.stepped:
            number += lane.core.num_in_use()
        return number


class _Watched(LlmClient):
    """Gives its lanes few seats, and checks the memory of each plan.

    num_seats: of a lane; None: as its scheduler says.
    """

    num_seats: int | None = None
    lane_type: ClassVar[type[Lane]] = _GeneralLane

    def _lane(self, max_num_seqs: int, engine: int) -> Lane:
        lane = super()._lane(min(max_num_seqs, self.num_seats or max_num_seqs), engine)
        lane.plan = _checked(lane, lane.plan)  # type: ignore[method-assign]
        return lane


class _Single(_Watched):
    lane_type = _SingleLane


def _checked(lane: Lane, plan: Callable[..., StepPlan | None]) -> Callable[..., StepPlan | None]:
    state, name = lane.state, name_of(lane.scheduler)

    def checked(*arguments: Any, **options: Any) -> StepPlan | None:
        found = plan(*arguments, **options)
        pool, num_running = state.pool, len(state.running)
        if not 0 <= pool.num_free <= pool.num_blocks:
            raise AssertionError(f"{name}.schedule: {pool.num_free} blocks are free")
        if num_running > state.max_num_seqs:
            raise AssertionError(
                f"{name}.schedule: {num_running} run, max_num_seqs is {state.max_num_seqs}"
            )
        return found

    return checked


_RULES = EngineRules(
    batch_queue=True,
    async_pipelines=True,
    staggers_decodes=True,
    fills_queue=True,
    drains_preempted=True,
)
"""Those by which vLLM 0.33 runs a pipeline."""


class Steps:
    """A second a step, and a little for each token in it."""

    def step_time(self, batch: StepBatch) -> float:
        return float(self.run(batch, StepGrowth(), 1)[0])

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        ahead = np.arange(float(num_steps))
        context = batch.context_sum + growth.contexts(ahead)
        num_tokens = batch.num_prefill_tokens + batch.num_decodes
        return np.asarray(1.0 + 2.0**-8 * num_tokens + 2.0**-16 * context)


@dataclass(frozen=True, slots=True)
class _WithPrefixes(Workload):
    """Requests with the prefixes of a load."""

    sent: tuple[Arrival, ...] = ()

    def requests(self, streams: Streams, in_runs: bool = True) -> Iterator[Request]:
        for request, each in zip(Workload.requests(self, streams, in_runs), self.sent, strict=True):
            request.content = (each.prefix,) if each.prefix else ()
            yield request


def served(
    scheduler: Scheduler, load: Load, setting: Setting, *, singly: bool = False
) -> list[Row]:
    """Serve a load in an engine; return what became of each request, in order of arrival.

    singly: whether each plan is for one step, whatever the scheduler says.
    Raises AssertionError where a law of the simulation breaks, with the scheduler's name.
    """
    kind = _Single if singly else _Watched
    kind_of_setting = type("", (kind,), {"num_seats": setting.num_seats})
    return _served(kind_of_setting, scheduler, load, setting)


def served_in_core(scheduler: Scheduler, load: Load, setting: Setting) -> list[Row]:
    """Serve a load with a scheduler whose rules the engine core asks for (see `served`)."""
    kind_of_setting = type("", (_Seated,), {"num_seats": setting.num_seats})
    return _served(kind_of_setting, scheduler, load, setting)


def _served(kind: type[LlmClient], scheduler: Scheduler, load: Load, setting: Setting) -> list[Row]:
    steps = PipelinePredictor((Steps(),) * setting.num_ranks, lambda num_tokens: 2.0**-6)
    num_blocks = load.num_blocks * setting.num_ranks
    is_virtual = setting.num_ranks > 1 and kind.lane_type is not Lane  # no queue of batches there
    config = EngineConfig(
        scheduler=scheduler,
        pipeline_parallel_size=setting.num_ranks,
        virtual_engines=is_virtual,
        async_scheduling=setting.ahead and not is_virtual,
        kv_cache=KvCacheConfig(
            block_size=load.block_size,
            enable_prefix_caching=any(each.prefix for each in load.arrivals),
        ),
    )
    swap_space = SwapSpace(num_blocks, 2.0**-8) if scheduler.swaps else None
    client = kind(
        "engine",
        config,
        predictor=steps,
        memory=EngineMemory(
            num_gpu_blocks=num_blocks,
            swap_space=swap_space,
            kv_block_bytes=2.0**10,
            cache_tiers=(_TIER,) if setting.has_tier else (),
        ),
        rules=_RULES,
    )
    plain = Workload.from_lists(
        [each.num_prompt for each in load.arrivals],
        [each.num_output for each in load.arrivals],
        [each.step + 0.5 for each in load.arrivals],
    )
    workload = _WithPrefixes(plain.source, plain.arrivals, sent=tuple(load.arrivals))
    try:
        table = Simulation(clients=[client], workload=workload).run().requests
    except (InvariantError, ScenarioError) as error:
        raise AssertionError(f"{name_of(scheduler)}: {error} ({setting})") from error
    if isinstance(client, _Seated) and (number := client.num_taken()):
        raise AssertionError(f"{name_of(scheduler)}: {number} blocks stay taken ({setting})")
    columns = (table[name].tolist() for name in Row._fields)
    return [Row(*map(_comparable, row)) for row in zip(*columns, strict=True)]


def _comparable(value: Any) -> Any:
    """Return a value of a column that equals itself: None where there is no time."""
    return value if value == value else None


_BANDWIDTH = 1e10  # bytes/s, of the network over which KV entries come
_COPY_TIME = 0.05  # s in which others copy KV entries of the client


@dataclass(frozen=True, slots=True)
class ReturnedVisit:
    """A visit as it was when the client handed it back."""

    request_id: int
    num_stages: int
    queued_at: float
    started_at: str  # as text: NaN where work never began, and NaN is not equal to itself
    returned_at: float
    status: str
    gave_up_at: float
    limit_at: float


class Others(Client):
    """Serves all other stages at once, and keeps or copies KV entries by the rules.

    num_kept: entries kept for the client and not released yet.
    """

    def start(self, *args: Any) -> None:
        """Start with no entries kept."""
        super().start(*args)
        self.num_kept = 0

    def accept(self, visit: Visit) -> None:
        """Serve a visit at once, or after copying the KV entries it continues from."""
        self.begin(visit)
        kv = visit.kv
        num_prompt_tokens = kv.num_prompt_tokens if kv else 0
        num_prompt_tokens += sum(getattr(stage, "num_prompt_tokens", 0) for stage in visit.stages)
        if kv is not None:
            kv.begin_copy()
            copied = self.env.at(self.env.now + _COPY_TIME)
            copied.callbacks.append(lambda _: kv.release())
        if visit.is_followed:
            self.num_kept += 1
            visit.held_kv = HeldKv(
                self.name,
                self._let_go,
                num_tokens=num_prompt_tokens,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=1,
                last_token_at=self.env.now,
            )
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        """No time passes in which a visit could be given up."""

    def _let_go(self) -> None:
        self.num_kept -= 1


@dataclass
class WatchedRun:
    """One run of a client, which checks everything that the client returns.

    It is the object that the coordinator asks for a client's stages and sends visits to.
    """

    client: Client
    env: Environment
    history: ContentHistory | None = None
    stays: list[ReturnedVisit] = field(default_factory=list)
    num_open: int = 0

    def __getattr__(self, name: str) -> Any:
        """Return the client's own attribute."""
        return getattr(self.client, name)

    def rule(self, holds: object, rule: str) -> None:
        """Raise AssertionError unless a rule about the client holds."""
        require(holds, f"{name_of(self.client)} {rule}, at {self.env.now} s")

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return the client's answer, after checking that it takes the first stages."""
        num_stages = self.client.takes(stages)
        self.rule(
            0 < num_stages <= len(stages),
            f"must take at least the first of the stages that it serves, {stages}, "
            f"got {num_stages}",
        )
        return num_stages

    def serve(
        self,
        request: Request,
        stages: tuple[Stage, ...],
        kv: HeldKv | None = None,
        is_followed: bool = False,
        is_silent: bool = False,
    ) -> Event:
        """Send a visit to the client, and check what it returns."""
        self.num_open += 1
        end = self.client.serve(request, stages, kv, is_followed, is_silent)
        end.callbacks.append(partial(self._returned, request, self.env.now))
        return end

    def _returned(self, request: Request, sent_at: float, end: Event) -> None:
        self.num_open -= 1
        visit = cast(Visit, end.value)
        now, begun = self.env.now, visit.started_at == visit.started_at
        self.rule(visit.request is request, "must hand back the visit of the request it was sent")
        self.rule(
            visit.queued_at == sent_at <= now and visit.finished_at == now,
            f"must hand a visit back when it ends and not before it was sent; sent at {sent_at} s, "
            f"finished_at {visit.finished_at}",
        )
        self.rule(
            sent_at <= visit.started_at <= now if begun else visit.failure,
            f"must begin a visit that it serves between the sending ({sent_at} s) and the end, "
            f"got started_at {visit.started_at}",
        )
        self._check_outcome(visit)
        status, gave_up_at = "served", inf
        if visit.failure is not None:
            status, gave_up_at = visit.failure.status, visit.failure.time
        self.stays.append(
            ReturnedVisit(
                request.request_id,
                len(visit.stages),
                sent_at,
                repr(visit.started_at),
                now,
                status,
                gave_up_at,
                _limit_at(request),
            )
        )

    def _check_outcome(self, visit: Visit) -> None:
        """Check the outcome, which the coordinator uses next."""
        outcome, goes_on = visit.outcome, visit.is_followed
        self.rule(
            isinstance(outcome, Served | Moved | Failure),
            f"must set visit.outcome to Served, Moved or Failure, got {outcome!r}",
        )
        if isinstance(outcome, Moved):
            last = visit.stages[-1]
            most = getattr(last, "num_tokens", inf)
            self.rule(
                1 <= outcome.num_tokens <= most,
                f"must leave 1 to {most} tokens of {last} to others, got {outcome}",
            )
            goes_on = last.with_rest(outcome.num_tokens).continues
        self.rule(
            not goes_on or visit.failure or visit.held_kv,
            "must leave its KV entries in visit.held_kv when the next stage goes on from them",
        )


def start(run: WatchedRun, others: Others, requests: list[Request]) -> None:
    """Put a simulation together and let it send the requests."""
    env, recorder, roster = run.env, ColumnRecorder(), Roster()
    client = run.client
    client.network = Link(bandwidth=_BANDWIDTH)
    client.network.start(env)
    client.streams = Streams(0)
    client.start(env, roster.next_id(), recorder)
    others.start(env, roster.next_id(), recorder)
    roster.join(cast(Client, run))
    roster.join(others)
    coordinator = Coordinator(env, roster, RoundRobinRouter())
    load = OpenLoop(env, coordinator, recorder, None, stream_of("check_client: retries"))
    coordinator.spawn = load.spawn
    load.start(iter(requests))


def _limit_at(request: Request) -> float:
    """Return when a request is given up, seconds."""
    limits = request.limits or Limits()
    return (request.arrival_time or 0.0) + min(limits.timeout, limits.patience)
