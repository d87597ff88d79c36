"""The steps of a plan: their work, and how many equal steps follow."""

from __future__ import annotations

from bisect import bisect_right

from mist_sim.clients.scheduling.admission import steps_until_gain, steps_until_pages
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.core.batch import StepBatch, StepGrowth


def batch_of(lane: LaneState, plan: StepPlan) -> StepBatch:
    """Return the batch of a plan's first step."""
    if plan.batch is not None:
        return plan.batch
    chunks: tuple[tuple[int, int], ...] = ()
    if plan.prefills:
        chunks = tuple([(new, seq.num_computed_tokens) for seq, new in plan.prefills])
        if plan.padded:
            chunks = _with_drafts(lane, plan)
    batch = lane.clock.batch(chunks) if plan.decodes else StepBatch(chunks)
    if plan.adapters is not None:
        batch.adapters = plan.adapters
    return batch


def _with_drafts(lane: LaneState, plan: StepPlan) -> tuple[tuple[int, int], ...]:
    """Return the pieces of prompts with the drafts that pad some of them."""
    num_drafts = lane.speculation.num_drafts if lane.speculation is not None else 0
    return tuple(
        (new + num_drafts * (each in plan.padded), each.num_computed_tokens)
        for each, new in plan.prefills
    )


def growth_of(lane: LaneState, plan: StepPlan) -> StepGrowth:
    """Return the growth of a plan's batch from step to step."""
    return lane.clock.growth(plan.num_steps) if plan.decodes else StepGrowth()


def steps_of(lane: LaneState, plan: StepPlan, limit: int, budget: int) -> int:
    """Steps in which every prompt gets the same piece, and no decode changes.

    If tokens are left in the budget, a prompt may start in the step that completes another; that
    step needs its own plan.
    """
    shares = lane.kv_cache.shares_blocks
    if lane.pages is not None:
        if plan.prefills and lane.pages.keeps_states:
            return 1  # pieces end at blocks, and others may wait for their states
        limit = steps_until_pages(lane, limit)
    spare = 1 if budget else 0
    for sequence, new in plan.prefills:
        remaining = sequence.num_tokens - sequence.num_computed_tokens
        limit = min(limit, (remaining - spare) // new)
        if limit <= 1:
            return 1
    if plan.prefills and shares and _shares_change(lane, plan, budget):
        return 1
    if lane.kv_cache.tiers is not None:
        limit = lane.kv_cache.tiers.most_steps(limit)
    if limit <= 1:
        return 1
    if plan.prefills and lane.by_piece:
        limit = _steps_with_pieces(lane, plan, limit)
    elif lane.clock.num_decodes:
        num_free = lane.pool.num_free + lane.num_taken
        if lane.pages is not None:
            num_free -= lane.pages.num_late(lane.clock.num_decodes)
        limit = max(1, lane.clock.steps_until(num_free, limit))
    return steps_until_gain(lane, limit) if budget and shares else limit


def _shares_change(lane: LaneState, plan: StepPlan, budget: int) -> bool:
    """Tell whether blocks that a step caches can change the next step.

    The head of the queue may find them, or another prompt may compute the same blocks. Pages come
    and go in turns, of prompts and decodes.
    """
    if lane.pages is not None and (plan.decodes or len(plan.prefills) > 1):
        return True
    entering = [each for each, _ in plan.prefills if lane.kv_cache.is_entering(each)]
    head = lane.head() if entering and budget else None
    if head is not None and head.chain is not None:
        return True
    return bool(entering) and not lane.kv_cache.are_apart(entering)


def _steps_with_pieces(lane: LaneState, plan: StepPlan, limit: int) -> int:
    """Steps until a decode ends, or decodes and pieces of prompts have no more blocks."""
    if lane.clock.num_decodes:
        limit = min(limit, lane.clock.steps_to_change())
    num_free = lane.pool.num_free
    if limit == 1 or blocks_after_first(lane, plan, limit) <= num_free:
        return limit
    steps = range(1, limit + 1)
    return bisect_right(steps, num_free, key=lambda n: blocks_after_first(lane, plan, n))


def blocks_after_first(lane: LaneState, plan: StepPlan, num_steps: int) -> int:
    """Blocks that so many steps of a plan take after the first, piece by piece."""
    num_blocks = lane.clock.blocks_needed(num_steps) - lane.num_taken
    for sequence, num_new in plan.prefills:
        num_blocks += lane.needs.of_piece(sequence, num_steps * num_new, num_new)
    return num_blocks
