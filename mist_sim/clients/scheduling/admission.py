"""Admission of waiting sequences: the next one, whether it fits, and the tokens it computes."""

from __future__ import annotations

from mist_sim.clients.kv_cache.moves import GPU, Kind, KvMove
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState


def admit_next(
    lane: LaneState, plan: StepPlan, max_new_tokens: int | None = None, *, whole: bool = True
) -> int:
    """Admit the next sequence if it fits, with at most `max_new_tokens` prompt tokens per step.

    Sequences before it that have blocks in lower tiers or at another client get memory, and wait
    for these.

    max_new_tokens: None: its whole prompt. whole: whether all of it has to fit into the free
        memory, and not only this piece; it has to where prompts take their blocks at once.
    Returns its tokens, or 0 if memory or `max_num_seqs` keeps it waiting, or no sequence waits.
    """
    first_piece = None if whole or not lane.by_piece else max_new_tokens
    while sequence := next_to_admit(lane, plan, first_piece):
        most = sequence.num_tokens if max_new_tokens is None else max_new_tokens
        chunk = min(tokens_to_compute(lane, sequence), most)
        if lane.by_piece and lane.pages is not None:
            chunk = lane.pages.piece(sequence, chunk)
        if not chunk:
            return 0
        if has_first_slots(lane, sequence, chunk):
            return admit(lane, plan, sequence, chunk)
        if lane.pages is not None or not gives_load_back(lane, plan, sequence):
            return 0
    return 0


def next_to_admit(
    lane: LaneState, plan: StepPlan, first_piece: int | None = None
) -> SequenceState | None:
    """Return the next sequence to admit, if it fits; start the moves of those before it.

    Where a step waits for loads (`CacheTier.in_step`), a sequence with blocks in tiers has them at
    once.

    first_piece: tokens of its prompt that must fit, at most; None: all.
    """
    tiers = lane.kv_cache.tiers
    while (sequence := lane.head()) is not None:
        if tiers is not None and sequence in lane.coming.loaded and lane.has_seat():
            tiers.end_load(sequence)
        if not fits(lane, sequence, first_piece):
            if gives_load_back(lane, plan, sequence):
                continue
            return None
        if sequence in lane.coming.loaded or not (sequence.is_brought or tiers):
            return sequence
        if tiers is not None and not (tiers.in_step or _leaves_rest(lane, plan, sequence)):
            return None
        if not (moves := _moves_for(lane, sequence)):
            return sequence
        lane.waiting.take()
        plan.moves += tuple(moves)
        if tiers is not None and tiers.in_step and not sequence.is_brought:
            plan.wait_time += tiers.load_time([(move.source, move.num_blocks) for move in moves])
            lane.coming.loaded.append(sequence)
        else:
            lane.coming.loading[sequence] = None
    return None


def gives_load_back(lane: LaneState, plan: StepPlan, first: SequenceState) -> bool:
    """Let the sequence loaded last begin anew, if loaded ones hold what the first waits for.

    vLLM hangs then, up to some version before 0.24 (`EngineRules.reserves_prefills`).
    """
    coming, tiers = lane.coming, lane.kv_cache.tiers
    if tiers is None or lane.running or coming.loading or coming.abandoned or plan.preempted:
        return False
    if tiers.in_step:  # one loaded in this step would load again
        holds = len(coming.loaded) > 1
    else:
        holds = any(each is not first for each in coming.loaded)
    if holds:
        coming.give_load_back()
    return holds


def _leaves_rest(lane: LaneState, plan: StepPlan, sequence: SequenceState) -> bool:
    """Tell whether a load leaves memory for the rest of all prompts that have begun."""
    kv_cache, needs = lane.kv_cache, lane.needs
    if not lane.rules.reserves_prefills or not lane.by_piece:
        return True
    num_tokens = kv_cache.num_first_tokens(sequence, 0)
    if num_tokens <= kv_cache.num_cached_tokens(sequence):
        return True  # nothing is loaded
    planned = dict(plan.prefills)
    num_rest = sum(needs.of_rest(each, planned.get(each, 0)) for each in lane.prefilling)
    for each in (*lane.coming.loading, *lane.coming.loaded):
        num_rest += lane.pool.blocks_for(each.num_tokens) - kv_cache.num_reserved(each)
    num_needed = lane.clock.blocks_needed_now() - lane.num_taken
    num_needed += lane.coming.num_promised + num_rest
    return kv_cache.blocks_to_admit(sequence, num_tokens) <= lane.num_admissible(num_needed)


def bring_entries(lane: LaneState, plan: StepPlan) -> None:
    """Start the moves of sequences at the head of the queue whose answers continue here."""
    while (sequence := lane.head()) and sequence.is_brought:
        if sequence.has_rest or not fits(lane, sequence):
            return
        lane.waiting.take()
        lane.coming.loading[sequence] = None
        plan.moves += tuple(_moves_for(lane, sequence))


def _moves_for(lane: LaneState, sequence: SequenceState) -> list[KvMove]:
    """Reserve memory for entries kept elsewhere, and return their moves; empty without any."""
    kv, kv_cache, size = sequence.incoming, lane.kv_cache, lane.pool.block_size
    if sequence.has_rest and kv_cache.num_cached_tokens(sequence) >= sequence.num_brought:
        sequence.have_brought()  # all of it is here
    elif kv is not None:
        num_blocks = kv_cache.reserve(sequence, sequence.num_brought)
        lane.coming.num_promised += lane.needs.to_join(sequence)
        num_here = (lane.pool.blocks_of(sequence.num_brought) - num_blocks) * size
        num_tokens = sequence.num_brought - num_here
        kind: Kind = "fetch" if sequence.has_rest else "hand_over"
        more = sequence.has_rest
        return [KvMove(kind, sequence, kv.source, GPU, num_blocks, num_tokens, more)]
    loads = kv_cache.tiers.start_load(sequence) if kv_cache.tiers is not None else []
    return [KvMove("load", sequence, tier, GPU, count, count * size, True) for tier, count in loads]


def fits(lane: LaneState, sequence: SequenceState, first_piece: int | None = None) -> bool:
    """Tell whether memory and `max_num_seqs` let a waiting sequence in.

    first_piece: tokens of its prompt that have to fit, at most; None: all.
    """
    if not lane.has_seat():
        return False
    if lane.pages is not None and lane.pages.waits_for_state(sequence):
        return False
    kv_cache, num_tokens = lane.kv_cache, None
    if first_piece is not None and not _comes_whole(lane, sequence):
        num_tokens = kv_cache.num_first_tokens(sequence, first_piece)
        if lane.pages is not None:  # kept states may have shortened it
            first_piece = num_tokens - kv_cache.num_cached_tokens(sequence)
        num_tokens = max(num_tokens, lane.needs.of_first_piece(sequence, first_piece))
    num_blocks = kv_cache.blocks_to_admit(sequence, num_tokens)
    if sequence.is_brought:
        num_blocks = _blocks_to_bring(lane, sequence, num_blocks)
    num_needed = lane.clock.blocks_needed_now() - lane.num_taken
    return num_blocks <= lane.num_admissible(num_needed + lane.coming.num_promised)


def _comes_whole(lane: LaneState, sequence: SequenceState) -> bool:
    """Tell whether a sequence waits for memory for all of it, where others need a first piece."""
    is_back = lane.waiting.returns_whole and sequence.visit.num_preemptions > 0
    return is_back or sequence.is_brought


def _blocks_to_bring(lane: LaneState, sequence: SequenceState, num_blocks: int) -> int:
    """Return the blocks that must be free before entries kept elsewhere may come.

    They include those of the first step, or of the rest of a prompt, so that the sequence can
    continue however many come after it. None are needed once its entries have come: they are
    reserved.

    num_blocks: blocks that an admission would take.
    """
    if sequence in lane.coming.loaded:
        return 0
    pool = lane.pool
    if lane.pages is not None:  # none are held by others
        return pool.blocks_of(sequence.num_brought) + lane.needs.to_join(sequence)
    num_held = pool.blocks_for(sequence.num_tokens) - num_blocks  # by others
    return pool.blocks_for(lane.needs.num_slots(sequence)) - num_held


def tokens_to_compute(lane: LaneState, sequence: SequenceState) -> int:
    """Return the tokens of a waiting sequence that no cache has, as things are now."""
    if sequence.is_brought:
        return sequence.num_tokens - sequence.num_brought
    return sequence.num_tokens - lane.kv_cache.num_cached_tokens(sequence)


def admit(
    lane: LaneState,
    plan: StepPlan,
    sequence: SequenceState,
    max_new_tokens: int,
    num_padded: int = 0,
) -> int:
    """Admit the sequence of `next_to_admit`; return the tokens that it gets in every step.

    num_padded: drafts beside its last token.
    """
    if sequence in lane.coming.loaded:
        lane.coming.loaded.remove(sequence)
    else:
        lane.waiting.take()
    most_new = max_new_tokens if lane.by_piece else sequence.num_tokens
    if sequence.is_brought:
        _go_on(lane, sequence, most_new)
    else:
        num_slots = lane.needs.of_first_piece(sequence, most_new, num_padded)
        lane.kv_cache.admit(sequence, most_new)
        if num_slots:
            lane.needs.note_first(sequence, num_padded)
            _take_ahead(lane, sequence, most_new, num_slots)
    lane.running[sequence] = None
    lane.prefilling.append(sequence)
    plan.admitted.append(sequence)
    if num_padded:
        plan.padded += (sequence,)
    num_to_go = sequence.num_tokens - sequence.num_computed_tokens
    return add_piece(lane, plan, sequence, min(num_to_go, max_new_tokens))


def _take_ahead(lane: LaneState, sequence: SequenceState, num_new: int, num_slots: int) -> None:
    """Give a prompt blocks for `num_slots` tokens in all; it has those of its first piece."""
    if lane.pages is not None:
        lane.pages.go_on(sequence, sequence.num_computed_tokens, num_slots)
        return
    num_tokens = min(sequence.num_tokens, sequence.num_computed_tokens + num_new)
    num_held = lane.kv_cache.num_held
    lane.kv_cache.grow(num_held(sequence, num_slots) - num_held(sequence, num_tokens))


def num_padded(lane: LaneState, plan: StepPlan, sequence: SequenceState) -> int:
    """Return the drafts beside the last token of a prompt, which it is admitted with; 0: none.

    plan: with no other prompts than those that it admitted.
    """
    speculation = lane.speculation
    if speculation is None or not (lane.rules.pads_prompts and lane.by_piece):
        return 0
    num_drafts, num_tokens = speculation.num_drafts, sequence.num_tokens
    is_lone = num_tokens == 1 and not lane.clock.num_decodes
    has_room = speculation.num_slots(num_tokens + 1) >= num_tokens + num_drafts + 1
    return num_drafts if has_room and not (is_lone or sequence.is_brought) else 0


def has_first_slots(
    lane: LaneState, sequence: SequenceState, num_new: int, num_padded: int = 0
) -> bool:
    """Tell whether a prompt that `fits` has memory for its first piece and what goes behind it.

    num_new: tokens of that piece. num_padded: drafts behind it.
    """
    if lane.pages is not None:
        return not lane.by_piece or _has_first_pages(lane, sequence, num_new, num_padded)
    return lane.speculation is None or _may_draft_behind(lane, sequence, num_new, num_padded)


def _has_first_pages(
    lane: LaneState, sequence: SequenceState, num_new: int, num_padded: int
) -> bool:
    """Tell whether a waiting prompt has memory for its first piece, beside what counts for all."""
    if sequence in lane.coming.loaded:
        return True
    num_tokens = lane.kv_cache.num_cached_tokens(sequence) + num_new
    num_slots = lane.needs.of_first_piece(sequence, num_new, num_padded)
    num_slots = max(num_slots, min(num_tokens, sequence.num_tokens))
    num_pages = lane.kv_cache.blocks_to_admit(sequence, num_slots)
    return num_pages <= lane.num_admissible(lane.coming.num_promised)


def _may_draft_behind(
    lane: LaneState, sequence: SequenceState, num_new: int, num_padded: int
) -> bool:
    """Tell whether a waiting prompt also has memory for the slots behind its first piece."""
    num_slots = lane.needs.of_first_piece(sequence, num_new, num_padded)
    if num_slots <= sequence.num_tokens:
        return True
    num_blocks = lane.kv_cache.blocks_to_admit(sequence, num_slots)
    num_needed = lane.clock.blocks_needed_now() - lane.num_taken + lane.coming.num_promised
    return num_blocks <= lane.num_admissible(num_needed)


def _go_on(lane: LaneState, sequence: SequenceState, most_new: int) -> None:
    """Begin a prompt after its brought entries, with blocks for `most_new` tokens behind them."""
    kv_cache, num_here = lane.kv_cache, sequence.num_brought
    lane.coming.num_promised -= lane.needs.to_join(sequence)
    kv_cache.arrive(sequence, num_here)
    kv_cache.go_on(sequence, num_here, min(sequence.num_tokens, num_here + most_new))
    sequence.num_computed_tokens = num_here
    sequence.have_brought()


def add_piece(lane: LaneState, plan: StepPlan, sequence: SequenceState, num_new_tokens: int) -> int:
    """Let every step of a plan compute some of a prompt; return how many tokens. It has blocks."""
    plan.prefills.append((sequence, num_new_tokens))
    lane.kv_cache.compute(sequence, sequence.num_computed_tokens + num_new_tokens)
    return num_new_tokens


# --- when a sequence may come in while a plan runs --------------------------------------------


def may_join(
    lane: LaneState, sequence: SequenceState, num_steps: int, first_piece: int | None = None
) -> bool:
    """Could the sequence that was just queued be admitted after `num_steps` steps of the plan?

    True when in doubt; the plan made then decides.

    first_piece: tokens of its prompt that have to fit, at most; None: all.
    """
    if lane.head() is not sequence or len(lane.running) >= lane.max_num_seqs:
        return False
    if lane.pages is not None:
        return True  # pages come back in any step
    num_blocks = lane.kv_cache.fewest_blocks_to_admit(sequence, first_piece)
    if sequence.is_brought and sequence in lane.coming.loaded:
        num_blocks = 0
    num_needed = lane.clock.blocks_needed(num_steps + 1) - lane.num_taken
    return num_blocks <= lane.num_admissible(num_needed + lane.coming.num_promised)


def steps_until_join(lane: LaneState, limit: int) -> int:
    """Return the longest plan after one that admitted no sequence: 1 step or `limit`.

    1 if a waiting sequence may be admitted in the second step, with its whole prompt. If a sequence
    does not fit in the second step, it fits in no later one: running requests only grow.
    """
    if lane.pages is not None:
        return 1  # pages come back in any step
    seats_come = lane.leaving or lane.in_flight.deferred or lane.paused
    return 1 if seats_come or _may_join_second_step(lane) else limit


def steps_until_pages(lane: LaneState, limit: int) -> int:
    """Return 1 if a sequence waits for pages, since windows may return some in any step."""
    waits = lane.pages is not None and lane.num_waiting and lane.has_seat()
    return 1 if waits else limit


def _may_join_second_step(lane: LaneState) -> bool:
    num_free = lane.num_admissible(lane.clock.blocks_needed(2) - lane.num_taken)
    if not lane.has_seat():
        return False
    if lane.swaps.overlap and (lane.swapped or lane.coming.moved or lane.coming.loaded):
        return True  # perhaps, since they do not wait for one another
    if lane.coming.loaded and lane.head() is not None:
        return True  # has its memory
    if lane.swapped:
        return lane.needs.to_return(next(iter(lane.swapped.values()))) <= num_free
    if lane.coming.moved:
        return lane.needs.to_join(lane.coming.moved[0]) <= num_free
    if (head := lane.head()) is None:
        return False
    num_blocks = lane.kv_cache.blocks_to_admit(head)
    if head.is_brought:
        num_blocks = _blocks_to_bring(lane, head, num_blocks)
    return num_blocks <= num_free - lane.coming.num_promised


def steps_until_gain(lane: LaneState, limit: int) -> int:
    """Steps, at most `limit`, until the head of the queue may need fewer blocks than now.

    Decodes fill blocks that it can use.
    """
    if limit > 1 and lane.kv_cache.shares_blocks and lane.has_seat():
        head = lane.head()
        steps = None if head is None else lane.kv_cache.steps_until_gain(head)
        if steps is not None:
            return min(limit, max(1, steps))
    return limit
