"""Who waits, runs or lies in between, and the memory that they hold."""

from __future__ import annotations

from collections import deque

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.decode.speculative_clock import Speculation, SpeculativeClock
from mist_sim.clients.decode.speculative_window_clock import SpeculativeWindowClock
from mist_sim.clients.decode.window_clock import WindowClock
from mist_sim.clients.kv_cache import KvCacheManager, SwapSpace
from mist_sim.clients.scheduling.order import Order, waiting_queue
from mist_sim.clients.scheduling.plan import Swap
from mist_sim.clients.sequence_state import SequenceState


class Members:
    """The sequences of a scheduler, each in one place from its arrival until it leaves.

    It waits in the queue, perhaps until its blocks are loaded; runs, with blocks for all its
    tokens, first in prefill and then on the decode clock; may be swapped out; and is gone.
    """

    max_num_seqs: int
    order: Order

    def start(self, kv_cache: KvCacheManager) -> None:
        """Begin with empty queues on KV memory."""
        self.kv_cache = kv_cache
        self.pool = pool = kv_cache.pool
        groups = pool.groups
        self.clock: DecodeClock = (
            WindowClock(pool.block_size, groups, kv_cache.drops)
            if groups
            else DecodeClock(pool.block_size)
        )
        self.speculation: Speculation | None = None
        self.waiting = waiting_queue(self.order)
        self.running: dict[SequenceState, None] = {}  # in order of admission
        self.prefilling: list[SequenceState] = []
        self.loading: dict[SequenceState, None] = {}  # have memory, and wait for blocks in it
        self.loaded: deque[SequenceState] = deque()  # have these, and wait to be admitted
        self.swap_space: SwapSpace | None = None
        self.swapped: dict[
            SequenceState, Swap
        ] = {}  # their blocks lie there, the first to go first
        self.abandoned: set[SequenceState] = set()  # given up; blocks still come into their memory
        self.num_peak_blocks = 0  # held in the last step of the latest run
        self.plans_ahead = False  # whether the next step is planned before this one ends
        self._num_left = self._num_left_blocks = 0  # what the last step freed, if so
        self._num_arrived = 0

    def swap_to(self, space: SwapSpace) -> None:
        """Preempt by swapping; called right after `start`."""
        self.swap_space = space

    def speculate(self, speculation: Speculation) -> None:
        """Let all decodes verify drafts; called right after `start`."""
        self.speculation = speculation
        block_size, groups = self.pool.block_size, self.pool.groups
        self.clock = (
            SpeculativeWindowClock(block_size, speculation, groups, self.kv_cache.drops)
            if groups
            else SpeculativeClock(block_size, speculation)
        )

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence."""
        sequence.arrival = self._num_arrived
        self._num_arrived += 1
        self.kv_cache.add(sequence)
        self.waiting.add(sequence)

    def abort(self, sequence: SequenceState) -> None:
        """Forget a sequence that waits or runs, and free its memory; no step in flight has it.

        While blocks come into its memory, that stays taken.
        """
        if sequence in self.running:
            num_free = self.pool.num_free
            num_tokens, num_computed = self._stop(sequence)
            self.kv_cache.free(sequence, self.pool.blocks_for(num_tokens), num_computed)
            if self.plans_ahead:
                self._hold_back(1, self.pool.num_free - num_free)
        elif sequence in self.swapped:
            del self.swapped[sequence]
        elif sequence in self.loading:
            del self.loading[sequence]
            self.abandoned.add(sequence)
            sequence.num_computed_tokens = 0
        elif sequence in self.loaded:
            self.loaded.remove(sequence)
            self.kv_cache.forget(sequence)
        else:
            self.waiting.remove(sequence)

    def finish_load(self, sequence: SequenceState) -> bool:
        """Let a sequence be admitted whose blocks have come, unless it was given up.

        Returns whether it can be; otherwise its memory is free now.
        """
        if sequence in self.abandoned:
            self.abandoned.remove(sequence)
            self.kv_cache.forget(sequence)
            return False
        del self.loading[sequence]
        self.loaded.append(sequence)
        return True

    @property
    def num_waiting(self) -> int:
        """Sequences that wait to be admitted, those included whose blocks are on the way."""
        return len(self.waiting) + len(self.loading) + len(self.loaded) + len(self.swapped)

    def head(self) -> SequenceState | None:
        """Return who is admitted next: those whose blocks were loaded first, then the queue.

        Nobody while sequences are swapped out.
        """
        if self.swapped:
            return None
        if self.loaded:
            return self.loaded[0]
        return self.waiting.head() if self.waiting else None

    def num_to_compute(self, sequence: SequenceState) -> int:
        """Tokens that a sequence which waits needs computed before its next token."""
        swap = self.swapped.get(sequence)
        if swap is None:
            return sequence.num_tokens - sequence.num_computed_tokens
        return sequence.num_tokens - swap.num_tokens if swap.in_prefill else 0

    @property
    def holds_back(self) -> bool:
        """Whether admissions cannot take yet what the last step freed."""
        return self._num_left > 0

    def _hold_back(self, num_seqs: int, num_blocks: int) -> None:
        """Keep seats and blocks, which the last step freed, from the next admissions."""
        self._num_left += num_seqs
        self._num_left_blocks += num_blocks

    def release(self) -> None:
        """Let admissions take what the last step freed."""
        self._num_left = self._num_left_blocks = 0

    def _has_seat(self) -> bool:
        """Tell whether one more may run; seats that the last step freed are not lent yet."""
        return len(self.running) + self._num_left < self.max_num_seqs

    def _num_admissible(self, num_needed: int) -> int:
        """Blocks that an admission may take when the decodes need `num_needed`.

        The reserve is for running sequences; without any, it would only keep requests out.
        """
        num_reserved = self.pool.num_reserved if self.running else 0
        return self.pool.num_free - self._num_left_blocks - num_needed - num_reserved

    def outgrown(self, sequence: SequenceState) -> str | None:
        """Return how a sequence has more tokens than the whole cache holds, or None.

        One that has emitted tokens also needs the slots for drafts of its next step.
        """
        pool = self.pool
        num_slots = self._num_slots(sequence)
        num_blocks = pool.blocks_for(num_slots)
        if num_blocks <= pool.num_blocks:
            return None
        num_extra = num_slots - sequence.num_tokens
        drafts = f" and {num_extra} for drafts" if num_extra else ""
        pages = f" take {num_blocks} blocks and" if pool.groups else ""
        return f"{sequence.num_tokens} tokens{drafts}{pages} exceed {pool.name}"

    def _num_slots(self, sequence: SequenceState) -> int:
        """Tokens that a sequence off the clock needs memory for in the next step that it is in."""
        if self.speculation is not None and sequence.num_output_tokens:
            return self.speculation.num_slots(sequence.num_tokens)
        return sequence.num_tokens

    def _stop(self, sequence: SequenceState) -> tuple[int, int]:
        """Take a running sequence out of the batch; its blocks are for the caller to free.

        Returns the tokens that it has blocks for, and how many of them are computed.
        """
        del self.running[sequence]
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
            return sequence.num_tokens, sequence.num_computed_tokens
        num_tokens = self.clock.leave(sequence)
        return num_tokens, sequence.num_tokens - 1
