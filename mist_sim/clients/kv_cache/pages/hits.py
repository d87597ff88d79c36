"""Which pages a waiting sequence finds in a prefix cache, as vLLM's hybrid models look them up."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from mist_sim.clients.kv_cache.pages.page_pool import PagePool, PageRules
from mist_sim.clients.kv_cache.pages.page_table import Page, PageTable


class Hit(NamedTuple):
    """The cached pages of a waiting sequence's first blocks, by group.

    changes: of the table at the look-up. num_skipped: first blocks whose pages in window groups it
    needs no more. num_free: pages found that no sequence holds. groups: of full attention and
    windows. states: the page of each state group after the last block. most: blocks that full
    attention has.
    """

    changes: int
    num_blocks: int
    num_skipped: int
    num_free: int
    groups: list[list[Page]]
    states: list[Page]
    most: int


class Hits:
    """Look-ups in a page table.

    A hit is the longest prefix that all full groups have, of which all window groups have the last
    blocks, as far as a window reaches, and all state groups the last one. With a layer that drafts,
    its last block is computed again, so windows must have one more; versions differ in what full
    groups lose before (`PageRules`).

    Source: `HybridKVCacheCoordinator` in `vllm/v1/core/kv_cache_coordinator.py`,
    `SlidingWindowManager` and `MambaManager` in `vllm/v1/core/single_type_kv_cache_manager.py`.
    """

    def __init__(self, pool: PagePool, table: PageTable, rules: PageRules) -> None:
        groups = pool.groups
        self._pool = pool
        self._table = table
        self._num_full = groups.num_full_groups
        self._num_groups = self._num_full + groups.num_window_groups
        self._state_groups = range(self._num_groups, groups.num_groups)
        self._num_again, self._num_again_full = rules.num_again, rules.num_again_full
        reach = (groups.sliding_window or 1) - 1
        # blocks of a window before the end of a hit
        self._num_needed = max(1, -(-reach // pool.block_size)) + rules.num_again

    def find(self, names: list[Hashable]) -> Hit:
        """Look up blocks by their names, from the first one on."""
        full = self._in_full(names)
        found = most = len(full[0]) if full else len(names)
        if full and self._num_again and self._num_groups > self._num_full:
            most = 0 if self._num_again_full is None else max(0, most - self._num_again_full)
        window, states, most = self._in_others(names, most)
        num_blocks = max(0, most - self._num_again)
        num_skipped = self._pool.num_skipped(num_blocks * self._pool.block_size)
        for kept in (*full, *window):
            del kept[num_blocks:]
        held = [page for kept in full for page in kept]
        held += [page for kept in window for page in kept[num_skipped:]]
        num_free = sum(not page.holders for page in (*held, *states))
        changes = self._table.changes
        return Hit(changes, num_blocks, num_skipped, num_free, full + window, states, found)

    def _in_others(
        self, names: list[Hashable], most: int
    ) -> tuple[list[list[Page]], list[Page], int]:
        """Return the pages of windows and of states for the longest hit, and its blocks.

        Where states have fewer blocks, windows are asked again for as many.
        """
        while True:
            window = self._in_windows(names, most)
            found = len(window[0]) if window else most
            if not self._state_groups:
                return window, [], found
            states = self._in_states(names, found)
            if states[1] == found or not window:
                return window, *states
            most = states[1]

    def _in_states(self, names: list[Hashable], most: int) -> tuple[list[Page], int]:
        """Return the pages of the last state among so many blocks, and the blocks up to there."""
        for position in range(most - 1, -1, -1):
            pages = [self._table.find(group, names[position]) for group in self._state_groups]
            found = [page for page in pages if page is not None]
            if len(found) == len(pages):
                return found, position + 1
        return [], 0

    def _in_full(self, names: list[Hashable]) -> list[list[Page]]:
        """Return the pages in full groups of the first blocks that all of them have."""
        find, groups = self._table.find, range(self._num_full)
        full: list[list[Page]] = [[] for _ in groups]
        for name in names if full else ():
            found = [page for group in groups if (page := find(group, name)) is not None]
            if len(found) < len(full):
                break
            for kept, page in zip(full, found, strict=True):
                kept.append(page)
        return full

    def _in_windows(self, names: list[Hashable], most: int) -> list[list[Page]]:
        """Return the pages in window groups of the longest run of at most so many blocks.

        Blocks before the reach of the windows are filled with a page that is never held.
        """
        groups = range(self._num_full, self._num_groups)
        runs: list[list[Page]] = []  # by block, from the last one back
        for position in range(most - 1, -1, -1):
            pages = [self._table.find(group, names[position]) for group in groups]
            found = [page for page in pages if page is not None]
            if len(found) < len(pages):
                runs.clear()
                continue
            runs.append(found)
            if len(runs) == self._num_needed:
                runs += [found] * position
                break
        runs.reverse()
        return [[pages[number] for pages in runs] for number in range(len(groups))]
