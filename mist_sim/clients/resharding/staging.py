"""Whether the lanes of a client compute prompts or answers now, in layouts of their own (Seesaw).

Answers whose prompts are computed go to the host's buffer, if there is one, and come back in the
stage of answers as blocks become free (Seesaw 4.2). The engine core plans the steps of answers;
those of prompts are planned here.

Prefetching: entries return from the buffer while prompts are computed, too (Seesaw 5.2). The
paper's prefetcher runs while the GPUs compute prompts or answers, as long as there are free slots.
Prefetched entries have the form of the layout for answers, so they stay in place when the weights
change. Until then they do not get in the way: the next prompts take their blocks first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal

from mist_sim.clients.engine.stepped import SteppedLane
from mist_sim.clients.kv_cache.moves import Room
from mist_sim.clients.options.resharding_options import SHARE_IN_USE, Resharding
from mist_sim.clients.sequence_state import SequenceState

StageName = Literal["prefill", "decode"]


class DuePrompts:
    """Two thresholds of how long the next prompt of a lane has waited, in seconds.

    From `late` on it is due, up to `early` it is not, and in between a client stays as it is: with
    one threshold it would go to the prompts and back again for every one of them.

    now: returns the time.
    """

    def __init__(self, now: Callable[[], float], early: float, late: float) -> None:
        self._now, self._early, self._late = now, early, late

    def any_of(self, lanes: Sequence[SteppedLane]) -> bool:
        """Tell whether a prompt is due."""
        now = self._now()
        return any(now >= since + self._late for since in self._since(lanes))

    def none_of(self, lanes: Sequence[SteppedLane]) -> bool:
        """Tell whether no prompt has waited for long."""
        now = self._now()
        return all(now <= since + self._early for since in self._since(lanes))

    def _since(self, lanes: Sequence[SteppedLane]) -> list[float]:
        heads = ((lane, lane.core.first_waiting()) for lane in lanes)
        return [lane.inside(head).visit.queued_at for lane, head in heads if head >= 0]


class Prefetched:
    """Entries that are on the GPUs for the layout of answers, or on their way there.

    num_lanes, num_blocks: lanes of that layout, and blocks of each. When the layouts change, each
        returning sequence goes to the lane with room that has the fewest answers.
    max_num_batched_tokens: tokens of prompts in a step; None: no limit.
    """

    def __init__(self, num_lanes: int, num_blocks: int, max_num_batched_tokens: int | None) -> None:
        self._num_lanes, self._num_blocks = num_lanes, num_blocks
        self._most_tokens = max_num_batched_tokens or inf
        self._used = self._largest = 0

    def begin(self, lanes: Sequence[SteppedLane]) -> None:
        """Begin to compute prompts beside the answers that stay on the GPUs."""
        self._used = self._largest = 0
        for lane in lanes:
            core = lane.core
            for slot in core.running:
                self._count(core.blocks.in_all(core.tokens(slot)))

    def bring(self, lane: SteppedLane) -> None:
        """Bring entries back to blocks of a lane, in the order in which they left.

        Blocks for the next step of prompts stay free. Everything brought back also fits into the
        lanes of the other layout, in whatever order it goes there.
        """
        core, num_kept = lane.core, self._blocks_of_next_prompts(lane)
        while core.swapped:
            slot = next(iter(core.swapped))
            num_blocks = core.need_to_return(slot)
            if slot in core.going or not self._has_place(num_blocks):
                return
            if num_blocks > core.room() - num_kept:
                return
            core.bring_back(slot)
            self._count(num_blocks)

    def _blocks_of_next_prompts(self, lane: SteppedLane) -> int:
        """Return the blocks that a step takes for the prompts that wait, at most."""
        core, budget = lane.core, self._most_tokens
        num_blocks = 0
        for number, slot in enumerate(lane.queued()):
            if budget <= 0 or number == core.max_num_seqs:
                break
            num_tokens = core.tokens(slot)
            num_blocks += core.blocks.in_all(num_tokens)
            budget -= num_tokens
        return num_blocks

    def _count(self, num_blocks: int) -> None:
        self._used += num_blocks
        self._largest = max(self._largest, num_blocks)

    def _has_place(self, num_blocks: int) -> bool:
        """Tell whether the lanes of the other layout can take that many more blocks, in any order.

        One of b blocks finds no place when each of n lanes has less than b free of its N, and so
        n (N - b + 1) blocks are taken by others. That cannot be while all take less than that and b
        together, for the largest b.
        """
        largest = max(self._largest, num_blocks)
        most = self._num_lanes * (self._num_blocks - largest + 1) + largest
        return self._used + num_blocks < most


class Phases:
    """The stage that the lanes of a client compute now: prompts or answers.

    stage: the present one. lanes: of the present layout. room: of the host's buffer; None without
        one.
    asked: the stage that is to follow; no step is planned until it does. None: it is not time yet.
    has_finished: whether answers have ended since the stage began. was_short: whether prompts
        waited for memory when the answers' stage began.
    staying: answers paused on the GPUs while prompts are computed.
    prefetched: entries that come back meanwhile; None: no prefetching.
    """

    def __init__(
        self,
        options: Resharding,
        room: Room | None,
        ask: Callable[[StageName], None],
        wake: Callable[[], None],
        *,
        due: DuePrompts | None = None,
        prefetched: Prefetched | None = None,
    ) -> None:
        """ask: called to request the other stage.

        wake: called when other lanes may compute prompts that had no room before.
        due: tells which prompts have waited for long; None: not used.
        """
        self.options = options
        self.stage: StageName = "decode"
        self.room = room
        self.asked: StageName | None = None
        self.lanes: Sequence[SteppedLane] = ()
        self.has_finished = self.was_short = False
        self.staying: set[SequenceState] = set()
        self.prefetched = prefetched
        self._due = due
        self._ask, self._wake = ask, wake
        self._has_asked = False

    def begin(self, stage: StageName, lanes: Sequence[SteppedLane]) -> None:
        """Note that a stage begins, in the empty lanes of another layout."""
        self.stage, self.lanes, self.asked, self.has_finished = stage, lanes, None, False
        self._has_asked = False
        self.staying = set()
        for lane in lanes:
            lane.be_staged(self)

    def carried(self) -> None:
        """Note which answers the lanes have begun with: they stay there while prompts go on.

        In the stage of answers those go whose next step needs more than a lane has.
        """
        if self.stage == "decode":
            for lane in self.lanes:
                lane.let_outgrown_go()
        else:
            lanes = self.lanes
            self.staying = {lane.inside(slot) for lane in lanes for slot in lane.core.running}
            if self.prefetched is not None:
                self.prefetched.begin(lanes)

    @property
    def may_change(self) -> bool:
        """Whether the stage may change after any step, and not only where one comes or leaves.

        So it is where prompts become due, and where several lanes look at one another. A lane
        alone has less and less memory for prompts while its answers go on.
        """
        return self._due is not None or len(self.lanes) > 1

    # --- what a lane is told ------------------------------------------------------------------

    def plan(self, lane: SteppedLane) -> bool:
        """Plan the prompts of a lane's next step, if this is their stage.

        Returns whether answers go on: not in that stage, nor while the client changes stages.
        """
        if self.asked is None and self.stage == "decode" and self.wants_prefill(lane):
            self.asked = "prefill"
        if self.asked is not None:
            return False
        if self.stage == "decode":
            return True
        if self.room is not None:
            self.set_aside(lane)
        self._let_prompts_in(lane)
        if self.prefetched is not None:
            self.prefetched.bring(lane)
        return False

    def _let_prompts_in(self, lane: SteppedLane) -> None:
        """Admit prompts, whole, as long as the buffer has room for their entries, too.

        Answers that wait to return to the GPUs do not block them.
        """
        core = lane.core
        if self.rests:
            return
        while (head := core.first_waiting()) >= 0:
            if not (self.has_room(lane, head) and core.let_prompt_in(head)):
                return

    def set_aside(self, lane: SteppedLane) -> None:
        """Move all answers of a lane to the buffer, except paused ones and those without room."""
        core = lane.core
        for slot in list(core.running):
            if not core.is_decoding(slot) or (sequence := lane.inside(slot)) in self.staying:
                continue
            if not core.set_aside(slot):
                self.staying.add(sequence)

    def set_all_aside(self) -> None:
        """Move all answers to the buffer before a transition: no step is in flight.

        In the stage of answers also those that came back and have not resumed.
        """
        for lane in self.lanes:
            self.set_aside(lane)
            if self.stage == "decode":
                for slot in list(lane.core.moved):
                    lane.core.set_brought_aside(slot)
            lane.tell()

    def note_end(self, *, has_freed: bool) -> None:
        """Note that a step, or an answer, has ended, or that a lane rests.

        has_freed: whether one that ran has left.
        """
        self.has_finished |= has_freed
        self.look(has_freed=has_freed)

    def look(self, *, has_freed: bool = False) -> None:
        """Change stage if it is time to; lanes without work do not request it themselves.

        has_freed: whether a sequence left for whose entries the buffer had reserved room.
        """
        if self.asked is None:
            self._look(has_freed=has_freed)
        if self.asked is not None and not self._has_asked:
            self._has_asked = True
            self._ask(self.asked)

    def _look(self, *, has_freed: bool) -> None:
        if self.stage == "decode":
            if any(map(self.wants_prefill, self.lanes)):
                self.asked = "prefill"
        elif self._has_no_more_prompts():
            self.was_short = any(lane.core.queue for lane in self.lanes)
            self.asked = "decode"
        elif (has_freed or self._due is not None) and any(map(self._may_admit, self.lanes)):
            self._wake()  # prompts also become due as time passes

    def wake_lanes(self) -> None:
        """Let sleeping lanes look for prompts again."""
        for lane in self.lanes:
            if self._may_admit(lane):
                lane.wake()

    # --- from answers to prompts ----------------------------------------------------------

    def wants_prefill(self, lane: SteppedLane) -> bool:
        """Tell whether prompts are to be computed now, as a lane sees it that plans."""
        policy = self.options.policy
        if policy == "prefill_prioritised":
            return self._has_gained and self._is_next(lane)
        if not any(each.core.queue for each in self.lanes):
            return False
        if policy == "decode_prioritised":
            return not any(map(_has_answers, self.lanes))
        if policy == "threshold":
            share = self.options.threshold or SHARE_IN_USE
            is_below = self._has_gained and self._share_in_use() < share
            return is_below and any(map(self._is_next, self.lanes))
        if self._due is not None and self._has_any_answers():
            if not any(each.core.num_steps for each in self.lanes):
                return False  # or layouts would change for ever under a limit shorter than that
            return self._due.any_of(self.lanes) and self._has_room_beside_answers()
        return self._buffer_is_spent()

    def _has_any_answers(self) -> bool:
        return any(_has_answers(each) or each.core.swapped for each in self.lanes)

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
        return not self.was_short or self.has_finished

    def _is_next(self, lane: SteppedLane) -> bool:
        """Tell whether a prompt could come in before all answers that wait."""
        core = lane.core
        if core.swapped or core.moved:
            return False
        head = core.first_waiting()
        return head >= 0 and bool(core.fits(head))

    def _share_in_use(self) -> float:
        return self._num_used() / sum(lane.core.blocks.num_blocks for lane in self.lanes)

    def _num_used(self) -> int:
        return sum(lane.core.blocks.num_blocks - lane.num_free for lane in self.lanes)

    def _buffer_is_spent(self) -> bool:
        """Tell whether the buffer is empty, and running answers may stop.

        Paused answers keep their memory, so a prompt has to fit into the rest.
        """
        if any(map(_is_buffered, self.lanes)):
            return False
        running = self.options.running or "out"
        if not any(map(_has_answers, self.lanes)):
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
        used, cores = self._num_used(), [lane.core for lane in self.lanes]
        heads = ((core, core.first_waiting()) for core in cores)
        needs = [core.blocks.in_all(core.tokens(head)) for core, head in heads if head >= 0]
        if self.room is None or not needs or used > share * self.room.num_blocks:
            return False
        return self.room.has(used + min(needs))

    # --- from prompts to answers ----------------------------------------------------------

    def _may_admit(self, lane: SteppedLane) -> bool:
        """Tell whether a lane may compute a prompt now."""
        if self.asked is not None or self.stage != "prefill":
            return False
        head = lane.core.first_waiting()
        if head < 0 or self.rests:
            return False
        return self.has_room(lane, head) and bool(lane.core.fits(head))

    def _has_no_more_prompts(self) -> bool:
        """Tell whether no more prompts can be computed, and there are answers to give."""
        for lane in self.lanes:
            if lane.core.prefilling or self._has_fresh(lane) or self._may_compute_more(lane):
                return False
        return self._has_any_answers()

    def _has_fresh(self, lane: SteppedLane) -> bool:
        """Tell whether the lane's next plan moves answers with finished prompts to the buffer."""
        if self.room is None or not lane.core.num_decodes:
            return False
        return any(lane.inside(slot) not in self.staying for slot in lane.core.running)

    def _may_compute_more(self, lane: SteppedLane) -> bool:
        """Tell whether the next prompt fits, or may fit when copies have ended, either way."""
        core = lane.core
        head = core.first_waiting()
        if head < 0 or self.rests:
            return False
        if not (self.has_room(lane, head) or any(each.core.num_coming for each in self.lanes)):
            return False
        return bool(core.going) or bool(core.fits(head))

    def has_room(self, lane: SteppedLane, slot: int) -> bool:
        """Tell whether the buffer has room for a prompt and those still to go there.

        One that gave way may have outgrown the whole buffer: it comes alone, and stays on the GPUs.
        """
        if self.room is None:
            return True
        coming, core = sum(map(self._num_coming, self.lanes)), lane.core
        is_empty = not (self.room.num_used or coming)
        return is_empty or self.room.has(coming + core.blocks.in_all(core.tokens(slot)))

    def _num_coming(self, lane: SteppedLane) -> int:
        """Return the blocks of a lane's prompts: those computed now, and those just done."""
        core = lane.core
        count = core.blocks.in_all
        num_blocks = 0
        for slot in core.running:
            if not core.is_decoding(slot):
                num_blocks += count(core.tokens(slot))
            elif lane.inside(slot) not in self.staying:
                num_blocks += count(core.tokens(slot) - 1)  # their newest token has no entry
        return num_blocks


def _has_answers(lane: SteppedLane) -> bool:
    core = lane.core
    return bool(core.num_decodes or core.moved or core.num_coming)


def _is_buffered(lane: SteppedLane) -> bool:
    core = lane.core
    return bool(core.swapped or core.num_coming or core.moved)
