"""Where SimPy and the engine core meet: requests go in, and what others see comes out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, partial
from math import inf, isnan, nan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mist_sim.clients.draft_paths import DraftPath
from mist_sim.clients.engine.core.blocks import Blocks
from mist_sim.clients.engine.core.core import Core
from mist_sim.clients.engine.core.drafting import Drafting
from mist_sim.clients.engine.core.lane import (
    A_PREFIX,
    AN_ANSWER,
    COMES,
    ENTRIES,
    ENTRIES_SILENTLY,
    FINISHED,
    GIVEN_UP,
    GIVEN_UP_WAITING,
    GOES,
    HAS_ALL,
    LOOKS,
    LOST,
    MOVES,
    NONE,
    NOTHING,
    OUTGROWN,
    RETURNS,
    STOPPED,
    Lane,
)
from mist_sim.clients.engine.core.lockstep import Lockstep, Replica
from mist_sim.clients.engine.core.paged import PagedBlocks
from mist_sim.clients.engine.core.pipeline import Group, Pipeline
from mist_sim.clients.engine.core.quiet import FastForward
from mist_sim.clients.engine.core.rows import Counts, Rows
from mist_sim.clients.engine.core.tiered import TieredBlocks
from mist_sim.clients.engine.core.times import Times
from mist_sim.clients.engine.core.virtual import VirtualEngine, VirtualPipeline
from mist_sim.clients.engine.diary import Diary
from mist_sim.clients.engine.flowing import flow_in_core, next_pace, num_asked, pace_of
from mist_sim.clients.engine.lane_setup import LaneSetup, Replicas
from mist_sim.clients.engine.own_rules import OwnRules, own_rules
from mist_sim.clients.engine.ranked_queue import RankedQueue
from mist_sim.clients.kv_cache.moves import GPU, HOST, Kind, KvMove, Room
from mist_sim.clients.kv_cache.pages import PagePool
from mist_sim.clients.kv_cache.tiers import Tiers
from mist_sim.clients.prefixes.shared_prefixes import SharedPrefixes
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.scheduling.adapter_slots import AdapterQueue, adapter_of
from mist_sim.clients.scheduling.lane_view import LaneView
from mist_sim.clients.scheduling.memory_needs import MemoryNeeds
from mist_sim.clients.scheduling.order import FirstComeFirstServed, is_ours
from mist_sim.clients.scheduling.standstill import Standstill
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.step_track import write_move
from mist_sim.clients.stores import Mover
from mist_sim.core.batch import AdapterWork, StepBatch, StepGrowth
from mist_sim.core.flowing import FlowRule
from mist_sim.core.views import RUNNING, WAITING, ClientState
from mist_sim.core.visit import HeldKv, Lost, Moved
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.hardware.predictors.base import Predictor, traits_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mist_sim.clients.kv_cache.lane_memory import LaneMemory
    from mist_sim.clients.stores import Stores
    from mist_sim.core.recorder import Recorder, StepRow
    from mist_sim.core.visit import Visit
    from mist_sim.hardware.predictors.ranks import PipelinePredictor

FAST_FORWARD = True
"""Whether quiet steps are taken many at a time; without it, the results are the same."""


class Stepper:
    """The core of a run, and whose lanes step in it (see `environment.Stepper`)."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.core = Core(FastForward() if FAST_FORWARD else None)
        self.lanes: list[SteppedLane | SteppedTogether] = []
        self._times: dict[tuple[int, int], tuple[Predictor, Times]] = {}

    @classmethod
    def of(cls, env: Environment) -> Stepper:
        """Return the one of a run, made for the first client that asks."""
        found = env.stepper
        if not isinstance(found, cls):
            env.stepper = found = cls(env)
        return found

    def let_run_ahead(self) -> None:
        """Let lanes take steps before others take earlier ones.

        Not if engines of one client step apart: their rows say how many wait in all of them.
        """
        engines = [lane for lane in self.lanes if isinstance(lane, SteppedLane)]
        apart = {(lane.client_id, id(lane.in_heap)) for lane in engines}
        self.core.runs_ahead = len(apart) == len({client_id for client_id, _ in apart})

    def tell(self) -> None:
        """Let others see the latest step; set the clock to its time."""
        core = self.core
        self.env.now, self.env.phase = core.now, core.phase
        self.lanes[core.lane.number].tell()

    def now(self) -> float:
        """Return the present time in seconds, also while a step is planned."""
        return max(self.env.now, self.core.now)

    def flush(self) -> None:
        """Write the steps that are not written yet."""
        for lane in self.lanes:
            lane.flush()

    def times_of(
        self,
        predictor: Predictor,
        num_seqs: int,
        more: Callable[[StepBatch], None] | None,
        *,
        has_lines: bool,
    ) -> Times:
        """Return what times steps of a predictor, for all lanes that have it.

        more, has_lines: of one's own, see `times_of`.
        """
        if more is not None or not has_lines:
            return times_of(predictor, num_seqs, more, has_lines=has_lines)
        key = id(predictor), num_seqs
        if key not in self._times:
            self._times[key] = predictor, times_of(predictor, num_seqs)
        return self._times[key][1]


def times_of(
    predictor: Predictor,
    num_seqs: int,
    more: Callable[[StepBatch], None] | None = None,
    *,
    has_lines: bool = True,
) -> Times:
    """Return what times the steps of a predictor, with at most so many decodes.

    more: tells a batch what else the present step has, which a line does not know: adapters,
        drafts, or the tokens of replicas; None: nothing. has_lines: whether a line may time steps
        of decodes alone; it knows no windows either.
    """
    traits = traits_of(predictor)
    spot = traits.step_time_on_the_spot or predictor.step_time

    def ask(
        chunks: tuple[tuple[int, int], ...],
        num_decodes: int,
        context_sum: int,
        num_read_again: int,
        longest: int,
        on_the_spot: bool,
        num_in_windows: int,
    ) -> float:
        batch = StepBatch(chunks, num_decodes, context_sum)
        batch.num_read_again = num_read_again
        if more is not None:
            more(batch)
        if longest >= 0 and num_decodes:
            batch.longest_context = longest
        if num_in_windows >= 0 and num_decodes:
            batch.window_sum = num_in_windows
        return spot(batch) if on_the_spot else predictor.step_time(batch)

    def ask_run(
        num_decodes: int,
        context_sum: int,
        num_read_again: int,
        longest: int,
        num_steps: int,
        num_in_windows: int,
        num_growing: int,
        ahead: tuple[Any, Any, Any] | None = None,
    ) -> NDArray[np.float64]:
        batch = StepBatch((), num_decodes, context_sum)
        batch.num_read_again = num_read_again
        if more is not None:
            more(batch)
        if longest >= 0:
            batch.longest_context = longest
        if num_in_windows >= 0:
            batch.window_sum = num_in_windows
        growth = StepGrowth(num_decodes, num_growing, 1)
        if ahead is not None:
            contexts, several, seen = (np.asarray(each)[:num_steps] for each in ahead)
            growth = StepGrowth(contexts - contexts[0])
            if longest >= 0:
                growth.longest_context = several - several[0]
            if num_in_windows >= 0:
                growth.window_sum = seen - seen[0]
        return predictor.run(batch, growth, num_steps)

    has_lines = has_lines and more is None
    line = (getattr(predictor, "decode_line", None) if has_lines else None) or (lambda _: None)
    return Times(line, ask, ask_run, num_seqs, traits.needs_longest_context)


class SteppedView(ClientState):
    """The counts of a client whose lanes step in the core, which counts the phases, too."""

    __slots__ = ("lanes",)

    def __init__(self, client_id: int, name: str) -> None:
        self.lanes: list[SteppedLane] = []
        super().__init__(client_id, name, phases=Counts())

    def watch(self, watcher: Callable[[ClientState], None], *, phases: bool) -> None:
        """Notify a watcher; with `phases`, others see each plan that changes any."""
        super().watch(watcher, phases=phases)
        if phases:
            for lane in self.lanes:
                lane.be_watched()


class Stages(Protocol):
    """Says when the lanes of a client compute prompts, and when answers (see `staging.Phases`).

    stage: the present one. room: on the host, which the lanes share; None: answers stay here.
    may_change: whether the stage may change after any step, and not only where one comes or leaves.
    """

    stage: Any
    room: Room | None

    @property
    def may_change(self) -> bool:
        """Whether it may change so."""

    def plan(self, lane: Any, /) -> bool:
        """Plan the prompts of a step, if this is their stage; return whether answers go on."""

    def note_end(self, *, has_freed: bool) -> None:
        """Note that a step, or an answer, has ended, or that a lane rests.

        has_freed: whether one that ran has left.
        """

    def look(self, *, has_freed: bool = False) -> None:
        """Change stage if it is time to. has_freed: whether the room may have become larger."""


class Contents(NamedTuple):
    """The contents of a lane that has stopped, for the lanes of another layout.

    sequences: all inside. running: those that run, and whether each decodes. brought: those that
    wait with their entries to continue. swapped: those whose entries are on the host. held: tokens
    that have entries here which are kept for other clients.
    """

    sequences: Iterable[SequenceState]
    running: Mapping[SequenceState, bool]
    brought: Collection[SequenceState]
    swapped: Collection[SequenceState]
    held: Mapping[SequenceState, int]


class SteppedLane:
    """A lane of the core as its client and its requests know it.

    setup: what all lanes of the client have in common. stores: where entries come from and go to.
    engine: its number at the client.
    kept: entries of sequences that have left it, for the clients that continue them.
    """

    def __init__(
        self,
        stepper: Stepper,
        phases: tuple[int, int],
        setup: LaneSetup,
        *,
        max_num_seqs: int,
        view: SteppedView,
        stores: Stores,
        engine: int,
    ) -> None:
        memory, predictor, form = setup.memory, setup.predictor, setup.form
        recorder, scheduler, rules = setup.recorder, setup.scheduler, setup.rules
        self._setup, self._stepper, self._view, self.leave = setup, stepper, view, setup.leave
        self.client_id = setup.client_id
        self._flow, self._memory, self.scheduler = setup.flow, memory, scheduler
        self._engine = engine
        self.kept: dict[SequenceState, HeldKv] = {}
        self._look: Callable[[], None] | None = None  # called when it has stopped
        self.is_still = False
        self._recorder = recorder
        self._tracks = [recorder.add_track(setup.client_id, setup.layout)]
        for _ in predictor.ranks[1:] if form else ():
            track = recorder.add_track(setup.client_id, setup.layout, pool=self._tracks[0])
            self._tracks.append(track)
        record = partial(write_move, recorder, self._tracks[0])
        self._mover = Mover(stepper.env, stores, record, self._end_move)
        self._inside: dict[int, SequenceState] = {}  # by slot
        self._coming: dict[SequenceState, None] = {}  # whose entries are on their way
        self.caches_prefixes = caches = memory.caches_prefixes
        self._speculation = speculation = setup.speculation()
        num_drafts = 0 if speculation is None else speculation.num_drafts
        traits = predictor.traits
        blocks = blocks_of(memory)
        prefixes = [
            SharedPrefixes(traits.reads_again, memory.block_size)
            if caches and traits.reads_again is not None and memory.groups is None
            else None
            for _ in self._tracks
        ]
        rows = [rows_of(recorder, each, traits.steps_inside, num_drafts) for each in self._tracks]
        self._adapters, self._images = setup.adapters(), setup.images()
        self._work = AdapterWork(0, 0)
        tells = self._adapters is not None or setup.replicas is not None or num_drafts
        more = self._tell_more if tells else None
        has_lines = memory.groups is None
        times = [
            stepper.times_of(rank, max_num_seqs, more, has_lines=has_lines)
            for rank in predictor.ranks
        ]
        self.rank_times = times
        kind: type[Lane] = Lane
        if form is not None:
            kind = Pipeline
        elif speculation is not None:
            kind = Drafting
        elif len(times) > 1 or setup.replicas is not None:
            kind = Replica
        plans_ahead = setup.plans_ahead and form is None
        self._lane: Lane = kind(
            len(stepper.lanes),
            *phases,
            max_num_seqs,
            plans_ahead,
            times[0],
            blocks,
            rows[0],
            view.phases,
            self,
            prefixes[0],
        )
        if form is not None and isinstance(self._lane, Pipeline):
            groups = [Group(n, *each) for n, each in enumerate(zip(rows, prefixes, strict=True))]
            longest = setup.config.max_model_len
            self._lane.lie(form, longest, times, predictor.rank_delay, groups)
        self.view = LaneView(self._lane)
        queue = setup.queue()
        self._own: OwnRules | None = None
        if isinstance(scheduler, ChunkedScheduler):
            self._own = self._lane.own = own_rules(scheduler, self.view, queue)
        self._lane.obey(setup, setup.cadence(), not is_ours(type(queue)))
        self._standstill = Standstill()
        self._lane.tells_prompts = setup.gate is not None
        self._lane.waits_for_more = self._adapters is not None or self._images is not None
        self._stores = stores
        self._loads: dict[int, list[KvMove]] = {}  # by slot, that are to begin
        self._tiers: Tiers | None = None
        if isinstance(blocks, TieredBlocks):
            again = memory.num_recomputed
            self._tiers = Tiers(memory.tiers, blocks.cache, setup.shared.content, again)
            blocks.lie_above(self._tiers)
            is_plain = isinstance(queue, FirstComeFirstServed) and not self._tiers.in_step
            self._lane.preempted_first = rules.preempted_first and is_plain
        self._ranked: RankedQueue | None = None
        if setup.flow is not None:
            self._lane.flow = flow_in_core(setup.flow)
        elif type(queue) is not FirstComeFirstServed:
            self._ranked = self._lane.ranked = RankedQueue(
                queue, loaded_first=rules.loaded_first, pass_goes_on=rules.pass_goes_on
            )
        if isinstance(queue, AdapterQueue):
            queue.watch(self._adapters_in_use)
            self.view.finds_slot = queue.may_run
        self._stages: Stages | None = None
        self.in_heap = self._lane  # what stands for it in the core's heap
        stepper.lanes.append(self)
        view.lanes.append(self)
        self._diary = self._new_diary()
        if view.phase_watchers or self._diary is not None:
            self.be_watched()

    def _new_diary(self) -> Diary | None:
        """Return what notes its decisions; None where they are not kept."""
        if (events := self._recorder.events) is None:
            return None
        rules, own = type(self.scheduler).__name__, getattr(self.scheduler, "own_methods", ())
        client_id, now = self.client_id, self._stepper.now
        diary = Diary(events, client_id, self._lane, now, self._inside, rules, own)
        self.view.sent_back = diary.sent_back
        return diary

    @cached_property
    def needs(self) -> MemoryNeeds:
        """How much memory sequences need here; made when it is asked for."""
        scheduler = self.scheduler
        by_piece = scheduler.by_piece and not scheduler.swaps  # v0 gives prompts all their blocks
        return MemoryNeeds(self._memory.pool(), self._speculation, by_piece=by_piece)

    @property
    def core(self) -> Lane:
        """Its lane in the core, which has taken all steps before now."""
        stepper = self._stepper
        stepper.core.catch_up(self.in_heap, stepper.env.now, stepper.env.phase)
        return self._lane

    def be_watched(self) -> None:
        """Tell others when a request begins to run, or gives way."""
        self.core.is_watched = self.in_heap.is_watched = True

    @property
    def score(self) -> int:
        """How busy it is, as the balancer of vLLM's engines counts (see `Lane.score`)."""
        return int(self._lane.score())

    def inside(self, slot: int) -> SequenceState:
        """Return the sequence in a slot."""
        return self._inside[slot]

    @property
    def sequences(self) -> Collection[SequenceState]:
        """The sequences inside."""
        return self._inside.values()

    def queued(self) -> list[int]:
        """Return the slots of those in the queue, the next one first."""
        return list(self.core.queue) if self._ranked is None else self._ranked.in_order()

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return int(self._lane.num_inside())

    # --- requests go in -----------------------------------------------------------------------

    def add_request(self, sequence: SequenceState, *, comes: bool = True) -> None:
        """Queue a sequence that comes now, or else has a slot and finds its place (`_keep`)."""
        lane, visit = self.core, sequence.visit
        content = visit.request.content
        chain = None
        if lane.is_paged or (content and self.caches_prefixes):
            chain = lane.blocks.chain(content)
        now = self._stepper.env.now
        brings, leaves = NOTHING, NONE
        if sequence.is_brought:
            brings = A_PREFIX if sequence.has_rest else AN_ANSWER
        if visit.is_followed:
            leaves = ENTRIES_SILENTLY if visit.is_silent else ENTRIES
        slot = lane.add(
            now,
            sequence.num_prompt_tokens,
            sequence.num_tokens,
            sequence.num_final_tokens,
            sequence.last_token_at,
            chain,
            brings,
            sequence.num_brought,
            leaves,
        )
        sequence.lane, sequence.slot = self, slot
        self._inside[slot] = sequence
        if self._own is not None:
            self.view.come(sequence)
        if not comes:
            return
        if self._ranked is not None:
            self._ranked.come(now, sequence)
        if self.in_heap is not lane:
            if self.in_heap.time < inf:
                self._stepper.core.wake(self.in_heap)
        elif lane.num_quiet <= 0 if lane.place >= 0 else not lane.stops:
            self._stepper.core.wake(lane)

    def give_up(self, sequence: SequenceState) -> None:
        """Let a sequence go as soon as no step in flight computes it."""
        slot, lane = sequence.slot, self.core
        waits = lane.is_waiting(slot)
        if lane.give_up(self._stepper.env.now, slot):
            self._hand_back(slot, GIVEN_UP_WAITING if waits else -1)
        self._go_on()

    def _go_on(self) -> None:
        """Take the lane's place among the others, which may have changed."""
        if self.is_still and self._look is not None:
            self._look()
        elif self.in_heap.time < inf:
            self._stepper.core.wake(self.in_heap)

    # --- stages of prompts and of answers -------------------------------------------------------

    def be_staged(self, stages: Stages) -> None:
        """Compute prompts and answers in stages, as said for all lanes of the client."""
        self._stages = stages
        self._lane.be_staged(stages.room, stages.may_change)

    def plan_stage(self) -> bool:
        """Plan the prompts of a step, if this is their stage; return whether answers go on."""
        return self._stages is None or self._stages.plan(self)

    def wake(self) -> None:
        """Plan now, if the lane rests and requests wait."""
        self.core.wake(self._stepper.env.now)
        self._go_on()

    # --- entries of others --------------------------------------------------------------------

    def _bring(self, sequence: SequenceState) -> None:
        """Let entries come, for which there are blocks."""
        kv, slot, lane = sequence.incoming, sequence.slot, self._lane
        if slot in self._loads:
            self._coming[sequence] = None
            moves = self._loads.pop(slot)
            sequence.num_coming += len(moves)
            for move in moves:
                self._mover.begin(move)
            return
        if kv is None:
            raise InvariantError(f"no client keeps the entries of {sequence.visit.request}")
        num_blocks, num_tokens = lane.to_come(slot)
        kind: Kind = "fetch" if sequence.has_rest else "hand_over"
        sequence.num_coming += 1
        self._coming[sequence] = None
        self._mover.begin(KvMove(kind, sequence, kv.source, GPU, num_blocks, num_tokens))

    def _swap(self, sequence: SequenceState, *, out: bool) -> None:
        """Let the blocks of one be copied to the host, or back, while steps go on."""
        num_blocks, num_tokens = self._lane.to_swap(sequence.slot)
        sequence.have_brought()  # it ran, so nothing of it is elsewhere any more
        sequence.visit.num_preemptions = self._lane.story(sequence.slot)[6]
        move = KvMove("swap_out", sequence, GPU, HOST, num_blocks, num_tokens)
        if not out:
            move = move.back()
            sequence.num_coming += 1
            self._coming[sequence] = None
        self._mover.begin(move)

    def _end_move(self, move: KvMove) -> None:
        """Note that entries have come, or never will, or that the host has a copy of them."""
        sequence = move.sequence
        if move.kind == "swap_out":
            self._release_held(sequence)
            return
        kv, last = sequence.incoming, sequence.last_token_at
        sequence.num_coming -= 1
        if sequence.num_coming:
            return  # of several tiers
        del self._coming[sequence]
        is_lost = kv is None or kv.is_lost
        if move.kind in ("load", "swap_in"):
            last = self._lane.story(sequence.slot)[2]
        elif move.kind == "hand_over":
            last = nan if kv is None else kv.last_token_at
            if kv is not None and kv.num_output_tokens:
                self.core.pace(sequence.slot, *pace_of(sequence))
        elif not is_lost:
            sequence.visit.num_fetched_tokens = move.num_tokens
        is_lost = is_lost and sequence.has_rest
        self.core.entries_come(self._stepper.env.now, sequence.slot, last, is_lost)
        left, self._lane.notices = self._lane.notices, []
        for slot, how in left:
            self._tell(slot, how)
        self._go_on()
        if self._stages is not None and move.kind == "swap_in" and self._stages.stage == "prefill":
            self._stages.look(has_freed=True)

    def load(self, slot: int, numbers: list[int], time: float) -> float:
        """So many blocks of a request come from each tier; return the seconds a step waits."""
        if (tiers := self._tiers) is None:
            raise InvariantError(f"{self._view.name} has no tiers to load from")
        sequence, size = self._inside[slot], self._lane.blocks.size
        sequence.have_brought()  # nothing of it is at another client any more
        sequence.visit.num_preemptions = self._lane.story(slot)[6]
        moves = [
            KvMove("load", sequence, tier.name, GPU, number, number * size)
            for tier, number in zip(tiers.tiers, numbers, strict=True)
            if number
        ]
        if not tiers.in_step:
            self._loads[slot] = moves
            return 0.0
        return sum([self._move_in_step(move, time, out=False) for move in moves])

    def _move_in_step(self, move: KvMove, time: float, *, out: bool) -> float:
        """Record a move that a step waits for; return its seconds."""
        store = self._stores.of(move)
        transit = store.keep(move) if out else store.fetch(move)
        spent = transit.num_bytes, time, time + transit.after
        write_move(self._recorder, self._tracks[0], move, *spent, again=move.is_swap)
        return transit.after

    def _release_held(self, sequence: SequenceState) -> None:
        self.core.release_held(self._stepper.env.now, sequence.slot)
        self._go_on()

    def forget_brought(self, sequence: SequenceState) -> None:
        """Let a prompt in the queue be computed from its start, as its entries are lost."""
        self.core.forget_brought(sequence.slot)

    # --- answers that flow --------------------------------------------------------------------

    def may_move(self) -> bool:
        """Tell whether another client is up that would go on with answers."""
        return self._setup.has_taker is None or self._setup.has_taker()

    def turn(self, scheduler: ChunkedScheduler, flow: FlowRule | None) -> None:
        """Plan with other chunks from now on, and let answers leave by another rule if given."""
        self.scheduler, self._flow = scheduler, flow or self._flow
        if self._own is not None:
            self._own.scheduler = scheduler
        rule = None if flow is None else flow_in_core(flow)
        self.core.set_sliders(scheduler.max_num_batched_tokens, rule)
        self._go_on()

    def _move_on(self, slot: int) -> None:
        """End the visit of an answer that another client goes on with."""
        sequence = self._inside.pop(slot)
        visit = self.settle(sequence)
        sequence.lane, sequence.phase = None, RUNNING
        visit.last_token_at = sequence.last_token_at
        visit.outcome = Moved(num_asked(visit) - sequence.num_new_tokens)
        visit.held_kv = kv = self._held(sequence)
        kv.compute_time = 0.0  # there is nothing that copying could overlap with
        if self._flow is not None:
            kv.pace = next_pace(self._flow, sequence, visit.last_token_at)
        self.leave(visit, None)

    # --- what others see comes out ------------------------------------------------------------

    def tell(self) -> None:
        """Hand back the requests that left with the latest step; notify watchers of the others."""
        lane = self._lane
        if self._diary is not None:
            self._diary.look()
        left, lane.notices = lane.notices, []
        for slot, how in left:
            if how == FINISHED:
                self._hand_back(slot, how)
            elif how == LOOKS and self._stages is not None:
                self._stages.note_end(has_freed=any(how in (FINISHED, GIVEN_UP) for _, how in left))
            else:
                self._tell(slot, how)
        if lane.is_watched:
            for watcher in self._view.phase_watchers:
                watcher(self._view)

    def _tell(self, slot: int, how: int) -> None:
        """Let the others see what became of a request."""
        if how == STOPPED:
            self._be_still()
        elif how == COMES:
            self._bring(self._inside[slot])
        elif how in (GOES, RETURNS):
            self._swap(self._inside[slot], out=how == GOES)
        elif how == HAS_ALL:
            self._inside[slot].have_brought()
        elif how == LOST:
            self._inside[slot].forget_brought()
        elif how == MOVES:
            self._move_on(slot)
        else:
            self._hand_back(slot, how)

    def _hand_back(self, slot: int, how: int) -> None:
        """Let a sequence go that has left the core."""
        sequence = self._inside.pop(slot)
        visit = self.settle(sequence)
        sequence.lane = None
        sequence.phase = WAITING if how == GIVEN_UP_WAITING else RUNNING
        sequence.num_queued_tokens = self._lane.queued_tokens(slot)
        if how == FINISHED:
            visit.last_token_at = sequence.last_token_at
            if visit.is_followed:
                self._hold(sequence)
            self.leave(visit, None)
        elif how == OUTGROWN:
            sequence.num_tokens = self._lane.num_asked(slot)
            self.leave(visit, self.needs.outgrown(sequence) or "dropped")
        else:
            if self._setup.gate is not None:
                self._setup.gate.prompt_is_done(sequence)
            visit.num_computed_tokens = sequence.num_computed_tokens
            if visit.num_output_tokens:
                visit.last_token_at = sequence.last_token_at
            self.leave(visit, None)
            if self._stages is not None:
                ran = how != GIVEN_UP_WAITING and not isinstance(visit.outcome, Lost)
                hear = self._stages.note_end if ran else self._stages.look
                hear(has_freed=True)

    def _hold(self, sequence: SequenceState) -> None:
        """Keep the entries of one that is done, unless it gave up before."""
        visit = sequence.visit
        if visit.outcome is None:
            visit.held_kv = self._held(sequence)
        if visit.is_silent:
            visit.num_output_tokens, visit.last_token_at = 0, nan
            visit.num_computed_tokens = sequence.num_prompt_tokens

    def _held(self, sequence: SequenceState) -> HeldKv:
        """Keep the entries of one that leaves, for the client that continues it; return them.

        If that client emits the first token, it computes the last token of the prompt again.
        """
        visit, is_silent = sequence.visit, sequence.visit.is_silent
        num_tokens = sequence.num_tokens - 1
        self.kept[sequence] = kv = HeldKv(
            self._view.name,
            partial(self._let_kept_go, sequence),
            num_tokens=num_tokens - is_silent,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens - is_silent,
            last_token_at=nan if is_silent else visit.last_token_at,
            engine=self._engine,
            compute_time=visit.last_token_at - visit.started_at,
            num_bytes=self._num_bytes(self._lane.blocks.in_all(num_tokens)),
        )
        return kv

    def _num_bytes(self, num_blocks: int) -> float:
        return 0.0 if isnan(self._setup.block_bytes) else num_blocks * self._setup.block_bytes

    def _let_kept_go(self, sequence: SequenceState) -> None:
        """Free entries that were kept, and note that the client may be empty now."""
        del self.kept[sequence]
        self._release_held(sequence)
        for watcher in self._view.watchers:
            watcher(self._view)

    def settle(self, sequence: SequenceState) -> Visit:
        """Write a visit's progress so far into its record."""
        visit, lane, slot = sequence.visit, self.core, sequence.slot
        (
            visit.started_at,
            visit.first_token_at,
            sequence.last_token_at,
            sequence.num_tokens,
            sequence.num_computed_tokens,
            num_cached,
            visit.num_preemptions,
            visit.num_beside,
        ) = lane.story(slot)
        visit.num_output_tokens = sequence.num_new_tokens
        sequence.phase = WAITING if lane.is_waiting(slot) else RUNNING
        if self.caches_prefixes and num_cached >= 0:
            visit.num_queried_tokens = sequence.num_prompt_tokens
            visit.num_cached_tokens = num_cached - visit.num_fetched_tokens
        return visit

    def _tell_more(self, batch: StepBatch) -> None:
        if self._adapters is not None:
            batch.adapters = self._work
        if self._setup.replicas is not None:
            self._setup.replicas.tell(batch)
        if batch.num_decodes and self._speculation is not None:
            batch.num_drafts = self._speculation.num_drafts

    def _adapters_in_use(self) -> Iterable[str]:
        """Yield the adapters of the running requests that go on."""
        for slot in self._lane.running:
            if not self._lane.is_leaving(slot) and (name := adapter_of(self._inside[slot])):
                yield name

    def wait(self, seconds: float) -> float:
        """Return how long a step waits, also for adapters and images."""
        found = self._lane.members()
        members = [(self._inside[slot], number, before) for slot, number, before in found]
        if self._adapters is not None:
            tokens = [(sequence, number) for sequence, number, _ in members]
            self._work, seconds = self._adapters.begin(tokens, seconds)
        if self._images is not None:
            seconds += self._images.seconds(members)
        return seconds

    def gap(self, time: float, gap: float, number: int = 1, track: int = 0) -> None:
        """So many requests got their next token `gap` seconds after the one before."""
        self._recorder.gaps.add((time, gap, number))

    def emit(self, slot: int) -> None:
        """A prompt, or a preempted answer, is computed."""
        if self._setup.gate is not None:
            self._setup.gate.prompt_is_done(self._inside[slot])

    def stay(self, slot: int, first: int, last: int, resumed: bool, track: int = 0) -> None:
        """A request that ends or is preempted has decoded in these steps."""
        sequence, lane, tokens = self._inside[slot], self._lane, None
        request_id, path = sequence.visit.request.request_id, sequence.path
        if path is not None and isinstance(lane, Drafting) and (number := lane.num_decoded(slot)):
            most = sequence.num_final_tokens - lane.joined_with(slot)
            tokens, num_accepted = path.take(number, most)
            num_drafts, at = number * lane.num_drafts, lane.decoded_at()
            self._recorder.drafts.add((at, number, num_drafts, num_accepted))
        self._recorder.record_tokens(
            self._tracks[track], request_id, first, last, tokens, resumed=resumed
        )

    def draw(self, slot: int, num_tokens: int) -> bytes:
        """Return how many drafts each step to come of an answer accepts."""
        sequence = self._inside[slot]
        if sequence.path is None:
            if self._speculation is None:
                raise InvariantError("drafts without speculative_config")
            request_id = sequence.visit.request.request_id
            sequence.path = DraftPath(self._speculation.draw(request_id, num_tokens))
        return sequence.path.accepted.tobytes()

    def stand_still(self, preempted: list[int]) -> None:
        """A plan makes some give way and lets no decode take a step; raise if that has no end."""
        lane = self._lane
        progress = lane.num_given, len(self._inside)
        running = [(slot, lane.story(slot)[4]) for slot in lane.running]
        tokens = {slot: lane.tokens(slot) for slot in preempted}
        self._standstill.note(progress, running, tokens, defers=lane.defers)

    def wait_for_ever(self, num_waiting: int) -> None:
        """Nothing will let a waiting request in: raise."""
        name, lane = self._view.name, self._lane
        if lane.follows:
            raise ScenarioError(
                f"{name}: {type(self.scheduler).__name__}.plan lets no request compute at "
                f"{self._stepper.core.now:.6g} s, and nothing is on its way, with "
                f"{len(lane.running)} running and {num_waiting - len(lane.running)} waiting: no "
                "step follows that would ask it again. A plan cannot wait for arrivals or for a "
                "time: it has to lane.run or lane.admit one while it can; where blocks are "
                "short, lane.preempt others"
            )
        if self._own is not None:
            raise ScenarioError(
                f"{name}: {type(self.scheduler).__name__} lets no request compute at "
                f"{self._stepper.core.now:.6g} s, with {num_waiting} requests waiting and none "
                "running: no step follows that would ask it again. Its budget and piece have to "
                f"let a prompt go on: a block of {lane.blocks.size} tokens where states are kept"
            )
        if self._tiers is not None:
            option, remedy = "kv_cache.tiers", "no tiers"
        elif self._speculation is not None:
            option, remedy = "speculative_config", "fewer num_speculative_tokens"
        else:
            raise InvariantError(f"{name} sleeps with {num_waiting} requests waiting")
        raise ScenarioError(
            f"{name}: {num_waiting} requests wait for ever from {self._stepper.core.now:.6g} s on, "
            f"the first for blocks that no request will free, which vLLM's rules allow with "
            f"{option}; that is not simulated: have more KV-cache blocks, or {remedy}"
        )

    def copy(self, slot: int, out: bool, num_blocks: int, num_tokens: int, time: float) -> None:
        """The entries of a request are copied to the host or back, while the next step waits."""
        sequence = self._inside[slot]
        move = KvMove("swap_out", sequence, GPU, HOST, num_blocks, num_tokens)
        move = move if out else move.back()
        sequence.have_brought()  # it runs, so nothing of it is elsewhere any more
        self._move_in_step(move, time, out=out)

    # --- failures, and changes of layout ------------------------------------------------------

    def halt(self) -> None:
        """Lose the step in flight; requests stay, until each is given up."""
        if self._tiers is not None:
            self._tiers.abandon()
        self.core.halt()
        self._stepper.core.rest(self.in_heap)
        self.tell()

    def stop(self, look: Callable[[], None]) -> None:
        """End with the step in flight, and plan no more; `look` is called when it is over."""
        self._look = look
        is_still = self.core.stop_at_end()
        if self.in_heap.time < inf:
            self._stepper.core.wake(self.in_heap)
        else:
            self._stepper.core.rest(self.in_heap)
        if is_still:
            self.tell()
            self._be_still()

    def _be_still(self) -> None:
        """Note that the lane has stopped, and let its client look."""
        self.is_still = True
        if self._look is not None:
            self._look()

    def put_down(self) -> Contents:
        """Return the requests inside, and those whose entries are: no step follows."""
        core = self.core
        running = set(core.running)
        for slot, sequence in self._inside.items():
            self.settle(sequence)
            if slot in running or sequence.visit.num_preemptions:
                sequence.have_brought()
            sequence.num_queued_tokens = core.queued_tokens(slot)
        for slot in core.moved:
            if not (sequence := self._inside[slot]).is_brought:  # it came back from the host
                sequence.bring(core.to_come(slot)[1])
        return Contents(
            list(self._inside.values()),
            {self._inside[slot]: core.is_decoding(slot) for slot in core.running},
            {self._inside[slot] for slot in (*core.moved, *core.loaded)},
            {self._inside[slot] for slot in core.swapped},
            {each: each.num_tokens - 1 for each in self.kept},
        )

    def take_off(self, sequence: SequenceState) -> int:
        """Remove a running sequence; return how many of its tokens have KV entries."""
        num_tokens = self.core.take_off(sequence.slot)
        self.settle(sequence)
        return int(num_tokens)

    @property
    def has_moves(self) -> bool:
        """Whether entries are on their way, here or to the host."""
        return bool(self._coming or self._lane.going)

    # --- from the lanes of another layout (see `layouts.carry_over`) ----------------------------

    @property
    def num_inside(self) -> int:
        """How many sequences run, or wait with their entries to continue."""
        return len(self._lane.running) + len(self._lane.moved)

    @property
    def num_free(self) -> int:
        """Free blocks."""
        return int(self._lane.blocks.num_free)

    def carry_running(self, sequence: SequenceState, num_tokens: int, *, decodes: bool) -> bool:
        """Let a sequence go on with entries of so many tokens; return whether it has room."""
        if len(self._lane.running) == self._lane.max_num_seqs:
            return False
        self.add_request(sequence, comes=False)
        return self._keep(sequence, self._lane.carry(sequence.slot, num_tokens, decodes))

    def carry_brought(self, sequence: SequenceState) -> bool:
        """Let a sequence with entries from elsewhere wait to continue, if it has room."""
        self.add_request(sequence, comes=False)
        return self._keep(sequence, self._lane.carry_brought(sequence.slot))

    @property
    def num_swapped(self) -> int:
        """How many sequences have their entries on the host."""
        return len(self._lane.swapped)

    def carry_swapped(self, sequence: SequenceState) -> None:
        """Let a sequence wait whose entries are on the host, which all lanes share."""
        self.add_request(sequence, comes=False)
        self._lane.carry_swapped(sequence.slot)
        self._keep(sequence, True)

    def let_outgrown_go(self) -> None:
        """Let those on the host go that need more blocks than there are, so never come back."""
        for slot in list(self.core.swapped):
            sequence = self._inside[slot]
            if (reason := self.needs.outgrown(sequence)) is None:
                continue
            visit = self.settle(sequence)
            sequence.num_queued_tokens = self._lane.queued_tokens(slot)
            self._lane.give_up(self._stepper.env.now, slot)
            del self._inside[slot]
            sequence.lane = None
            self.leave(visit, reason)

    def carry_held(self, sequence: SequenceState, kv: HeldKv, num_tokens: int) -> None:
        """Keep the entries of a sequence that is done for another client."""
        self.add_request(sequence, comes=False)
        del self._inside[sequence.slot]
        self._lane.carry_held(sequence.slot)
        self.kept[sequence] = kv
        num_bytes = self._num_bytes(-(num_tokens // -self._lane.blocks.size))
        kv.change_hands(partial(self._let_kept_go, sequence), self._engine, num_bytes)

    def carry_waiting(self, sequence: SequenceState) -> None:
        """Queue a sequence without entries; it keeps its position by arrival."""
        self.add_request(sequence, comes=False)
        self._keep(sequence, True, waits=True)

    def _keep(self, sequence: SequenceState, has_room: bool, *, waits: bool = False) -> bool:
        """Have a sequence that was in another lane, if it has room here; return whether it has."""
        slot, visit = sequence.slot, sequence.visit
        if not has_room:
            del self._inside[slot]
            return False
        self._lane.resume(
            slot, visit.started_at, visit.first_token_at, visit.num_preemptions, visit.num_beside
        )
        if self._ranked is not None:
            self._ranked.take_over(sequence, waits=waits)
        return True

    def sleep_until(self, time: float) -> None:
        """Plan nothing before a time in seconds; call it when all initial work is queued."""
        self._lane.begin_at(time)
        if self.in_heap.time < inf:
            self._stepper.core.wake(self.in_heap)

    def flush(self) -> None:
        """Write the steps that are not written yet."""
        self.core.write()
        self.core.rows.hand_over_ends()


def blocks_of(memory: LaneMemory) -> Blocks:
    """Return the blocks of a lane, all free."""
    caches, uncached_first = memory.caches_prefixes, memory.uncached_first
    pool = memory.pool()
    if isinstance(pool, PagePool):
        return PagedBlocks(pool, memory.page_rules, caches, uncached_first, memory.hashes_ahead)
    kind = TieredBlocks if memory.tiers else Blocks
    blocks: Blocks = kind(
        pool.num_blocks,
        pool.block_size,
        pool.num_reserved,
        caches,
        uncached_first,
        memory.num_recomputed,
        memory.hashes_ahead,
    )
    blocks.cache.eviction = memory.eviction
    return blocks


class SteppedTogether:
    """Lanes in lockstep, or virtual engines, as the stepper knows them."""

    def __init__(self, stepper: Stepper, lanes: list[SteppedLane], core: Lane) -> None:
        self._lanes, self._core = lanes, core
        for lane in lanes:
            core.is_watched |= lane.in_heap.is_watched
            lane.in_heap = core
        stepper.lanes.append(self)

    @classmethod
    def in_lockstep(
        cls,
        stepper: Stepper,
        phases: tuple[int, int],
        lanes: list[SteppedLane],
        replicas: Replicas,
    ) -> SteppedTogether:
        """Let lanes step together."""
        cores: list[Any] = [lane.in_heap for lane in lanes]
        together = Lockstep(len(stepper.lanes), *phases, cores, replicas.share)
        return cls(stepper, lanes, together)

    @classmethod
    def in_turn(
        cls,
        stepper: Stepper,
        phases: tuple[int, int],
        lanes: list[SteppedLane],
        replicas: Replicas | None,
        predictor: PipelinePredictor,
    ) -> SteppedTogether:
        """Let lanes take turns at the ranks: those of one pipeline, or of several in lockstep."""
        place, size = (len(stepper.lanes), *phases), len(predictor.ranks)
        share = (lambda _: None) if replicas is None else replicas.share
        cores: list[Any] = [lane.in_heap for lane in lanes]
        for lane, core in zip(lanes, cores, strict=True):
            core.ranks = lane.rank_times
        engines = [VirtualEngine(*place, cores[number::size], share) for number in range(size)]
        return cls(stepper, lanes, VirtualPipeline(*place, engines, predictor.rank_delay))

    def tell(self) -> None:
        """Let others see the latest step of all."""
        self._core.notices = []
        for lane in self._lanes:
            lane.tell()

    def flush(self) -> None:
        """Do nothing: each lane writes its own steps."""


def rows_of(recorder: Recorder, track: int, steps_inside: Any, num_drafts: int) -> Rows:
    """Return what writes the steps of a track. num_drafts: that each decode verifies."""
    sink = recorder.step_sink(track) if steps_inside is None and not num_drafts else None
    if sink is not None:
        return Rows(sink.add, sink.ends)
    ends = array("d")

    def add(row: StepRow) -> None:
        rows.hand_over_ends()
        start, num_steps, _, _, num_decodes, context_sum, *_ = row
        batch = StepBatch(rows.chunks, num_decodes, context_sum)
        tokens = None
        if num_drafts and num_decodes:
            batch.num_drafts = num_drafts
            tokens = np.array(rows.tokens, dtype=np.int64)
            del rows.tokens[:]
        num_extrapolated = 0
        if steps_inside is not None:
            num_inside = steps_inside(batch, StepGrowth(num_decodes))
            num_extrapolated = max(num_steps - num_inside, 0)
        those = ends[:num_steps].tolist()
        del ends[:num_steps]
        busy, num_waiting, num_used, num_gaps = row[8:12]
        recorder.record_steps(
            track,
            start,
            those,
            num_steps,
            batch,
            busy,
            num_waiting,
            num_used,
            num_gaps,
            num_extrapolated,
            tokens,
        )

    rows = Rows(add, ends)
    return rows


class SteppedEngines:
    """The engines of a client, each of so many lanes; a request stays at the lane it comes to."""

    def __init__(self, lanes: list[SteppedLane], size: int = 1) -> None:
        self.lanes = lanes
        self._engines = [lanes[start : start + size] for start in range(0, len(lanes), size)]
        self._only = lanes[0] if len(lanes) == 1 else None
        if self._only is not None:
            self.add_request = self._only.add_request  # type: ignore[method-assign]

    def next_lane(self) -> SteppedLane:
        """Return the lane that the next request gets.

        Of the least loaded engine, the one with the fewest requests, each time the first of equals.
        """
        if self._only is not None:
            return self._only
        if len(self._engines) == len(self.lanes):
            return min(self.lanes, key=attrgetter("score"))
        engine = min(self._engines, key=lambda lanes: sum([lane.score for lane in lanes]))
        return min(engine, key=attrgetter("num_unfinished"))

    def num_unwritten(self) -> int:
        """Return the output tokens of all steps that have ended by now."""
        number = 0
        for lane in self.lanes:
            number += lane.core.num_given
        return number

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence at an engine, where it stays."""
        self.next_lane().add_request(sequence)

    def stop(self, look: Callable[[], None]) -> None:
        """Let every lane end with its step in flight, and plan no more.

        look: called when all have, and when something comes to them or leaves them afterwards.
        """

        def look_if_still() -> None:
            if self.are_still:
                look()

        for lane in self.lanes:
            lane.stop(look_if_still)

    def turn(self, scheduler: ChunkedScheduler, flow: FlowRule | None) -> None:
        """Use another scheduler and another rule for answers that flow, from the next plan on.

        flow: None: keep the rule.
        """
        for lane in self.lanes:
            lane.turn(scheduler, flow)

    @property
    def are_still(self) -> bool:
        """Whether all have ended after `stop`."""
        return all(lane.is_still for lane in self.lanes)

    def sleep_until(self, time: float) -> None:
        """Plan nothing before a time in seconds; call it when all initial work is queued."""
        for lane in self.lanes:
            lane.sleep_until(time)
