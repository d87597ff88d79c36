"""Content of earlier requests, to estimate the tokens that a new one must compute."""

from __future__ import annotations

from collections.abc import Hashable

from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Content


class PrefixHistory:
    """The blocks of all requests so far: a prefix cache of unlimited size.

    num_recomputed: as in `LaneMemory`.
    """

    def __init__(self, block_size: int, num_recomputed: int = 0) -> None:
        self._block_size = block_size
        self._num_recomputed = num_recomputed
        self._ends: dict[Hashable, int] = {}  # behind the last block of each content id

    def num_known_tokens(self, sequence: SequenceState) -> int:
        """Tokens in the known blocks that a prompt begins with; never its last token."""
        most = (sequence.num_prompt_tokens - 1) // self._block_size
        num_known = 0
        for content_id, end in self._chain(sequence).spans:
            num_known = min(end, self._ends.get(content_id, num_known))
            if num_known < end:
                break
        return max(0, min(num_known, most) - self._num_recomputed) * self._block_size

    def add(self, sequence: SequenceState) -> None:
        """Note the blocks of a visit, including those of its answer; later turns have their own."""
        most = (sequence.num_final_tokens - 1) // self._block_size
        for content_id, end in self._chain(sequence).spans:
            self._ends[content_id] = max(min(end, most), self._ends.get(content_id, 0))
            if end >= most:
                break

    def _chain(self, sequence: SequenceState) -> Chain:
        return Chain(sequence.visit.request.content, self._block_size)


class ContentHistory:
    """The content of all requests so far: an unlimited prefix cache shared by all clients."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}  # behind the last token of each content id

    def meet(self, content: Content, num_tokens: int) -> int:
        """Note the first tokens of a content; return how many of them were known before."""
        ends = self._ends
        num_known = end = 0
        for content_id, length in content:
            start, end = end, end + length
            if end > num_tokens:
                end = num_tokens
                if start >= end:
                    break
            known_end = ends.get(content_id, 0)
            if num_known == start and known_end > start:
                num_known = known_end if known_end < end else end  # noqa: FURB136 - a call a block
            if end > known_end:
                ends[content_id] = end
        return num_known

    def meet_visit(self, sequence: SequenceState, block_size: int) -> None:
        """Note the tokens that a visit computes, and of its prompt those known, in whole blocks.

        The content of a request has the turns to come, too. The last token of an answer is not
        computed, that of a prompt always is.
        """
        visit = sequence.visit
        num_known = self.meet(visit.request.content, sequence.num_final_tokens - 1)
        if not visit.stages[0].continues:
            num_known = min(num_known, sequence.num_prompt_tokens - 1)
            visit.num_known_tokens = num_known - num_known % block_size
