"""The state of a lane: its waiting and running sequences, and the memory that they hold."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.decode.speculative_clock import Speculation, SpeculativeClock
from mist_sim.clients.decode.speculative_window_clock import SpeculativeWindowClock
from mist_sim.clients.decode.watched_clock import WatchedClock
from mist_sim.clients.decode.window_clock import WindowClock
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import KvCacheManager, SwapSpace
from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.clients.kv_cache.pages.page_manager import PageManager
from mist_sim.clients.scheduling.adapter_slots import AdapterSlots
from mist_sim.clients.scheduling.cadence import Cadence
from mist_sim.clients.scheduling.image_times import ImageTimes
from mist_sim.clients.scheduling.memory_needs import MemoryNeeds
from mist_sim.clients.scheduling.order import WaitingQueue
from mist_sim.clients.scheduling.overruns import Overruns
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.swap_state import SwapState
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth

TakeBack = Callable[..., None]
"""Takes the blocks of a sequence back: the sequence, then numbers of blocks and tokens."""


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
    loading: sequences with memory that wait for entries to come. loaded: sequences whose prompt has
        its loaded entries, and waits to be admitted. moved: sequences with entries from another
        client that wait to continue their answer. abandoned: sequences given up while their entries
        are still coming.
    forgotten: sequences given up with memory that they did not use, while steps were in flight,
        with their blocks.
    deferred: what takes back blocks as the step in flight ends, which may write them.
    idle: running sequences that the latest planned step does not compute, where blocks of
        the others are deferred (`defers_frees`).
    num_promised: blocks that sequences with entries coming or come from other clients need in their
        first step, beyond those they have.
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
    needs: how many blocks sequences need.
    num_taken: blocks that the decodes took for the first step of a plan not accounted for yet.
    paused: decodes that skip the present step.
    overruns: who has ended and takes part in the next step, which is planned ahead with drafts.
        None: there are no such plans.
    is_behind: whether the next plan does not know the decodes' latest tokens. lacks_tokens: nor did
        the plan before know those of the step before that.
    notes: a scheduler's notes on the lane, kept from plan to plan.
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
        by_piece: whether the scheduler lets prompts take blocks piece by piece.
        rules: rules of the engine's version; None: those of vLLM 0.12.
        cadence: when steps may carry prompts; None: always.
        tells_joins: whether the clock lists joined sequences; not with windows and drafts.
        """
        self.kv_cache = kv_cache
        self.pool = kv_cache.pool
        self.pages = kv_cache if isinstance(kv_cache, PageManager) else None
        self.clock = _clock(kv_cache, speculation, tells_joins=tells_joins)
        if needs_longest_context:
            self.clock.watch_longest()
        self.max_num_seqs = max_num_seqs
        self.speculation = speculation
        self.swap_space = swap_space
        self.swaps = SwapState(swap_space, overlap=swaps_overlap)
        self.plans_ahead = plans_ahead
        self.rules = rules or EngineRules()
        self.cadence = cadence
        self.by_piece = by_piece and swap_space is None
        if kv_cache.tiers is not None:
            kv_cache.tiers.takes_all = not self.by_piece
        # blocks of one token are taken by the step that fills them, which may be lost
        is_early = self.by_piece and self.pool.block_size > 1
        drafts_in_time = speculation is not None and not plans_ahead
        self._is_late = is_early and drafts_in_time and not self.rules.caches_verified
        self.needs = MemoryNeeds(kv_cache, self.rules, speculation, by_piece=self.by_piece)
        is_loaded = kv_cache.tiers is not None and self.by_piece
        self.defers_frees = plans_ahead and is_loaded and self.rules.defers_frees
        spares = self.rules.spares_in_flight and speculation is None
        self._spares_in_flight = self.defers_frees and spares
        self.idle: set[SequenceState] = set()
        self.overruns: Overruns | None = None
        if isinstance(self.clock, SpeculativeClock) and speculation is not None and plans_ahead:
            self.overruns = Overruns(self.clock, self.pool, speculation)
        kv_cache.answers.follow(self.clock, is_early=is_early, is_late=self._is_late)
        self.num_taken = 0
        self.paused: tuple[SequenceState, ...] = ()
        self.waiting = waiting
        self.running: dict[SequenceState, None] = {}
        self.leaving: dict[SequenceState, tuple[int, int]] = {}
        self.prefilling: list[SequenceState] = []
        self.loading: dict[SequenceState, None] = {}
        self.loaded: deque[SequenceState] = deque()
        self.moved: deque[SequenceState] = deque()
        self.abandoned: set[SequenceState] = set()
        self.forgotten: list[tuple[SequenceState, int]] = []
        self.deferred: list[Callable[[], None]] = []
        self.held: dict[SequenceState, tuple[int, int]] = {}
        self.num_promised = 0
        self.swapped: dict[SequenceState, KvMove] = {}
        self.num_peak_blocks = 0
        self.notes: dict[str, Any] = {}
        self.time = 0.0
        self.is_behind = self.lacks_tokens = False
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

    def finish_load(self, sequence: SequenceState, *, in_step: bool = False) -> bool:
        """Let a sequence be admitted whose entries have arrived, unless it was given up.

        in_step: whether steps of the lane are in flight.
        Returns whether it can be; otherwise its memory is free now, or as they are accounted for.
        """
        if self.swaps.returning:
            self.swaps.end_return(sequence)
        if sequence in self.abandoned:
            self.abandoned.remove(sequence)
            self._forget(sequence, in_step=in_step)
            return False
        del self.loading[sequence]
        kv = sequence.incoming
        if kv is not None and kv.is_lost and sequence.has_rest:
            self._compute_all(sequence, in_step=in_step)
            return False
        decodes = sequence.is_brought and not sequence.has_rest
        (self.moved if decodes else self.loaded).append(sequence)
        return True

    def _compute_all(self, sequence: SequenceState, *, in_step: bool) -> None:
        """Queue a prompt again whose entries were lost on their way."""
        self.num_promised -= self.needs.to_join(sequence)
        self._forget(sequence, in_step=in_step)
        sequence.forget_brought()
        self.waiting.give_back(sequence)

    def finish(self, sequence: SequenceState, num_blocks: int, num_computed: int) -> None:
        """Let a sequence go that is done, but hold its blocks if another client needs them."""
        if sequence.visit.is_followed and sequence.visit.outcome is None:
            self.held[sequence] = num_blocks, num_computed
        if self.overruns is not None:
            self.overruns.begin(sequence, num_blocks)
        self._leave(sequence, num_blocks, self._num_cacheable(sequence, num_computed))

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
        if self.deferred:
            for take_back in self.deferred:
                take_back()
            self.deferred.clear()
        if self.overruns:
            self._end_overruns(self.overruns)
        for sequence, (num_blocks, num_computed) in self.leaving.items():
            self._free(sequence, num_blocks, num_computed)
        self.leaving.clear()

    def _end_overruns(self, overruns: Overruns) -> None:
        """Take who has ended out of the step that is planned for them, with the blocks for it."""
        for sequence, (num_blocks, num_computed) in self.leaving.items():
            overrun = overruns.end(sequence)
            if overrun is not None and self.num_taken >= overrun.num_blocks:
                self.num_taken -= overrun.num_blocks
                self.leaving[sequence] = num_blocks + overrun.num_blocks, num_computed

    def preempt_leaving(self, sequence: SequenceState) -> None:
        """Take back the seat and blocks of a leaving sequence, for a plan short of memory."""
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
        self.take_back(sequence, self._free, num_blocks, num_known, num_unknown)

    @property
    def is_sparing(self) -> bool:
        """Whether nobody gives way now whom the step in flight computes."""
        return self._spares_in_flight and self.kv_cache.answers.is_ahead

    def spares(self, sequence: SequenceState) -> bool:
        """Tell whether a running sequence cannot give way, since the step in flight computes it."""
        return self.is_sparing and sequence not in self.idle

    def take_back(self, sequence: SequenceState, how: TakeBack, *numbers: int) -> None:
        """Take blocks back now, or, if a step in flight may write them, when it is over."""
        is_in_flight = self.kv_cache.answers.is_ahead and sequence not in self.idle
        if self.defers_frees and is_in_flight:
            self.deferred.append(partial(how, sequence, *numbers))
        else:
            how(sequence, *numbers)

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
        self, sequence: SequenceState, num_computed: int, *, was_served: bool = False
    ) -> int:
        """Computed tokens of a sequence that the next plan knows and can cache.

        If the plan is made ahead, the decode's latest token is still unknown.

        was_served: whether it had its turn in that plan, which caches its computed tokens.
        """
        if self._is_late and not was_served:
            return self._num_cacheable(sequence, num_computed)
        if self.overruns is not None:
            path = sequence.path
            if not self.is_behind or path is None or not path.num_last:
                return num_computed
            return num_computed - path.num_last + (was_served or not self.lacks_tokens)
        if was_served or not self.lacks_tokens or sequence.join_step == self.clock.steps:
            return num_computed
        return max(sequence.num_computed_tokens, num_computed - 1)

    def _num_cacheable(self, sequence: SequenceState, num_computed: int) -> int:
        """Computed tokens that are cached of a sequence off the clock, for which no plan is made.

        Where drafts are cached with the next plan, not those that its last step verified.
        """
        path = sequence.path
        if not self._is_late or path is None or not path.num_steps:
            return num_computed
        return min(num_computed, sequence.num_tokens - path.step_tokens.item(-1))

    def num_computed(self, sequence: SequenceState) -> int:
        """Return the computed tokens of a sequence that runs."""
        if sequence in self.prefilling:
            return sequence.num_computed_tokens
        return self.clock.context(sequence)

    def decoding(self) -> list[SequenceState]:
        """Return the decodes of the next step, in order of admission."""
        away = {*self.prefilling, *self.paused, *self.leaving}
        return [sequence for sequence in self.running if sequence not in away]

    def is_busy(self, sequence: SequenceState) -> bool:
        """Tell whether no plan is for a running sequence now: it is done, or on its way."""
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
            self._leave(sequence, num_blocks, self._num_cacheable(sequence, num_computed))
        elif sequence in self.swapped:
            swap = self.swapped.pop(sequence)
            if sequence not in self.swaps.going:
                self.swaps.room.release(swap.num_blocks)
        elif sequence in self.loading:
            del self.loading[sequence]
            self.abandoned.add(sequence)
            sequence.num_computed_tokens = 0
            if sequence.is_brought:
                self.num_promised -= self.needs.to_join(sequence)
        elif sequence in self.loaded:
            self.loaded.remove(sequence)
            if sequence.is_brought:
                self.num_promised -= self.needs.to_join(sequence)
            self._forget(sequence, in_step=in_step)
        elif sequence in self.moved:
            self.moved.remove(sequence)
            self.num_promised -= self.needs.to_join(sequence)
            self._forget(sequence, in_step=in_step)
        else:
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
        num_blocks, num_computed = self.stop(sequence)
        num_known = self.num_known(sequence, num_computed)
        self._free_in_flight(sequence, num_blocks, num_known, num_computed)

    def _forget(self, sequence: SequenceState, *, in_step: bool) -> None:
        """Free the memory of a sequence that was given up before it could use it.

        Blocks that steps in flight have taken meanwhile are counted at their end, and come before.
        """
        if sequence.is_brought:
            num_blocks = self.pool.blocks_for(sequence.num_brought)
        else:
            num_blocks = self.kv_cache.num_reserved(sequence)
        if in_step and not self.pool.groups:
            self.forgotten.append((sequence, num_blocks))
        else:
            self._free_unused(sequence, num_blocks)

    def give_load_back(self) -> None:
        """Queue the sequence again whose load ended last, without memory."""
        sequence = self.loaded.pop()
        self._free_unused(sequence, self.kv_cache.num_reserved(sequence))
        self.waiting.give_back(sequence)

    def free_forgotten(self) -> None:
        """Free the blocks of sequences given up while steps were in flight."""
        for sequence, num_blocks in self.forgotten:
            self._free_unused(sequence, num_blocks)
        self.forgotten.clear()

    def _free_unused(self, sequence: SequenceState, num_blocks: int) -> None:
        self.kv_cache.forget(sequence, num_blocks)
        if sequence.chain is not None:
            sequence.chain.start_over()

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
        num_coming = len(self.loading) + len(self.loaded) + len(self.moved)
        return len(self.waiting) + num_coming + len(self.swapped)

    @property
    def num_running(self) -> int:
        """Sequences that run and go on."""
        return len(self.running) - sum([each in self.running for each in self.leaving])

    def head(self) -> SequenceState | None:
        """Return the next sequence to admit: mostly loaded ones first, then the queue.

        None while sequences are swapped out, or have their entries and no room to continue. Fetched
        prompts hold memory that the swapped ones wait for, so they do not wait for these; with
        swaps that overlap with steps, returned prompts wait for no other sequence either.
        """
        if (self.swapped or self.moved) and not self._goes_first():
            return None
        waiting = self.waiting
        if not self.loaded:
            return waiting.head() if waiting else None
        loaded = waiting.first(self.loaded)
        if not waiting or self.rules.loaded_first:
            return loaded
        return waiting.first((loaded, waiting.head()))

    def _goes_first(self) -> bool:
        """Tell whether a prompt whose entries have come precedes sequences waiting to swap in."""
        if not self.loaded:
            return False
        return self.swaps.overlap or (self.loaded[0].is_brought and not self.moved)

    def num_to_compute(self, sequence: SequenceState) -> int:
        """Tokens that a sequence which waits needs computed before its next token."""
        if sequence.is_brought:
            return sequence.num_tokens - sequence.num_brought if sequence.has_rest else 0
        swap = self.swapped.get(sequence)
        if swap is None:
            return sequence.num_tokens - sequence.num_computed_tokens
        return sequence.num_tokens - swap.num_tokens if swap.in_prefill else 0

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

    def decode_need(self, num_steps: int) -> int:
        """Free blocks that the decodes need in their next steps, beyond those already taken."""
        return self.clock.blocks_needed(num_steps) - self.num_taken

    @property
    def num_decode_queries(self) -> int:
        """Tokens that the decodes bring into the next step."""
        return self.clock.num_decodes * self.clock.num_queries_each

    def pause(self, plan: StepPlan, decodes: list[SequenceState]) -> None:
        """Let decodes sit the only step of a plan out."""
        for sequence in decodes:
            self.leave_clock(sequence)
        self.paused = plan.paused = tuple(decodes)

    def end_pause(self) -> None:
        """Let paused decodes run again."""
        for sequence in self.paused:
            self.clock.join(sequence)
        self.paused = ()

    def lose_step(self, plan: StepPlan) -> None:
        """Give back the blocks of a lost step; paused decodes run again."""
        if self.pages is not None:
            for sequence in self.running:
                self.pages.lose_step(sequence, self._slots_held(sequence))
        elif self.by_piece:
            pieces = [self.needs.taken_by_piece(sequence, new) for sequence, new in plan.prefills]
            self.kv_cache.answers.forget_step()
            self.kv_cache.give_back(sum(pieces, self.num_taken))
        self.num_taken = 0
        self.free_forgotten()
        self.end_pause()

    def _slots_held(self, sequence: SequenceState) -> int:
        """Tokens that a running sequence has memory for before the step that is planned."""
        if sequence not in self.prefilling:
            return self.clock.slots_held(sequence)
        if not self.by_piece:
            return sequence.num_tokens
        return self.needs.slots_ahead(sequence, sequence.num_computed_tokens)

    def steps_until_change(self, limit: int, plan: StepPlan | None = None) -> int:
        """Steps, at most `limit`, that the decodes run before one ends or blocks run short.

        The first step must have room.
        plan: its prompts take blocks in every step; None: no prompts do.
        """
        clock = self.clock
        if limit == 1:
            return limit
        if plan is not None and plan.prefills and self.by_piece:
            return self._steps_with_pieces(limit, plan)
        if not clock.num_decodes:
            return limit
        num_free = self.pool.num_free + self.num_taken
        return clock.steps_within(num_free, min(limit, clock.steps_to_change()))

    def _steps_with_pieces(self, limit: int, plan: StepPlan) -> int:
        """Steps until a decode ends, or decodes and pieces of prompts have no more blocks."""
        if self.clock.num_decodes:
            limit = min(limit, self.clock.steps_to_change())
        num_free = self.pool.num_free
        if limit == 1 or self.need_after_first(plan, limit) <= num_free:
            return limit
        steps = range(1, limit + 1)
        return bisect_right(steps, num_free, key=lambda number: self.need_after_first(plan, number))

    def need_after_first(self, plan: StepPlan, num_steps: int) -> int:
        """Blocks that so many steps of a plan take after the first, piece by piece."""
        num_blocks = self.decode_need(num_steps)
        for sequence, num_new in plan.prefills:
            num_blocks += self.needs.of_piece(sequence, num_steps * num_new, num_new)
        return num_blocks

    def batch(self, plan: StepPlan) -> StepBatch:
        """Return the batch of a plan's first step."""
        if plan.batch is not None:
            return plan.batch
        chunks: tuple[tuple[int, int], ...] = ()
        if plan.prefills:
            chunks = tuple([(new, seq.num_computed_tokens) for seq, new in plan.prefills])
        batch = self.clock.batch(chunks) if plan.decodes else StepBatch(chunks)
        if plan.adapters is not None:
            batch.adapters = plan.adapters
        return batch

    def growth(self, plan: StepPlan) -> StepGrowth:
        """Return the growth of a plan's batch from step to step."""
        return self.clock.growth(plan.num_steps) if plan.decodes else StepGrowth()


def _clock(
    kv_cache: KvCacheManager, speculation: Speculation | None, *, tells_joins: bool
) -> DecodeClock:
    """Return the clock for the drafting method and for the layers' kinds of KV memory."""
    block_size, groups = kv_cache.pool.block_size, kv_cache.pool.groups
    if groups:
        if speculation is not None:
            return SpeculativeWindowClock(block_size, speculation, groups)
        return WindowClock(block_size, groups)
    if speculation is not None:
        return SpeculativeClock(block_size, speculation)
    if tells_joins:
        return WatchedClock(block_size)
    return DecodeClock(block_size)
