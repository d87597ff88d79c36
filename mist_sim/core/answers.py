"""How long answers become, as one learns it from those that have ended."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mist_sim.core.request import Request
    from mist_sim.core.views import ClientState
    from mist_sim.core.visit import Visit

_Key = tuple[str | None, str | None, int]
_ANY = -1  # prompts of any length


class AnswerLengths:
    """Running means of the tokens that visits emitted, of those that were served.

    Clients of a role and a model have means of their own, and prompts have one for each power of
    two that their tokens are from. Nobody listens before somebody asks.
    """

    def __init__(self) -> None:
        self._states: list[ClientState] = []
        self._listens = False
        self._num_ended: defaultdict[_Key, int] = defaultdict(int)
        self._num_tokens: defaultdict[_Key, int] = defaultdict(int)

    def join(self, state: ClientState) -> None:
        """Learn from a client too."""
        state.expects = partial(self.expected, state)
        self._states.append(state)
        if self._listens:
            state.watch_ends(self._note)

    def expected(self, state: ClientState, request: Request) -> float:
        """Return how many tokens a visit of a request to a client may emit; 0: nobody knows yet."""
        if not self._listens:
            self._listens = True
            for each in self._states:
                each.watch_ends(self._note)
        for length in (request.num_prompt_tokens.bit_length(), _ANY):
            key = state.role, state.model, length
            if num_ended := self._num_ended.get(key):
                return self._num_tokens[key] / num_ended
        return 0

    def _note(self, state: ClientState, visit: Visit) -> None:
        if visit.failure is not None:
            return
        for length in (visit.request.num_prompt_tokens.bit_length(), _ANY):
            key = state.role, state.model, length
            self._num_ended[key] += 1
            self._num_tokens[key] += visit.num_output_tokens
