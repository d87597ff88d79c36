"""The plain lane: the engine that most people run, in one file.

Chunked prefill, paged memory with or without a prefix cache, first come, first served, in steps that
are planned as they begin or one step ahead. It works on the state of a lane, as the general engine
does (`loop.py`, which it falls back on), so either may make the next plan: here is what mostly
happens, and what seldom does is the general engine's. That is a step for which memory is short, and
one after which there is nothing to do. Both give the same bits (`tests/property/test_plain_lane.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import add
from simpy.events import Event

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.loop import Engine
from mist_sim.clients.engine.run import Run
from mist_sim.clients.scheduling import ChunkedScheduler, StepPlan
from mist_sim.clients.scheduling.chunked import steps_of
from mist_sim.clients.scheduling.update import compute_more
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.views import RUNNING
from mist_sim.environment import Environment
from mist_sim.hardware.predictors.base import Predictor

if TYPE_CHECKING:
    from mist_sim.clients.sequence_state import SequenceState

_accumulate = add.accumulate
Prefills = list[tuple["SequenceState", int]]


class PlainEngine(Engine):
    """One lane, for whose client `plainness.py` finds nothing that prevents it.

    scheduler: of the lane. From the first request on that brings KV entries or leaves some to
    others, it does all as the general engine.
    """

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
        self._most_tokens = scheduler.max_num_batched_tokens
        self._whole_must_fit = scheduler.scheduler_reserve_full_isl
        # what is in flight: one plan and one run that are filled anew for each
        self._plain_plan = StepPlan()
        self._plain_run = Run(((lane, self._plain_plan, StepBatch()),), 0.0, 0.0, 1, 0.0)
        self._is_plain = True

    # --- a run begins -----------------------------------------------------------------------

    def _plan(self, event: Event) -> None:
        """Start the next steps, and sleep until they end; what is rare, the general engine does."""
        env, lane, state, ahead = self.env, self._only, self._state, self._ahead
        clock, pool, kv_cache = state.clock, state.pool, state.kv_cache
        if not self._is_plain:
            super()._plan(event)
            return
        env.note_plan(self._plan_phase)
        limit = lane.run_limit if ahead is None else self._hear()
        num_decodes, num_blocks = clock.num_decodes, clock.blocks_needed_now()
        num_free, budget = pool.num_free - num_blocks, self._most_tokens - num_decodes
        prefills: Prefills = []
        if num_free < 0 or (state.prefilling and not self._go_on(prefills, num_free, budget)):
            super()._plan(event)  # which preempts
            return
        state.num_taken = num_blocks
        if num_blocks:
            kv_cache.grow(num_blocks)
        if num_decodes and kv_cache.shares_blocks:
            kv_cache.note_step()
        if prefills:
            budget -= self._take(prefills)
        if state.waiting and budget:
            budget -= self._admit(prefills, budget)
        plan = self._plain_plan
        plan.prefills, plan.decodes = prefills, num_decodes > 0
        if prefills or (num_decodes and kv_cache.shares_blocks):
            num_steps = steps_of(state, plan, limit, budget)
        elif num_decodes:
            num_steps = clock.steps_until(pool.num_free + num_blocks, limit)
        else:
            super()._plan(event)  # nothing to do, or not before more is known
            return
        plan.num_steps = num_steps
        batch = state.batch(plan)
        is_known = True
        if ahead is not None:
            is_known, ahead.was_on_the_spot = ahead.latest is not None, ahead.latest is None
            if state.leaving:
                state.free_leaving()
        run, now = self._plain_run, env.now
        run.parts = ((lane, plan, batch),)
        run.start = now
        if num_steps > 1 and is_known:
            growth = StepGrowth(num_decodes, 0, 1) if num_decodes else StepGrowth()
            times = self.predictor.run(batch, growth, num_steps)
            times[0] += now
            run.ends = ends = _accumulate(times, out=times)
            run.num_steps, run.end = num_steps, ends.item(-1)
        else:
            seconds = (self.predictor if ahead is None else ahead).step_time(batch)
            run.ends = run.end = now + seconds
            run.num_steps = 1
        if ahead is not None:
            ahead.latest = run
        self._run = run
        self._wake = env.at(run.end, self._step_end)
        self._wake.callbacks.append(self._end)

    def _hear(self) -> int:
        """Let the next plan know what it may, planned ahead; return the most steps that it has."""
        state, ahead = self._state, self._ahead
        latest = ahead.latest
        if latest is None:
            ahead.halt()  # nothing is in flight: it may know everything
        else:
            state.lacks_tokens = latest.parts[0][1].decodes and not ahead.was_on_the_spot
            state.kv_cache.note_plan(is_ahead=True)
            if ahead.arrived:
                ahead.let_in(latest.last_start)
        if ahead.arrived or (state.leaving and state.waiting):
            return 1
        return self._only.run_limit

    def _go_on(self, prefills: Prefills, num_free: int, budget: int) -> bool:
        """Find the next pieces of prompts that run; return whether there is memory for them."""
        state = self._state
        for sequence in state.prefilling:
            num_new = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            if num_new:
                prefills.append((sequence, num_new))
                num_free -= state.piece_need(sequence, num_new)
                budget -= num_new
        return num_free >= 0

    def _take(self, prefills: Prefills) -> int:
        """Give pieces of prompts their blocks; return their tokens."""
        state, num_tokens = self._state, 0
        for sequence, num_new in prefills:
            if num_blocks := state.piece_need(sequence, num_new):
                state.kv_cache.grow(num_blocks)
            state.kv_cache.compute(sequence, sequence.num_computed_tokens + num_new)
            num_tokens += num_new
        return num_tokens

    def _admit(self, prefills: Prefills, budget: int) -> int:
        """Admit prompts while memory, seats and budget let them in; return their tokens."""
        state, before = self._state, budget
        pool, kv_cache, running, waiting = state.pool, state.kv_cache, state.running, state.waiting
        now = self.env.now
        while budget and waiting and len(running) < state.max_num_seqs:
            sequence = waiting.head()
            num_tokens = sequence.num_tokens
            if not self._whole_must_fit:
                num_tokens = min(num_tokens, kv_cache.num_cached_tokens(sequence) + budget)
            num_free = pool.num_free - pool.num_reserved if running else pool.num_free
            if kv_cache.blocks_to_admit(sequence, num_tokens) > num_free:
                break
            num_left = sequence.num_tokens - kv_cache.num_cached_tokens(sequence)
            waiting.take()
            kv_cache.admit(sequence, min(num_left, budget))
            running[sequence] = None
            state.prefilling.append(sequence)
            num_new = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            prefills.append((sequence, num_new))
            kv_cache.compute(sequence, sequence.num_computed_tokens + num_new)
            budget -= num_new
            sequence.become(RUNNING)
            visit = sequence.visit
            if not visit.num_preemptions:
                visit.started_at = now
                if kv_cache.caches_prefixes:
                    visit.num_queried_tokens = sequence.num_prompt_tokens
                    visit.num_cached_tokens = sequence.num_computed_tokens
        return before - budget

    # --- a run ends -------------------------------------------------------------------------

    def _end(self, event: Event) -> None:
        """Account for the steps that have ended, and plan again."""
        env, run = self.env, self._run
        if run is not self._plain_run or not self._is_plain:
            super()._end(event)
            return
        self._run = None
        self._account(run)
        if not env.phase_is_last():  # let requests that move at this time enter the queues
            self._wake = env.at(env.now, self._plan_phase)
            self._wake.callbacks.append(self._plan)
            return
        self._plan(event)

    def _account(self, run: Run) -> None:
        """Enter what executed steps computed, write it down, and hand back who is done."""
        lane, state, plan, end = self._only, self._state, self._plain_plan, run.end
        pool, kv_cache, records = state.pool, state.kv_cache, lane.records
        prefills, num_steps = plan.prefills, run.num_steps
        if prefills and num_steps > 1:
            compute_more(state, plan, num_steps)
        finished: list[SequenceState] = []
        if plan.decodes:
            num_blocks = state.clock.advance(num_steps) - state.num_taken
            state.num_taken = 0
            if num_blocks:
                kv_cache.grow(num_blocks)
            finished = state.clock.pop_finished()
        state.num_peak_blocks = num_used = pool.num_blocks - pool.num_free
        for sequence in finished:
            num_blocks = pool.blocks_for(state.leave_clock(sequence))
            state.finish(sequence, num_blocks, sequence.num_tokens - 1)
        emitted = [s for s, new in prefills if self._has_prompt(s, num_steps * new)]
        records.run(run, run.parts[0][2], lane.load.num_waiting, num_used)
        for sequence in emitted:
            records.emit(sequence, end)
            if lane.gate is not None:
                lane.gate.prompt_is_done(sequence)
            if sequence.num_tokens == sequence.num_final_tokens:
                finished.append(sequence)
        for sequence in finished:
            records.finish(sequence)
            visit = sequence.visit
            visit.num_output_tokens = sequence.num_tokens - sequence.num_prompt_tokens
            visit.last_token_at = end
            lane.leave(visit, None)
        if lane.given_up:
            lane.let_go(finished)
        if state.leaving and not (state.num_running or lane.num_waiting):
            state.free_leaving()  # nothing is left to plan
        lane.adapt(num_steps, plan.num_steps)

    def _has_prompt(self, sequence: SequenceState, num_new: int) -> bool:
        """Count computed tokens of a prompt; return whether that were all, which emits a token."""
        state = self._state
        sequence.num_computed_tokens = num_computed = sequence.num_computed_tokens + num_new
        if num_computed < sequence.num_tokens:
            return False
        state.prefilling.remove(sequence)
        sequence.num_tokens += 1
        if sequence.num_tokens < sequence.num_final_tokens:
            state.clock.join(sequence)
        else:
            state.finish(sequence, state.pool.blocks_for(num_computed), num_computed)
        return True

    # --- a request arrives ------------------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence; cut the run that it could join."""
        visit = sequence.visit
        if visit.kv is not None or visit.is_followed:
            self._is_plain = False
        super().add_request(sequence)
