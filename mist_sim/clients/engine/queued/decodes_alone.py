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
        if not (self._is_possible and state.clock.num_decodes) or state.paused:
            return False
        return not self._may_admit() and take_for_decodes(state)

    def _may_admit(self) -> bool:
        """Tell whether the head of the queue may have seat and memory; true when in doubt."""
        state = self._state
        if not state.waiting or not state.has_seat() or (head := state.head()) is None:
            return False
        if not self._waits_for_all or head.is_brought:
            return True
        num_needed = state.clock.blocks_needed_now()
        return state.kv_cache.blocks_to_admit(head) <= state.num_admissible(num_needed)
