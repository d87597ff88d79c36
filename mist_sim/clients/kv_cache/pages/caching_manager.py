"""The prefix cache of a model with windows, page by page."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from mist_sim.clients.kv_cache.manager import Ahead
from mist_sim.clients.kv_cache.pages.held_pages import HeldPages, name_more
from mist_sim.clients.kv_cache.pages.hits import Hit, Hits
from mist_sim.clients.kv_cache.pages.holding import Holding
from mist_sim.clients.kv_cache.pages.page_manager import PageManager
from mist_sim.clients.kv_cache.pages.page_pool import PagePool, PageRules
from mist_sim.clients.kv_cache.pages.page_table import PageTable
from mist_sim.clients.prefixes.prefix_cache import Chain, one_token_up
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import ContentWatcher


class CachingPageManager(PageManager):
    """Lets a sequence begin with pages of others that have the same tokens.

    It holds the very pages that it finds (see `Hits`), with others, if these hold them. Blocks get
    names in the turn whose tokens fill them; several pages may have one name, and the oldest is
    found.
    """

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
        self._hashes_ahead = hashes_ahead
        self._latest: tuple[SequenceState, list[Hashable], Hit] | None = None  # look-up

    # --- what is found ------------------------------------------------------------------------

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        return self.hit(sequence).num_blocks * self.pool.block_size

    def num_prefix_tokens(self, probe: SequenceState, ahead: Ahead) -> int:
        return self._hits.find(self._names(probe)).num_blocks * self.pool.block_size

    def watch(self, watcher: ContentWatcher) -> bool:
        return False  # windows may shorten what full attention has

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        return 1

    def is_entering(self, sequence: SequenceState) -> bool:
        return True

    def hit(self, sequence: SequenceState) -> Hit:
        """Return the cached pages that a waiting sequence finds."""
        latest = self._latest
        if latest is None or latest[0] is not sequence:
            names = self._names(sequence)
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
        known = one_token_up(content) if self._hashes_ahead else content
        for key, end in Chain(known, self.pool.block_size).spans:
            names += [(key, position) for position in range(len(names), end)]
        return names

    # --- sequences that come and go -----------------------------------------------------------

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        pool = self.pool
        whole, most = num_tokens is None, sequence.num_tokens
        num_blocks = -(-(most if num_tokens is None else num_tokens) // pool.block_size)
        num_counted = pool.counted(num_blocks) if whole else num_blocks
        hit, groups = self.hit(sequence), pool.groups
        num_window = groups.num_window_groups * max(0, num_counted - hit.num_blocks)
        num_full = groups.num_full_groups * (num_blocks - hit.num_blocks)
        return num_full + num_window + hit.num_free + pool.num_state_pages

    def _begin(self, sequence: SequenceState) -> Holding:
        hit = self.hit(sequence)
        self._latest = None  # once it ran, it has other names
        sequence.num_computed_tokens = hit.num_blocks * self.pool.block_size
        holding = HeldPages(self.pool, self.table, sequence, self._first_names(sequence))
        holding.begin_with(hit)
        return holding

    def _begin_alone(self, sequence: SequenceState, num_left: int) -> Holding:
        self._latest = None
        names = self._first_names(sequence)
        return HeldPages(self.pool, self.table, sequence, names, num_left)
