"""The stage that all lanes of a re-sharding client are in, and when they go to the other one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from mist_sim.clients.kv_cache.moves.lower_memory import Room
from mist_sim.clients.resharding.due import DuePrompts
from mist_sim.clients.resharding.prefetch import Prefetched
from mist_sim.clients.resharding.queue_heads import next_prompt
from mist_sim.clients.resharding_options import SHARE_IN_USE, Resharding
from mist_sim.clients.scheduling import LaneState
from mist_sim.clients.scheduling.admission import fits
from mist_sim.clients.sequence_state import SequenceState

StageName = Literal["prefill", "decode"]

PHASES = "phases"  # among the notes of a lane


class Phases:
    """The stage that the lanes of a client compute now: prompts or answers.

    stage: the present one. lanes: of the present layout. room: of the host's buffer; None without
        one.
    is_free: whether a lane may change stage at any step, independently of the others.
    asked: whether a change of layout was requested; no step is planned until it happens.
    num_finished: answers that were completed since the stage began. was_short: whether prompts
        waited for memory when the answers' stage began.
    staying: answers paused on the GPUs while prompts are computed.
    prefetched: entries that come back meanwhile; None: no prefetching.
    """

    def __init__(
        self,
        options: Resharding,
        stage: StageName,
        room: Room | None,
        ask: Callable[[StageName], None],
        wake: Callable[[], None],
        *,
        is_free: bool,
        most_tokens: int,
        due: DuePrompts | None = None,
        prefetched: Prefetched | None = None,
    ) -> None:
        """ask: called to request the other stage, unless `is_free`. most_tokens: of a sequence.

        wake: called when other lanes may compute prompts that had no room before.
        due: tells which prompts have waited for long; None: not used.
        """
        self.options = options
        self.stage = stage
        self.room = room
        self.is_free = is_free
        self.asked = False
        self.lanes: Sequence[LaneState] = ()
        self.most_tokens = most_tokens
        self.num_finished = 0
        self.was_short = False
        self.staying: set[SequenceState] = set()
        self.prefetched = prefetched
        self._due = due
        self._ask, self._wake = ask, wake

    def enter(self, stage: StageName) -> bool:
        """Return whether a lane may go to a stage now; if it may not, all lanes will."""
        if stage == self.stage:
            return True
        if self.is_free:
            self.stage = stage
            return True
        if not self.asked:
            self.asked = True
            self._ask(stage)
        return False

    def begin(self, stage: StageName, lanes: Sequence[LaneState]) -> None:
        """Note that a stage begins, in the empty lanes of another layout."""
        self.stage, self.lanes, self.asked, self.num_finished = stage, lanes, False, 0
        self.staying = set()

    def carried(self) -> None:
        """Note which answers the lanes have begun with: they stay there while prompts go on."""
        if self.stage == "prefill":
            self.staying = {each for lane in self.lanes for each in lane.running}
            if self.prefetched is not None:
                self.prefetched.begin(self.lanes)

    # --- from answers to prompts ----------------------------------------------------------

    def wants_prefill(self, lane: LaneState) -> bool:
        """Tell whether prompts are to be computed now, as a lane sees it that plans."""
        policy = self.options.policy
        if policy == "prefill_prioritised":
            return bool(lane.prefilling) or (self._has_gained and self._is_next(lane))
        if not any(each.waiting for each in self.lanes):
            return bool(lane.prefilling)
        if policy == "decode_prioritised":
            return not any(_has_answers(each) for each in self.lanes)
        if policy == "threshold":
            share = self.options.threshold or SHARE_IN_USE
            is_below = self._has_gained and self._share_in_use() < share
            return is_below and any(map(self._is_next, self.lanes))
        if self._due is not None and self._has_any_answers():
            return self._due.any_of(self.lanes) and self._has_room_beside_answers()
        return self._buffer_is_spent()

    def _has_any_answers(self) -> bool:
        return any(_has_answers(each) or each.swapped for each in self.lanes)

    @property
    def watches_each_step(self) -> bool:
        """Whether prompts that wait may become due after any step."""
        return self._due is not None and any(each.waiting for each in self.lanes)

    @property
    def rests(self) -> bool:
        """Whether prompts may wait: none is due yet, and there are answers to continue."""
        if self._due is None or not self._has_any_answers():
            return False
        return self._due.none_of(self.lanes)

    @property
    def _has_gained(self) -> bool:
        """Whether prompts may fit now that did not when the stage began.

        Lanes of the other layout may be smaller, so that a prompt which fits here does not there.
        """
        return self.is_free or not self.was_short or self.num_finished > 0

    def _is_next(self, lane: LaneState) -> bool:
        head = lane.head()
        return head is not None and fits(lane, head)

    def _share_in_use(self) -> float:
        used = sum(lane.pool.num_blocks - lane.pool.num_free for lane in self.lanes)
        return used / sum(lane.pool.num_blocks for lane in self.lanes)

    def _buffer_is_spent(self) -> bool:
        """Tell whether the buffer is empty, and running answers may stop.

        Paused answers keep their memory, so a prompt has to fit into the rest.
        """
        if any(_is_buffered(lane) for lane in self.lanes):
            return False
        running = self.options.running or "out"
        if not any(_has_answers(lane) for lane in self.lanes):
            return True
        if running == "out":
            return self._has_room_beside_answers(share=0.5)
        if running == "drain":
            return False
        return self._has_gained and any(map(self._is_next, self.lanes))

    def _has_room_beside_answers(self, share: float = 1.0) -> bool:
        """Tell whether a prompt fits in the buffer after all answers have moved there.

        share: share of the buffer that answers may take; a half if no prompt is due, since a stage
            that could compute only a few prompts would not be worth its transitions.
        """
        used = sum(lane.pool.num_blocks - lane.pool.num_free for lane in self.lanes)
        heads = ((lane, next_prompt(lane)) for lane in self.lanes)
        needs = [lane.pool.blocks_for(head.num_tokens) for lane, head in heads if head is not None]
        if self.room is None or not needs or used > share * self.room.num_blocks:
            return False
        return self.room.has(used + min(needs))

    # --- from prompts to answers ----------------------------------------------------------

    def look(self, *, has_freed: bool = False) -> None:
        """Change stage if it is time to; lanes without work do not request it themselves.

        has_freed: whether a sequence left for whose entries the buffer had reserved room.
        """
        if self.asked or self.is_free:
            return
        if self.stage == "decode":
            if any(map(self.wants_prefill, self.lanes)):
                self.enter("prefill")
        elif self._has_no_more_prompts():
            self.was_short = any(each.waiting for each in self.lanes)
            self.enter("decode")
        elif has_freed and any(map(self.may_admit, self.lanes)):
            self._wake()

    def may_admit(self, lane: LaneState) -> bool:
        """Tell whether a lane may compute a prompt now."""
        if self.asked or self.stage != "prefill":
            return False
        head = next_prompt(lane)
        if head is None or self.rests:
            return False
        return self.has_room(lane, head) and fits(lane, head)

    def _has_no_more_prompts(self) -> bool:
        """Tell whether no more prompts can be computed, and there are answers to give."""
        for lane in self.lanes:
            if lane.prefilling or self._has_fresh(lane) or self._may_compute_more(lane):
                return False
        return any(_has_answers(lane) or lane.swapped for lane in self.lanes)

    def _has_fresh(self, lane: LaneState) -> bool:
        """Tell whether the lane's next plan moves answers with finished prompts to the buffer."""
        if self.room is None or not lane.clock.num_decodes:
            return False
        return not self.staying.issuperset(lane.running)

    def _may_compute_more(self, lane: LaneState) -> bool:
        """Tell whether the next prompt fits, or may fit when copies have ended, either way."""
        head = next_prompt(lane)
        if head is None or self.rests:
            return False
        if not (self.has_room(lane, head) or any(each.coming.loading for each in self.lanes)):
            return False
        return bool(lane.swaps.going) or fits(lane, head)

    def has_room(self, lane: LaneState, sequence: SequenceState) -> bool:
        """Tell whether the buffer has room for a prompt and those still to go there."""
        if self.room is None:
            return True
        coming = sum(map(self._num_coming, self.lanes))
        return self.room.has(coming + lane.pool.blocks_for(sequence.num_tokens))

    def _num_coming(self, lane: LaneState) -> int:
        """Return the blocks of a lane's prompts: those computed now, and those just done."""
        blocks_for = lane.pool.blocks_for
        num_blocks = sum(blocks_for(each.num_tokens) for each in lane.prefilling)
        if lane.clock.num_decodes:  # their newest token has no entry
            done = (each for each in lane.running if each not in self.staying)
            done = (each for each in done if each not in lane.prefilling)
            num_blocks += sum(blocks_for(each.num_tokens - 1) for each in done)
        return num_blocks


def _has_answers(lane: LaneState) -> bool:
    return lane.clock.num_decodes > 0 or bool(lane.coming.moved or lane.coming.loading)


def _is_buffered(lane: LaneState) -> bool:
    return bool(lane.swapped or lane.coming.loading or lane.coming.moved)
