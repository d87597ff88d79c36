"""How much KV memory the sequences of a lane need before they can run, or take their next piece."""

from __future__ import annotations

from mist_sim.clients.decode.speculative_clock import Speculation
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import KvCacheManager
from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.kv_cache.pages import PageManager
from mist_sim.clients.sequence_state import SequenceState


class MemoryNeeds:
    """Computes the blocks and slots that sequences off the decode clock need; takes none.

    A slot is memory for the entries of one token. A sequence may need more slots than it has
    tokens: a step writes entries of its drafts, and with drafting models a piece of a prompt needs
    memory for what these write behind it.

    by_piece: whether prompts take blocks piece by piece.
    """

    def __init__(
        self,
        kv_cache: KvCacheManager,
        rules: EngineRules,
        speculation: Speculation | None,
        *,
        by_piece: bool,
    ) -> None:
        self._kv_cache = kv_cache
        self._pool = kv_cache.pool
        self._is_plain = not isinstance(kv_cache, PageManager)
        self._speculation = speculation
        self._lookahead = 0  # tokens that a drafting model writes behind a piece
        if speculation is not None and by_piece:
            self._lookahead = speculation.num_lookahead_tokens
        self._first_ahead = self._lookahead if rules.admits_lookahead else 0

    # --- whole sequences ----------------------------------------------------------------------

    def num_slots(self, sequence: SequenceState) -> int:
        """Return the slots that a sequence needs in the next step that it is in."""
        if self._speculation is not None and sequence.num_output_tokens:
            return self._speculation.num_slots(sequence.num_tokens)
        return sequence.num_tokens

    def to_return(self, swap: KvMove) -> int:
        """Return the blocks that must be free for a swapped sequence to continue."""
        sequence = swap.sequence
        num_tokens = sequence.num_tokens if swap.in_prefill else self.num_slots(sequence)
        num_here = swap.num_tokens
        return self._pool.blocks_of(num_here) + self._pool.more_for(num_here, num_tokens)

    def to_join(self, sequence: SequenceState) -> int:
        """Return the blocks that must be free for a sequence with its entries to continue.

        For a prompt, these include all of its remaining tokens.
        """
        pool, num_slots, num_here = self._pool, self.num_slots(sequence), sequence.num_brought
        if pool.groups:
            return pool.more_for(num_here, num_slots, in_pieces=sequence.has_rest)
        return num_here // -pool.block_size - num_slots // -pool.block_size

    def outgrown(self, sequence: SequenceState) -> str | None:
        """Return how a sequence has more tokens than the whole cache holds, or None.

        A sequence that has emitted tokens also needs the slots for drafts of its next step, and a
        prompt those that a drafting model writes behind its end.
        """
        pool = self._pool
        num_slots = self.num_slots(sequence)
        if self._lookahead and not sequence.num_output_tokens:
            num_slots = self.slots_ahead(sequence, num_slots, self._lookahead)
        num_blocks = pool.blocks_alone(num_slots)
        if num_blocks <= pool.num_blocks:
            return None
        num_extra = num_slots - sequence.num_tokens
        drafts = f" and {num_extra} for drafts" if num_extra else ""
        pages = f" take {num_blocks} blocks and" if pool.groups else ""
        return f"{sequence.num_tokens} tokens{drafts}{pages} exceed {pool.name}"

    # --- pieces of prompts --------------------------------------------------------------------

    def of_piece(self, sequence: SequenceState, num_tokens: int, num_done: int = 0) -> int:
        """Return the blocks that a piece of a prompt takes; `num_done` tokens have theirs."""
        num_computed = sequence.num_computed_tokens
        if self._lookahead:
            num_held, slots = self._kv_cache.num_held, self.slots_ahead
            before = num_held(sequence, slots(sequence, num_computed + num_done))
            after = slots(sequence, num_computed + num_tokens, self._lookahead)
            return num_held(sequence, after) - before
        if sequence.chain is None and self._is_plain:
            size = self._pool.block_size
            return (num_computed + num_done) // -size - (num_computed + num_tokens) // -size
        num_held = self._kv_cache.num_held
        before = num_held(sequence, num_computed + num_done)
        return num_held(sequence, num_computed + num_tokens) - before

    def of_rest(self, sequence: SequenceState, num_planned: int) -> int:
        """Return the blocks that a prompt that runs lacks after its planned piece.

        The drafting model's blocks behind that piece count as blocks of the rest.
        """
        num_slots = self.slots_ahead(sequence, sequence.num_computed_tokens + num_planned)
        held = self._kv_cache.num_held(sequence, num_slots)
        return max(0, self._pool.blocks_for(sequence.num_tokens) - held)

    def slots_of_piece(self, sequence: SequenceState, num_tokens: int) -> int:
        """Return the slots of a prompt that runs with the piece that ends after so many tokens."""
        return self.slots_ahead(sequence, num_tokens, self._lookahead)

    def taken_by_piece(self, sequence: SequenceState, num_tokens: int) -> int:
        """Return the blocks that the planned piece of a prompt took."""
        num_held, num_computed = self._kv_cache.num_held, sequence.num_computed_tokens
        after = num_held(sequence, self.slots_ahead(sequence, num_computed + num_tokens))
        return after - num_held(sequence, self.slots_ahead(sequence, num_computed))

    def slots_ahead(
        self, sequence: SequenceState, num_tokens: int, num_ahead: int | None = None
    ) -> int:
        """Return the slots of a prompt once so many of its tokens are computed or planned.

        num_ahead: slots behind these tokens; None: those that its last piece took.
        """
        num_ahead = sequence.num_ahead if num_ahead is None else num_ahead
        if not num_ahead or self._speculation is None:
            return num_tokens
        return self._speculation.slots_ahead(num_tokens, num_ahead)

    def of_first_piece(self, sequence: SequenceState, num_new: int, num_padded: int = 0) -> int:
        """Return the slots up to the end of a waiting prompt's first piece; 0: as any piece.

        num_padded: drafts behind it.
        """
        num_ahead = self._first_ahead + num_padded
        if not num_ahead:
            return 0
        num_tokens = self._kv_cache.num_cached_tokens(sequence) + num_new
        return self.slots_ahead(sequence, min(num_tokens, sequence.num_tokens), num_ahead)

    def note_first(self, sequence: SequenceState, num_padded: int) -> None:
        """Note that the first piece of a prompt has memory behind it, for drafts among others."""
        sequence.num_ahead = self._first_ahead + num_padded

    def note_ahead(self, sequence: SequenceState) -> None:
        """Note that a later piece of a prompt has memory for what a drafting model writes ahead."""
        sequence.num_ahead = self._lookahead
