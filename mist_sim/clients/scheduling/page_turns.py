"""Turns of running sequences that take pages one by one (see `PageManager`)."""

from __future__ import annotations

from mist_sim.clients.kv_cache.page_manager import PageManager
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.sequence_state import SequenceState


def serve_rest(lane: LaneState, pages: PageManager, pieces: dict[SequenceState, int]) -> None:
    """Give turns to those who have had none yet, in order of admission.

    pieces: tokens that prompts get in the step.
    """
    prompts, away = set(lane.prefilling), {*lane.paused, *lane.leaving}
    for sequence in lane.running:
        if sequence in away:
            continue
        if sequence not in prompts:
            pages.serve_decode(sequence, lane.clock.context(sequence))
        elif sequence in pieces:
            pages.serve(sequence, sequence.num_computed_tokens, pieces[sequence])


def need_in_turn(lane: LaneState, pages: PageManager, sequence: SequenceState, num_new: int) -> int:
    """Return the pages that a sequence lacks, once its windows have returned theirs."""
    num_tokens = lane.num_computed(sequence)
    pages.leave_behind(sequence, num_tokens)
    return pages.need(sequence, num_tokens + num_new)


def serve_now(lane: LaneState, pages: PageManager, sequence: SequenceState, num_new: int) -> int:
    """Give a sequence its turn, for which there are pages; return 0: it lacks none any more."""
    if sequence in lane.prefilling:
        pages.serve(sequence, sequence.num_computed_tokens, num_new)
    else:
        pages.serve_decode(sequence, lane.clock.context(sequence))
    return 0
