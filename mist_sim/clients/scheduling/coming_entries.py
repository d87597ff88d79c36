"""Sequences whose KV entries come from elsewhere: from another client, a tier, or host memory."""

from __future__ import annotations

from collections import deque

from mist_sim.clients.kv_cache import KvCacheManager
from mist_sim.clients.scheduling.memory_needs import MemoryNeeds
from mist_sim.clients.scheduling.order import WaitingQueue
from mist_sim.clients.scheduling.swap_state import SwapState
from mist_sim.clients.sequence_state import SequenceState


class ComingEntries:
    """The sequences of a lane with memory for entries that come, or have come, from elsewhere.

    loading: sequences whose entries are on their way. loaded: prompts with their entries, that wait
        to be admitted. moved: answers with their entries, that wait to continue. abandoned:
        sequences given up while their entries are still coming.
    forgotten: sequences given up with memory that they did not use, while steps were in flight,
        with their blocks.
    preempted_first: whether preempted sequences go before those whose entries have come.
    num_promised: blocks that sequences with entries from other clients need in their first step,
        beyond those they have.
    """

    def __init__(
        self,
        kv_cache: KvCacheManager,
        needs: MemoryNeeds,
        swaps: SwapState,
        waiting: WaitingQueue,
    ) -> None:
        self.loading: dict[SequenceState, None] = {}
        self.loaded: deque[SequenceState] = deque()
        self.moved: deque[SequenceState] = deque()
        self.abandoned: set[SequenceState] = set()
        self.forgotten: list[tuple[SequenceState, int]] = []
        self.preempted_first = False
        self._gave_back: dict[SequenceState, int] = {}  # after how many preemptions
        self.num_promised = 0
        self._kv_cache = kv_cache
        self._pool = kv_cache.pool
        self._needs = needs
        self._swaps = swaps
        self._waiting = waiting

    def goes_first(self) -> bool:
        """Tell whether a prompt whose entries have come precedes sequences waiting to swap in."""
        if not self.loaded:
            return False
        return self._swaps.overlap or (self.loaded[0].is_brought and not self.moved)

    def finish_load(self, sequence: SequenceState, *, in_step: bool = False) -> bool:
        """Let a sequence be admitted whose entries have arrived, unless it was given up.

        in_step: whether steps of the lane are in flight.
        Returns False if it was given up; its memory is free now, or when these steps end.
        """
        if self._swaps.returning:
            self._swaps.end_return(sequence)
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
        if self.is_before_loaded(sequence):
            self.loaded.appendleft(sequence)
        else:
            (self.moved if decodes else self.loaded).append(sequence)
        return True

    def _compute_all(self, sequence: SequenceState, *, in_step: bool) -> None:
        """Queue a prompt again whose entries were lost on their way."""
        self.num_promised -= self._needs.to_join(sequence)
        self._forget(sequence, in_step=in_step)
        sequence.forget_brought()
        self._waiting.give_back(sequence)

    def give_up(self, sequence: SequenceState, *, in_step: bool) -> bool:
        """Forget one of these sequences and free its memory; return False if it is none of them.

        While entries come into its memory, that stays taken.
        in_step: whether steps of the lane are in flight; the memory is free as they are accounted
        for.
        """
        is_coming = sequence in self.loading
        if is_coming:
            del self.loading[sequence]
            self.abandoned.add(sequence)
            if sequence not in self._swaps.returning:  # whose tokens have been computed here
                sequence.num_computed_tokens = 0
        elif sequence in self.loaded:
            self.loaded.remove(sequence)
        elif sequence in self.moved:
            self.moved.remove(sequence)
        else:
            return False
        if sequence.is_brought:
            self.num_promised -= self._needs.to_join(sequence)
        if not is_coming:
            self._forget(sequence, in_step=in_step)
        return True

    def _forget(self, sequence: SequenceState, *, in_step: bool) -> None:
        """Free the memory of a sequence that was given up before it could use it.

        Blocks that steps in flight have taken meanwhile are counted at their end, and come before.
        """
        if sequence.is_brought:
            num_blocks = self._pool.blocks_for(sequence.num_brought)
        else:
            num_blocks = self._kv_cache.num_reserved(sequence)
        if in_step and not self._pool.groups:
            self.forgotten.append((sequence, num_blocks))
        else:
            self._free_unused(sequence, num_blocks)

    def is_before_loaded(self, sequence: SequenceState) -> bool:
        """Tell whether it goes before loaded ones: preempted, and has given no load back since."""
        num_before = self._gave_back.get(sequence, 0)
        return self.preempted_first and sequence.visit.num_preemptions > num_before

    def give_load_back(self) -> None:
        """Queue the sequence again whose load ended last, without memory.

        It goes behind one that was preempted and waits for that memory, or it would take it again.
        """
        sequence, waiting = self.loaded.pop(), self._waiting
        self._gave_back[sequence] = sequence.visit.num_preemptions
        self._free_unused(sequence, self._kv_cache.num_reserved(sequence))
        is_second = waiting and self.is_before_loaded(waiting.head())
        first = waiting.take() if is_second else None
        waiting.give_back(sequence)
        if first is not None:
            waiting.give_back(first)

    def free_forgotten(self) -> None:
        """Free the blocks of sequences given up while steps were in flight."""
        for sequence, num_blocks in self.forgotten:
            self._free_unused(sequence, num_blocks)
        self.forgotten.clear()

    def _free_unused(self, sequence: SequenceState, num_blocks: int) -> None:
        self._kv_cache.forget(sequence, num_blocks)
        if sequence.chain is not None:
            sequence.chain.start_over()
