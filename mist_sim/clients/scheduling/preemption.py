"""How running sequences give memory up for others, and how swapped ones come back."""

from __future__ import annotations

from typing import Literal, get_args

from mist_sim.clients.kv_cache.moves.kv_move import GPU, HOST, KvMove
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState

Preemption = Literal["recompute", "swap", "async_swap"]
PREEMPTIONS: tuple[str, ...] = get_args(Preemption)


def make_room(lane: LaneState, plan: StepPlan) -> bool:
    """Preempt running sequences until the next decode step fits; return whether any was.

    Otherwise swapped-out sequences resume, and then those with entries from another client. If
    swaps overlap with steps, blocks on their way out count as free, and decodes for which there are
    none yet pause; this counts as preemption.
    """
    clock, pool = lane.clock, lane.pool
    if clock.blocks_needed_now() <= pool.num_free:
        if lane.swapped:
            (_begin_swap_in if lane.swaps.overlap else _swap_in)(lane, plan)
        if lane.moved:
            join(lane, plan)
        return False
    while clock.blocks_needed_now() > pool.num_free + lane.swaps.num_going:
        preempt(lane, plan, lane.waiting.victim(lane.running))
    if lane.swaps.going:
        _sit_out(lane, plan)
    return True


def _sit_out(lane: LaneState, plan: StepPlan) -> None:
    """Pause the decodes without a block for the step; those admitted first keep running."""
    num_free, idle = lane.pool.num_free, []
    for sequence in lane.running:
        if sequence.ticket and (num_blocks := lane.clock.blocks_needed_by(sequence)):
            if num_blocks > num_free:
                idle.append(sequence)
            else:
                num_free -= num_blocks
    idle.sort(key=lambda sequence: sequence.ticket)  # in which order they go on
    lane.pause(plan, idle)


def preempt(
    lane: LaneState, plan: StepPlan, sequence: SequenceState, *, was_served: bool = False
) -> None:
    """Take the blocks of a running sequence, which continues later.

    It is copied to host memory or goes back to the queue, or is dropped if it outgrew the cache.
    One that has all its tokens, which a plan ahead does not know, just leaves.

    was_served: whether it had its turn in this plan, which caches its computed tokens.
    """
    if sequence in lane.leaving:
        lane.preempt_leaving(sequence)
        return
    kv_cache, swap_space = lane.kv_cache, lane.swap_space
    in_prefill = swap_space is not None and sequence in lane.prefilling
    num_blocks, num_computed = lane.stop(sequence)
    del lane.running[sequence]
    num_known = lane.num_known(sequence, num_computed, was_served=was_served)
    num_unknown = num_computed - num_known
    if lane.outgrown(sequence):
        kv_cache.preempt(sequence, num_blocks, num_known, num_unknown)
        plan.dropped += (sequence,)
        return
    plan.preempted += (sequence,)
    if swap_space is not None:
        num_filled = lane.pool.blocks_for(num_computed)
        swap = KvMove("swap_out", sequence, GPU, HOST, num_filled, num_computed, in_prefill)
        if _swap_out(lane, plan, swap, num_blocks):
            return
    kv_cache.preempt(sequence, num_blocks, num_known, num_unknown)
    lane.waiting.give_back(sequence)


def _swap_out(lane: LaneState, plan: StepPlan, swap: KvMove, num_blocks: int) -> bool:
    """Copy a preempted sequence to host memory; return False if there is no room.

    num_blocks: blocks that it holds.
    """
    if not lane.swaps.room.has(swap.num_blocks):
        return False
    lane.swaps.room.reserve(swap.num_blocks)
    if lane.swaps.overlap:
        lane.swaps.going[swap.sequence] = num_blocks, swap.num_tokens
    else:
        lane.kv_cache.swap_out(swap.sequence, num_blocks, swap.num_tokens)
    lane.swapped[swap.sequence] = swap
    plan.moves += (swap,)
    return True


def _swap_in(lane: LaneState, plan: StepPlan) -> None:
    """Let swapped sequences go on, in the order in which they went, while they fit."""
    swaps = []
    for sequence, swap in lane.swapped.items():
        num_needed = lane.blocks_to_return(swap)
        free = lane.num_admissible(lane.clock.blocks_needed_now())
        if not lane.has_seat() or num_needed > free:
            break
        num_blocks = num_needed if swap.in_prefill else swap.num_blocks
        lane.kv_cache.swap_in(sequence, num_blocks, swap.num_tokens)
        lane.running[sequence] = None
        if swap.in_prefill:
            lane.prefilling.append(sequence)
        else:
            lane.clock.join(sequence)
        swaps.append(swap.back())
    for swap in swaps:
        del lane.swapped[swap.sequence]
        lane.swaps.room.release(swap.num_blocks)
        plan.resumed += (swap.sequence,)
    plan.moves += tuple(swaps)


def _begin_swap_in(lane: LaneState, plan: StepPlan) -> None:
    """Take memory for swapped sequences, in the order in which they went, and let them come."""
    while lane.swapped and lane.has_seat():
        sequence, swap = next(iter(lane.swapped.items()))
        if sequence in lane.swaps.going:
            return
        free = lane.num_admissible(lane.clock.blocks_needed_now() + lane.num_promised)
        if lane.blocks_to_return(swap) > free:
            return
        begin_return(lane, plan, sequence, swap)


def begin_return(lane: LaneState, plan: StepPlan, sequence: SequenceState, swap: KvMove) -> None:
    """Take memory for a swapped sequence, for which there is some, and let its entries come."""
    del lane.swapped[sequence]
    sequence.bring(swap.num_tokens, has_rest=swap.in_prefill)
    lane.kv_cache.grow(lane.pool.blocks_for(swap.num_tokens))
    lane.num_promised += lane.blocks_to_join(sequence)
    lane.loading[sequence] = None
    plan.moves += (lane.swaps.begin_return(swap),)


def join(lane: LaneState, plan: StepPlan, num_needed: int = 0) -> None:
    """Let sequences whose entries have come decode, in order of arrival, if they fit.

    Swapped-out ones resume first, unless no sequence runs: then they wait for memory that the
    arrived ones hold. If swaps overlap with steps, they queue with the arrived ones, without
    precedence.

    num_needed: blocks needed beside the decodes.
    """
    while (
        lane.moved
        and lane.has_seat()
        and (lane.swaps.overlap or not (lane.swapped and lane.running))
    ):
        sequence = lane.moved[0]
        num_blocks = lane.blocks_to_join(sequence)
        if num_blocks > lane.num_admissible(lane.clock.blocks_needed_now() + num_needed):
            return
        lane.moved.popleft()
        lane.num_promised -= num_blocks
        lane.kv_cache.arrive(sequence, sequence.num_tokens - 1)
        sequence.have_brought()
        lane.running[sequence] = None
        lane.clock.join(sequence)
        plan.resumed += (sequence,)
