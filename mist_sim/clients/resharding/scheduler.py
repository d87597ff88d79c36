"""Batching in stages: steps of whole prompts in one layout, steps of answers in another."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from mist_sim.clients.kv_cache.moves.kv_move import GPU, HOST, KvMove
from mist_sim.clients.resharding.phases import PHASES, Phases
from mist_sim.clients.resharding.queue_heads import next_prompt
from mist_sim.clients.scheduling import LaneState, StepPlan
from mist_sim.clients.scheduling.admission import add_piece, admit, fits, steps_until_join
from mist_sim.clients.scheduling.preemption import make_room
from mist_sim.clients.scheduling.whole_prompts.base import WholePromptScheduler, decode_steps
from mist_sim.clients.sequence_state import SequenceState


@dataclass(frozen=True, kw_only=True)
class StagedScheduler(WholePromptScheduler):
    """Continuous batching (Orca, vLLM v0) whose prompts and answers wait for their stage.

    Answers whose prompts are computed go to the host's buffer, if there is one, and come back in
    the stage of answers as blocks become free (Seesaw 4.2). With equal layouts and no buffer, it
    acts like the continuous scheduler.
    """

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        """Plan prompts or answers, as the stage has it; None while the client changes stages."""
        phases: Phases = lane.notes[PHASES]
        if phases.asked:
            return None
        plan = StepPlan()
        if phases.stage == "decode" and phases.wants_prefill(lane) and not phases.enter("prefill"):
            return None
        if phases.stage == "prefill":
            if phases.room is not None:
                set_all_aside(lane, plan)
            self.admit_prompts(lane, plan)
            if phases.prefetched is not None:
                phases.prefetched.bring(lane, plan, self.max_num_batched_tokens)
            if not plan.is_empty:
                return plan
            if not (phases.is_free and lane.clock.num_decodes and phases.enter("decode")):
                return None
        disturbed = make_room(lane, plan)
        if disturbed or plan.resumed or plan.moves:
            limit = steps_until_join(lane, limit)
            if not phases.is_free and phases.wants_prefill(lane):
                limit = 1  # the answers that returned now were all the buffer had
        if phases.watches_each_step:
            limit = 1
        return decode_steps(lane, plan, limit)

    def admit_prompts(self, lane: LaneState, plan: StepPlan) -> None:
        """Admit prompts as other policies do, as long as the buffer has room for their entries.

        Answers that wait to return to the GPUs do not block them.
        """
        phases: Phases = lane.notes[PHASES]
        if phases.room is None:
            super().admit_prompts(lane, plan)
            return
        budget = self.max_num_batched_tokens or inf
        for lost in lane.prefilling:
            num_to_go = lost.num_tokens - lost.num_computed_tokens
            budget -= add_piece(lane, plan, lost, num_to_go)
        if phases.rests:
            return
        while (sequence := next_prompt(lane)) is not None:
            if plan.prefills and sequence.num_tokens > budget:
                return
            if not (phases.has_room(lane, sequence) and fits(lane, sequence)):
                return
            budget -= admit(lane, plan, sequence, sequence.num_tokens)

    def would_admit(self, lane: LaneState, sequence: SequenceState, num_steps: int) -> bool:
        """Tell whether it might join; where stages change, the plan made then decides."""
        phases: Phases = lane.notes[PHASES]
        return not phases.is_free or super().would_admit(lane, sequence, num_steps)

    def refusal(self, lane: LaneState, sequence: SequenceState) -> str | None:
        """Return why a sequence can never be served in both layouts, or None."""
        most = lane.notes[PHASES].most_tokens
        if sequence.num_tokens > most:
            return (
                f"{sequence.num_tokens} tokens exceed the {most} that lanes of both layouts and "
                "the host's buffer can hold"
            )
        return super().refusal(lane, sequence)


def set_all_aside(lane: LaneState, plan: StepPlan) -> None:
    """Move all answers to the host's buffer, except paused ones and those without room."""
    phases: Phases = lane.notes[PHASES]
    for sequence in list(lane.running):
        if sequence not in lane.prefilling and sequence not in phases.staying:
            _set_aside(lane, plan, sequence)


def set_brought_aside(lane: LaneState, plan: StepPlan) -> None:
    """Move answers that were brought back but have not resumed to the host's buffer again."""
    for sequence in list(lane.coming.moved):
        num_blocks = lane.pool.blocks_for(sequence.num_brought)
        if lane.swaps.room.has(num_blocks):
            num_computed = sequence.num_brought
            lane.coming.moved.remove(sequence)
            lane.coming.num_promised -= lane.needs.to_join(sequence)
            sequence.have_brought()
            _go_out(lane, plan, sequence, num_blocks, num_computed)


def _set_aside(lane: LaneState, plan: StepPlan, sequence: SequenceState) -> None:
    """Copy an answer's entries to the buffer; its blocks are free when that has ended."""
    num_blocks, num_computed = lane.stop(sequence)
    num_filled = lane.pool.blocks_for(num_computed)
    if not lane.swaps.room.has(num_filled):
        lane.clock.join(sequence)
        lane.notes[PHASES].staying.add(sequence)
        return
    del lane.running[sequence]
    plan.preempted += (sequence,)
    _go_out(lane, plan, sequence, num_blocks, num_computed)


def _go_out(
    lane: LaneState, plan: StepPlan, sequence: SequenceState, num_blocks: int, num_computed: int
) -> None:
    """Copy entries to the buffer, which has room. num_blocks: that the sequence holds."""
    num_filled = lane.pool.blocks_for(num_computed)
    swap = KvMove("swap_out", sequence, GPU, HOST, num_filled, num_computed)
    lane.swaps.room.reserve(num_filled)
    lane.swaps.going[sequence] = num_blocks, num_computed
    lane.swapped[sequence] = swap
    plan.moves += (swap,)
