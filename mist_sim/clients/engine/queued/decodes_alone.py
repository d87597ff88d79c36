"""Plans of decodes alone, which most plans of a pipeline are: made without the whole scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.clients.scheduling.preemption import take_for_decodes

if TYPE_CHECKING:
    from mist_sim.clients.engine.queued.state import QueuedState


class DecodesAlone:
    """Finds plans in which a `ChunkedScheduler` would let each decode take a step and no more."""

    def __init__(self, scheduler: Scheduler, state: QueuedState) -> None:
        self._state = state
        self._waits_for_all = getattr(scheduler, "scheduler_reserve_full_isl", False)
        self._is_possible = (
            type(scheduler) is ChunkedScheduler
            and type(state.clock) is DecodeClock
            and state.cadence is None
            and state.by_piece
            and state.kv_cache.tiers is None
        )

    def take(self) -> bool:
        """Give all decodes the blocks of their next step, if the next plan does just that.

        Returns whether it does; if not, nothing has changed.
        """
        state = self._state
        clock, pool = state.clock, state.pool
        if not (self._is_possible and clock.num_decodes) or state.prefilling or state.paused:
            return False
        num_blocks = clock.phases[clock.steps % clock.block_size]
        if num_blocks > pool.num_free or (state.waiting and self._may_admit(num_blocks)):
            return False
        if num_blocks or state.kv_cache.shares_blocks:
            take_for_decodes(state, num_blocks)
        else:
            state.num_taken = 0
        return True

    def _may_admit(self, num_blocks: int) -> bool:
        """Tell whether the head of the queue may have seat and memory; true when in doubt.

        num_blocks: that the decodes take before it.
        """
        state = self._state
        if not state.has_seat() or (head := state.head()) is None:
            return False
        if not self._waits_for_all or head.is_brought:
            return True
        if head.chain is not None and head.chain.num_shared:
            return True  # it may need less behind the decodes, which enter and evict blocks
        return state.kv_cache.blocks_to_admit(head) <= state.num_admissible(num_blocks)
