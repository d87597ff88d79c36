"""The plain lane of a client with role prefill or decode.

A prefill client keeps entries of finished prompts; a decode client lets entries come, and requests
join whose entries have come. Plans short of memory for them are made by the general planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.clients.engine.plain import PlainEngine
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.scheduling.admission import bring_entries
from mist_sim.clients.scheduling.resuming import join

if TYPE_CHECKING:
    from simpy.events import Event

    from mist_sim.clients.engine.plan_ahead import PlanAhead
    from mist_sim.clients.sequence_state import SequenceState


class PlainRoleEngine(PlainEngine):
    """One lane of a client with role prefill or decode.

    It becomes general for good with the first request that brings entries to a prefill client, or
    none to a decode client.
    """

    has_role = True

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence; from the first unexpected entries on, use the general loop."""
        if (sequence.visit.kv is not None) is not self.takes_entries or sequence.has_rest:
            self._do_as_general()
        super().add_request(sequence)

    def _hear(self, ahead: PlanAhead) -> int:
        state, latest = self._state, ahead.latest
        if latest is None:
            ahead.halt()
        else:
            ahead.let_in(latest.last_start)
            if state.kv_cache.shares_blocks:
                state.known.lacks_tokens = latest.parts[0][1].decodes and not ahead.was_on_the_spot
                state.kv_cache.answers.is_ahead = True
        waits_for_room = state.leaving and (state.coming.moved or state.head())
        return 1 if ahead.comes_next or waits_for_room else self._only.run_length.limit

    def _free_leaving(self) -> None:
        self._state.free_leaving()

    def _end(self, event: Event) -> None:
        lane, state = self._only, self._state
        if state.coming.forgotten or lane.released:
            super(PlainEngine, self)._end(event)
        else:
            super()._end(event)

    def _hand_back(self, finished: list[SequenceState], end: float) -> None:
        lane, state = self._only, self._state
        for sequence in finished:
            lane.hand_back(sequence, end)
        if lane.given_up:
            lane.let_go(finished)
        if state.leaving and not (state.num_running or lane.num_waiting):
            state.free_leaving()  # nothing is left to plan

    def _let_go(self, sequence: SequenceState, num_tokens: int) -> None:
        state = self._state
        state.finish(sequence, state.pool.blocks_for(num_tokens), num_tokens)


class PlainDecodeEngine(PlainRoleEngine):
    """One lane of a client with role decode."""

    takes_entries = True

    def _join(self, limit: int) -> int:
        state, lane = self._state, self._only
        coming, waiting = state.coming, state.waiting
        if coming.forgotten or coming.loaded or (waiting and waiting.head().visit.num_preemptions):
            return 0
        if coming.moved:
            if state.prefilling or state.clock.blocks_needed_now() > state.pool.num_free:
                return 0
            found = StepPlan()
            join(state, found)
            lane.note(found)
        return 1 if lane.records.awaits_first else limit

    def _bring(self, limit: int) -> int:
        found = StepPlan(limit)
        bring_entries(self._state, found)
        if found.moves:
            self._only.note(found)
        return found.num_steps
