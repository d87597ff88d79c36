"""Drives a scheduler and a lane through a load, in steps without time, and checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple, NoReturn

from mist_sim.clients.kv_cache import BlockPool, PrefixCachingManager
from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.clients.scheduling import LaneState, Scheduler, StepPlan
from mist_sim.clients.scheduling.cadence import cadence_of
from mist_sim.clients.scheduling.update import update
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Request
from mist_sim.core.visit import Visit
from mist_sim.stages import completion
from mist_sim.testing.doubles.watched_tier import WatchedTier
from mist_sim.testing.rules import name_of


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
