"""How many pages each sequence holds, turn by turn, without a prefix cache: plain counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mist_sim.clients.kv_cache.manager import KvCacheManager
from mist_sim.clients.kv_cache.pages.holding import Holding
from mist_sim.clients.kv_cache.pages.page_pool import PagePool
from mist_sim.clients.sequence_state import SequenceState


class Turn(NamedTuple):
    """The turn of a running sequence in a step.

    num_computed: tokens that are computed before. num_new: tokens of the step. num_slots: tokens
    that it has memory for then, drafts included. num_known: computed ones with names for others.
    """

    num_computed: int
    num_new: int
    num_slots: int
    num_known: int


class PageManager(KvCacheManager):
    """Lends pages to sequences, and takes back those that their windows have left.

    In the turn of a sequence (`serve`) its pages that no window sees any more come back first, then
    it takes those of its new tokens. Blocks come and go in turns alone: `grow` and `give_back` do
    nothing.

    keeps_states: whether states are kept for others.
    num_in_flight: returns the tokens of a sequence that batches in flight compute, of which there
        may be several; None: it is in one at most.
    """

    pool: PagePool

    def __init__(self, pool: PagePool, *, lags: bool) -> None:
        """lags: of `PageRules`."""
        super().__init__(pool)
        self.num_in_flight: Callable[[SequenceState], int] | None = None
        self._lags = lags
        self.keeps_states = pool.groups.num_kept_states > 0
        self._of: dict[SequenceState, Holding] = {}

    # --- the turns of a plan ------------------------------------------------------------------

    def leave_behind(self, sequence: SequenceState, num_computed: int) -> None:
        """Take back the pages that a sequence's windows have left after so many computed tokens.

        All tokens of a step in flight, drafts included, count as computed; where the version waits
        for the step, none does.
        """
        holding = self._of[sequence]
        if self.num_in_flight is not None:
            num_computed -= self.num_in_flight(sequence) if self._lags else 0
        elif self.answers.is_ahead and holding.plan == self.num_plans - 1:
            num_computed = holding.num_before + (0 if self._lags else holding.num_new)
        self._return(holding, num_computed)

    def _return(self, holding: Holding, num_computed: int) -> None:
        """Take back the pages that a sequence needs no more after so many computed tokens."""
        holding.leave_behind(num_computed)

    def need(self, sequence: SequenceState, turn: Turn) -> int:
        """Pages that a sequence lacks for a turn."""
        num_more = -(-turn.num_slots // self.pool.block_size) - self._of[sequence].num_blocks
        return self.pool.groups.num_groups * max(0, num_more)

    def num_late(self, num_sequences: int) -> int:
        """Pages that sequences may take in a later step than that in which their slots begin."""
        return 0

    def piece(self, sequence: SequenceState, num_new: int) -> int:
        """Tokens of a prompt's next piece, of so many that a step has for it; 0: it has to wait."""
        return num_new

    def serve(self, sequence: SequenceState, turn: Turn) -> None:
        """Give a sequence its turn in a plan, unless it had that."""
        holding = self._of[sequence]
        if holding.plan == self.num_plans:
            return
        self.leave_behind(sequence, turn.num_computed)
        self._have_turn(holding, turn)

    def serve_next(self, sequence: SequenceState, turn: Turn, num_before: int) -> None:
        """Give a sequence its turn in a later step of a plan.

        num_before: its computed tokens before the step before.
        """
        holding = self._of[sequence]
        self._return(holding, self.num_counted_as_computed(turn, num_before))
        self._have_turn(holding, turn)

    def num_counted_as_computed(self, turn: Turn, num_before: int) -> int:
        """Tokens that count as computed when a later step of a plan takes pages back."""
        if not self.answers.is_ahead:
            return turn.num_computed
        return num_before if self._lags else num_before + turn.num_new

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note a piece of a prompt, up to so many tokens, for which there are pages."""
        holding, num_computed = self._of[sequence], sequence.num_computed_tokens
        if holding.plan != self.num_plans:
            self.leave_behind(sequence, num_computed)
        num_known = min(num_tokens, self.answers.num_hashed(sequence))
        self._have_turn(holding, Turn(num_computed, num_tokens - num_computed, 0, num_known))

    def _have_turn(self, holding: Holding, turn: Turn) -> None:
        holding.extend(turn.num_slots)
        holding.name_until(turn.num_known)
        holding.plan, holding.num_before = self.num_plans, turn.num_computed
        holding.num_new = turn.num_new

    def know(self, sequence: SequenceState, num_tokens: int) -> None:
        """Let others find the blocks that so many tokens fill: all of these are known now."""
        self._of[sequence].name_until(num_tokens)

    def lose_step(self, sequence: SequenceState, num_slots: int) -> None:
        """Take back the pages of a lost step; those of so many tokens stay."""
        holding = self._of[sequence]
        holding.cut(-(-num_slots // self.pool.block_size))
        holding.plan = 0

    # --- sequences that come and go -----------------------------------------------------------

    def waits_for_state(self, sequence: SequenceState) -> bool:
        """Tell whether a waiting sequence finds a state that the present plan saves."""
        return False

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Pages that an admission takes; where all of a prompt has to fit, as a version counts."""
        if num_tokens is None:
            return self.pool.blocks_alone(sequence.num_tokens)
        return self.pool.blocks_for(num_tokens)

    def fewest_blocks_to_admit(
        self, sequence: SequenceState, first_piece: int | None = None
    ) -> int:
        """0: others may hold every page of its prefix by then."""
        return 0

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Give a sequence the cached pages that it finds, and new pages for its first piece."""
        self._of[sequence] = holding = self._begin(sequence)
        num_tokens = sequence.num_tokens
        if most_new is not None:
            num_tokens = min(num_tokens, sequence.num_computed_tokens + most_new)
        holding.extend(num_tokens)
        holding.plan = self.num_plans

    def _begin(self, sequence: SequenceState) -> Holding:
        """Let a sequence begin with its cached pages."""
        return Holding(self.pool)

    def _begin_alone(self, sequence: SequenceState, num_skipped: int) -> Holding:
        """Let a sequence begin in new pages; windows have left its first blocks."""
        return Holding(self.pool, num_skipped)

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Give a sequence new pages for entries that come, if a window still sees them."""
        holding = self._begin_alone(sequence, self.pool.num_skipped(num_tokens))
        self._of[sequence] = holding
        holding.extend(num_tokens)
        return self.pool.blocks_of(num_tokens)

    def arrive(self, sequence: SequenceState, num_tokens: int) -> None:
        """Enter the pages of the loaded tokens into the cache."""
        self._of[sequence].name_until(num_tokens)

    def go_on(self, sequence: SequenceState, num_here: int, num_tokens: int) -> None:
        """Give a prompt pages for the tokens after those that were loaded."""
        self._of[sequence].extend(num_tokens)

    def grow(self, num_blocks: int) -> None:
        """Nothing: each sequence takes its own pages, in its turn."""

    def give_back(self, num_blocks: int) -> None:
        """Nothing, for the same reason."""

    def swap_in(self, sequence: SequenceState, num_blocks: int, num_computed_tokens: int) -> None:
        """Take pages for entries that are copied back; a prompt takes pages for all its tokens.

        num_blocks: pages that it takes.
        """
        if num_blocks > self.reserve(sequence, num_computed_tokens):
            self._of[sequence].extend(sequence.num_tokens)
        self.arrive(sequence, num_computed_tokens)

    def free(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all pages."""
        holding = self._of.pop(sequence)
        holding.name_until(num_computed_tokens)
        holding.end()
