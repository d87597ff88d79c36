"""The KV blocks of a lane whose layers are in groups: of full attention, windows and states.

A block of tokens takes a block of memory, a page, in every group; `num_blocks` and `num_free` count
pages. Requests give back and take pages in turns, as each step is planned (`Lane.serve`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mist_sim.clients.engine.core.blocks import Blocks
from mist_sim.clients.kv_cache.pages import (
    HeldPages,
    Hit,
    Hits,
    PageTable,
    Piece,
    end_of,
    first_names,
    name_more,
    saved_block,
)
from mist_sim.clients.prefixes.prefix_cache import one_token_up

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mist_sim.clients.kv_cache.pages import PagePool, PageRules
    from mist_sim.core.request import Content

_NEVER = 1 << 62
_NOTHING = Hit(0, 0, 0, 0, [], [], 0)


class PagedChain:
    """The pages of a request.

    shared: names of its first blocks, whose content others may have. holding: its pages, None: it
        has none.
    gives_at: computed tokens from which on some come back. num_slots: tokens that it has pages for.
    names_at: known tokens from which on others find one more block.
    num_held, num_shared: of `Chain`; others find its blocks in its turns alone.
    """

    def __init__(self, shared: list[Hashable]) -> None:
        self.shared = shared
        self.holding: HeldPages | None = None
        self.gives_at = self.names_at = _NEVER
        self.num_slots = self.num_held = self.num_shared = 0

    def start_over(self) -> None:
        """Do nothing: it holds none once they are free."""


class PagedBlocks(Blocks):
    """Pages that requests take and give back.

    rules: how the version counts them. lags: whether a page comes back only when no step in flight
    sees it (`PageRules`). keeps_states: whether states are kept for others; then pieces of prompts
    end where one is saved, if `aligns`. The numbers ahead, and `names_verified`: of `PageRules`.
    """

    def __init__(
        self, pool: PagePool, rules: PageRules, caches: bool, uncached_first: bool, covers: bool
    ) -> None:
        Blocks.__init__(
            self,
            pool.num_blocks,
            pool.block_size,
            pool.num_reserved,
            caches,
            uncached_first,
            0,
            covers,
        )
        groups = pool.groups
        self.pool, self.lags = pool, rules.lags
        self.is_paged, self.per_block = True, groups.num_groups
        self.has_windows = groups.num_window_groups > 0
        self.keeps_states = groups.num_kept_states > 0
        self.num_ahead, self.num_ahead_first = rules.num_ahead, rules.num_ahead_first
        self.names_verified = self.keeps_states and rules.names_verified
        self.aligns = groups.state_cache == "align"
        self.reach = (groups.sliding_window or 1) - 1
        self.table = PageTable(
            pool.num_blocks,
            groups.num_groups,
            blank_first=uncached_first,
            are_alike=not caches,
        )
        self.hits = Hits(pool, self.table, rules)
        self.latest: tuple[PagedChain, list[Hashable], Hit] | None = None  # look-up

    def chain(self, content: Content) -> Any:
        """Return the chain of a request, which holds nothing yet."""
        return PagedChain(self.shared_names(content) if self.caches else [])

    def shared_names(self, content: Content) -> list[Hashable]:
        """Return the names of the first blocks of a content."""
        return first_names(one_token_up(content) if self.covers_next else content, self.size)

    # --- what is found, and needed --------------------------------------------------------------

    def find(self, chain: Any, num_tokens: int) -> Any:
        """Return the pages that a waiting request with so many tokens begins with."""
        if not self.caches:
            return _NOTHING
        latest, number = self.latest, (num_tokens - 1) // self.size
        if latest is None or latest[0] is not chain or len(latest[1]) != number:
            names = self.names(chain, number)
            self.table.watched = frozenset(names)
        elif latest[2].changes == self.table.changes:
            return latest[2]
        else:
            names = latest[1]
        hit = self.hits.find(names)
        self.latest = chain, names, hit
        return hit

    def names(self, chain: PagedChain, number: int) -> list[Hashable]:
        """Return the names of its first blocks."""
        names = list(chain.shared)
        name_more(chain, names, number)
        return names[:number]

    def prefix_tokens(self, content: Content, num_tokens: int) -> int:
        """Return the tokens of a prompt that it would find now."""
        if not (self.caches and content):
            return 0
        names = self.shared_names(content)[: (num_tokens - 1) // self.size]
        return self.hits.find(names).num_blocks * self.size

    def may_gain(self, found: Any, whole: bool) -> bool:
        """Tell whether a request may need fewer free pages: any step may free some."""
        return True

    def need(self, found: Any, num_tokens: int, num_first: int, whole: bool) -> int:
        """Return the free pages that an admission takes, see `Blocks.need`.

        Those of its first piece are counted for all groups alike, those of all of it as the version
        says.
        """
        first = self.need_for(found, num_first, False)
        return max(first, self.need_for(found, num_tokens, True)) if whole else first

    def need_for(self, found: Hit, num_tokens: int, whole: bool) -> int:
        """Return the free pages for so many tokens, first ones or all."""
        pool, groups = self.pool, self.pool.groups
        number = self.count(num_tokens)
        num_counted = pool.counted(number) if whole else number
        num_pages = groups.num_full_groups * (number - found.num_blocks)
        num_pages += groups.num_window_groups * max(0, num_counted - found.num_blocks)
        num_pages += found.num_free + pool.num_state_pages
        if self.keeps_states:
            end = num_tokens if whole else num_tokens - self.num_ahead_first
            number = self.count(end) + pool.num_drafts - found.num_blocks
            if not pool.is_dense:
                saved = saved_block(found.num_blocks * self.size, end, self.size, pool.states)
                number = min(number, 1 + pool.num_drafts + (saved is not None))
            num_pages += groups.num_kept_states * number
        return num_pages

    def waits_for_state(self, found: Hit) -> bool:
        """Tell whether the state that ends what a request finds is saved in the present plan."""
        if not (self.pool.states.waits and found.num_blocks and found.states):
            return False
        return found.states[0].name in self.table.fresh

    def piece(
        self, chain: PagedChain, found: Hit | None, begin: int, new: int, ends: tuple[int, int]
    ) -> int:
        """Return the tokens of a piece that a step has `new` for; 0: it has to wait.

        found: what a request finds that waits. begin: its computed tokens. ends: its tokens, and
        those of its prompt without its answer.
        """
        if not (self.aligns and new):
            return new
        rules, shared = self.pool.states, 0
        if found is None:
            if chain.holding is not None:
                shared = chain.holding.num_shared_tokens
        elif rules.shared_stop != "never" and found.most > found.num_blocks:
            shared = found.most * self.size
        return end_of(Piece(begin, begin + new, *ends, shared), self.size, rules) - begin

    def need_to_bring(self, found: Any, num_here: int, num_tokens: int, in_pieces: bool) -> int:
        """Return the free pages for entries that come and what goes on behind them."""
        return self.held(num_here) + self.more(num_here, num_tokens, in_pieces)

    def more(self, num_here: int, num_tokens: int, in_pieces: bool) -> int:
        """Return the pages that it takes beside those of its first tokens."""
        return self.pool.more_for(num_here, num_tokens, in_pieces=in_pieces)

    def held(self, num_tokens: int) -> int:
        """Return the pages of one with so many computed tokens."""
        return self.pool.blocks_of(num_tokens)

    def in_all(self, num_tokens: int) -> int:
        """Return the pages of so many tokens, none of which came back."""
        return self.pool.blocks_for(num_tokens)

    def alone(self, num_tokens: int) -> int:
        """Return the pages that must be free at once for one that is alone."""
        return self.pool.blocks_alone(num_tokens)

    # --- requests come and go ---------------------------------------------------------------------

    def begin(self, chain: Any, found: Any, num_tokens: int, end: int) -> int:
        """Let a request begin with pages that it finds, and new ones up to so many tokens.

        end: of its first piece. Returns how many blocks of tokens these are.
        """
        chain.holding = holding = HeldPages(self.pool, self.table, chain, chain.shared)
        holding.begin_with(found)
        if self.pool.states.shared_stop == "always" and found.most > found.num_blocks:
            holding.num_shared_tokens = found.most * self.size
        end = max(end, num_tokens - self.num_ahead_first)
        self.take(chain, found.num_blocks * self.size, end, num_tokens)
        return self.count(num_tokens)

    def bring(self, chain: Any, found: Any, num_tokens: int) -> None:
        """Give a request new pages for entries that come, if a window still sees them."""
        pool = self.pool
        skipped = pool.num_skipped(num_tokens), pool.num_skipped_states(num_tokens)
        chain.holding = holding = HeldPages(pool, self.table, chain, chain.shared, *skipped)
        if holding.states is not None:
            holding.extend(num_tokens)
            holding.states.take(num_tokens)
        self.extend(chain, num_tokens)

    def free(self, chain: Any, number: int, num_tokens: int) -> None:
        """Take back the pages of a request that leaves; so many of its tokens are computed."""
        holding, chain.holding = chain.holding, None
        if holding is not None:
            if self.caches:
                holding.name_until(num_tokens)
            holding.end()
        self.num_free = self.pool.num_free

    def preempt(self, chain: Any, number: int, num_tokens: int) -> Any:
        """Take back the pages of a request that comes back."""
        self.free(chain, number, num_tokens)
        return chain

    def swap_out(self, chain: Any, number: int, num_tokens: int) -> None:
        """Take back the pages of a request, of whose computed tokens the host has a copy."""
        self.free(chain, number, num_tokens)

    def swap_in(self, chain: Any, number: int, num_tokens: int) -> None:
        """Give a request new blocks, into which the entries of its computed tokens come."""
        self.bring(chain, None, num_tokens)
        self.extend(chain, number * self.size)
        if self.keeps_states and number > self.count(num_tokens):
            chain.holding.states.take(number * self.size)  # of the rest of its prompt
        self.enter(chain, num_tokens)

    # --- turns ------------------------------------------------------------------------------------

    def end_of_states(self, end: int, num_slots: int) -> int:
        """Return the tokens up to which a step needs states: none that a drafting model writes.

        A step planned ahead counts all drafts of the one before it as accepted.
        """
        return max(min(end, num_slots), num_slots - self.num_ahead)

    def lacking(self, chain: PagedChain, begin: int, end: int, num_slots: int) -> int:
        """Return the pages that a request lacks for a step that computes these tokens.

        num_slots: tokens that it has memory for then.
        """
        number = max(0, self.count(num_slots) - chain.num_slots // self.size)
        if not self.keeps_states:
            return self.per_block * number
        num_states = self.pool.groups.num_kept_states
        end = self.end_of_states(end, num_slots)
        saved = saved_block(begin, end, self.size, self.pool.states)
        in_states: int = chain.holding.states.num_lacking(end, saved)  # type: ignore[union-attr]
        return (self.per_block - num_states) * number + in_states

    def take(self, chain: PagedChain, begin: int, end: int, num_slots: int) -> None:
        """Give a request the pages of a step that computes these tokens (`lacking`)."""
        holding = chain.holding
        if holding is not None:
            holding.extend(num_slots)
            if holding.states is not None:
                end = self.end_of_states(end, num_slots)
                holding.states.take(end, saved_block(begin, end, self.size, self.pool.states))
            self.note(chain)

    def name(self, chain: PagedChain, num_tokens: int) -> None:
        """Let others find the blocks that so many tokens fill, with states that are saved now."""
        holding = chain.holding
        if self.caches and holding is not None:
            before = holding.num_named
            holding.name_until(num_tokens)
            if self.keeps_states:
                self.table.fresh.update(holding.saved(before))
            self.note(chain)

    def give_behind(self, chain: PagedChain, num_tokens: int) -> None:
        """Take back what windows have left after so many computed tokens."""
        if chain.holding is not None:
            if self.names_verified:
                chain.holding.name_until(num_tokens)  # so that others find what comes back
            chain.holding.leave_behind(num_tokens)
            self.note(chain)

    def extend(self, chain: PagedChain, num_tokens: int) -> None:
        """Give a request pages for so many tokens, but for states."""
        if chain.holding is not None:
            chain.holding.extend(num_tokens)
            self.note(chain)

    def enter(self, chain: Any, num_tokens: int) -> None:
        """Let others find the blocks that so many tokens fill."""
        if self.caches and chain.holding is not None:
            chain.holding.name_until(num_tokens)
            self.note(chain)

    def cut(self, chain: PagedChain, num_tokens: int) -> None:
        """Take back the pages of a lost step; those of so many tokens stay."""
        if chain.holding is not None:
            chain.holding.cut(self.count(num_tokens))
            self.note(chain)

    def note(self, chain: PagedChain) -> None:
        """Note when something changes next for a request, and how many pages are free."""
        holding = chain.holding
        self.num_free = self.pool.num_free
        if holding is None:
            return
        chain.num_slots = holding.num_blocks * self.size
        if self.has_windows:
            chain.gives_at = (holding.num_skipped + 1) * self.size + self.reach
        if self.caches:
            chain.names_at = (holding.num_named + 1) * self.size
        if holding.states is not None:
            gives_at = (holding.states.num_skipped + 1) * self.size + 1
            chain.gives_at = min(chain.gives_at, gives_at) if self.has_windows else gives_at
