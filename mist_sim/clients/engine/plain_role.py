"""The plain lane of a client with role prefill or decode.

A prefill client keeps entries of finished prompts; a decode client admits requests with entries.
Plans that entries of other clients change are made by the general planner; all steps are plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.clients.engine.plain import PlainEngine

if TYPE_CHECKING:
    from simpy.events import Event

    from mist_sim.clients.engine.plan_ahead import PlanAhead
    from mist_sim.clients.sequence_state import SequenceState


class PlainRoleEngine(PlainEngine):
    """One lane of a client with role prefill or decode.

    takes_entries: whether other clients' entries come to it. If not, it becomes general for good
    with the first request that brings some.
    """

    has_role = True
    takes_entries = False

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence; from the first unexpected entries on, use the general loop."""
        if sequence.visit.kv is not None and not self.takes_entries:
            self._do_as_general()
        super().add_request(sequence)

    def _awaits_entries(self) -> bool:
        """Whether entries of others decide about the next plan: they come, or are waited for."""
        coming = self._state.coming
        if coming.moved or coming.loaded or coming.forgotten or self._only.records.awaits_first:
            return True
        return bool(self._state.waiting) and self.takes_entries

    def _hear(self, ahead: PlanAhead, limit: int) -> int:
        state, latest = self._state, ahead.latest
        if latest is None:
            ahead.halt()
        else:
            ahead.let_in(latest.last_start)
            if state.kv_cache.shares_blocks:
                state.known.lacks_tokens = latest.parts[0][1].decodes and not ahead.was_on_the_spot
                state.kv_cache.answers.is_ahead = True
        waits_for_room = state.leaving and (state.coming.moved or state.head())
        return 1 if ahead.comes_next or waits_for_room else limit

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
