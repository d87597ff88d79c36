"""The state of a lane: its waiting and running sequences, and the memory that they hold."""

from __future__ import annotations

from mist_sim.clients.decode.clock_of_lane import clock_of_lane
from mist_sim.clients.decode.speculative_clock import Speculation, SpeculativeClock
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import KvCacheManager, SwapSpace
from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.kv_cache.pages import PageManager
from mist_sim.clients.scheduling.adapter_slots import AdapterSlots
from mist_sim.clients.scheduling.cadence import Cadence
from mist_sim.clients.scheduling.coming_entries import ComingEntries
from mist_sim.clients.scheduling.image_times import ImageTimes
from mist_sim.clients.scheduling.in_flight_blocks import InFlightBlocks
from mist_sim.clients.scheduling.known_tokens import KnownTokens
from mist_sim.clients.scheduling.memory_needs import MemoryNeeds
from mist_sim.clients.scheduling.order import FirstComeFirstServed, WaitingQueue
from mist_sim.clients.scheduling.overruns import Overruns
from mist_sim.clients.scheduling.standstill import Standstill
from mist_sim.clients.scheduling.swap_state import SwapState
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import ReadsAgain


class LaneState:
    """The sequences of a lane, each in one place from its arrival until it leaves.

    It waits in the queue, perhaps until its blocks are loaded; runs, with blocks for all its
    tokens, first in prefill and then on the decode clock; may be swapped out; and leaves.
    `admission` and `preemption` carry out a scheduler's decisions, and `update` applies the effect
    of executed steps.

    waiting: the queue, by the scheduler's order.
    running: sequences with memory and a seat, in order of admission. prefilling: running sequences
        whose prompt is not computed. leaving: sequences that are done or gave up before the plan of
        the next step knew it: they keep seat and blocks until that plan is made; also sequences
        without a seat whose blocks another client has copied. (blocks, computed tokens) of each.
    held: sequences that are done here and keep their blocks until another client has copied them:
        (blocks, computed tokens) of each.
    swapped: sequences whose blocks lie in host memory, the first to leave first. swaps: the room
        there, and the copies under way.
    clock: the decodes, and the blocks that they need. kv_cache, pool: the holders of blocks.
    num_peak_blocks: blocks held in the last step of the latest run.
    by_piece: whether prompts take blocks piece by piece, and decodes when their step is planned
        (vLLM v1), and not prompts all at once and decodes in their step (v0). Not with swapping.
    pages: the holder of blocks where layers have windows or states: it lends them to each sequence
        in its turn, as its step is planned; else None.
    needs: how many blocks sequences need. coming: sequences whose entries come from elsewhere.
    in_flight: blocks that the step in flight may write. known: which tokens the next plan knows.
    num_taken: blocks that the decodes took for the first step of a plan not accounted for yet.
    paused: decodes that skip the present step.
    overruns: sequences that have ended and take part in the next step, planned ahead with drafts.
        None: there are no such plans.
    time: when the plan is made, in seconds of the run, for schedulers that see it.
    adapters: LoRA adapters on the GPUs; None: the engine serves none.
    images: encodes those of prompts; None: the engine serves none.
    """

    def __init__(
        self,
        kv_cache: KvCacheManager,
        waiting: WaitingQueue,
        *,
        max_num_seqs: int,
        speculation: Speculation | None = None,
        swap_space: SwapSpace | None = None,
        swaps_overlap: bool = False,
        plans_ahead: bool = False,
        needs_longest_context: bool = False,
        reads_again: ReadsAgain | None = None,
        by_piece: bool = False,
        rules: EngineRules | None = None,
        cadence: Cadence | None = None,
        tells_joins: bool = False,
    ) -> None:
        """Begin with no sequences.

        waiting: an empty queue. max_num_seqs: sequences that may run at once, which is a part of
            the scheduler's where several lanes share an engine.
        speculation: speculative decoding of all decodes; None: off.
        swap_space: where preempted sequences are copied; None: they are computed again.
        swaps_overlap: whether steps go on while they are copied.
        plans_ahead: whether the next step is planned before this one ends.
        needs_longest_context: whether batches contain the longest context.
        reads_again: of the predictor (see `PredictorTraits`).
        by_piece: whether the scheduler lets prompts take blocks piece by piece.
        rules: rules of the engine's version; None: those of vLLM 0.12.
        cadence: when steps may carry prompts; None: always.
        tells_joins: whether the clock lists joined sequences; not with windows and drafts.
        """
        self.kv_cache = kv_cache
        self.pool = kv_cache.pool
        self.pages = kv_cache if isinstance(kv_cache, PageManager) else None
        self.clock = clock_of_lane(kv_cache, speculation, tells_joins=tells_joins)
        if needs_longest_context:
            self.clock.watch_longest()
        if kv_cache.caches_prefixes and not self.pool.groups:
            self.clock.watch_prefixes(reads_again)
        self.max_num_seqs = max_num_seqs
        self.speculation = speculation
        self.swap_space = swap_space
        self.swaps = SwapState(swap_space, overlap=swaps_overlap)
        self.plans_ahead = plans_ahead
        self.rules = rules or EngineRules()
        self.cadence = cadence
        self.by_piece = by_piece and swap_space is None
        has_tiers = kv_cache.tiers is not None
        if kv_cache.tiers is not None:
            kv_cache.tiers.takes_all = not self.by_piece
        # blocks of one token are taken by the step that fills them, which may be lost
        is_early = self.by_piece and self.pool.block_size > 1
        drafts_in_time = speculation is not None and not plans_ahead
        is_late = is_early and drafts_in_time and not self.rules.caches_verified
        self.needs = MemoryNeeds(kv_cache, self.rules, speculation, by_piece=self.by_piece)
        self.in_flight = InFlightBlocks(
            kv_cache.answers,
            defers=plans_ahead and self.by_piece and has_tiers and self.rules.defers_frees,
            spares=self.rules.spares_in_flight and speculation is None,
        )
        self._standstill = Standstill()
        self.overruns: Overruns | None = None
        if isinstance(self.clock, SpeculativeClock) and speculation is not None and plans_ahead:
            self.overruns = Overruns(self.clock, self.pool, speculation)
        self.known = KnownTokens(self.clock, kv_cache.answers, self.overruns, is_late=is_late)
        kv_cache.answers.follow(self.clock, is_early=is_early, is_late=is_late)
        self.num_taken = 0
        self.paused: tuple[SequenceState, ...] = ()
        self.waiting = waiting
        self.coming = ComingEntries(kv_cache, self.needs, self.swaps, waiting)
        if kv_cache.tiers is not None and not kv_cache.tiers.in_step:
            in_one = self.rules.preempted_first and isinstance(waiting, FirstComeFirstServed)
            self.coming.preempted_first = in_one
        self.running: dict[SequenceState, None] = {}
        self.leaving: dict[SequenceState, tuple[int, int]] = {}
        self.prefilling: list[SequenceState] = []
        self.held: dict[SequenceState, tuple[int, int]] = {}
        self.swapped: dict[SequenceState, KvMove] = {}
        self.num_peak_blocks = 0
        self.time = 0.0
        self.num_arrived = 0
        self.adapters: AdapterSlots | None = None
        self.images: ImageTimes | None = None

    # --- sequences that come and go -------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence."""
        sequence.arrival = self.num_arrived
        self.num_arrived += 1
        self.kv_cache.add(sequence)
        self.waiting.add(sequence)

    def finish(self, sequence: SequenceState, num_blocks: int, num_computed: int) -> None:
        """Let a sequence go that is done, but hold its blocks if another client needs them."""
        if sequence.visit.is_followed and sequence.visit.outcome is None:
            self.held[sequence] = num_blocks, num_computed
        if self.overruns is not None:
            self.overruns.begin(sequence, num_blocks)
        self._leave(sequence, num_blocks, self.known.cacheable(sequence, num_computed))

    def move_out(self, sequence: SequenceState) -> None:
        """Release a decode that another client continues; its blocks are held until copied."""
        self.held[sequence] = num_blocks, num_computed = self.stop(sequence)
        self._leave(sequence, num_blocks, num_computed)

    def _leave(self, sequence: SequenceState, num_blocks: int, num_computed: int) -> None:
        """Take back the seat and the blocks of a sequence, once the plan ahead is made."""
        if self.plans_ahead:
            self.leaving[sequence] = num_blocks, num_computed
        else:
            self._free(sequence, num_blocks, num_computed)

    def free_leaving(self) -> None:
        """Take back the seats and blocks of leaving sequences: the next plan knows of them."""
        if self.in_flight.deferred:
            self.in_flight.end_step()
        if self.overruns:
            self.num_taken = self.overruns.end_all(self.leaving, self.num_taken)
        for sequence, (num_blocks, num_computed) in self.leaving.items():
            self._free(sequence, num_blocks, num_computed)
        self.leaving.clear()

    def has_ended(self, sequence: SequenceState) -> bool:
        """Tell whether a running sequence has all its tokens, or will without another plan."""
        return sequence in self.leaving

    def preempt_leaving(self, sequence: SequenceState, *, was_served: bool = False) -> None:
        """Take back the seat and blocks of a leaving sequence, for a plan short of memory.

        was_served: as of `num_known`; here it has no turns.
        """
        num_blocks, num_computed = self.leaving.pop(sequence)
        num_known = self.num_known(sequence, num_computed)
        if self.overruns is not None and (overrun := self.overruns.end(sequence)) is not None:
            num_known = num_computed - overrun.num_last
        self._free_in_flight(sequence, num_blocks, num_known, num_computed)

    def _free_in_flight(
        self, sequence: SequenceState, num_blocks: int, num_known: int, num_computed: int
    ) -> None:
        """Take back the seat and blocks of a sequence that a step in flight may compute."""
        del self.running[sequence]
        num_unknown = num_computed - num_known
        self.in_flight.take_back(sequence, self._free, num_blocks, num_known, num_unknown)

    def _free(
        self, sequence: SequenceState, num_blocks: int, num_computed: int, num_unknown: int = 0
    ) -> None:
        self.running.pop(sequence, None)
        if sequence in self.swaps.going:
            del self.swaps.going[sequence]
            self.kv_cache.swap_out(sequence, num_blocks, num_computed)
            if sequence not in self.swapped:  # it was given up meanwhile
                self.swaps.room.release(self.pool.blocks_of(num_computed))
        elif sequence not in self.held:
            self.kv_cache.free(sequence, num_blocks, num_computed, num_unknown)

    def num_known(
        self,
        sequence: SequenceState,
        num_computed: int,
        *,
        was_served: bool = False,
        in_prefill: bool = False,
    ) -> int:
        """Computed tokens of a sequence that the next plan knows and can cache.

        was_served, in_prefill: of `KnownTokens.of`.
        """
        return self.known.of(sequence, num_computed, was_served=was_served, in_prefill=in_prefill)

    def decoding(self) -> list[SequenceState]:
        """Return the decodes of the next step, in order of admission."""
        away = {*self.prefilling, *self.paused, *self.leaving}
        return [sequence for sequence in self.running if sequence not in away]

    def is_busy(self, sequence: SequenceState) -> bool:
        """Tell whether a running sequence takes no part in plans: it is done, or leaves."""
        return sequence in self.leaving

    def release_held(self, sequence: SequenceState) -> None:
        """Free blocks that were held, or copied to host memory.

        No step in flight has their order in the free queue.
        """
        if sequence in self.swaps.going:
            self._leave(sequence, *self.swaps.going[sequence])
        else:
            self._leave(sequence, *self.held.pop(sequence))

    def abort(self, sequence: SequenceState, *, in_step: bool = False) -> None:
        """Forget a sequence that waits or runs, and free its memory; no step in flight has it.

        While blocks come into its memory, that stays taken.
        in_step: whether steps of the lane are in flight; the memory is free as they are accounted
        for.
        """
        if sequence in self.running:
            if self.paused:  # paused by a plan that computed nothing
                self.end_pause()
            num_blocks, num_computed = self.stop(sequence)
            self._leave(sequence, num_blocks, self.known.cacheable(sequence, num_computed))
        elif sequence in self.swapped:
            swap = self.swapped.pop(sequence)
            if sequence not in self.swaps.going:
                self.swaps.room.release(swap.num_blocks)
        elif not self.coming.give_up(sequence, in_step=in_step):
            self.waiting.remove(sequence)

    def abort_late(self, sequence: SequenceState) -> None:
        """Forget a sequence that was given up a step ago; no step is in flight.

        One that runs gives its memory back at once, for the plan that is now made ahead.
        """
        if sequence not in self.running:
            self.abort(sequence)
            return
        if self.paused:
            self.end_pause()
        in_prefill = sequence in self.prefilling
        num_blocks, num_computed = self.stop(sequence)
        num_known = self.num_known(sequence, num_computed, in_prefill=in_prefill)
        self._free_in_flight(sequence, num_blocks, num_known, num_computed)

    def stop(self, sequence: SequenceState) -> tuple[int, int]:
        """Take a running sequence out of the batch; seat and blocks are for the caller to free.

        Returns its blocks, and how many of its tokens are computed.
        """
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
            num_computed = sequence.num_computed_tokens
            if self.by_piece:
                num_slots = self.needs.slots_ahead(sequence, num_computed)
                sequence.num_ahead = 0
                return self.kv_cache.num_held(sequence, num_slots), num_computed
            return self.pool.blocks_for(sequence.num_tokens), num_computed
        num_tokens = self.leave_clock(sequence)
        return self.pool.blocks_for(num_tokens), sequence.num_tokens - 1

    def leave_clock(self, sequence: SequenceState) -> int:
        """Take a sequence off the clock; return the tokens that it holds memory for."""
        if self.kv_cache.shares_blocks:
            self.kv_cache.answers.settle(sequence)
        return self.clock.leave(sequence)

    # --- waiting sequences and free memory ---------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Sequences waiting for admission, including those whose blocks are on the way."""
        coming = self.coming
        num_coming = len(coming.loading) + len(coming.loaded) + len(coming.moved)
        return len(self.waiting) + num_coming + len(self.swapped)

    @property
    def num_running(self) -> int:
        """Sequences that run and go on."""
        if not self.leaving:
            return len(self.running)
        return len(self.running) - sum([each in self.running for each in self.leaving])

    def head(self) -> SequenceState | None:
        """Return the next sequence to admit: mostly loaded ones first, then the queue.

        None while sequences are swapped out, or have their entries and no room to continue. Fetched
        prompts hold memory that the swapped ones wait for, so they do not wait for these; with
        swaps that overlap with steps, returned prompts wait for no other sequence either.
        """
        waiting, coming = self.waiting, self.coming
        if (self.swapped or coming.moved) and not coming.goes_first():
            return None
        if not coming.loaded:
            return waiting.head() if waiting else None
        loaded = waiting.first(coming.loaded)
        if waiting and coming.is_before_loaded(waiting.head()):
            return waiting.head()
        if not waiting or self.rules.loaded_first:
            return loaded
        return waiting.first((loaded, waiting.head()))

    @property
    def num_decode_steps(self) -> int:
        """Steps so far in which any of its sequences decoded."""
        return self.clock.steps

    def note_standstill(self, preempted: tuple[SequenceState, ...]) -> None:
        """Note a plan that preempts and lets no decode take a step; raise if that has no end."""
        num_left = self.num_arrived - self.num_waiting - len(self.running)
        progress = num_left, self.num_decode_steps
        running = [(sequence, sequence.num_computed_tokens) for sequence in self.running]
        tokens = {sequence: sequence.num_tokens for sequence in preempted}
        self._standstill.note(progress, running, tokens, defers=self.in_flight.defers)

    def has_seat(self) -> bool:
        """Tell whether one more may run."""
        return len(self.running) < self.max_num_seqs

    def num_admissible(self, num_needed: int) -> int:
        """Blocks that an admission may take when the decodes need `num_needed`.

        The reserve is for running sequences; without any, it would only keep requests out.
        """
        num_reserved = self.pool.num_reserved if self.running else 0
        return self.pool.num_free - num_needed - num_reserved

    # --- the work of a plan -------------------------------------------------------------------

    def end_pause(self) -> None:
        """Let paused decodes run again."""
        for sequence in self.paused:
            self.clock.join(sequence)
        self.paused = ()

    def steps_until_change(self, limit: int) -> int:
        """Steps, at most `limit`, that the decodes run before one ends or blocks run short.

        The first step must have room.
        """
        if limit == 1 or not self.clock.num_decodes:
            return limit
        return self.clock.steps_until(self.pool.num_free + self.num_taken, limit)
