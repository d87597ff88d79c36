"""Lengths of answers, learned from the clients' ended visits."""

from __future__ import annotations

from functools import partial

from mist_sim.core.answers import AnswerLengths
from mist_sim.core.views import ClientState
from mist_sim.core.visit import Visit


class EndedAnswers:
    """Lengths of the answers of served visits, by role and model of the client.

    Starts to listen at the first query.
    """

    def __init__(self) -> None:
        self._states: dict[ClientState, None] = {}
        self._listens = False
        self._lengths: dict[tuple[str | None, str | None], AnswerLengths] = {}

    def join(self, state: ClientState) -> None:
        """Learn from a client as well. A client that joins a second time is counted once."""
        if state in self._states:
            return
        state.answers = partial(self._of, state)
        self._states[state] = None
        if self._listens:
            state.watch_ends(self._note)

    def _of(self, state: ClientState) -> AnswerLengths:
        """Return the lengths of answers of clients with the same role and model."""
        if not self._listens:
            self._listens = True
            for each in self._states:
                each.watch_ends(self._note)
        key = state.role, state.model
        if key not in self._lengths:
            self._lengths[key] = AnswerLengths()
        return self._lengths[key]

    def _note(self, state: ClientState, visit: Visit) -> None:
        if visit.failure is None:
            self._of(state).add(visit.request.num_prompt_tokens, visit.num_output_tokens)
