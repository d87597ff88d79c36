"""The plain lane with `preemption: swap`: preempted requests are copied to host memory.

Prompts take all their blocks when they are admitted, and decodes theirs in the step that fills
them. While blocks are shared, the general planner makes the plans; all steps are plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.clients.engine.plain import PlainEngine
from mist_sim.clients.engine.plain_admission import Prefills, admit_prompts
from mist_sim.clients.scheduling.admission import steps_until_join
from mist_sim.clients.scheduling.planned_steps import steps_of
from mist_sim.clients.scheduling.preemption import preempt
from mist_sim.clients.scheduling.resuming import swap_in

if TYPE_CHECKING:
    from simpy.events import Event

    from mist_sim.clients.engine.plan_ahead import PlanAhead


class PlainSwappingEngine(PlainEngine):
    """One lane with swap space; a step waits for the copies before it."""

    takes_in_step = True

    def _plan(self, event: Event) -> None:
        if not self._is_plain:
            super()._plan(event)
            return
        env, lane, state, clock, pool, ahead = self._parts
        env.note_plan(self._plan_phase)
        plan, limit = self._plain_plan, lane.run_length.limit
        shares = state.kv_cache.shares_blocks
        if ahead is not None:
            if ahead.latest is None or ahead.arrived or ahead.given_up or shares:
                limit = self._hear(ahead, limit)
            if state.leaving and (state.swapped or state.waiting):
                limit = 1  # their memory is free then
        gives_way = clock.blocks_needed_now() > pool.num_free
        if shares or (gives_way and clock.num_decodes == 1):
            self._plan_rarely(event, limit)  # perhaps nothing is left to compute
            return
        if gives_way:
            self._give_way(ahead)
        elif state.swapped:
            swap_in(state, plan)
        budget = self._plan_prompts(admits=not gives_way)
        prefills, num_decodes = plan.prefills, clock.num_decodes
        if not (num_decodes or prefills):
            self._plan_rarely(event, limit)
            return
        if gives_way and (budget or state.swapped):
            limit = steps_until_join(state, limit)
        plan.decodes, plan.wait_time = num_decodes > 0, 0.0
        plan.num_steps = steps_of(state, plan, limit, budget)
        if plan.preempted or plan.moves or plan.dropped:
            plan.wait_time = state.swaps.copy_time(lane.note(plan))
            plan.preempted = plan.resumed = plan.moves = plan.dropped = ()
        self._start_plain(event, prefills, num_decodes, plan.num_steps)

    def _give_way(self, ahead: PlanAhead | None) -> None:
        """Preempt, of two decodes and more, until the others have blocks for their next step."""
        state, clock, pool = self._state, self._state.clock, self._state.pool
        if ahead is not None and ahead.latest is not None:  # without room on the host, all shares
            state.known.lacks_tokens = self._plain_plan.decodes and not ahead.was_on_the_spot
            state.kv_cache.answers.is_ahead = True
        while clock.blocks_needed_now() > pool.num_free:
            preempt(state, self._plain_plan, state.waiting.victim(state.running))

    def _plan_prompts(self, *, admits: bool) -> int:
        """Plan the next pieces of prompts that run, and of new ones; return the budget left."""
        prefills: Prefills = []
        state = self._state
        budget = self._most_tokens - state.clock.num_decodes
        for sequence in state.prefilling:
            num_computed = sequence.num_computed_tokens
            if num_new := min(sequence.num_tokens - num_computed, budget):
                prefills.append((sequence, num_new))
                state.kv_cache.compute(sequence, num_computed + num_new)
                budget -= num_new
        if admits and budget and state.waiting and not state.swapped:
            needed, now = state.clock.blocks_needed_now(), self.env.now
            budget -= admit_prompts(state, prefills, budget, now, whole=True, needed=needed)
        self._plain_plan.prefills = prefills
        return budget
