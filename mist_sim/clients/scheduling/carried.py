"""Sequences that enter a new lane with entries computed in another lane.

Their entries take the blocks that they fill, and no more: the next plan treats them as if they had
always been here, and preempts if its step runs short. Blocks with the same content are kept once.
"""

from __future__ import annotations

from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.sequence_state import SequenceState


def carry_running(
    lane: LaneState, sequence: SequenceState, num_tokens: int, *, decodes: bool
) -> bool:
    """Let a sequence go on that ran, if there is a seat, and room for its entries.

    num_tokens: that have entries. decodes: whether its prompt is computed.
    """
    if not lane.has_seat() or not _take(lane, sequence, num_tokens):
        return False
    lane.kv_cache.arrive(sequence, num_tokens)
    lane.running[sequence] = None
    if decodes:
        lane.clock.join(sequence)
    else:
        sequence.num_computed_tokens = num_tokens
        lane.prefilling.append(sequence)
    return True


def carry_brought(lane: LaneState, sequence: SequenceState) -> bool:
    """Let a sequence with entries from elsewhere wait to continue, if it has room."""
    num_first = lane.needs.to_join(sequence)
    others = lane.clock.blocks_needed_now() + lane.coming.num_promised
    if not _take(lane, sequence, sequence.num_brought, others + num_first):
        return False
    lane.coming.num_promised += num_first
    (lane.coming.moved if sequence.waits_to_decode else lane.coming.loaded).append(sequence)
    return True


def carry_held(lane: LaneState, sequence: SequenceState, num_tokens: int) -> None:
    """Keep the entries of a sequence that is done for another client, in blocks of its own."""
    num_blocks = lane.pool.blocks_of(num_tokens)
    sequence.chain = None
    lane.kv_cache.add(sequence)
    lane.kv_cache.swap_in(sequence, num_blocks, num_tokens)
    lane.held[sequence] = num_blocks, num_tokens


def carry_waiting(lane: LaneState, sequence: SequenceState) -> None:
    """Queue a sequence without entries; it keeps its position by arrival."""
    sequence.chain = None
    sequence.num_computed_tokens = 0
    lane.kv_cache.add(sequence)
    lane.waiting.add(sequence)


def _take(lane: LaneState, sequence: SequenceState, num_tokens: int, num_more: int = 0) -> bool:
    """Take blocks for entries, if these and `num_more` are free; cached ones are held."""
    kv_cache, pool = lane.kv_cache, lane.pool
    sequence.chain = None
    kv_cache.add(sequence)
    if kv_cache.blocks_to_reserve(sequence, num_tokens) + num_more > pool.num_free:
        return False
    kv_cache.reserve(sequence, num_tokens)
    return True
