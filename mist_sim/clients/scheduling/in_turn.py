"""How running sequences take the blocks of the next step, one after the other (vLLM v1).

Decodes and pieces of prompts take blocks in the order of admission, before any waiting request
looks up its prefix. A sequence without blocks preempts the running request that gives way, until
there is room or it has preempted itself. In the latter case the sequences after it get nothing in
this step: prompts stand still, and decodes pause. This happens only if another sequence than the
last one may have to give way. In that case turns are also skipped: vLLM walks `running` by index
and does not step back when an earlier sequence is preempted, so the next one is skipped; here too,
for each victim earlier in the list that has ended the step in flight. Both end with 0.33
(`EngineRules.pass_goes_on`): every sequence gets a turn.

Source: the first loop of `Scheduler.schedule` in vLLM 0.19 and 0.33,
`vllm/v1/core/sched/scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from mist_sim.clients.scheduling.admission import add_prefill
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.preemption import join, preempt
from mist_sim.clients.sequence_state import SequenceState

Cut = Callable[[int, int], int]
"""Tokens that a prompt with so many to go gets out of a budget."""

Piece = tuple[SequenceState, int, int]
"""A prompt, and the tokens and blocks that it gets in a step."""


def take_in_turn(lane: LaneState, plan: StepPlan, budget: int, cut: Cut) -> tuple[bool, int]:
    """Give decodes and running prompts the blocks of the next step, and plan these prompts.

    Sequences whose entries have come from another client join, if none is preempted.

    budget: tokens of the step; decodes take theirs first.
    Returns whether any sequence was preempted, and the remaining budget.
    """
    if lane.paused:  # paused by a plan that computed nothing
        lane.end_pause()
    clock, num_free = lane.clock, lane.pool.num_free
    num_blocks = clock.blocks_needed_now()
    if not (lane.prefilling or lane.moved) and num_blocks <= num_free:  # mostly
        lane.num_taken = 0
        if num_blocks or lane.kv_cache.shares_blocks:
            _take(lane, num_blocks)
        return False, budget - clock.num_decodes * clock.num_queries_each
    pieces = _pieces(lane, budget, cut)
    disturbed = _need(lane, pieces) > num_free
    if disturbed:
        pieces = _preempt(lane, plan, budget, cut)
    elif lane.moved:
        join(lane, plan, sum([num_blocks for *_, num_blocks in pieces]))
        pieces = _pieces(lane, budget, cut)
    _take(lane, clock.blocks_needed_now())
    for sequence, num_new, num_blocks in pieces:
        if num_blocks:
            lane.kv_cache.grow(num_blocks)
        lane.take_ahead(sequence)
        add_prefill(lane, plan, sequence, num_new)
        budget -= num_new
    return disturbed, budget - lane.num_decode_queries


def _take(lane: LaneState, num_blocks: int) -> None:
    """Give the decodes the blocks of their next step."""
    lane.num_taken = num_blocks
    if num_blocks:
        lane.kv_cache.grow(num_blocks)
    if lane.kv_cache.shares_blocks and lane.clock.num_decodes:
        lane.kv_cache.answers.note_step()


def _pieces(lane: LaneState, budget: int, cut: Cut) -> list[Piece]:
    """Return the pieces of the running prompts within a budget, beside the decodes."""
    budget -= lane.num_decode_queries
    pieces = []
    for sequence in lane.prefilling:
        num_new = cut(sequence.num_tokens - sequence.num_computed_tokens, budget)
        if num_new:
            pieces.append((sequence, num_new, lane.piece_need(sequence, num_new)))
            budget -= num_new
    return pieces


def _need(lane: LaneState, pieces: list[Piece]) -> int:
    """Return the blocks that the decodes and pieces of prompts take."""
    num_blocks = lane.clock.blocks_needed_now()
    for piece in pieces:
        num_blocks += piece[2]
    return num_blocks


def _preempt(lane: LaneState, plan: StepPlan, budget: int, cut: Cut) -> list[Piece]:
    """Preempt until the remaining sequences have blocks for the step; return its pieces."""
    if lane.waiting.takes_from_anywhere and lane.speculation is None:
        pieces = _one_by_one(lane, plan, budget, cut)
        if not pieces and not lane.clock.num_decodes:
            plan.paused = ()  # nothing is computed, and the next plan follows at once
        return pieces
    pieces = _pieces(lane, budget, cut)
    while _need(lane, pieces) > lane.pool.num_free:
        preempt(lane, plan, lane.waiting.victim(lane.running))
        pieces = _pieces(lane, budget, cut)
    return pieces


def _one_by_one(lane: LaneState, plan: StepPlan, budget: int, cut: Cut) -> list[Piece]:
    """Give each running sequence its turn, preempting if needed; return the served pieces."""
    turns, goes_on = list(lane.running), lane.rules.pass_goes_on
    served: dict[SequenceState, tuple[int, int]] = {}  # tokens and blocks of each
    missed: list[SequenceState] = []  # sequences that lost their turn
    while turns:
        sequence = turns[0]
        if lane.is_busy(sequence):
            del turns[0]
            continue
        if sequence in lane.prefilling:
            left = budget - lane.num_decode_queries - _prompt_tokens(lane, served)
            num_new = cut(sequence.num_tokens - sequence.num_computed_tokens, left)
            num_blocks = lane.piece_need(sequence, num_new)
        else:
            num_new, num_blocks = 1, lane.clock.blocks_needed_by(sequence)
        next_turn = 1
        while sum(taken for _, taken in served.values()) + num_blocks > lane.pool.num_free:
            victim = lane.waiting.victim(lane.running)
            next_turn += not goes_on and lane.is_busy(victim) and victim not in turns
            preempt(lane, plan, victim, was_served=victim in served)
            served.pop(victim, None)
            if victim in turns:
                turns.remove(victim)
            if victim is sequence:
                if not goes_on:
                    missed += turns
                    turns.clear()
                break
        else:
            served[sequence] = num_new, num_blocks
            if lane.cadence is not None and sequence in lane.prefilling and num_new:
                lane.cadence.carry()  # even if it gives way to another yet
            missed += turns[1:next_turn]
            del turns[:next_turn]
    if missed:
        running = (each for each in missed if each in lane.running and not lane.is_busy(each))
        lane.pause(plan, [each for each in running if each not in lane.prefilling])
    prompts = (each for each in lane.prefilling if each in served)
    return [(each, *served[each]) for each in prompts if served[each][0]]


def _prompt_tokens(lane: LaneState, served: dict[SequenceState, tuple[int, int]]) -> int:
    return sum(served[each][0] for each in lane.prefilling if each in served)
