"""How sequences go on whose entries lie elsewhere: swapped out, or with other clients."""

from __future__ import annotations

from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState


def swap_in(lane: LaneState, plan: StepPlan) -> None:
    """Bring swapped sequences back while they fit, in the order in which they went."""
    (_begin_swap_in if lane.swaps.overlap else _swap_all_in)(lane, plan)


def _swap_all_in(lane: LaneState, plan: StepPlan) -> None:
    """Let swapped sequences go on, in the order in which they went, while they fit."""
    swaps = []
    for sequence, swap in lane.swapped.items():
        num_needed = lane.needs.to_return(swap)
        if num_needed > lane.num_admissible(lane.clock.blocks_needed_now()) or not lane.has_seat():
            break
        num_blocks = num_needed if swap.in_prefill else swap.num_blocks
        lane.kv_cache.swap_in(sequence, num_blocks, swap.num_tokens)
        lane.running[sequence] = None
        if swap.in_prefill:
            lane.prefilling.append(sequence)
        else:
            lane.clock.join(sequence)
        swaps.append(swap.back())
    if not swaps:
        return
    for swap in swaps:
        del lane.swapped[swap.sequence]
        lane.swaps.room.release(swap.num_blocks)
        plan.resumed += (swap.sequence,)
    plan.moves += tuple(swaps)


def _begin_swap_in(lane: LaneState, plan: StepPlan) -> None:
    """Reserve memory for swapped sequences and begin their moves, in the order of their leaving."""
    while lane.swapped and lane.has_seat():
        sequence, swap = next(iter(lane.swapped.items()))
        if sequence in lane.swaps.going:
            return
        free = lane.num_admissible(lane.clock.blocks_needed_now() + lane.coming.num_promised)
        if lane.needs.to_return(swap) > free:
            return
        begin_return(lane, plan, sequence, swap)


def begin_return(lane: LaneState, plan: StepPlan, sequence: SequenceState, swap: KvMove) -> None:
    """Take memory for a swapped sequence, for which there is some, and let its entries come."""
    del lane.swapped[sequence]
    sequence.bring(swap.num_tokens, has_rest=swap.in_prefill)
    lane.kv_cache.grow(lane.pool.blocks_for(swap.num_tokens))
    lane.coming.num_promised += lane.needs.to_join(sequence)
    lane.coming.loading[sequence] = None
    plan.moves += (lane.swaps.begin_return(swap),)


def join(lane: LaneState, plan: StepPlan, num_needed: int = 0) -> None:
    """Let sequences whose entries have come decode, in order of arrival, if they fit.

    Swapped-out ones resume first, unless no sequence runs: then they wait for memory that the
    arrived ones hold. If swaps overlap with steps, they queue with the arrived ones, without
    precedence.

    num_needed: blocks needed beside the decodes.
    """
    while (
        lane.coming.moved
        and lane.has_seat()
        and (lane.swaps.overlap or not (lane.swapped and lane.running))
    ):
        sequence = lane.coming.moved[0]
        num_blocks = lane.needs.to_join(sequence)
        if num_blocks > lane.num_admissible(lane.clock.blocks_needed_now() + num_needed):
            return
        lane.coming.moved.popleft()
        lane.coming.num_promised -= num_blocks
        lane.kv_cache.arrive(sequence, sequence.num_tokens - 1)
        sequence.have_brought()
        lane.running[sequence] = None
        lane.clock.join(sequence)
        plan.resumed += (sequence,)
