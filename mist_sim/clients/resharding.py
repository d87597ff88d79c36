"""A client that prefills in one layout of its model and decodes in another (Seesaw).

Su et al., "Seesaw: High-throughput LLM Inference via Model Re-sharding" (2025):
`docs/background/seesaw.md`.

Prefetching: entries return from the host's buffer while prompts are computed (Seesaw 5.2).

The paper's prefetcher runs while the GPUs compute prompts or answers, as long as there are free
slots. Prefetched entries have the form of the layout for answers, so they stay in place when the
weights change. Until then they do not get in the way: the next prompts take their blocks first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Literal

from simpy.events import Event

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.replicas import Engines
from mist_sim.clients.engine.run import Run
from mist_sim.clients.kv_cache import SerialLink, SwapSpace
from mist_sim.clients.kv_cache.moves import GPU, HOST, KvMove, Room
from mist_sim.clients.layouts import EngineLayout, Transition
from mist_sim.clients.llm import LlmClient
from mist_sim.clients.resharding_options import SHARE_IN_USE, Resharding
from mist_sim.clients.scheduling import LaneState, StepPlan
from mist_sim.clients.scheduling.admission import add_piece, admit, fits, steps_until_join
from mist_sim.clients.scheduling.preemption import make_room
from mist_sim.clients.scheduling.resuming import begin_return
from mist_sim.clients.scheduling.whole_prompts.base import WholePromptScheduler, decode_steps
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.stores import KvStore, Stores, Transit
from mist_sim.core.batch import StepBatch
from mist_sim.core.recorder import Recorder
from mist_sim.environment import CHANGE, MOVE, Environment

__all__ = ["ReshardingClient"]


class HostBuffer(KvStore):
    """Entries on the host, in a form that both layouts can read (Seesaw 4.2, figure 7).

    Every GPU copies its part over its own link, all at once, so an engine's links act as one;
    copies follow one another in each direction. Arrived entries lie in pinned memory; the host then
    copies them, one after the other, to memory shared by the processes of all GPUs, from where they
    can be read back.

    out, back: the links of an engine. behind: the host's copies. seconds, seconds_behind: of a
    block over the links of an engine, and of a copy on the host. block_bytes: of all GPUs.
    shared_at: when sequences' entries can be read back, for all engines (seconds).
    """

    def __init__(
        self,
        env: Environment,
        out: SerialLink,
        back: SerialLink,
        behind: SerialLink,
        *,
        seconds: float,
        seconds_behind: float,
        block_bytes: float,
        shared_at: dict[SequenceState, float],
    ) -> None:
        self.name = HOST
        self._env = env
        self._out, self._back, self._behind = out, back, behind
        self._seconds, self._seconds_behind = seconds, seconds_behind
        self._block_bytes = block_bytes
        self._shared_at = shared_at

    def keep(self, move: KvMove) -> Transit:
        """Start a copy to pinned memory, and the host's copy to shared memory after it."""
        end = self._out.send(move.num_blocks * self._seconds, self._env.now)
        if self._seconds_behind:
            behind = move.num_blocks * self._seconds_behind
            self._shared_at[move.sequence] = self._behind.send(behind, end)
        return Transit(move.num_blocks * self._block_bytes, self._env.at(end, MOVE))

    def fetch(self, move: KvMove) -> Transit:
        """Send entries back to the GPUs, once the buffer has all of them."""
        begins = max(self._env.now, self._shared_at.pop(move.sequence, 0.0))
        end = self._back.send(move.num_blocks * self._seconds, begins)
        return Transit(move.num_blocks * self._block_bytes, self._env.at(end, MOVE))


def next_prompt(lane: LaneState) -> SequenceState | None:
    """Return the prompt at the head of the queue, ignoring answers that wait to come back."""
    if lane.coming.loaded:
        return lane.coming.loaded[0]
    return lane.waiting.head() if lane.waiting else None


class DuePrompts:
    """Two thresholds of how long the next prompt of a lane has waited, in seconds.

    From `late` on it is due, up to `early` it is not, and in between a client stays as it is: with
    one threshold it would go to the prompts and back again for every one of them.

    now: returns the time.
    """

    def __init__(self, now: Callable[[], float], early: float, late: float) -> None:
        self._now, self._early, self._late = now, early, late

    def any_of(self, lanes: Sequence[LaneState]) -> bool:
        """Tell whether a prompt is due."""
        now = self._now()
        return any(now >= since + self._late for since in self._since(lanes))

    def none_of(self, lanes: Sequence[LaneState]) -> bool:
        """Tell whether no prompt has waited for long."""
        now = self._now()
        return all(now <= since + self._early for since in self._since(lanes))

    def _since(self, lanes: Sequence[LaneState]) -> list[float]:
        heads = (next_prompt(lane) for lane in lanes)
        return [head.visit.queued_at for head in heads if head is not None]


class Prefetched:
    """Entries that are on the GPUs for the layout of answers, or on their way there.

    num_lanes, num_blocks: lanes of that layout, and blocks of each. When the layouts change, each
        returning sequence goes to the lane with room that has the fewest answers.
    """

    def __init__(self, num_lanes: int, num_blocks: int) -> None:
        self._num_lanes, self._num_blocks = num_lanes, num_blocks
        self._used = self._largest = 0

    def begin(self, lanes: Sequence[LaneState]) -> None:
        """Begin to compute prompts beside the answers that stay on the GPUs."""
        self._used = self._largest = 0
        for lane in lanes:
            for sequence in lane.running:
                self._count(lane.pool.blocks_for(sequence.num_tokens))

    def bring(self, lane: LaneState, plan: StepPlan, max_num_batched_tokens: int | None) -> None:
        """Bring entries back to blocks of a lane, in the order in which they left.

        Blocks for the next step of prompts stay free. Everything brought back also fits into the
        lanes of the other layout, in whatever order it goes there.
        """
        num_kept = _blocks_of_next_prompts(lane, max_num_batched_tokens)
        while lane.swapped:
            sequence, swap = next(iter(lane.swapped.items()))
            num_blocks = lane.needs.to_return(swap)
            if sequence in lane.swaps.going or not self._has_place(num_blocks):
                return
            num_needed = lane.clock.blocks_needed_now() + lane.coming.num_promised + num_kept
            if num_blocks > lane.num_admissible(num_needed):
                return
            begin_return(lane, plan, sequence, swap)
            self._count(num_blocks)

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


def _blocks_of_next_prompts(lane: LaneState, max_num_batched_tokens: int | None) -> int:
    """Return the blocks that a step takes for the prompts that wait, at most."""
    budget = max_num_batched_tokens or inf
    num_blocks = 0
    for number, sequence in enumerate(lane.waiting):
        if budget <= 0 or number == lane.max_num_seqs:
            break
        num_blocks += lane.pool.blocks_for(sequence.num_tokens)
        budget -= sequence.num_tokens
    return num_blocks


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


class StagedLane(Lane):
    """A lane whose sequences may wait for the other stage, in its queue or in the host's buffer."""

    @property
    def phases(self) -> Phases:
        """The client's phases."""
        found: Phases = self.state.notes[PHASES]
        return found

    def end(self, run: Run, plan: StepPlan, batch: StepBatch) -> None:
        """Count the answers that are complete."""
        num_running = len(self.state.running)
        super().end(run, plan, batch)
        has_freed = len(self.state.running) < num_running
        if has_freed:
            self.phases.num_finished += 1
        self.phases.look(has_freed=has_freed)

    def abort(self, sequence: SequenceState, *, in_step: bool = False) -> None:
        """Let a sequence go, for which a stage may have gone on."""
        super().abort(sequence, in_step=in_step)
        self.phases.look(has_freed=True)

    def set_aside(self) -> None:
        """Let all answers go to the host's buffer; no step is in flight."""
        plan = StepPlan()
        set_all_aside(self.state, plan)
        if self.phases.stage == "decode":
            set_brought_aside(self.state, plan)
        if plan.moves:
            self.note(plan)

    def evict(self, plan: StepPlan) -> None:
        """Record evictions; sequences that wait in the buffer for their stage lose nothing."""
        super().evict(plan)
        if self.phases.stage == "prefill" or self.phases.asked:
            for sequence in plan.preempted:
                sequence.visit.num_preemptions -= 1

    def _end_move(self, move: KvMove) -> None:
        """End a move of entries; arrived entries leave room in the buffer for prompts."""
        super()._end_move(move)
        if move.kind == "swap_in" and self.phases.stage == "prefill":
            self.phases.look(has_freed=True)

    def _check_empty(self) -> None:
        """Change to the other stage if this one has no work left."""
        self.phases.look()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSizes:
    """Sizes moved by transitions and the buffer, for given GPUs and model.

    prefill_weights, decode_weights: bytes of weights on the fullest GPU, by layout.
    block_bytes: of a KV block over all GPUs of an engine. gpus: GPUs per engine.
    host_memory: bytes of the buffer, over all GPUs. host_bandwidth: bytes/s of a GPU's link.
    """

    prefill_weights: float
    decode_weights: float
    block_bytes: float
    gpus: int
    host_memory: float
    host_bandwidth: float


class ReshardingClient(LlmClient):
    """An engine that computes prompts in one layout and answers in another (Seesaw).

    It begins in the layout for answers, given by its own options, and changes to the other one when
    the first prompt arrives. A transition loads the weights of the next layout from host memory,
    over all GPUs' links at once, and takes answers that stay on the GPUs out and in again.
    """

    lane_type: ClassVar[type[Lane]] = StagedLane
    shares_swaps: ClassVar[bool] = True

    def __init__(
        self,
        *args: Any,
        options: Resharding,
        sizes: ShardSizes,
        prefill: EngineLayout,
        **kwargs: Any,
    ) -> None:
        """options: the policy and the buffer. sizes: sizes of moves.

        prefill: the layout for prompts, from a client made with it. Other parameters: as in
        `LlmClient`.
        """
        super().__init__(*args, **kwargs)
        self.resharding = options
        self.sizes = sizes
        scheduler = self.scheduler
        self.scheduler = StagedScheduler(
            max_num_seqs=scheduler.max_num_seqs,
            order=scheduler.order,
            max_num_batched_tokens=getattr(scheduler, "max_num_batched_tokens", None),
            preemption="async_swap" if options.buffers else "recompute",
        )
        space = self._space()
        self.memory = replace(self.memory, swap_space=space)
        self._decode_layout = self.layout
        self._prefill_layout = replace(prefill, memory=replace(prefill.memory, swap_space=space))
        config = self.config
        own = config.tensor_parallel_size, config.pipeline_parallel_size
        other = options.tensor_parallel_size, options.pipeline_parallel_size
        self._is_equal = own == other
        # other policies look at all lanes, so that all have to change together
        self._is_free = self._is_equal and options.policy == "prefill_prioritised"
        self._stage: StageName = "decode"

    @property
    def needs_general_loop(self) -> str:
        """Resharding: it always takes the general loop."""
        return "resharding"

    def _space(self) -> SwapSpace | None:
        """Return the buffer as swap space of the lanes; blocks are those of all engines."""
        if not self.resharding.buffers:
            return None
        num_blocks = int(self.sizes.host_memory // self.sizes.block_bytes)
        return SwapSpace(num_blocks, self._seconds_per_block)

    @property
    def _seconds_per_block(self) -> float:
        """Seconds of a block over the links of an engine's GPUs."""
        reached = self.sizes.host_bandwidth * self.resharding.kv_layout_efficiency
        return self.sizes.block_bytes / (self.sizes.gpus * reached)

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Start with no phase, and with the links to host memory free."""
        self.phases: Phases | None = None
        self._links: dict[tuple[int, str], SerialLink] = {}
        self._shared_at: dict[SequenceState, float] = {}
        super().start(env, client_id, recorder)

    # --- lanes and the buffer -------------------------------------------------------------

    def _make_engines(self) -> Engines:
        engines = super()._make_engines()
        phases = self.phases = self.phases or self._new_phases()
        phases.begin(self._stage, [lane.state for lane in engines.lanes])
        return engines

    def _new_phases(self) -> Phases:
        space = self.memory.swap_space
        room = Room(space.num_blocks) if space else None
        sizes = [each.memory.num_tokens for each in (self._prefill_layout, self._decode_layout)]
        if space:
            sizes.append(space.num_blocks * self.memory.block_size)
        return Phases(
            self.resharding,
            self._stage,
            room,
            self._go_to,
            self._wake_lanes,
            is_free=self._is_free,
            most_tokens=min(sizes),
            due=self._due_prompts(),
            prefetched=self._prefetched(),
        )

    def _due_prompts(self) -> DuePrompts | None:
        limit = self.resharding.ttft_limit
        if limit is None:
            return None
        early, late = (share * limit for share in self.resharding.shares)
        return DuePrompts(lambda: self.env.now, early, late)

    def _prefetched(self) -> Prefetched | None:
        if not self.resharding.buffers or self.resharding.prefetch is False:
            return None
        layout = self._decode_layout
        return Prefetched(layout.num_lanes, layout.memory.num_blocks)

    def _lane(self, max_num_seqs: int, engine: int) -> Lane:
        lane = super()._lane(max_num_seqs, engine)
        if self.phases is None:
            self._stage = "decode" if self._layout_number == 0 else self._stage
            self.phases = self._new_phases()
        self._share(lane.state, self.phases)
        return lane

    def _share(self, state: LaneState, phases: Phases) -> None:
        """Let a lane have the stage and the buffer of the client."""
        state.notes[PHASES] = phases
        if phases.room is not None:
            state.swaps.room = phases.room

    def _stores(self, engine: int) -> Stores:
        stores = super()._stores(engine)
        if not self.resharding.buffers:
            return stores
        copy_rate = self.resharding.host_copy_bandwidth
        sizes = self.sizes
        ways = (
            self._links.setdefault((engine, way), SerialLink()) for way in ("out", "back", "behind")
        )
        buffer = HostBuffer(
            self.env,
            *ways,
            seconds=self._seconds_per_block,
            seconds_behind=sizes.block_bytes / (sizes.gpus * copy_rate) if copy_rate else 0.0,
            block_bytes=sizes.block_bytes,
            shared_at=self._shared_at,
        )
        return replace(stores, swap=buffer)

    def _wake_lanes(self) -> None:
        """Let sleeping lanes look for prompts again, after the present instant."""
        self.env.at(self.env.now, CHANGE).callbacks.append(self._wake_now)

    def _wake_now(self, _: Event) -> None:
        if self.phases is not None:
            for lane in self._engines.lanes:
                if self.phases.may_admit(lane.state):
                    lane.engine.notice(lane)

    # --- transitions ----------------------------------------------------------------------

    def _go_to(self, stage: StageName) -> None:
        """Change to the layout of a stage."""
        self._next_stage: StageName = stage
        layout = self._prefill_layout if stage == "prefill" else self._decode_layout
        weights = self.sizes.prefill_weights if stage == "prefill" else self.sizes.decode_weights
        self.change_layout(layout, weights / self.sizes.host_bandwidth)

    def _change_when_still(self) -> None:
        """Let answers go to the buffer first, where they do not stay on the GPUs."""
        if self.is_changing and self._engines.are_still and self._sets_aside:
            for lane in self._engines.lanes:
                if isinstance(lane, StagedLane):
                    lane.set_aside()
        num_layouts = len(self.layouts)
        super()._change_when_still()
        if len(self.layouts) > num_layouts and self.phases is not None:
            self.phases.carried()

    @property
    def _sets_aside(self) -> bool:
        return self.resharding.buffers and (self.resharding.running or "out") == "out"

    def _transition_time(self, asked: Transition) -> float:
        """Return the seconds for weights, and for entries on the GPUs: out to the host and back.

        Between equal layouts nothing moves; nor do entries prefetched for the layout of answers.
        """
        if self._is_equal:
            return 0.0
        states = [lane.state for lane in self._engines.lanes]
        num_blocks = sum(each.pool.num_blocks - each.pool.num_free for each in states)
        if self._next_stage == "decode":
            prefetched = ((each.pool, moved) for each in states for moved in each.coming.moved)
            num_blocks -= sum(pool.blocks_for(moved.num_brought) for pool, moved in prefetched)
        return asked.seconds + 2 * num_blocks * self._seconds_per_block / self.data_parallel_size

    def _enter(self, asked: Transition, ready: float) -> None:
        self._stage = self._next_stage
        super()._enter(asked, ready)
