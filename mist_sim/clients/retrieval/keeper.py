"""Writes the entries computed for a request to the levels of the client it retrieved from."""

from __future__ import annotations

from mist_sim.clients.retrieval.contents import Contents
from mist_sim.core.request import Request
from mist_sim.core.visit import Failure, Lost, Visit
from mist_sim.stages import Prefill


class Keeper:
    """Follows the visits of one request.

    The entries of a visit are written when it ends, including those of its answer: all tokens but
    the last have entries. Writes use the other direction of links and delay nothing.
    """

    def __init__(self, request: Request, contents: Contents) -> None:
        self.contents = contents
        self._request = request
        self._num_tokens = 0  # of the prompt, and of its answer so far

    def __call__(self, visit: Visit) -> None:
        """Write the entries of a visit that has ended."""
        if isinstance(visit.outcome, Failure | Lost):
            return
        for stage in visit.stages:
            if isinstance(stage, Prefill):
                self._num_tokens = stage.num_prompt_tokens
        if visit.num_output_tokens:
            self._num_tokens += visit.num_output_tokens
            self.contents.write(self._request.content, self._num_tokens - 1)
