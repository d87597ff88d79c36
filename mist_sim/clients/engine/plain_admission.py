"""Admission to a plain lane: prompts in order of arrival, while memory, seats and tokens last."""

from __future__ import annotations

from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.sequence_state import SequenceState

Prefills = list[tuple[SequenceState, int]]


def admit_prompts(
    state: LaneState,
    prefills: Prefills,
    budget: int,
    now: float,
    *,
    whole: bool,
    needed: int = 0,
) -> int:
    """Admit prompts within a budget; return its tokens that they take.

    prefills: gets the prompts with their tokens. now: seconds. whole: whether an admission needs
    memory for a whole prompt. needed: blocks that the decodes take in this step and not in its
    plan, where nothing is shared. Stops at a sequence whose entries come from another client.
    """
    before, by_piece = budget, state.by_piece
    pool, kv_cache, running, waiting = state.pool, state.kv_cache, state.running, state.waiting
    take = kv_cache.grow if kv_cache.shares_blocks else pool.allocate
    while budget and waiting and len(running) < state.max_num_seqs:
        sequence = waiting.head()
        if sequence.is_brought:
            break
        num_free = pool.num_free - pool.num_reserved if running else pool.num_free
        num_free -= state.coming.num_promised
        if sequence.chain is not None:
            num_new = _take_shared(state, sequence, num_free, budget, whole=whole)
        else:
            num_new = num_tokens = sequence.num_tokens
            num_new = min(num_new, budget)
            size = pool.block_size
            if needed + -((num_tokens if whole else num_new) // -size) > num_free:
                break
            take(-((num_new if by_piece else num_tokens) // -size))
        if not num_new:
            break
        waiting.take()
        running[sequence] = None
        state.prefilling.append(sequence)
        prefills.append((sequence, num_new))
        budget -= num_new
        sequence.begin()
        visit = sequence.visit
        if not visit.num_preemptions:
            visit.started_at = now
            if kv_cache.caches_prefixes:
                visit.num_queried_tokens = sequence.num_prompt_tokens
                visit.num_cached_tokens = sequence.num_computed_tokens
    return before - budget


def _take_shared(
    state: LaneState, sequence: SequenceState, num_free: int, budget: int, *, whole: bool
) -> int:
    """Give a prompt its cached blocks and new ones; return its tokens, 0 without room."""
    kv_cache, num_tokens = state.kv_cache, sequence.num_tokens
    if not whole:
        num_tokens = min(num_tokens, kv_cache.num_cached_tokens(sequence) + budget)
    if kv_cache.blocks_to_admit(sequence, num_tokens) > num_free:
        return 0
    kv_cache.admit(sequence, budget)
    num_computed = sequence.num_computed_tokens
    num_new = min(sequence.num_tokens - num_computed, budget)
    kv_cache.compute(sequence, num_computed + num_new)
    return num_new
