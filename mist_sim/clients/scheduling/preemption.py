"""How running sequences give memory up for others, and how swapped ones come back."""

from __future__ import annotations

from typing import Literal, get_args

from mist_sim.clients.scheduling.members import Members
from mist_sim.clients.scheduling.plan import StepPlan, Swap

Preemption = Literal["recompute", "swap"]
PREEMPTIONS: tuple[str, ...] = get_args(Preemption)


class Preempting(Members):
    """When the decodes run short of blocks, the sequence that the order names gives up its own."""

    def _make_room(self, plan: StepPlan) -> bool:
        """Preempt running sequences until the next decode step fits; return whether any was.

        Otherwise swapped ones come back.
        """
        clock, pool = self.clock, self.pool
        if clock.blocks_needed_now() <= pool.num_free:
            if self.swapped:
                self._swap_in(plan)
            return False
        while clock.blocks_needed_now() > pool.num_free:
            sequence = self.waiting.victim(self.running)
            in_prefill = self.swap_space is not None and sequence in self.prefilling
            num_tokens, num_computed = self._stop(sequence)
            num_blocks = pool.blocks_for(num_tokens)
            if self.outgrown(sequence):
                self.kv_cache.preempt(sequence, num_blocks, num_computed)
                plan.dropped.append(sequence)
                continue
            plan.preempted.append(sequence)
            if self.swap_space is not None:
                num_filled = pool.blocks_for(num_computed)
                swap = Swap(sequence, num_filled, num_computed, in_prefill, is_out=True)
                if self._swap_out(plan, swap, num_blocks):
                    continue
            self.kv_cache.preempt(sequence, num_blocks, num_computed)
            self.waiting.give_back(sequence)
        return True

    def _swap_out(self, plan: StepPlan, swap: Swap, num_blocks: int) -> bool:
        """Copy a preempted sequence to host memory; return False when there is no room.

        num_blocks: those that it holds.
        """
        num_used = sum([each.num_blocks for each in self.swapped.values()])
        if self.swap_space is None or num_used + swap.num_blocks > self.swap_space.num_blocks:
            return False
        self.kv_cache.swap_out(swap.sequence, num_blocks, swap.num_tokens)
        self.swapped[swap.sequence] = swap
        plan.swaps = [*(plan.swaps or ()), swap]
        return True

    def _swap_in(self, plan: StepPlan) -> None:
        """Let swapped sequences go on, in the order in which they went, while they fit."""
        swaps = []
        for sequence, swap in self.swapped.items():
            num_needed = self._num_to_return(swap)
            free = self._num_admissible(self.clock.blocks_needed_now())
            if not self._has_seat() or num_needed > free:
                break
            num_blocks = num_needed if swap.in_prefill else swap.num_blocks
            self.kv_cache.swap_in(sequence, num_blocks, swap.num_tokens)
            self.running[sequence] = None
            if swap.in_prefill:
                self.prefilling.append(sequence)
            else:
                self.clock.join(sequence)
            swaps.append(swap._replace(is_out=False))
        for swap in swaps:
            del self.swapped[swap.sequence]
        plan.swaps = swaps or None

    def _num_to_return(self, swap: Swap) -> int:
        """Return the blocks that must be free for a swapped sequence to go on."""
        sequence = swap.sequence
        num_tokens = sequence.num_tokens if swap.in_prefill else self._num_slots(sequence)
        return self.pool.blocks_for(num_tokens)
