"""Turns in which running sequences give pages back and take others (see `PageManager`)."""

from __future__ import annotations

from mist_sim.clients.kv_cache.pages import PageManager, Turn
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState

# --- in the first step of a plan ----------------------------------------------------------------


def serve_rest(lane: LaneState, pages: PageManager, pieces: dict[SequenceState, int]) -> None:
    """Give turns to the sequences that have had none yet, in order of admission.

    pieces: tokens that prompts get in the step.
    """
    prompts, paused = set(lane.prefilling), set(lane.paused)
    for sequence in lane.running:
        if sequence in prompts:
            if sequence in pieces:
                pages.serve(sequence, _piece(lane, sequence, pieces[sequence]))
        elif not (sequence in paused or lane.is_busy(sequence)):
            pages.serve(sequence, _decode(lane, sequence))
        elif lane.overruns and (turn := _beyond_end(lane, sequence)) is not None:
            pages.serve(sequence, turn)


def leave_behind(lane: LaneState, pages: PageManager) -> None:
    """Take back the pages that the windows of decodes have left, before these take others."""
    for sequence in lane.decoding():
        pages.leave_behind(sequence, lane.clock.context(sequence))


def need_in_turn(lane: LaneState, pages: PageManager, sequence: SequenceState, num_new: int) -> int:
    """Return the pages that a sequence lacks, once its windows have returned theirs."""
    turn = _turn(lane, sequence, num_new)
    pages.leave_behind(sequence, turn.num_computed)
    return pages.need(sequence, turn)


def serve_now(lane: LaneState, pages: PageManager, sequence: SequenceState, num_new: int) -> int:
    """Give a sequence its turn, for which there are pages; return 0: it lacks none any more."""
    pages.serve(sequence, _turn(lane, sequence, num_new))
    return 0


def _turn(lane: LaneState, sequence: SequenceState, num_new: int) -> Turn:
    if sequence in lane.prefilling:
        return _piece(lane, sequence, num_new)
    turn = _beyond_end(lane, sequence) if lane.overruns else None
    return turn or _decode(lane, sequence)


def _piece(lane: LaneState, sequence: SequenceState, num_new: int, num_done: int = 0) -> Turn:
    """Return the turn of a piece of a prompt; `num_done`: tokens of pieces before it."""
    num_computed = sequence.num_computed_tokens + num_done
    num_tokens = num_computed + num_new
    num_slots = lane.needs.slots_of_piece(sequence, num_tokens)
    num_known = min(num_tokens, lane.kv_cache.answers.num_hashed(sequence))
    return Turn(num_computed, num_new, num_slots, num_known)


def _decode(lane: LaneState, sequence: SequenceState, num_steps: int = 0) -> Turn:
    """Return the turn of a decode after so many steps of a plan.

    Names end with what the plan knows: nothing of the step in flight but its first token.
    """
    clock = lane.clock
    num_known = num_computed = clock.context(sequence, num_steps)
    if not lane.kv_cache.answers.is_ahead:
        num_known += 1
    elif clock.steps + num_steps > sequence.join_step:
        num_known = clock.context(sequence, num_steps - 1) + 1
    num_known -= lane.kv_cache.answers.covers_next
    num_slots = clock.slots(sequence, num_steps)
    return Turn(num_computed, clock.num_queries_each, num_slots, num_known)


def _beyond_end(lane: LaneState, sequence: SequenceState) -> Turn | None:
    """Return the turn of a decode that has ended, in the step planned for it; None: it has none."""
    overrun = lane.overruns.of(sequence) if lane.overruns else None
    if overrun is None:
        return None
    num_before = sequence.num_tokens - 1 - overrun.num_last
    num_known = num_before + (not lane.kv_cache.answers.covers_next)
    num_new = lane.clock.num_queries_each
    return Turn(sequence.num_tokens - 1, num_new, overrun.num_slots, num_known)


# --- in its later steps -------------------------------------------------------------------------


def serve_steps(lane: LaneState, pages: PageManager, plan: StepPlan, num_steps: int) -> None:
    """Give decodes and prompts their turns in the steps of a plan after its first one.

    Without a prefix cache only how many pages there are in the end matters.
    """
    first = 1 if pages.caches_prefixes else num_steps - 1
    if plan.decodes:
        turns = [
            turn
            for number, sequence in enumerate(lane.decoding())
            for turn in _turns(lane, pages, number, sequence, range(first, num_steps))
        ]
        turns.sort(key=lambda turn: turn[:2])
        for step, _, sequence, turn in turns:
            pages.serve_next(sequence, turn, lane.clock.context(sequence, step - 1))
    for sequence, num_new in plan.prefills:
        for step in range(first, num_steps):
            turn = _piece(lane, sequence, num_new, step * num_new)
            pages.serve_next(sequence, turn, turn.num_computed - num_new)


def _turns(
    lane: LaneState, pages: PageManager, number: int, sequence: SequenceState, steps: range
) -> list[tuple[int, int, SequenceState, Turn]]:
    """Return the steps in which something changes for a decode, and the last one.

    number: its place among the decodes.
    """
    size, pool = pages.pool.block_size, pages.pool
    turns, before = [], None
    for step in steps:
        turn = _decode(lane, sequence, step)
        num = pages.num_counted_as_computed(turn, lane.clock.context(sequence, step - 1))
        skipped = pool.num_skipped(num), pool.num_skipped_states(num)
        now = skipped, -(-turn.num_slots // size), turn.num_known // size
        if now != before or step == steps[-1]:
            turns.append((step, number, sequence, turn))
            before = now
    return turns
