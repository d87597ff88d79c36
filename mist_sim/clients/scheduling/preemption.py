"""How running sequences get the blocks of the next step, and which give way if there are too few.

vLLM v1 (`take_in_turn`): decodes and pieces of prompts take blocks in the order of admission,
before any waiting request looks up its prefix. A sequence without blocks preempts the last running
request in the order, until there is room or it preempts itself. In the latter case the sequences
after it get nothing in this step: prompts stand still, and decodes pause. This happens only if the
victim need not be the last in the list, as with `order: priority`. Turns are then skipped as well:
vLLM walks `running` by index and does not step back when an earlier sequence is preempted, so the
sequence after it is skipped. The same holds for each victim earlier in the list that has ended with
the step in flight. Both end with 0.33 (`EngineRules.pass_goes_on`): every sequence gets a turn.

Decodes take their tokens of a step first. Only where a prefix cache keeps states
(`PageManager.keeps_states`) is that not so: a prompt may stop at the end of a block and leave
tokens to younger requests, which then decode before it is done. There each request takes its tokens
in order of admission, and decodes for which none are left skip the step.

With tiers and steps planned ahead, 0.33 preempts no sequence whose blocks a step in flight may
write (`EngineRules.spares_in_flight`): a sequence that finds no blocks then, and all after it, sit
the step out.

Where prompts have all their blocks (`make_room`), only decodes ask for more.

In both, the waiting queue chooses the victim (`WaitingQueue.victim`), `preempt` takes its blocks,
and preempted sequences that lie in host memory come back with `resuming`.

Source: the first loop of `Scheduler.schedule` in vLLM 0.19 and 0.33,
`vllm/v1/core/sched/scheduler.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal, get_args

from mist_sim.clients.kv_cache.moves import GPU, HOST, KvMove
from mist_sim.clients.scheduling.admission import add_piece
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.page_turns import (
    leave_behind,
    need_in_turn,
    serve_now,
    serve_rest,
)
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.resuming import join, swap_in
from mist_sim.clients.sequence_state import SequenceState

Preemption = Literal["recompute", "swap", "async_swap"]
PREEMPTIONS: tuple[str, ...] = get_args(Preemption)

Cut = Callable[[int, int], int]
"""Tokens that a prompt with so many to go gets out of a budget."""

Piece = tuple[SequenceState, int, int]
"""A prompt, and the tokens and blocks that it gets in a step."""


def preempt(
    lane: LaneState, plan: StepPlan, sequence: SequenceState, *, was_served: bool = False
) -> None:
    """Take the blocks of a running sequence, which continues later.

    It is copied to host memory or goes back to the queue, or is dropped if it outgrew the cache.
    A sequence that has all its tokens, which a plan made ahead does not know, just leaves.

    was_served: whether it had its turn in this plan, which caches its computed tokens.
    """
    plan.is_disturbed = True
    if lane.has_ended(sequence):
        lane.preempt_leaving(sequence, was_served=was_served)
        return
    kv_cache, swap_space = lane.kv_cache, lane.swap_space
    in_prefill = sequence in lane.prefilling
    if lane.num_taken and not in_prefill and sequence not in lane.paused:  # after `make_room`
        num_unused = lane.clock.blocks_needed_by(sequence)
        lane.num_taken -= num_unused
        if lane.pages is None:
            kv_cache.give_back(num_unused)
    num_blocks, num_computed = lane.stop(sequence)
    del lane.running[sequence]
    num_known = lane.num_known(sequence, num_computed, was_served=was_served, in_prefill=in_prefill)
    num_unknown = num_computed - num_known
    if lane.needs.outgrown(sequence):
        lane.in_flight.take_back(sequence, kv_cache.preempt, num_blocks, num_known, num_unknown)
        plan.dropped += (sequence,)
        return
    plan.preempted += (sequence,)
    if swap_space is not None:
        num_filled = lane.pool.blocks_of(num_computed)
        swap = KvMove("swap_out", sequence, GPU, HOST, num_filled, num_computed, in_prefill)
        if _swap_out(lane, plan, swap, num_blocks):
            return
    lane.in_flight.take_back(sequence, kv_cache.preempt, num_blocks, num_known, num_unknown)
    sequence.num_computed_tokens = 0
    lane.waiting.give_back(sequence)


def num_to_compute(lane: LaneState, sequence: SequenceState) -> int:
    """Tokens of a preempted sequence that are computed before its next token."""
    if sequence.is_brought:
        return sequence.num_tokens - sequence.num_brought if sequence.has_rest else 0
    swap = lane.swapped.get(sequence)
    if swap is None:
        return sequence.num_tokens - sequence.num_computed_tokens
    return sequence.num_tokens - swap.num_tokens if swap.in_prefill else 0


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


# --- where prompts take blocks piece by piece ---------------------------------------------------


def take_in_turn(lane: LaneState, plan: StepPlan, budget: int, cut: Cut) -> tuple[bool, int]:
    """Give decodes and running prompts the blocks of the next step, and plan these prompts.

    Sequences whose entries have come from another client join, if none is preempted.

    budget: tokens of the step; decodes take theirs first, but where states are kept (see above).
    Returns whether any sequence was preempted, and the remaining budget.
    """
    if lane.paused:  # paused by a plan that computed nothing
        lane.end_pause()
    clock, num_free = lane.clock, lane.pool.num_free
    num_blocks = clock.blocks_needed_now()
    if lane.pages is None and not (lane.prefilling or lane.coming.moved) and num_blocks <= num_free:
        lane.num_taken = 0
        if num_blocks or lane.kv_cache.shares_blocks:
            take_for_decodes(lane, num_blocks)
        if lane.in_flight.idle:
            lane.in_flight.idle = set()
        return False, budget - clock.num_decodes * clock.num_queries_each
    pieces = _pieces(lane, plan, budget, cut)
    disturbed = _need(lane, pieces) > num_free
    if disturbed:
        num_before = len(lane.running)
        pieces = _preempt(lane, plan, budget, cut)
        disturbed = len(lane.running) < num_before
        if disturbed and not lane.clock.num_decodes:
            lane.note_standstill(plan.preempted)
    elif lane.coming.moved:
        join(lane, plan, sum([num_blocks for *_, num_blocks in pieces]))
        pieces = _pieces(lane, plan, budget, cut)
    if lane.pages is not None:
        serve_rest(lane, lane.pages, {sequence: num_new for sequence, num_new, _ in pieces})
    if lane.in_flight.defers:
        prompts = [sequence for sequence, *_ in pieces]
        lane.in_flight.idle = {*lane.paused, *lane.prefilling}.difference(prompts)
    take_for_decodes(lane, clock.blocks_needed_now())
    for sequence, num_new, num_blocks in pieces:
        if num_blocks:
            lane.kv_cache.grow(num_blocks)
        lane.needs.note_ahead(sequence)
        add_piece(lane, plan, sequence, num_new)
        budget -= num_new
    return disturbed, budget - lane.clock.num_queries


def take_for_decodes(lane: LaneState, num_blocks: int) -> None:
    """Give the decodes the blocks of their next step."""
    lane.num_taken = num_blocks
    if num_blocks:
        lane.kv_cache.grow(num_blocks)
    if lane.kv_cache.shares_blocks and lane.clock.num_decodes:
        lane.kv_cache.answers.note_step()
    if lane.overruns and lane.pages is None:
        lane.overruns.enter_known(lane.kv_cache.answers)


def _pieces(lane: LaneState, plan: StepPlan, budget: int, cut: Cut) -> list[Piece]:
    """Return the running prompts' pieces in a budget that decodes share."""
    if lane.pages is not None and lane.pages.keeps_states:
        return _in_order(lane, plan, budget, cut)
    budget -= lane.clock.num_queries
    pieces = []
    for sequence in lane.prefilling:
        num_new = _piece(lane, sequence, budget, cut)
        if num_new:
            pieces.append((sequence, num_new, lane.needs.of_piece(sequence, num_new)))
            budget -= num_new
    return pieces


def _in_order(lane: LaneState, plan: StepPlan, budget: int, cut: Cut) -> list[Piece]:
    """Return the pieces where each has its turn between older and younger decodes.

    Decodes for which no tokens are left pause.
    """
    _end_pause(lane, plan)
    prompts, pieces = set(lane.prefilling), []
    missed: list[SequenceState] = []
    for sequence in lane.running:
        if sequence in prompts:
            num_new = _piece(lane, sequence, budget, cut)
            if num_new:
                pieces.append((sequence, num_new, lane.needs.of_piece(sequence, num_new)))
                budget -= num_new
        elif budget <= 0:
            missed.append(sequence)
        elif not lane.is_busy(sequence) or _goes_beyond(lane, sequence):
            budget -= lane.clock.num_queries_each
    if missed:
        _sit_turn_out(lane, plan, missed)
    return pieces


def _end_pause(lane: LaneState, plan: StepPlan) -> None:
    """Let decodes that were to sit the step out take part in it after all."""
    if lane.paused:
        lane.end_pause()
        plan.paused = ()


def _piece(lane: LaneState, sequence: SequenceState, budget: int, cut: Cut) -> int:
    """Return the tokens of a prompt's next piece."""
    num_new = cut(sequence.num_tokens - sequence.num_computed_tokens, budget)
    return num_new if lane.pages is None else lane.pages.piece(sequence, num_new)


def _need(lane: LaneState, pieces: list[Piece]) -> int:
    """Return the blocks that the decodes and pieces of prompts take."""
    num_blocks = lane.clock.blocks_needed_now()
    if lane.pages is not None:
        num_blocks += lane.pages.num_late(lane.clock.num_decodes + len(pieces))
    for piece in pieces:
        num_blocks += piece[2]
    return num_blocks


def _preempt(lane: LaneState, plan: StepPlan, budget: int, cut: Cut) -> list[Piece]:
    """Preempt until the remaining sequences have blocks for the step; return its pieces."""
    from_anywhere = lane.waiting.takes_from_anywhere and lane.speculation is None
    if from_anywhere or lane.pages is not None or lane.in_flight.is_sparing:
        pieces = _one_by_one(lane, plan, budget, cut)
        if not pieces and not lane.clock.num_decodes:
            plan.paused = ()  # nothing is computed, and the next plan follows at once
        return pieces
    # the victim is always the last in order of admission here, so pieces are planned all at once
    pieces = _pieces(lane, plan, budget, cut)
    while _need(lane, pieces) > lane.pool.num_free:
        preempt(lane, plan, lane.waiting.victim(lane.running))
        pieces = _pieces(lane, plan, budget, cut)
    return pieces


def _one_by_one(lane: LaneState, plan: StepPlan, budget: int, cut: Cut) -> list[Piece]:
    """Give each running sequence its turn, preempting if needed; return the served pieces."""
    _end_pause(lane, plan)
    in_order = lane.pages is not None and lane.pages.keeps_states
    turns, goes_on = list(lane.running), lane.rules.pass_goes_on
    served: dict[SequenceState, tuple[int, int]] = {}  # tokens and blocks of each
    missed: list[SequenceState] = []  # sequences that lost their turn
    while turns:
        sequence = turns[0]
        if lane.is_busy(sequence) and not _goes_beyond(lane, sequence):
            del turns[0]
            continue
        left = _left(lane, budget, served)
        if left <= 0 and in_order:
            missed += turns
            break
        num_new, num_blocks = _turn(lane, sequence, left, cut)
        next_turn = 1
        while sum(taken for _, taken in served.values()) + num_blocks > lane.pool.num_free:
            victim = lane.waiting.victim(lane.running)
            if lane.in_flight.spares(victim):
                missed += turns
                turns.clear()
                break
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
            if lane.pages is not None and num_new:
                num_blocks = serve_now(lane, lane.pages, sequence, num_new)
            served[sequence] = num_new, num_blocks
            if lane.cadence is not None and sequence in lane.prefilling and num_new:
                lane.cadence.carry()  # even if it is preempted later in this pass
            missed += turns[1:next_turn]
            del turns[:next_turn]
    if missed:
        _sit_turn_out(lane, plan, missed)
    prompts = (each for each in lane.prefilling if each in served)
    return [(each, *served[each]) for each in prompts if served[each][0]]


def _pause(lane: LaneState, plan: StepPlan, decodes: list[SequenceState]) -> None:
    """Let decodes sit out the only step of a plan."""
    for sequence in decodes:
        lane.leave_clock(sequence)
    lane.paused = plan.paused = tuple(decodes)


def _turn(lane: LaneState, sequence: SequenceState, budget: int, cut: Cut) -> tuple[int, int]:
    """Return the tokens that a running sequence gets in a step, and the blocks that it lacks."""
    if sequence in lane.prefilling:
        num_new = _piece(lane, sequence, budget, cut)
        num_blocks = lane.needs.of_piece(sequence, num_new)
    else:
        num_new, num_blocks = 1, lane.clock.blocks_needed_by(sequence)
    if lane.pages is not None and num_new:
        num_blocks = need_in_turn(lane, lane.pages, sequence, num_new)
    return num_new, num_blocks


def _sit_turn_out(lane: LaneState, plan: StepPlan, missed: list[SequenceState]) -> None:
    """Let sequences that lost their turn skip the step."""
    running = [each for each in missed if each in lane.running]
    for sequence in running:
        if lane.overruns is not None:
            lane.overruns.end(sequence)
    others = (each for each in running if not lane.is_busy(each))
    _pause(lane, plan, [each for each in others if each not in lane.prefilling])


def _goes_beyond(lane: LaneState, sequence: SequenceState) -> bool:
    """Tell whether a sequence that is done takes pages for a step planned for it."""
    return lane.pages is not None and bool(lane.overruns and lane.overruns.of(sequence))


def _left(lane: LaneState, budget: int, served: dict[SequenceState, tuple[int, int]]) -> int:
    """Return the tokens of a step that are left for a prompt after those served.

    All decodes have taken theirs, or, where states are kept, those served before it.
    """
    prompts = [each for each in lane.prefilling if each in served]
    num_decodes = lane.clock.num_decodes
    if lane.pages is not None and lane.pages.keeps_states:
        num_decodes = len(served) - len(prompts)
    num_decoded = num_decodes * lane.clock.num_queries_each
    return budget - num_decoded - sum(served[each][0] for each in prompts)


def add_prefill(
    lane: LaneState, plan: StepPlan, sequence: SequenceState, num_new_tokens: int
) -> int:
    """Let every step of a plan compute some of a prompt that runs; return how many tokens.

    It has all its blocks, or, where prompts take them piece by piece, takes those of this piece.
    For these, prompts that the plan does not compute are preempted; it gets 0 tokens if it is
    preempted itself, or if a prompt that the plan computes would have to be.
    """
    if not lane.by_piece:
        return add_piece(lane, plan, sequence, num_new_tokens)
    num_new, num_blocks = _turn(lane, sequence, num_new_tokens, min)
    while num_blocks > lane.pool.num_free - lane.clock.blocks_needed_now() + lane.num_taken:
        victim = lane.waiting.victim(lane.running)
        is_planned = victim not in lane.prefilling or victim in dict(plan.prefills)
        if (is_planned and not lane.has_ended(victim)) or lane.in_flight.spares(victim):
            return 0
        preempt(lane, plan, victim)
        if victim is sequence:
            return 0
    if not num_new:
        return 0
    if lane.pages is not None:
        serve_now(lane, lane.pages, sequence, num_new)
    elif num_blocks:
        lane.kv_cache.grow(num_blocks)
    lane.needs.note_ahead(sequence)
    return add_piece(lane, plan, sequence, num_new)


def nothing(num_tokens: int, budget: int) -> int:
    """Cut nothing off a prompt (see `Cut`): running prompts stand still."""
    return 0


# --- where prompts have all their blocks --------------------------------------------------------


def make_room(lane: LaneState, plan: StepPlan) -> bool:
    """Preempt running sequences until the next decode step fits; return whether any was.

    Otherwise swapped-out sequences resume, and then those with entries from another client. If
    swaps overlap with steps, blocks on their way out count as free, and decodes for which there are
    none yet pause; this counts as preemption. Where prompts take blocks piece by piece the decodes
    take theirs here, too, and have to be in the plan.
    """
    if lane.by_piece:
        return take_in_turn(lane, plan, sys.maxsize, nothing)[0]
    clock, pool, pages = lane.clock, lane.pool, lane.pages
    if pages is not None:
        leave_behind(lane, pages)
    disturbed = clock.blocks_needed_now() > pool.num_free
    if not disturbed:
        if pages is None and not (lane.swapped or lane.coming.moved):
            return False
        if lane.swapped:
            swap_in(lane, plan)
        if lane.coming.moved:
            join(lane, plan)
    while clock.blocks_needed_now() > pool.num_free + lane.swaps.num_going:
        preempt(lane, plan, lane.waiting.victim(lane.running))
    if disturbed and lane.swaps.going:
        _sit_out(lane, plan)
    if pages is not None:
        serve_rest(lane, pages, {})
        lane.num_taken = clock.blocks_needed_now()
    return disturbed


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
    _pause(lane, plan, idle)
