"""A lane: a scheduler with memory of its own, whose plans are executed in runs of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import TYPE_CHECKING, Protocol

from mist_sim.clients.engine.held_entries import HeldEntries
from mist_sim.clients.engine.run import Run
from mist_sim.clients.engine.run_length import RunLength
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.overload import Gate
from mist_sim.clients.scheduling import LaneState, Scheduler, StepPlan
from mist_sim.clients.scheduling.adapter_slots import members_of
from mist_sim.clients.scheduling.carried import (
    carry_brought,
    carry_held,
    carry_running,
    carry_waiting,
)
from mist_sim.clients.scheduling.preemption import num_to_compute
from mist_sim.clients.scheduling.update import lose_step, update
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.stores import Mover, Stores
from mist_sim.core.batch import StepBatch
from mist_sim.core.views import OUT, RUNNING, WAITING, ClientState
from mist_sim.core.visit import HeldKv, Visit
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError, ScenarioError

if TYPE_CHECKING:
    from mist_sim.clients.engine.plan_ahead import PlanAhead

_WAITING_WEIGHT = 4  # requests that wait count four times (vLLM, see `least_loaded`)

Leave = Callable[[Visit, str | None], None]
"""Takes a visit that is over, and why it was rejected (None: it was served)."""


class LaneEngine(Protocol):
    """The engine that steps a lane, as the lane and its client use it (see `Engine`)."""

    @property
    def score(self) -> int:
        """Its load, by which requests are sent to the least loaded engine."""

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence at one of its lanes."""

    def next_lane(self) -> Lane:
        """Return the lane that the next request would get."""

    def num_unwritten(self, lane: Lane, /) -> int:
        """Return the tokens of a lane's steps that have ended and are not written down."""

    def steps_over(self, lane: Lane, /) -> tuple[StepPlan | None, int]:
        """Return the plan in flight of a lane, and how many of its steps have ended."""

    def steps_begun(self, lane: Lane, /) -> tuple[StepPlan | None, int]:
        """Return the plan in flight of a lane, and how many of its steps have begun."""

    def end_load(self, sequence: SequenceState, lane: Lane, /) -> None:
        """Let a sequence continue whose entries have come."""

    def abort(self, sequence: SequenceState, lane: Lane, /) -> None:
        """Give up a sequence."""

    def release(self, sequence: SequenceState, lane: Lane, /) -> None:
        """Free blocks that another client, or the host, has copied."""

    def halt(self) -> None:
        """Lose the steps in flight."""


class Lane:
    """Carries out a scheduler's plans: updates requests, records and the load.

    Engines decide when a lane plans and how long its steps take.

    scheduler: decides; lanes may share it. state: what it decides about, empty at first. load: the
    counts that routers see; lanes of a client share it. leave: called with visits that end. stores:
    where KV entries come from and go to. engine_number: of the lane's engine in its client.
    block_bytes: of a block; NaN: unknown. gate: rejects requests when the lane is too busy; None:
    never.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        state: LaneState,
        *,
        records: StepRecords,
        load: ClientState,
        leave: Leave,
        stores: Stores,
        gate: Gate | None = None,
        engine_number: int = 0,
        block_bytes: float = nan,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.state = state
        self.load = load
        self.gate = gate
        self.records = records
        self.leave = leave
        self._mover = Mover(env, stores, records.move, self._end_move)
        self.run_length = RunLength()
        self.given_up: list[SequenceState] = []  # to be let go at the end of the run in flight
        self.released: list[SequenceState] = []  # whose held blocks are free then
        self.held = HeldEntries(load, self._release_held, engine_number, block_bytes)
        self.engine: LaneEngine  # which steps the lane
        self.ahead: PlanAhead | None = None  # where steps are planned ahead
        self._plans_single_steps = scheduler.plans_single_steps
        self._serves_more = state.adapters is not None or state.images is not None
        limits_pieces = getattr(scheduler, "max_num_partial_prefills", None) is not None
        may_hold_back = state.cadence is not None or limits_pieces
        tiers = state.kv_cache.tiers
        # what others write to a tier may let in a prompt that is held back
        if self._plans_single_steps or (tiers is not None and tiers.publishes and may_hold_back):
            self.run_length.be_single()
        self._caches_prefixes = state.kv_cache.caches_prefixes

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        num_arrived = len(self.ahead.arrived) if self.ahead else 0
        return self.state.num_waiting + num_arrived

    @property
    def num_running(self) -> int:
        """Sequences that hold memory."""
        return self.state.num_running

    @property
    def score(self) -> int:
        """How busy it is: 4 x waiting + running."""
        return _WAITING_WEIGHT * self.num_waiting + self.state.num_running

    @property
    def time_of_plan(self) -> float:
        """The time, in seconds of the run, at which a plan that is requested now counts as made."""
        latest = self.ahead.latest if self.ahead is not None else None
        return self.env.now if latest is None else latest.last_start

    def would_admit(self, sequence: SequenceState | None, num_steps: int) -> bool:
        """Tell whether a sequence, or the head of the queue, could join after so many steps."""
        if self.state.coming.moved or (sequence is None and self.state.swapped):
            return True  # the first of these, perhaps
        candidate = sequence or self.state.head()
        if candidate is None:
            return self.state.cadence is not None  # which asks whether a request waits
        return self.scheduler.would_admit(self.state, candidate, num_steps)

    def plan(
        self, limit: int | None = None, plan_on_the_spot: Callable[[], bool] | None = None
    ) -> StepPlan | None:
        """Return the next steps, which start now; None if there is nothing to do.

        limit: the most steps; None: the present length of runs.
        plan_on_the_spot: given if steps are planned ahead; called after an empty plan, when no step
        is in flight and the next plan may know everything up to now. Returns whether anything new
        became known.
        """
        num_copied = 0  # blocks, before the next step
        while True:
            if self.state.paused:  # by a plan that computed nothing
                self.state.end_pause()
            self.state.kv_cache.num_plans += 1
            if self._plans_single_steps:
                plan = self._own_plan()
            else:
                plan = self.scheduler.schedule(self.state, limit or self.run_length.limit)
            if plan is None:
                if plan_on_the_spot and plan_on_the_spot():
                    continue
                self._check_empty()
                return None
            if plan.admitted:
                self._begin(plan.admitted)
            if plan.preempted or plan.dropped or plan.moves or plan.resumed or plan.paused:
                num_copied += self.note(plan)
            if plan.prefills or plan.decodes:
                if num_copied or self._serves_more:
                    self._delay(plan, num_copied)
                if self.records.awaits_first:
                    plan.num_steps = 1  # a limit of a sender's may end with the first token
                return plan
            self._check_moves(plan)
            if plan_on_the_spot:
                plan_on_the_spot()

    def _delay(self, plan: StepPlan, num_copied: int) -> None:
        """Let the first step wait for copies of blocks, for adapters and for images."""
        state = self.state
        if num_copied:
            plan.wait_time += state.swaps.copy_time(num_copied)
        if state.adapters is not None:
            plan.adapters, plan.wait_time = state.adapters.begin(
                members_of(state, plan), plan.wait_time
            )
        if state.images is not None:
            state.images.begin(plan)

    def _own_plan(self) -> StepPlan | None:
        """Return the plan for one step of a scheduler that `plans_single_steps`.

        Raises InvariantError where decodes have got blocks that the plan leaves unused.
        """
        state = self.state
        state.time = self.time_of_plan
        plan = self.scheduler.schedule(state, 1)
        if plan is not None:
            plan.num_steps = 1
        if state.num_taken and not (plan is not None and plan.decodes):
            raise InvariantError(
                f"{type(self.scheduler).__name__}.schedule gave the decodes the blocks of their "
                f"next step (make_room, take_in_turn) and left them out of its plan at "
                f"{self.env.now} s; set plan.decodes = lane.clock.num_decodes > 0"
            )
        return plan

    def _check_moves(self, plan: StepPlan) -> None:
        """Raise InvariantError for a plan that neither computes nor changes anything."""
        if plan.is_empty:
            raise InvariantError(
                f"{type(self.scheduler).__name__} planned a step of nothing at {self.env.now} s"
            )

    def note(self, plan: StepPlan) -> int:
        """Record which sequences leave, go on or move; return the blocks that the step awaits."""
        if plan.preempted or plan.dropped:
            self.evict(plan)
        if not (plan.prefills or plan.decodes):
            plan.paused = ()  # they sit no step out
        for sequence in plan.paused:
            self.records.evict(sequence)
        for sequence in plan.resumed:
            sequence.become(RUNNING)
            if sequence not in self.state.prefilling:
                self.records.resume(sequence)
        num_copied = 0
        for move in plan.moves:
            if self._begin_move(move):
                num_copied += move.num_blocks * move.is_swap
            elif (kv := move.sequence.incoming) is not None and kv.is_computed:
                plan.num_steps = 1  # most are there before its first step ends
        return num_copied

    def _begin_move(self, move: KvMove) -> bool:
        """Begin a move whose memory is reserved; return whether the next step waits for it."""
        waits = self._mover.begin(move)
        if not waits and move.kind != "swap_out":
            move.sequence.num_coming += 1
        return waits

    def _end_move(self, move: KvMove) -> None:
        """Note that entries have come or are lost; tell the engine when all are there."""
        sequence = move.sequence
        if move.kind == "swap_out":
            self.engine.release(sequence, self)
            return
        sequence.num_coming -= 1
        kv = sequence.incoming
        if move.kind == "fetch" and kv is not None and not kv.is_lost:
            sequence.visit.num_fetched_tokens = move.num_tokens
        if not sequence.num_coming:
            self.engine.end_load(sequence, self)

    def _begin(self, admitted: list[SequenceState]) -> None:
        """Note which sequences got memory, and what the cache had of a prompt that starts."""
        now = self.env.now
        for sequence in admitted:
            sequence.become(RUNNING)
            visit = sequence.visit
            if not visit.num_preemptions:
                visit.started_at = now
                if self._caches_prefixes:
                    visit.num_queried_tokens = sequence.num_prompt_tokens
                    num_found = sequence.num_computed_tokens - visit.num_fetched_tokens
                    visit.num_cached_tokens = num_found

    def evict(self, plan: StepPlan) -> None:
        """Note which sequences lost their memory; hand back those that can never have enough."""
        for sequence in plan.preempted:
            sequence.num_queued_tokens = num_to_compute(self.state, sequence)
            sequence.become(WAITING)
            self.records.evict(sequence)
            sequence.visit.num_preemptions += 1
        for sequence in plan.dropped:
            self.records.evict(sequence)
            sequence.visit.num_output_tokens = sequence.num_new_tokens
            self.leave(sequence.visit, self.state.needs.outgrown(sequence) or "dropped")

    def end(self, run: Run, plan: StepPlan, batch: StepBatch) -> None:
        """Account for executed steps and hand back what finished."""
        state, records = self.state, self.records
        num_steps, end = run.num_steps, run.end
        emitted, finished = update(state, plan, num_steps)
        tokens = state.clock.step_tokens if plan.decodes else None
        num_waiting, num_gone = self.load.num_waiting, plan.num_overruns
        records.run(run, batch, num_waiting, state.num_peak_blocks, tokens, num_gone)
        for sequence in plan.paused:
            records.resume(sequence)
        for sequence in emitted:
            records.emit(sequence, end)
            if self.gate is not None:
                self.gate.prompt_is_done(sequence)
        for sequence in finished:
            self.hand_back(sequence, end)
        if self.given_up or self.released:
            self.let_go(finished)
        if state.leaving:
            self.free_if_idle()
        if num_steps == self.run_length.limit or num_steps < plan.num_steps:
            self.run_length.adapt(num_steps, plan.num_steps)

    def free_if_idle(self, *, is_idle: bool = False) -> None:
        """Free seats and blocks of leaving sequences, if nothing is planned or left to plan."""
        state = self.state
        if is_idle or not (state.num_running or self.num_waiting or state.overruns):
            state.free_leaving()

    def hand_back(self, sequence: SequenceState, end: float) -> None:
        """Let a sequence go that is done with the step that ends now, at `end` seconds."""
        self.records.finish(sequence)
        visit = sequence.visit
        visit.num_output_tokens = sequence.num_new_tokens
        visit.last_token_at = end
        if sequence in self.state.held:
            visit.held_kv = self.held.hold(sequence, *self.state.held[sequence])
        if visit.is_silent:
            visit.num_output_tokens, visit.last_token_at = 0, nan
            visit.num_computed_tokens = sequence.num_prompt_tokens
        self.leave(visit, None)

    # --- a change of layout ---------------------------------------------------------------

    def put_down(self) -> None:
        """Catch up with all that has happened, since no step is in flight and none will follow."""
        if self.ahead is not None:
            self.ahead.halt()
        if self.state.paused:
            self.state.end_pause()
        self.state.coming.free_forgotten()

    @property
    def has_moves(self) -> bool:
        """Whether entries are on their way here."""
        return bool(self.state.coming.loading or self.state.coming.abandoned)

    @property
    def num_inside(self) -> int:
        """How many sequences run, or wait with their entries to continue."""
        return len(self.state.running) + len(self.state.coming.moved)

    @property
    def num_free(self) -> int:
        """Free blocks."""
        return self.state.pool.num_free

    def carry_running(self, sequence: SequenceState, num_tokens: int, *, decodes: bool) -> bool:
        """Let a sequence go on with entries of so many tokens; return whether it has room."""
        if not carry_running(self.state, sequence, num_tokens, decodes=decodes):
            return False
        sequence.lane = self
        if decodes:
            self.go_on(sequence)
        return True

    def carry_brought(self, sequence: SequenceState) -> bool:
        """Let a sequence with entries from elsewhere wait to continue, if it has room."""
        if not carry_brought(self.state, sequence):
            return False
        sequence.lane = self
        return True

    def carry_held(self, sequence: SequenceState, kv: HeldKv, num_tokens: int) -> None:
        """Keep the entries of a sequence that is done for another client."""
        carry_held(self.state, sequence, num_tokens)
        self.held.take_over(sequence, kv, self.state.held[sequence][0])

    def carry_waiting(self, sequence: SequenceState) -> None:
        """Queue a sequence without entries; it keeps its position by arrival."""
        sequence.lane = self
        carry_waiting(self.state, sequence)

    def go_on(self, sequence: SequenceState) -> None:
        """Record that a decode continues here, with entries that this lane has taken over."""
        self.records.resume(sequence)

    def take_off(self, sequence: SequenceState) -> int:
        """Remove a running sequence; return how many of its tokens have KV entries."""
        _, num_tokens = self.state.stop(sequence)
        self.records.evict(sequence)
        return num_tokens

    # --- sequences that are given up ------------------------------------------------------

    def give_up(self, sequence: SequenceState) -> None:
        """Let a sequence go as soon as no step in flight computes it."""
        self.engine.abort(sequence, self)

    def abort(self, sequence: SequenceState, *, in_step: bool = False) -> None:
        """Let a sequence go, and free its memory; no step in flight computes it.

        in_step: whether steps are in flight (see `LaneState.abort`).
        """
        self.state.abort(sequence, in_step=in_step)
        self.records.evict(sequence)
        self.give_back(sequence)

    def abort_late(self, sequence: SequenceState) -> None:
        """Let a sequence go that was given up a step ago, unless it has ended meanwhile.

        Used where steps are planned ahead: the next plan is the first that knows of it.
        """
        state = self.state
        if sequence in state.leaving:
            state.preempt_leaving(sequence)  # its last step has ended, and the next plan knows it
        elif sequence.phase != OUT:
            state.abort_late(sequence)
            self.records.evict(sequence)
            self.give_back(sequence)

    def give_back(self, sequence: SequenceState) -> None:
        """Hand back a sequence that was given up and that the scheduler does not hold."""
        visit = sequence.visit
        if self.gate is not None:
            self.gate.prompt_is_done(sequence)
        visit.num_output_tokens = sequence.num_new_tokens
        visit.num_computed_tokens = sequence.num_computed_tokens
        if visit.num_output_tokens:
            visit.last_token_at = sequence.last_token_at
        self.leave(visit, None)

    def _release_held(self, sequence: SequenceState) -> None:
        self.engine.release(sequence, self)

    def let_go(self, finished: Sequence[SequenceState] = ()) -> None:
        """Let sequences go that were given up or released during a run and did not finish in it."""
        for sequence in self.given_up:
            if sequence not in finished:
                self.abort(sequence)
        self.given_up.clear()
        for sequence in self.released:
            self.state.release_held(sequence)
        self.released.clear()

    def lose_step(self, plan: StepPlan) -> None:
        """Undo a plan whose first step was lost because the engine halted."""
        for sequence in plan.paused:
            self.records.resume(sequence)
        lose_step(self.state, plan)

    def _check_empty(self) -> None:
        """Raise an error if requests wait and no event is pending that could admit one.

        Under some versions' rules a request waits forever for blocks that loaded requests or drafts
        need: ScenarioError names the option. Any other such wait is a bug of this package or of a
        user's scheduler: InvariantError.
        """
        state, coming = self.state, self.state.coming
        on_their_way = coming.loading or coming.abandoned or state.held or state.swaps.going
        if on_their_way or not self.num_waiting:
            return
        first = next(iter((*state.swapped, *coming.moved, *coming.loaded, *state.waiting)))
        what = (
            f"{self.load.name} sleeps at {self.env.now} s with {self.num_waiting} requests "
            f"waiting, one of them is {first.visit.request}"
        )
        # ENDLESS-UNTIL-ONE-ENGINE: it serves such requests, or names the rule that stops them
        if self._plans_single_steps:
            raise InvariantError(what)
        for option, is_set, remedy in (
            ("kv_cache.tiers", state.kv_cache.tiers is not None, "no tiers"),
            ("speculative_config", state.speculation is not None, "fewer num_speculative_tokens"),
        ):
            if is_set:
                raise ScenarioError(
                    f"{self.load.name}: {self.num_waiting} requests wait for ever from "
                    f"{self.env.now:.6g} s on, the first for blocks that no request will free, "
                    f"which vLLM's rules allow with {option}; that is not simulated: have more "
                    f"KV-cache blocks, or {remedy}"
                )
        raise InvariantError(what)
