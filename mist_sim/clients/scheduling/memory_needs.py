"""How much KV memory a sequence needs that waits, and whether a lane ever has as much."""

from __future__ import annotations

from mist_sim.clients.draft_paths import Speculation
from mist_sim.clients.kv_cache import BlockPool
from mist_sim.clients.sequence_state import SequenceState


class MemoryNeeds:
    """Computes the slots that sequences need which do not decode.

    A slot is memory for the entries of one token. A sequence may need more slots than it has
    tokens: a step writes entries of its drafts, and with drafting models a piece of a prompt needs
    memory for what these write behind it.

    by_piece: whether prompts take blocks piece by piece.
    """

    def __init__(self, pool: BlockPool, speculation: Speculation | None, *, by_piece: bool) -> None:
        self._pool = pool
        self._speculation = speculation
        self._lookahead = 0  # tokens that a drafting model writes behind a piece
        if speculation is not None and by_piece:
            self._lookahead = speculation.num_lookahead_tokens

    def num_slots(self, sequence: SequenceState) -> int:
        """Return the slots that a sequence needs in the next step that it is in."""
        if self._speculation is not None and sequence.num_output_tokens:
            return self._speculation.num_slots(sequence.num_tokens)
        if self._speculation is not None and self._lookahead:
            return self._speculation.slots_ahead(sequence.num_tokens, self._lookahead)
        return sequence.num_tokens

    def outgrown(self, sequence: SequenceState) -> str | None:
        """Return how a sequence has more tokens than the whole cache holds, or None.

        A sequence that has emitted tokens also needs the slots for drafts of its next step, and a
        prompt those that a drafting model writes behind its end.
        """
        pool = self._pool
        num_slots = self.num_slots(sequence)
        num_blocks = pool.blocks_alone(num_slots)
        if num_blocks <= pool.num_blocks:
            return None
        num_extra = num_slots - sequence.num_tokens
        drafts = f" and {num_extra} for drafts" if num_extra else ""
        pages = f" take {num_blocks} blocks and" if pool.groups else ""
        return f"{sequence.num_tokens} tokens{drafts}{pages} exceed {pool.name}"
