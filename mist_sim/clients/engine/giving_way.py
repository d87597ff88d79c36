"""The plan of a plain lane whose decodes lack blocks: preempt those admitted last.

Only where no prompt is in pieces and blocks are shared; the general planner makes all others. Its
plans would be the same (`tests/property/test_plain_loop.py`).
"""

from __future__ import annotations

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.scheduling import ChunkedScheduler, StepPlan
from mist_sim.clients.scheduling.admission import steps_until_join
from mist_sim.clients.scheduling.planned_steps import steps_of
from mist_sim.clients.scheduling.preemption import preempt


def decodes_left(lane: Lane, scheduler: ChunkedScheduler, limit: int) -> StepPlan | None:
    """Preempt until the decodes have blocks for their next step; return the plan of their steps.

    The plan admits no prompt. limit: the most steps. Returns None where the general planner has to
    plan, perhaps after the first preemptions.
    """
    state = lane.state
    clock, pool, kv_cache = state.clock, state.pool, state.kv_cache
    num_blocks = clock.blocks_needed_now()
    is_short = num_blocks > pool.num_free and not state.prefilling
    if not (is_short and state.by_piece and kv_cache.shares_blocks):
        return None
    plan, running = StepPlan(), state.running
    while num_blocks > pool.num_free and clock.num_decodes > 1:
        preempt(state, plan, state.waiting.victim(running))
        num_blocks = clock.blocks_needed_now()
    lane.evict(plan)
    if num_blocks > pool.num_free:
        return None  # none would be left
    state.num_taken = num_blocks
    kv_cache.grow(num_blocks)
    kv_cache.answers.note_step()
    plan.decodes = True
    budget = scheduler.max_num_batched_tokens - clock.num_decodes
    if budget:
        limit = steps_until_join(state, limit) if scheduler.scheduler_reserve_full_isl else 1
    plan.num_steps = steps_of(state, plan, limit, budget)
    return plan
