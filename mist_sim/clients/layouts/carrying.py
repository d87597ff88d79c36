"""Moves sequences and entries from the engines of one layout to those of the next.

The next engines are empty. First come the entries kept for other clients, and the sequences waiting
with entries on the host. Then come, in order of arrival at the client: running sequences, each to
the lane with the fewest of them that has a seat and room; and sequences whose entries came from
elsewhere and that wait to continue. Then the queue is formed: sequences that found no place, which
are computed again as after a preemption, and waiting ones, in order of arrival; each goes to the
lane that a new request would go to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.replicas import Engines
from mist_sim.clients.scheduling.carried import (
    carry_brought,
    carry_held,
    carry_running,
    carry_waiting,
)
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import RUNNING, WAITING


def carry_over(sequences: Iterable[SequenceState], before: Sequence[Lane], after: Engines) -> None:
    """Move everything in the lanes of a client to the lanes of new, empty engines.

    sequences: sequences of the client in order of arrival, including those in no lane yet.
    """
    lane_of = {sequence: lane for lane in before for sequence in _all_of(lane)}
    inside = [sequence for sequence in sequences if sequence in lane_of]
    for number, sequence in enumerate(inside):
        sequence.arrival = number
    coming = [lane.state.coming for lane in before]
    brought = {each for its in coming for each in (*its.moved, *its.loaded)}
    running = {
        sequence: _take_off(lane_of[sequence], sequence)
        for sequence in inside
        if sequence in lane_of[sequence].state.running
    }
    for lane in before:
        _carry_held(lane, after.lanes)
    _carry_swapped(inside, lane_of, after.lanes)
    again, waiting = [], []
    for sequence in inside:
        if sequence in running:
            has_place = _carry_running(sequence, *running[sequence], after.lanes)
        elif sequence in lane_of[sequence].state.swapped:
            continue
        elif sequence in brought:
            has_place = _carry_brought(sequence, after.lanes)
        else:
            waiting.append(sequence)
            continue
        if not has_place:
            again.append(sequence)
    for lane in after.lanes:
        lane.state.num_arrived = len(inside)
    for sequence in again:
        _begin_again(sequence)
    for sequence in [*again, *waiting]:
        lane = after.next_lane()
        if (reason := lane.state.needs.outgrown(sequence)) is not None:
            sequence.visit.num_output_tokens = sequence.num_new_tokens
            lane.leave(sequence.visit, reason)
        else:
            sequence.lane = lane
            carry_waiting(lane.state, sequence)


def fits_held(before: Sequence[Lane], memory_blocks: int, num_lanes: int) -> bool:
    """Tell whether the entries that lanes keep for other clients have room in empty ones.

    memory_blocks: of each empty lane, of which there are `num_lanes`.
    """
    free = [memory_blocks] * num_lanes
    for lane in before:
        for _, num_tokens in lane.state.held.values():
            place = free.index(max(free))
            free[place] -= lane.state.pool.blocks_for(num_tokens)
    return min(free) >= 0


def _all_of(lane: Lane) -> list[SequenceState]:
    """Return the sequences in a halted lane, which has no moves under way."""
    state, coming = lane.state, lane.state.coming
    return [*state.running, *coming.moved, *coming.loaded, *state.swapped, *state.waiting]


def _carry_swapped(
    sequences: Sequence[SequenceState],
    lane_of: Mapping[SequenceState, Lane],
    lanes: Sequence[Lane],
) -> None:
    """Move sequences with entries on the host to other lanes, spread evenly."""
    for sequence in sequences:
        swap = lane_of[sequence].state.swapped.get(sequence)
        if swap is not None:
            place = min(lanes, key=lambda each: len(each.state.swapped))
            place.state.kv_cache.add(sequence)
            place.state.swapped[sequence] = swap
            sequence.lane = place


def _carry_held(lane: Lane, lanes: Sequence[Lane]) -> None:
    """Let entries that are kept for another client go to the lane with the most free blocks."""
    for sequence, kv in lane.held.kept.items():
        _, num_tokens = lane.state.held[sequence]
        place = max(lanes, key=lambda each: each.state.pool.num_free)
        carry_held(place.state, sequence, num_tokens)
        place.held.take_over(sequence, kv, place.state.held[sequence][0])
    lane.held.kept.clear()


def _take_off(lane: Lane, sequence: SequenceState) -> tuple[int | None, bool]:
    """Take a running sequence out; return its tokens with entries, and whether it decodes.

    None for a prompt whose memory was reserved at once: it has to be looked up anew.
    """
    decodes = sequence not in lane.state.prefilling
    num_tokens = lane.take_off(sequence)
    return num_tokens if decodes or lane.state.by_piece else None, decodes


def _carry_running(
    sequence: SequenceState, num_tokens: int | None, decodes: bool, lanes: Sequence[Lane]
) -> bool:
    if num_tokens is None:
        return False
    place = _first_place(
        lanes, lambda each: carry_running(each.state, sequence, num_tokens, decodes=decodes)
    )
    if place is None:
        return False
    sequence.lane = place
    if decodes:
        place.go_on(sequence)
    return True


def _carry_brought(sequence: SequenceState, lanes: Sequence[Lane]) -> bool:
    place = _first_place(lanes, lambda each: carry_brought(each.state, sequence))
    if place is None:
        return False
    sequence.lane = place
    return True


def _first_place(lanes: Sequence[Lane], carry: Callable[[Lane], bool]) -> Lane | None:
    """Return the lane with the fewest sequences that takes one over, the first of equals."""
    by_number = sorted(lanes, key=_num_inside)
    return next((each for each in by_number if carry(each)), None)


def _num_inside(lane: Lane) -> int:
    """Return how many sequences run in a lane, or wait with their entries to continue."""
    return len(lane.state.running) + len(lane.state.coming.moved)


def _begin_again(sequence: SequenceState) -> None:
    """Let a sequence whose entries are lost wait, as after a preemption.

    A prompt that has not begun loses only the entries brought for it.
    """
    if sequence.has_rest:
        sequence.visit.num_fetched_tokens = 0
        sequence.forget_brought()
        return
    sequence.have_brought()
    sequence.become(RUNNING)
    sequence.num_queued_tokens = sequence.num_tokens
    sequence.become(WAITING)
    sequence.visit.num_preemptions += 1
