"""The plain lane of a client with role prefill or decode.

A prefill client keeps entries of finished prompts; a decode client lets entries come, and requests
join whose entries have come. Plans short of memory for them are made by the general planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.clients.engine.plain import PlainEngine
from mist_sim.clients.engine.plain_admission import Prefills
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
    none to a decode client, unless answers flow; and with a prompt that begins from entries of
    others and computes the rest.
    """

    has_role = True

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence; from the first unexpected entries on, use the general loop."""
        is_expected = self.flows or sequence.is_brought is self.takes_entries
        if sequence.has_rest or not is_expected:
            self._do_as_general()
        super().add_request(sequence)

    def _hear(self, ahead: PlanAhead | None, limit: int) -> int:
        if ahead is None:
            return limit
        state, latest = self._state, ahead.latest
        if latest is None:
            ahead.halt()
        else:
            state.known.lacks_tokens = latest.parts[0][1].decodes and not ahead.was_on_the_spot
            state.kv_cache.answers.is_ahead = True
            ahead.let_in(latest.last_start)
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
    """One lane of a client with role decode, or another to which entries of others come."""

    takes_entries = True

    def _hear(self, ahead: PlanAhead | None, limit: int) -> int:
        """Let decodes join whose entries have come."""
        if ahead is not None:
            limit = super()._hear(ahead, limit)
        lane, state = self._only, self._state
        coming, waiting, clock = state.coming, state.waiting, state.clock
        if coming.forgotten or (waiting and waiting.head().visit.num_preemptions):
            return 0
        if coming.moved:
            num_blocks = 0
            if state.prefilling:
                pieces: Prefills = []
                self._go_on(pieces, 0, self._most_tokens - clock.num_decodes)
                num_blocks = sum([state.needs.of_piece(*piece) for piece in pieces])
            if num_blocks + clock.blocks_needed_now() > state.pool.num_free:
                return 0
            found = StepPlan()
            join(state, found, num_blocks)
            lane.note(found)
        return 1 if lane.records.awaits_first else limit

    def _bring(self, limit: int, budget: int) -> int:
        if not budget:
            return limit
        found = StepPlan(limit)
        bring_entries(self._state, found)
        if found.moves:
            self._only.note(found)
        return found.num_steps
