"""A lane: one scheduler on memory of its own, whose batch is computed in runs of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mist_sim.clients.decode.speculative_clock import Speculation
from mist_sim.clients.engine.run import Part, Progress, Run
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.kv_cache import KvCacheManager, SwapSpace
from mist_sim.clients.overload import Gate
from mist_sim.clients.scheduling import Scheduler, StepPlan, Swap
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import RUNNING, WAITING, ClientState
from mist_sim.core.visit import Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import InvariantError

if TYPE_CHECKING:
    from mist_sim.clients.engine.plan_ahead import PlanAhead

# Steps computed ahead: twice as many after a run of them all, half after one that was cut, so that
# what a cut throws away is in proportion to what runs. Any number gives the same results.
_FIRST_RUN = 512
_LONGEST_RUN = 65536

_WAITING_WEIGHT = 4  # requests that wait count four times (vLLM, see `least_loaded`)

Leave = Callable[[Visit, str | None], None]
"""Takes a visit that is over, and why it was rejected (None: it was served)."""


class LaneEngine(Protocol):
    """What a lane and its client ask of the engine that steps it."""

    @property
    def score(self) -> int: ...
    def add_request(self, sequence: SequenceState) -> None: ...
    def next_lane(self) -> Lane: ...
    def progress(self, lane: Lane, /) -> Progress: ...
    def end_load(self, sequence: SequenceState, lane: Lane, /) -> None: ...
    def abort(self, sequence: SequenceState, lane: Lane, /) -> None: ...
    def halt(self) -> None: ...


class Lane:
    """What a scheduler's plans and steps mean for its requests, the records and the load.

    Engines decide when a lane plans and how long its steps take.

    kv_cache: lends its KV blocks. load: the counts that routers see; lanes of a client share it.
    speculation: how it drafts tokens; None: it does not.
    gate: turns requests away when the lane is too busy; None: never.
    swap_space: where preempted sequences are copied to; None: they are computed again.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        kv_cache: KvCacheManager,
        *,
        records: StepRecords,
        load: ClientState,
        leave: Leave,
        speculation: Speculation | None = None,
        gate: Gate | None = None,
        swap_space: SwapSpace | None = None,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.load = load
        self.gate = gate
        self._records = records
        self._leave = leave
        self._run_limit = _FIRST_RUN
        self._longest_run = _LONGEST_RUN
        self._given_up: list[SequenceState] = []  # to be let go at the end of the run in flight
        self.engine: LaneEngine  # which steps the lane
        self.ahead: PlanAhead | None = None  # where steps are planned ahead
        scheduler.start(kv_cache)
        self._seconds_per_swap = swap_space.seconds_per_block if swap_space else 0.0
        if swap_space:
            scheduler.swap_to(swap_space)
        if speculation:
            scheduler.speculate(speculation)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        num_arrived = len(self.ahead.arrived) if self.ahead else 0
        return self.scheduler.num_waiting + num_arrived

    @property
    def num_running(self) -> int:
        """Sequences that hold memory."""
        return len(self.scheduler.running)

    @property
    def score(self) -> int:
        """How busy it is: 4 x waiting + running."""
        return _WAITING_WEIGHT * self.num_waiting + len(self.scheduler.running)

    def step_singly(self) -> None:
        """Compute no step ahead from the next plan on, so that the KV memory is known at any time.

        The results are the same, but take longer.
        """
        self._run_limit = self._longest_run = 1

    def would_admit(self, sequence: SequenceState | None, num_steps: int) -> bool:
        """Could a sequence, or the one at the head of the queue, join after so many steps?"""
        if sequence is None and self.scheduler.swapped:
            return True  # the first of these, perhaps
        candidate = sequence or self.scheduler.head()
        return candidate is not None and self.scheduler.would_admit(candidate, num_steps)

    def plan(
        self, limit: int | None = None, plan_on_the_spot: Callable[[], bool] | None = None
    ) -> StepPlan | None:
        """Return the next steps, which start now; None when there is nothing to do.

        limit: the most steps; None: as many as runs have by now.
        plan_on_the_spot: called after a plan that computes nothing, where plans are made ahead;
            returns whether the next one knows more.
        """
        num_swapped = 0
        while True:
            plan = self.scheduler.schedule(limit or self._run_limit)
            if plan is None:
                if plan_on_the_spot and plan_on_the_spot():
                    continue
                self._check_empty()
                return None
            if plan.admitted:
                self._begin(plan.admitted)
            if plan.preempted or plan.dropped or plan.loads or plan.swaps:
                num_swapped += self._note(plan)
            if plan.prefills or plan.decodes:
                if num_swapped:
                    plan.swap_time = num_swapped * self._seconds_per_swap
                return plan
            if plan.is_empty:
                raise InvariantError(
                    f"{type(self.scheduler).__name__} planned a step of nothing at {self.env.now} s"
                )
            if plan_on_the_spot:
                plan_on_the_spot()

    def _note(self, plan: StepPlan) -> int:
        """Note who goes and who waits for blocks; return how many blocks are swapped."""
        if plan.preempted or plan.dropped:
            self._evict(plan)
        for sequence, counts in plan.loads:
            self._load(sequence, counts)
        return self._swap(plan.swaps) if plan.swaps else 0

    def _swap(self, swaps: list[Swap]) -> int:
        """Note what is copied before the next step; return how many blocks."""
        for swap in swaps:
            if not swap.is_out:
                if not swap.in_prefill:
                    self._records.resume(swap.sequence)
                swap.sequence.become(RUNNING)
            seconds = swap.num_blocks * self._seconds_per_swap
            self._records.swap(swap, self.env.now, seconds)
        return sum([swap.num_blocks for swap in swaps])

    def _load(self, sequence: SequenceState, counts: list[int]) -> None:
        """Bring blocks from lower tiers; the engine hears when they are there."""
        now, kv_cache = self.env.now, self.scheduler.kv_cache
        end = kv_cache.load(counts, now)
        self._records.load(sequence, kv_cache.tokens_by_tier(counts), now, end)
        self.env.at(end, MOVE).callbacks.append(lambda _: self.engine.end_load(sequence, self))

    def _begin(self, admitted: list[SequenceState]) -> None:
        """Note who got memory now, and what the cache had of a prompt that starts."""
        now = self.env.now
        for sequence in admitted:
            sequence.become(RUNNING)
            visit = sequence.visit
            if not visit.num_preemptions:
                visit.started_at = now
                if self.scheduler.kv_cache.caches_prefixes:
                    visit.num_queried_tokens = sequence.num_prompt_tokens
                    visit.num_cached_tokens = sequence.num_computed_tokens

    def _evict(self, plan: StepPlan) -> None:
        """Note what lost its memory, and hand back what can never have enough."""
        for sequence in plan.preempted:
            sequence.num_queued_tokens = self.scheduler.num_to_compute(sequence)
            sequence.become(WAITING)
            self._records.evict(sequence)
            sequence.visit.num_preemptions += 1
        for sequence in plan.dropped:
            self._records.evict(sequence)
            sequence.visit.num_output_tokens = sequence.num_output_tokens
            self._leave(sequence.visit, self.scheduler.outgrown(sequence) or "dropped")

    def end(self, run: Run, part: Part) -> None:
        """Account for executed steps and hand back what finished."""
        scheduler, records, plan = self.scheduler, self._records, part.plan
        emitted, finished = scheduler.update(plan, run.num_steps)
        tokens = scheduler.clock.step_tokens if plan.decodes else None
        records.run(run, part.batch, self.load.num_waiting, scheduler.num_peak_blocks, tokens)
        for sequence in emitted:
            records.emit(sequence, run.end)
            if self.gate is not None:
                self.gate.prompt_is_done(sequence)
        for sequence in finished:
            records.finish(sequence)
            visit = sequence.visit
            visit.num_output_tokens = sequence.num_output_tokens
            self._leave(visit, None)
        if self._given_up:
            self.let_go(finished)
        limit = self._run_limit
        if run.num_steps == limit:
            self._run_limit = min(2 * limit, self._longest_run)
        elif limit > _FIRST_RUN and run.num_steps < plan.num_steps:
            self._run_limit = limit // 2

    # --- sequences that are given up ------------------------------------------------------

    def is_running(self, sequence: SequenceState) -> bool:
        """Tell whether a sequence holds memory, so that a step in flight may compute it."""
        return sequence in self.scheduler.running

    def abort_after_run(self, sequence: SequenceState) -> None:
        """Let a running sequence go at the end of the run in flight, which should be cut."""
        self._given_up.append(sequence)

    def abort(self, sequence: SequenceState) -> None:
        """Let a sequence go, and free its memory; no step in flight computes it."""
        self.scheduler.abort(sequence)
        self._records.evict(sequence)
        self._give_back(sequence)

    def forget(self, sequence: SequenceState) -> None:
        """Let a sequence go that the scheduler has not heard of."""
        self._give_back(sequence)

    def _give_back(self, sequence: SequenceState) -> None:
        """Hand back a sequence that was given up."""
        visit = sequence.visit
        if self.gate is not None:
            self.gate.prompt_is_done(sequence)
        visit.num_output_tokens = sequence.num_output_tokens
        visit.num_computed_tokens = sequence.num_computed_tokens
        self._leave(visit, None)

    def let_go(self, finished: Sequence[SequenceState] = ()) -> None:
        """Abort the sequences that were given up during a run and did not finish with it."""
        for sequence in self._given_up:
            if sequence not in finished:
                self.abort(sequence)
        self._given_up.clear()

    def _check_empty(self) -> None:
        scheduler = self.scheduler
        if self.num_waiting and not (scheduler.loading or scheduler.abandoned):
            first = next(iter((*scheduler.swapped, *scheduler.loaded, *scheduler.waiting)))
            raise InvariantError(
                f"{self.load.name} sleeps at {self.env.now} s with {self.num_waiting} "
                f"requests waiting, one of them is {first.visit.request}"
            )
