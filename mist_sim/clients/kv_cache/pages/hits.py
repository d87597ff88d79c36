"""Which pages a waiting sequence finds in a prefix cache, as vLLM's hybrid models look them up."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from mist_sim.clients.kv_cache.pages.page_pool import PagePool, PageRules
from mist_sim.clients.kv_cache.pages.page_table import Page, PageTable


class Hit(NamedTuple):
    """The cached pages of a waiting sequence's first blocks, by group.

    changes: of the table at the look-up. num_left: first blocks whose pages in window groups it
    needs no more. num_free: pages found that no sequence holds.
    """

    changes: int
    num_blocks: int
    num_left: int
    num_free: int
    groups: list[list[Page]]


class Hits:
    """Look-ups in a page table.

    A hit is the longest prefix that all full groups have, and of which all window groups have the
    last blocks, as far as a window reaches. With a layer that drafts, its last block is computed
    again, so windows must have one more; versions differ in what full groups lose before
    (`PageRules`).

    Source: `HybridKVCacheCoordinator` in `vllm/v1/core/kv_cache_coordinator.py`,
    `SlidingWindowManager` in `vllm/v1/core/single_type_kv_cache_manager.py`.
    """

    def __init__(self, pool: PagePool, table: PageTable, rules: PageRules) -> None:
        groups = pool.groups
        self._pool = pool
        self._table = table
        self._num_full, self._num_groups = groups.num_full_groups, groups.num_groups
        self._num_again, self._num_again_full = rules.num_again, rules.num_again_full
        reach = (groups.sliding_window or 1) - 1
        # blocks of a window before the end of a hit
        self._num_needed = max(1, -(-reach // pool.block_size)) + rules.num_again

    def find(self, names: list[Hashable]) -> Hit:
        """Look up blocks by their names, from the first one on."""
        full = self._in_full(names)
        most = len(full[0]) if full else len(names)
        if full and self._num_again and self._num_groups > self._num_full:
            most = 0 if self._num_again_full is None else max(0, most - self._num_again_full)
        window = self._in_windows(names, most)
        num_blocks = len(window[0]) if window else most
        num_blocks = max(0, num_blocks - self._num_again)
        num_left = self._pool.num_left(num_blocks * self._pool.block_size)
        for kept in (*full, *window):
            del kept[num_blocks:]
        held = [page for kept in full for page in kept]
        held += [page for kept in window for page in kept[num_left:]]
        num_free = sum(not page.holders for page in held)
        return Hit(self._table.changes, num_blocks, num_left, num_free, full + window)

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
