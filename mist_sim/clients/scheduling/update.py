"""Accounts for steps: what executed ones computed, and the resources of lost ones."""

from __future__ import annotations

from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.page_turns import serve_steps
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState


def update(
    lane: LaneState, plan: StepPlan, num_steps: int
) -> tuple[list[SequenceState], list[SequenceState]]:
    """Account for `num_steps` executed steps of a plan.

    Returns (emitted, finished): sequences whose prefill emitted a token at the end of the last
    step, and sequences that have all their tokens, decodes first.
    """
    pool, clock, kv_cache = lane.pool, lane.clock, lane.kv_cache
    emitted: list[SequenceState] = []
    finished: list[SequenceState] = []
    if lane.cadence is not None:
        lane.cadence.advance(num_steps)
    if num_steps > 1 and (plan.prefills or lane.pages is not None):
        compute_more(lane, plan, num_steps)
    if kv_cache.tiers is not None or lane.coming.forgotten:
        _take_before_end(lane, plan, num_steps)
    if plan.decodes:
        num_blocks = clock.advance(num_steps) - lane.num_taken
        lane.num_taken = 0
        if num_blocks:
            kv_cache.grow(num_blocks)
        finished = clock.pop_finished()
    if lane.coming.forgotten:
        lane.coming.free_forgotten()
    lane.num_peak_blocks = pool.num_blocks - pool.num_free
    for sequence in finished:
        num_blocks = pool.blocks_for(lane.leave_clock(sequence))
        lane.finish(sequence, num_blocks, sequence.num_tokens - 1)
    if lane.paused:
        lane.end_pause()
    for sequence, num_new_tokens in plan.prefills:
        sequence.num_computed_tokens += num_steps * num_new_tokens
        if sequence.num_computed_tokens == sequence.num_tokens:
            lane.prefilling.remove(sequence)
            emitted.append(sequence)
            if _emit(lane, sequence):
                finished.append(sequence)
    return emitted, finished


def _emit(lane: LaneState, sequence: SequenceState) -> bool:
    """Count the token that a prefill emitted; return whether it was the last."""
    tiers = lane.kv_cache.tiers
    if tiers is not None and tiers.publishes:
        tiers.publish(sequence)
    sequence.num_tokens += 1
    if sequence.num_tokens < sequence.num_final_tokens:
        lane.clock.join(sequence)
        return False
    context = sequence.num_computed_tokens
    num_slots = lane.needs.slots_ahead(sequence, context)
    lane.finish(sequence, lane.pool.blocks_for(num_slots), context)
    return True


def compute_more(lane: LaneState, plan: StepPlan, num_steps: int) -> None:
    """Take and enter the blocks of prompts; the plan did so for the first step.

    Where sequences have turns, the decodes have theirs, too.
    """
    kv_cache = lane.kv_cache
    if lane.pages is not None:
        serve_steps(lane, lane.pages, plan, num_steps)
        return
    if lane.by_piece:
        kv_cache.grow(sum([lane.needs.of_piece(s, num_steps * n, n) for s, n in plan.prefills]))
    for sequence, new in plan.prefills:
        if lane.by_piece:
            lane.needs.note_ahead(sequence)
        kv_cache.compute_more(sequence, new, num_steps)


def _take_before_end(lane: LaneState, plan: StepPlan, num_steps: int) -> None:
    """Let decodes take their blocks before blocks given up, or filled, in these steps are known.

    Blocks given up during the last step are free before it takes its own at its end.
    """
    if lane.coming.forgotten and not lane.by_piece:
        if plan.decodes and num_steps > 1:
            _take_early(lane, num_steps - 1)
        lane.coming.free_forgotten()
    if plan.decodes and lane.kv_cache.tiers is not None:
        _take_early(lane, num_steps)


def _take_early(lane: LaneState, num_steps: int) -> None:
    """Let decodes take the blocks of some steps before what these fill is known."""
    num_early = lane.clock.blocks_needed(num_steps) - lane.num_taken
    if num_early:
        lane.kv_cache.grow(num_early)
        lane.num_taken += num_early


def _slots_held(lane: LaneState, sequence: SequenceState) -> int:
    """Tokens that a running sequence has memory for before the step that is planned."""
    if sequence not in lane.prefilling:
        return lane.clock.slots_held(sequence)
    if not lane.by_piece:
        return sequence.num_tokens
    return lane.needs.slots_ahead(sequence, sequence.num_computed_tokens)


def lose_step(lane: LaneState, plan: StepPlan) -> None:
    """Give back the blocks of a lost step; paused decodes run again."""
    if lane.pages is not None:
        for sequence in lane.running:
            lane.pages.lose_step(sequence, _slots_held(lane, sequence))
    elif lane.by_piece:
        pieces = [lane.needs.taken_by_piece(sequence, new) for sequence, new in plan.prefills]
        lane.kv_cache.answers.forget_step()
        lane.kv_cache.give_back(sum(pieces, lane.num_taken))
    lane.num_taken = 0
    lane.coming.free_forgotten()
    lane.end_pause()
