"""The plain lane: the engine of the most common case.

Chunked prefill, paged memory with or without a prefix cache, first come, first served, steps
planned as they begin or one ahead. State and bits are those of the general engine (`loop.py`;
`tests/property/test_plain_loop.py`). Decodes that lack blocks are planned by `giving_way.py`; all
other plans that are short of memory or empty by the general `Lane.plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import TYPE_CHECKING

from numpy import add
from simpy.events import Event

from mist_sim.clients.engine.giving_way import decodes_left
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.loop import Engine
from mist_sim.clients.engine.plain_admission import Prefills, admit_prompts
from mist_sim.clients.engine.run import Run
from mist_sim.clients.scheduling import ChunkedScheduler, StepPlan
from mist_sim.clients.scheduling.planned_steps import steps_of
from mist_sim.clients.scheduling.update import compute_more
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.environment import Environment
from mist_sim.hardware.predictors.base import Predictor

if TYPE_CHECKING:
    from mist_sim.clients.engine.plan_ahead import PlanAhead
    from mist_sim.clients.sequence_state import SequenceState

_NO_RUN = Run((), 0.0, 0.0, 1, 0.0)  # that is never in flight
_accumulate = add.accumulate


class PlainEngine(Engine):
    """An engine with one lane and no option for which `LlmClient.needs_general_loop`.

    scheduler: of the lane. Without a role (`plain_role.py`), the engine becomes general for good
    with the first request that brings KV entries or leaves some to another client.
    has_role: whether its client has a role. takes_entries: whether other clients' entries come.
    flows: whether decodes may leave for other clients while they run (`plain_flowing.py`).
    takes_in_step: whether decodes take blocks in the step that fills them, and not in its plan.
    """

    has_role = False
    takes_entries = False
    flows = False
    takes_in_step = False

    def __init__(
        self,
        env: Environment,
        lane: Lane,
        scheduler: ChunkedScheduler,
        predictor: Predictor,
        phases: tuple[int, int],
    ) -> None:
        super().__init__(env, [lane], predictor, phases)
        self._only, self._state, self._ahead = lane, lane.state, lane.ahead
        self._scheduler, self._most_tokens = scheduler, scheduler.max_num_batched_tokens
        self._whole_must_fit = scheduler.scheduler_reserve_full_isl
        # the work in flight: one plan, batch and run, refilled each time
        self._plain_plan, self._batch = StepPlan(), StepBatch()
        self._plain_run = Run(((lane, self._plain_plan, self._batch),), 0.0, 0.0, 1, 0.0)
        self._at_end: Callable[[Event], None] = self._end  # bound once
        self._parts = env, lane, lane.state, lane.state.clock, lane.state.pool, lane.ahead
        self._is_plain = True

    # --- a run begins -----------------------------------------------------------------------

    def _plan(self, event: Event) -> None:
        """Plan the next steps, time them, and sleep until they end.

        event: one that has happened; it happens again at the end of the run, which is cheaper than
        a new one.
        """
        if not self._is_plain:
            super()._plan(event)
            return
        env, lane, state, clock, pool, ahead = self._parts
        now, phase = env.now, self._plan_phase
        if env.planned_at != now:
            env.planned_at, env.plan_phase = now, phase
        elif env.plan_phase < phase:
            env.plan_phase = phase
        limit, shares = lane.run_length.limit, state.kv_cache.shares_blocks
        if self.takes_entries or (
            ahead is not None
            and (
                ahead.latest is None
                or ahead.arrived
                or ahead.given_up
                or shares
                or self.has_role
                or (state.leaving and state.waiting)
            )
        ):
            limit, shares = self._hear(ahead, limit), state.kv_cache.shares_blocks
        num_decodes, num_blocks = clock.num_decodes, clock.phases[clock.steps % clock.block_size]
        num_free, budget = pool.num_free - num_blocks, self._most_tokens - num_decodes
        prefills: Prefills = []
        if (
            num_free < 0
            or not limit
            or (state.prefilling and not self._go_on(prefills, num_free, budget))
        ):
            self._plan_rarely(event, limit)  # it preempts, or entries of others come
            return
        state.num_taken = num_blocks
        if shares and num_decodes:
            state.kv_cache.grow(num_blocks)
            state.kv_cache.answers.note_step()
        else:
            pool.num_free = num_free
        if prefills:
            budget -= self._take(prefills)
        if self.takes_entries and state.waiting:
            limit, num_free = self._bring(limit, budget), pool.num_free
        if state.waiting and budget:
            budget -= admit_prompts(state, prefills, budget, now, whole=self._whole_must_fit)
        if not (num_decodes or prefills):
            self._plan_rarely(event, limit)  # nothing to do, or not before more is known
            return
        plan = self._plain_plan
        plan.prefills, plan.decodes = prefills, num_decodes > 0
        if prefills or (shares and state.waiting):
            plan.num_steps = num_steps = steps_of(state, plan, limit, budget)
        else:
            plan.num_steps = num_steps = clock.steps_until(num_free + num_blocks, limit)
        self._start_plain(event, prefills, num_decodes, num_steps)

    def _plan_rarely(self, event: Event, limit: int) -> None:
        """Let other planners make the next plan; its steps are timed and ended as any."""
        found = None if self.has_role else decodes_left(self._only, self._scheduler, limit)
        if found is None and (found := self._general_plan()) is None:
            self._sleep()
            return
        plan = self._plain_plan
        plan.prefills, plan.decodes, plan.num_steps = found.prefills, found.decodes, found.num_steps
        plan.wait_time = found.wait_time
        self._start_plain(event, plan.prefills, self._state.clock.num_decodes, plan.num_steps)

    def _general_plan(self) -> StepPlan | None:
        """Return the general planner's next plan; None if there is nothing to do."""
        lane, ahead = self._only, self._ahead
        state = self._state
        if state.running or state.has_waiting or (ahead is not None and ahead.arrived):
            return lane.plan() if ahead is None else ahead.plan()
        if ahead is not None:
            ahead.halt()
        return None

    def _start_plain(
        self, event: Event, prefills: Prefills, num_decodes: int, num_steps: int
    ) -> None:
        """Time the steps of a plan, and sleep until they end."""
        env, _, state, clock, _, ahead = self._parts
        batch, run, lines = self._batch, self._plain_run, self._lines
        wait = self._plain_plan.wait_time
        context_sum, line = clock.context_sum, None
        run.start = now = env.now
        batch.num_decodes, batch.context_sum = num_decodes, context_sum
        batch.num_read_again = num_read_again = clock.num_read_again
        if prefills:
            batch.chunks = tuple([(new, each.num_computed_tokens) for each, new in prefills])
        else:
            batch.chunks = ()
            line = lines[num_decodes] if num_decodes in lines else self._line_of(num_decodes)
        timed: Predictor | PlanAhead = self.predictor
        if ahead is not None:
            if state.leaving:
                self._free_leaving()
            ahead.was_on_the_spot = on_the_spot = ahead.latest is None
            if on_the_spot:
                num_steps, line, timed = 1, None, ahead  # nothing overlaps with it
        if line is None and self._tells_longest:
            batch.longest_context = clock.batch(()).longest_context if num_decodes else None
        if num_steps > 1:
            if line is not None:
                num_keys = context_sum + num_decodes - num_read_again
                run.ends = ends = line.ends(now, num_keys, num_decodes, num_steps, wait)
            else:
                growth = StepGrowth(num_decodes, 0, 1) if num_decodes else StepGrowth()
                times = self.predictor.run(batch, growth, num_steps)
                times[0] = now + (times.item(0) + wait)
                run.ends = ends = _accumulate(times, 0, None, times).tolist()
            run.end = end = ends[-1]
        else:
            if line is None:
                end = now + (timed.step_time(batch) + wait)
            else:
                end = now + (line.step(context_sum + num_decodes - num_read_again) + wait)
            run.ends = run.end = end
        run.num_steps = num_steps
        if self.flows:
            self._until_flow()
        if ahead is not None:
            ahead.latest = run
        self._run, self._wake = run, event
        event.callbacks = [self._at_end]
        heappush(env.agenda, (run.end, self._step_end, env.next_number(), event))

    def _until_flow(self) -> None:
        """Cut the run that begins where decodes may leave for other clients."""

    def _bring(self, limit: int, budget: int) -> int:
        """Let entries of others come; return the most steps of the plan. budget: tokens left."""
        return limit

    def _hear(self, ahead: PlanAhead | None, limit: int) -> int:
        """Make known what a plan may know; return the most steps that it may have, 0: unknown."""
        if ahead is None:
            return limit
        state, latest, arrived = self._state, ahead.latest, ahead.arrived
        if latest is None:
            ahead.halt()  # nothing is in flight: it may know everything
        else:
            if arrived:
                known_until = latest.last_start
                while arrived and arrived[0][0] <= known_until:
                    state.add_request(arrived.popleft()[1])
            if state.kv_cache.shares_blocks:
                state.known.lacks_tokens = latest.parts[0][1].decodes and not ahead.was_on_the_spot
                state.kv_cache.answers.is_ahead = True
            if ahead.given_up:
                ahead.let_in(latest.last_start)
        return 1 if arrived or ahead.given_up or (state.leaving and state.waiting) else limit

    def _free_leaving(self) -> None:
        """Free seats and blocks of leaving sequences: the next plan knows of it."""
        state = self._state
        if state.kv_cache.shares_blocks:
            state.free_leaving()
            return
        for sequence, (num_blocks, _) in state.leaving.items():
            del state.running[sequence]
            state.pool.release(num_blocks)
        state.leaving.clear()

    def _go_on(self, prefills: Prefills, num_free: int, budget: int) -> bool:
        """Find the next pieces of running prompts; return whether there is memory for them."""
        state = self._state
        for sequence in state.prefilling:
            num_new = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            if num_new:
                prefills.append((sequence, num_new))
                num_free -= state.needs.of_piece(sequence, num_new)
                budget -= num_new
        return num_free >= 0

    def _take(self, prefills: Prefills) -> int:
        """Give pieces of prompts their blocks; return their tokens."""
        state, num_tokens = self._state, 0
        for sequence, num_new in prefills:
            if num_blocks := state.needs.of_piece(sequence, num_new):
                state.kv_cache.grow(num_blocks)
            state.kv_cache.compute(sequence, sequence.num_computed_tokens + num_new)
            num_tokens += num_new
        return num_tokens

    # --- a run ends -------------------------------------------------------------------------

    def _end(self, event: Event) -> None:
        """Account for the steps that have ended, hand back finished sequences, and plan again."""
        run = self._run
        if run is not self._plain_run:
            super()._end(event)
            return
        self._run = None
        env, lane, state, clock, pool, _ = self._parts
        plan, batch, num_steps, end = self._plain_plan, self._batch, run.num_steps, run.end
        prefills, num_decodes, context_sum = plan.prefills, batch.num_decodes, batch.context_sum
        if prefills and num_steps > 1:
            compute_more(state, plan, num_steps)
        finished: list[SequenceState] = []
        if num_decodes:
            takes_more = num_steps > 1 or self.takes_in_step
            if takes_more and (more := clock.blocks_needed(num_steps) - state.num_taken):
                state.kv_cache.grow(more)
            state.num_taken = 0
            clock.steps = steps = clock.steps + num_steps
            clock.context_sum = context_sum + num_steps * num_decodes
            if clock.heap[0][0] <= steps:
                finished = clock.pop_finished()
        state.num_peak_blocks = num_used = pool.num_blocks - pool.num_free
        lane.records.run(run, batch, lane.load.num_waiting, num_used)
        for sequence in finished:
            self._let_go(sequence, state.leave_clock(sequence))
        for sequence, num_new in prefills:
            if self._has_prompt(sequence, num_steps * num_new, end):
                finished.append(sequence)
        if finished or lane.given_up or state.leaving or self.flows:
            self._hand_back(finished, end)
        if num_steps == lane.run_length.limit or num_steps < plan.num_steps:
            lane.run_length.adapt(num_steps, plan.num_steps)
        agenda, now = env.agenda, env.now
        is_last = not agenda or agenda[0][0] > now
        if not is_last or (env.stepper is not None and not env.phase_is_last()):
            self._wake = env.at(now, self._plan_phase)  # requests that move now enter the queues
            self._wake.callbacks.append(self._plan)
        else:
            self._plan(event)

    def _hand_back(self, finished: list[SequenceState], end: float) -> None:
        """Let sequences go that are done or were given up."""
        lane, state = self._only, self._state
        for sequence in finished:
            lane.records.finish(sequence)
            visit = sequence.visit
            visit.num_output_tokens = sequence.num_tokens - sequence.num_prompt_tokens
            visit.last_token_at = end
            lane.leave(visit, None)
        if lane.given_up:
            lane.let_go(finished)
        if state.leaving and len(state.leaving) == len(state.running) and not lane.num_waiting:
            state.free_leaving()  # nothing is left to plan

    def _has_prompt(self, sequence: SequenceState, num_new: int, end: float) -> bool:
        """Count computed tokens of a prompt; return whether its first token completes the answer.

        The last token of a prompt emits the first token of the answer.
        """
        lane, state = self._only, self._state
        sequence.num_computed_tokens = num_computed = sequence.num_computed_tokens + num_new
        if num_computed < sequence.num_tokens:
            return False
        state.prefilling.remove(sequence)
        sequence.num_tokens += 1
        is_whole = sequence.num_tokens == sequence.num_final_tokens
        if is_whole:
            self._let_go(sequence, num_computed)
        else:
            state.clock.join(sequence)
        lane.records.emit(sequence, end)
        if lane.gate is not None:
            lane.gate.prompt_is_done(sequence)
        return is_whole

    def _let_go(self, sequence: SequenceState, num_tokens: int) -> None:
        """Free seat and blocks of a finished sequence, at once or in the next plan made ahead."""
        state = self._state
        num_blocks = -(num_tokens // -state.pool.block_size)
        if self._ahead is not None:
            state.leaving[sequence] = num_blocks, num_tokens
        else:
            del state.running[sequence]
            state.kv_cache.free(sequence, num_blocks, num_tokens)

    # --- a request arrives ------------------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence; cut the run if the sequence could join."""
        visit, ahead, run = sequence.visit, self._ahead, self._run
        if (visit.kv is not None or visit.is_followed) and not self.has_role:
            self._do_as_general()
        if ahead is None or self._idle:
            super().add_request(sequence)
            return
        sequence.lane = self._only
        env, state = self.env, self._state
        ahead.arrived.append((env.now, sequence))
        if run is not None and run.num_steps > 1 and len(state.running) < state.max_num_seqs:
            self._end_after(run, run.num_begun(env.now) + 1 if env.now > run.start else 1)

    def _do_as_general(self) -> None:
        """Use the general loop from now on, also for the end of the run in flight."""
        self._is_plain, self._plain_run = False, _NO_RUN
