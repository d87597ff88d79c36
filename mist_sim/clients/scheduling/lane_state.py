"""The state of a lane: who waits, runs or lies in between, and the memory that they hold."""

from __future__ import annotations

from collections import deque
from typing import Any

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.decode.speculative_clock import Speculation, SpeculativeClock
from mist_sim.clients.decode.speculative_window_clock import SpeculativeWindowClock
from mist_sim.clients.decode.window_clock import WindowClock
from mist_sim.clients.kv_cache import KvCacheManager, SwapSpace
from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.clients.scheduling.order import WaitingQueue
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth


class LaneState:
    """The sequences of a lane, each in one place from its arrival until it leaves.

    It waits in the queue, perhaps until its blocks are loaded; runs, with blocks for all its
    tokens, first in prefill and then on the decode clock; may be swapped out; and is gone. What a
    scheduler decides about them is done by `admission` and `preemption`, and what executed steps
    did to them is entered by `update`.

    waiting: the queue, by the scheduler's order.
    running: who has memory and a seat, in order of admission. prefilling: those of them whose
        prompt is not computed.
    loading: who has memory, and waits for entries to come into it. loaded: who has those of a tier,
        and waits to be admitted. moved: who has those of another client, and waits to go on.
        abandoned: who was given up while entries came, which have not come yet.
    num_promised: blocks that those whose entries come from other clients, or have come, need in
        their first step beside those that they have.
    held: sequences that are done here and keep their blocks until another client has copied them:
        (blocks, computed tokens) of each.
    swapped: whose blocks lie in host memory, the first to go first.
    clock: the decodes, and the blocks that they need. kv_cache, pool: who holds which block.
    num_peak_blocks: blocks held in the last step of the latest run.
    notes: what a scheduler remembers of the lane from plan to plan.
    """

    def __init__(
        self,
        kv_cache: KvCacheManager,
        waiting: WaitingQueue,
        *,
        max_num_seqs: int,
        speculation: Speculation | None = None,
        swap_space: SwapSpace | None = None,
        plans_ahead: bool = False,
        needs_longest_context: bool = False,
    ) -> None:
        """Begin with nobody.

        waiting: an empty queue. max_num_seqs: sequences that may run at once, which is a part of
            the scheduler's where several lanes share an engine.
        speculation: how all decodes draft; None: they do not.
        swap_space: where preempted sequences are copied to; None: they are computed again.
        plans_ahead: whether the next step is planned before this one ends.
        needs_longest_context: whether batches say how long the longest context is.
        """
        self.kv_cache = kv_cache
        self.pool = kv_cache.pool
        self.clock = _clock(kv_cache, speculation)
        if needs_longest_context:
            self.clock.watch_longest()
        self.max_num_seqs = max_num_seqs
        self.speculation = speculation
        self.swap_space = swap_space
        self.plans_ahead = plans_ahead
        self.waiting = waiting
        self.running: dict[SequenceState, None] = {}
        self.prefilling: list[SequenceState] = []
        self.loading: dict[SequenceState, None] = {}
        self.loaded: deque[SequenceState] = deque()
        self.moved: deque[SequenceState] = deque()
        self.abandoned: set[SequenceState] = set()
        self.held: dict[SequenceState, tuple[int, int]] = {}
        self.num_promised = 0
        self.swapped: dict[SequenceState, KvMove] = {}
        self.num_peak_blocks = 0
        self.notes: dict[str, Any] = {}
        self._num_left = self._num_left_blocks = 0  # what the last step freed, if it plans ahead
        self._num_arrived = 0

    # --- sequences that come and go -------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence."""
        sequence.arrival = self._num_arrived
        self._num_arrived += 1
        self.kv_cache.add(sequence)
        self.waiting.add(sequence)

    def finish_load(self, sequence: SequenceState) -> bool:
        """Let a sequence be admitted whose entries have come, unless it was given up.

        Returns whether it can be; otherwise its memory is free now.
        """
        if sequence in self.abandoned:
            self.abandoned.remove(sequence)
            self._forget(sequence)
            return False
        del self.loading[sequence]
        (self.loaded if sequence.incoming is None else self.moved).append(sequence)
        return True

    def give_back(self, sequence: SequenceState, num_blocks: int, num_computed: int) -> None:
        """Free the blocks of a sequence that is done, or hold them if another client needs them."""
        if sequence.visit.is_followed and sequence.visit.outcome is None:
            self.held[sequence] = num_blocks, num_computed
        else:
            self.kv_cache.free(sequence, num_blocks, num_computed)

    def release_held(self, sequence: SequenceState) -> None:
        """Free blocks that were held; no step in flight has their order in the free queue."""
        num_free = self.pool.num_free
        self.kv_cache.free(sequence, *self.held.pop(sequence))
        if self.plans_ahead:
            self.hold_back(0, self.pool.num_free - num_free)

    def abort(self, sequence: SequenceState) -> None:
        """Forget a sequence that waits or runs, and free its memory; no step in flight has it.

        While blocks come into its memory, that stays taken.
        """
        if sequence in self.running:
            num_free = self.pool.num_free
            num_tokens, num_computed = self.stop(sequence)
            self.kv_cache.free(sequence, self.pool.blocks_for(num_tokens), num_computed)
            if self.plans_ahead:
                self.hold_back(1, self.pool.num_free - num_free)
        elif sequence in self.swapped:
            del self.swapped[sequence]
        elif sequence in self.loading:
            del self.loading[sequence]
            self.abandoned.add(sequence)
            sequence.num_computed_tokens = 0
            if sequence.incoming is not None:
                self.num_promised -= self.blocks_to_join(sequence)
        elif sequence in self.loaded:
            self.loaded.remove(sequence)
            self._forget(sequence)
        elif sequence in self.moved:
            self.moved.remove(sequence)
            self.num_promised -= self.blocks_to_join(sequence)
            self._forget(sequence)
        else:
            self.waiting.remove(sequence)

    def _forget(self, sequence: SequenceState) -> None:
        """Free the memory of a sequence that was given up before it could use it."""
        num_tokens = sequence.num_tokens - (sequence.incoming is not None)
        self.kv_cache.forget(sequence, self.pool.blocks_for(num_tokens))

    def stop(self, sequence: SequenceState) -> tuple[int, int]:
        """Take a running sequence out of the batch; its blocks are for the caller to free.

        Returns the tokens that it has blocks for, and how many of them are computed.
        """
        del self.running[sequence]
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
            return sequence.num_tokens, sequence.num_computed_tokens
        num_tokens = self.clock.leave(sequence)
        return num_tokens, sequence.num_tokens - 1

    # --- who waits, and what is free ------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Sequences that wait to be admitted, those included whose blocks are on the way."""
        num_coming = len(self.loading) + len(self.loaded) + len(self.moved)
        return len(self.waiting) + num_coming + len(self.swapped)

    def head(self) -> SequenceState | None:
        """Return who is admitted next: those whose blocks were loaded first, then the queue.

        Nobody while sequences are swapped out, or have their entries and no room to go on.
        """
        if self.swapped or self.moved:
            return None
        if self.loaded:
            return self.loaded[0]
        return self.waiting.head() if self.waiting else None

    def num_to_compute(self, sequence: SequenceState) -> int:
        """Tokens that a sequence which waits needs computed before its next token."""
        if sequence.incoming is not None:
            return 0
        swap = self.swapped.get(sequence)
        if swap is None:
            return sequence.num_tokens - sequence.num_computed_tokens
        return sequence.num_tokens - swap.num_tokens if swap.in_prefill else 0

    def has_seat(self) -> bool:
        """Tell whether one more may run; seats that the last step freed are not lent yet."""
        return len(self.running) + self._num_left < self.max_num_seqs

    def num_admissible(self, num_needed: int) -> int:
        """Blocks that an admission may take when the decodes need `num_needed`.

        The reserve is for running sequences; without any, it would only keep requests out.
        """
        num_reserved = self.pool.num_reserved if self.running else 0
        return self.pool.num_free - self._num_left_blocks - num_needed - num_reserved

    @property
    def holds_back(self) -> bool:
        """Whether admissions cannot take yet what the last step freed."""
        return self._num_left > 0 or self._num_left_blocks > 0

    def hold_back(self, num_seqs: int, num_blocks: int) -> None:
        """Keep seats and blocks, which the last step freed, from the next admissions."""
        self._num_left += num_seqs
        self._num_left_blocks += num_blocks

    def lend(self) -> None:
        """Let admissions take again what was held back from them."""
        self._num_left = self._num_left_blocks = 0

    def num_slots(self, sequence: SequenceState) -> int:
        """Tokens that a sequence off the clock needs memory for in the next step that it is in."""
        if self.speculation is not None and sequence.num_output_tokens:
            return self.speculation.num_slots(sequence.num_tokens)
        return sequence.num_tokens

    def blocks_to_return(self, swap: KvMove) -> int:
        """Return the blocks that must be free for a swapped sequence to go on."""
        sequence = swap.sequence
        num_tokens = sequence.num_tokens if swap.in_prefill else self.num_slots(sequence)
        return self.pool.blocks_for(num_tokens)

    def blocks_to_join(self, sequence: SequenceState) -> int:
        """Return the blocks that must be free for a sequence to go on whose entries have come."""
        num_held = self.pool.blocks_for(sequence.num_tokens - 1)
        return self.pool.blocks_for(self.num_slots(sequence)) - num_held

    def outgrown(self, sequence: SequenceState) -> str | None:
        """Return how a sequence has more tokens than the whole cache holds, or None.

        One that has emitted tokens also needs the slots for drafts of its next step.
        """
        pool = self.pool
        num_slots = self.num_slots(sequence)
        num_blocks = pool.blocks_for(num_slots)
        if num_blocks <= pool.num_blocks:
            return None
        num_extra = num_slots - sequence.num_tokens
        drafts = f" and {num_extra} for drafts" if num_extra else ""
        pages = f" take {num_blocks} blocks and" if pool.groups else ""
        return f"{sequence.num_tokens} tokens{drafts}{pages} exceed {pool.name}"

    # --- what a plan computes -------------------------------------------------------------

    def steps_until_change(self, limit: int) -> int:
        """Steps, at most `limit`, that the decodes run before one ends or blocks run short.

        There is room for the first one.
        """
        clock = self.clock
        if limit == 1 or not clock.num_decodes:
            return limit
        return clock.steps_within(self.pool.num_free, min(limit, clock.steps_to_change()))

    def batch(self, plan: StepPlan) -> StepBatch:
        """Return what the first step of a plan computes."""
        prefills = plan.prefills
        chunks = tuple(
            [(new, seq.num_computed_tokens) for seq, new in prefills] if prefills else ()
        )
        return self.clock.batch(chunks) if plan.decodes else StepBatch(chunks)

    def growth(self, plan: StepPlan) -> StepGrowth:
        """Return what each step of a plan adds for the next one."""
        return self.clock.growth(plan.num_steps) if plan.decodes else StepGrowth()


def _clock(kv_cache: KvCacheManager, speculation: Speculation | None) -> DecodeClock:
    """Return the clock for what decodes draft and for how the layers hold their tokens."""
    block_size, groups = kv_cache.pool.block_size, kv_cache.pool.groups
    if groups:
        if speculation is not None:
            return SpeculativeWindowClock(block_size, speculation, groups, kv_cache.drops)
        return WindowClock(block_size, groups, kv_cache.drops)
    if speculation is not None:
        return SpeculativeClock(block_size, speculation)
    return DecodeClock(block_size)
