"""The prefix cache of a model with windows or states, page by page."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from mist_sim.clients.kv_cache.manager import Ahead
from mist_sim.clients.kv_cache.pages.held_pages import HeldPages, name_more
from mist_sim.clients.kv_cache.pages.hits import Hit, Hits
from mist_sim.clients.kv_cache.pages.holding import Holding
from mist_sim.clients.kv_cache.pages.page_manager import PageManager, Turn
from mist_sim.clients.kv_cache.pages.page_pool import PagePool, PageRules
from mist_sim.clients.kv_cache.pages.page_table import PageTable
from mist_sim.clients.kv_cache.pages.state_pieces import Piece, end_of, saved_block
from mist_sim.clients.prefixes.prefix_cache import Chain, one_token_up
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import ContentWatcher


class CachingPageManager(PageManager):
    """Lets a sequence begin with cached pages of equal tokens.

    It holds the very pages that it finds (see `Hits`), with others, if these hold them. Blocks get
    names in the turn whose tokens fill them; several pages may have one name, and the oldest is
    found. Where states are kept for others, pieces of prompts end where one is saved.
    """

    _of: dict[SequenceState, HeldPages]  # type: ignore[assignment]

    caches_prefixes: ClassVar[bool] = True
    looks_ahead: ClassVar[bool] = False

    def __init__(
        self,
        pool: PagePool,
        rules: PageRules,
        *,
        blank_first: bool = False,
        hashes_ahead: bool = False,
    ) -> None:
        """blank_first: of `PageTable`. hashes_ahead: of `LaneMemory`."""
        super().__init__(pool, lags=rules.lags)
        groups = pool.groups
        self.table = PageTable(pool.num_blocks, groups.num_groups, blank_first=blank_first)
        self.shares_blocks = True
        self._hits = Hits(pool, self.table, rules)
        self.answers.covers_next = hashes_ahead
        self._drafts = rules.drafts
        self._latest: tuple[SequenceState, list[Hashable], Hit] | None = None  # look-up
        self._fresh_in = 0  # plan of the table's fresh names

    # --- what is found ------------------------------------------------------------------------

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        """Tokens of the blocks that every group of layers finds in its cache."""
        return self.hit(sequence).num_blocks * self.pool.block_size

    def num_prefix_tokens(self, probe: SequenceState, ahead: Ahead) -> int:
        """Tokens that a look-up finds now; a run in progress changes nothing before it ends."""
        return self._hits.find(self._names(probe)).num_blocks * self.pool.block_size

    def watch(self, watcher: ContentWatcher) -> bool:
        """Refuse to tell a watcher: the cached content of one group is not that of all."""
        return False  # windows may shorten what full attention has

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        """Any step may free pages or enter them, so the next one may already bring a gain."""
        return 1

    def is_entering(self, sequence: SequenceState) -> bool:
        """Every computed page enters the cache."""
        return True

    def hit(self, sequence: SequenceState) -> Hit:
        """Return the cached pages that a waiting sequence finds."""
        latest, num_blocks = self._latest, (sequence.num_tokens - 1) // self.pool.block_size
        if latest is None or latest[0] is not sequence or len(latest[1]) != num_blocks:
            names = self._names(sequence)  # others, too, once it has run and was preempted
            self.table.watched = frozenset(names)
        elif latest[2].changes == self.table.changes:
            return latest[2]
        else:
            names = latest[1]
        hit = self._hits.find(names)
        self._latest = sequence, names, hit
        return hit

    def _names(self, sequence: SequenceState) -> list[Hashable]:
        """Return the names of the blocks that it may find; its last token is always computed."""
        names, most = self._first_names(sequence), (sequence.num_tokens - 1) // self.pool.block_size
        name_more(sequence, names, most)
        return names[:most]

    def _first_names(self, sequence: SequenceState) -> list[Hashable]:
        """Return the names of the blocks whose content other requests may share."""
        names: list[Hashable] = []
        content = sequence.visit.request.content
        known = one_token_up(content) if self.answers.covers_next else content
        for key, end in Chain(known, self.pool.block_size).spans:
            names += [(key, position) for position in range(len(names), end)]
        return names

    # --- states that are kept for others ------------------------------------------------------

    def piece(self, sequence: SequenceState, num_new: int) -> int:
        """Tokens of the next piece; kept states may make it end earlier, where a state is saved."""
        if self.pool.groups.state_cache != "align" or not num_new:
            return num_new
        rules, size = self.pool.states, self.pool.block_size
        shared = 0
        if sequence not in self._of:
            hit = self.hit(sequence)
            begin = hit.num_blocks * size
            if rules.shared_stop != "never" and hit.most > hit.num_blocks:
                shared = hit.most * size
        else:
            begin = sequence.num_brought if sequence.is_brought else sequence.num_computed_tokens
            shared = self._of[sequence].num_shared_tokens
        end, num_prompt = begin + num_new, sequence.num_prompt_tokens
        piece = Piece(begin, end, sequence.num_tokens, num_prompt, shared)
        return end_of(piece, size, rules) - begin

    def need(self, sequence: SequenceState, turn: Turn) -> int:
        """Pages that a sequence lacks for a turn, with those in which it saves states."""
        holding = self._of[sequence]
        num_more = max(0, -(-turn.num_slots // self.pool.block_size) - holding.num_blocks)
        groups, states = self.pool.groups, holding.states
        if states is None:
            return groups.num_groups * num_more
        end = self._end(turn)
        saved = saved_block(turn.num_computed, end, self.pool.block_size, self.pool.states)
        num_pages = (groups.num_groups - groups.num_kept_states) * num_more
        return num_pages + states.num_lacking(end, saved)

    def num_late(self, num_sequences: int) -> int:
        """Pages of states, which need none yet for what a drafting model writes ahead."""
        return self.pool.groups.num_kept_states * num_sequences if self._drafts.num_ahead else 0

    def _end(self, turn: Turn) -> int:
        """Return the tokens up to which a step needs states: none that a drafting model writes.

        A step planned ahead counts all drafts of the one before it as accepted.
        """
        end = turn.num_computed + turn.num_new
        if not (self.pool.num_drafts and turn.num_slots):
            return end
        return max(min(end, turn.num_slots), turn.num_slots - self._drafts.num_ahead)

    def _return(self, holding: Holding, num_computed: int) -> None:
        if self.keeps_states and self._drafts.names_verified:
            holding.name_until(num_computed)  # so that others find what comes back
        super()._return(holding, num_computed)

    def _have_turn(self, holding: Holding, turn: Turn) -> None:
        if not (isinstance(holding, HeldPages) and holding.states is not None):
            super()._have_turn(holding, turn)
            return
        holding.extend(turn.num_slots)
        end, num_named = self._end(turn), holding.num_named
        size, rules = self.pool.block_size, self.pool.states
        holding.states.take(end, saved_block(turn.num_computed, end, size, rules))
        super()._have_turn(holding, turn)
        self._note_plan()
        self.table.fresh.update(holding.saved(num_named))

    def _note_plan(self) -> None:
        """Forget which states were saved in a plan before this one."""
        if self._fresh_in != self.num_plans:
            self._fresh_in = self.num_plans
            self.table.fresh.clear()

    def _states_to_admit(self, hit: Hit, end: int) -> int:
        """Return the pages of states that a waiting sequence takes up to a token."""
        groups, pool = self.pool.groups, self.pool
        needed = -(-end // pool.block_size) + pool.num_drafts - hit.num_blocks
        if not pool.is_dense:
            size = pool.block_size
            saved = saved_block(hit.num_blocks * size, end, size, pool.states)
            needed = min(needed, 1 + pool.num_drafts + (saved is not None))
        return groups.num_kept_states * needed

    def waits_for_state(self, sequence: SequenceState) -> bool:
        """Tell whether the state that ends a sequence's hit is saved in this plan."""
        if not (self.keeps_states and self.pool.states.waits) or sequence.is_brought:
            return False
        hit = self.hit(sequence)
        if not (hit.num_blocks and hit.states):
            return False
        self._note_plan()
        return hit.states[0].name in self.table.fresh

    # --- sequences that come and go -----------------------------------------------------------

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Free pages that an admission takes: pages that no other sequence holds, and states."""
        pool = self.pool
        whole, most = num_tokens is None, sequence.num_tokens
        num_blocks = -(-(most if num_tokens is None else num_tokens) // pool.block_size)
        num_counted = pool.counted(num_blocks) if whole else num_blocks
        hit, groups = self.hit(sequence), pool.groups
        num_window = groups.num_window_groups * max(0, num_counted - hit.num_blocks)
        num_full = groups.num_full_groups * (num_blocks - hit.num_blocks)
        num_pages = num_full + num_window + hit.num_free + pool.num_state_pages
        if not groups.num_kept_states:
            return num_pages
        end = most if num_tokens is None else num_tokens - self._drafts.num_ahead_first
        return num_pages + self._states_to_admit(hit, end)

    def num_first_tokens(self, sequence: SequenceState, first_piece: int) -> int:
        """Cached tokens and the first piece, which kept states may shorten."""
        num_tokens = super().num_first_tokens(sequence, first_piece)
        num_cached = self.num_cached_tokens(sequence)
        return num_cached + self.piece(sequence, num_tokens - num_cached)

    def _begin(self, sequence: SequenceState) -> Holding:
        hit = self.hit(sequence)
        size = self.pool.block_size
        sequence.num_computed_tokens = hit.num_blocks * size
        holding = HeldPages(self.pool, self.table, sequence, self._first_names(sequence))
        holding.begin_with(hit)
        if self.pool.states.shared_stop == "always" and hit.most > hit.num_blocks:
            holding.num_shared_tokens = hit.most * size
        return holding

    def _begin_alone(self, sequence: SequenceState, num_skipped: int) -> Holding:
        names = self._first_names(sequence)
        num_skipped_states = self.pool.num_skipped_states(sequence.num_brought)
        return HeldPages(self.pool, self.table, sequence, names, num_skipped, num_skipped_states)

    def go_on(self, sequence: SequenceState, num_here: int, num_tokens: int) -> None:
        """Give a prompt pages up to so many tokens, and states for drafts behind its end."""
        super().go_on(sequence, num_here, num_tokens)
        states, end = self._of[sequence].states, num_tokens - self._drafts.num_ahead_first
        if states is not None and end > sequence.num_tokens:
            size, rules = self.pool.block_size, self.pool.states
            states.take(end, saved_block(sequence.num_computed_tokens, end, size, rules))

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Give a sequence pages for entries that come, and for their states."""
        num_pages = super().reserve(sequence, num_tokens)
        if states := self._of[sequence].states:
            states.take(num_tokens)
        return num_pages
