"""The prefix cache: which blocks of other requests a request can use, counted and not listed.

The blocks of one content id (`core.request.Content`) are entered, held and evicted as a number of
the first ones, never one by one. This is exact: a request that holds a block holds all blocks
before it, and of the blocks that no request holds the later ones leave the cache first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator

from mist_sim.clients.kv_cache.free_queue import Entry, FreeQueue
from mist_sim.core.request import Content
from mist_sim.core.views import ContentWatcher
from mist_sim.errors import ScenarioError

_NO_END = sys.maxsize


class Chain:
    """What a request's blocks are, in the order of its tokens, and which it holds in the cache.

    spans: (content id, end) of the spans that have blocks; `end` is the position behind the
        span's last block. A block belongs to the span that has its last token.
    num_shared: blocks that other requests may have too.
    num_held: blocks that the request holds in the cache, the first ones.
    is_open: whether its next block is entered; False once another request's copy is there.
    num_loaded: blocks that are there when its load from lower tiers is over; 0 without a load.
    found: what the latest look-up gave; the manager keeps it.
    """

    __slots__ = (
        "entries",
        "found",
        "is_open",
        "num_held",
        "num_loaded",
        "num_shared",
        "spans",
    )

    def __init__(self, content: Content, block_size: int) -> None:
        self.spans: list[tuple[Hashable, int]] = []
        end = num_tokens = 0
        for content_id, length in content:
            if length < 1:
                raise ScenarioError(f"a span of content must have >= 1 token, got {length}")
            num_tokens += length
            if num_tokens // block_size > end:
                end = num_tokens // block_size
                self.spans.append((content_id, end))
        self.num_shared = end
        self.start_over()

    def start_over(self) -> None:
        """Hold nothing."""
        self.entries: list[Entry] = []  # of the blocks held
        self.num_held = 0
        self.num_loaded = 0
        self.is_open = True
        self.found: tuple[int, int, int] | None = None

    def make_private(self) -> None:
        """Give the blocks behind the last span an id that no other request has."""
        if not self.spans or self.spans[-1][1] != _NO_END:
            self.spans.append((self, _NO_END))

    @property
    def is_entering(self) -> bool:
        """Whether more of its blocks will be there for other requests."""
        return self.is_open and self.num_held < self.num_shared

    def next_span(self) -> tuple[Entry | None, Hashable, int] | None:
        """Return the span of the first block not held, with its entry if some of it are."""
        place = len(self.entries)
        if place and self.num_held < self.spans[place - 1][1]:
            return self.entries[-1], *self.spans[place - 1]
        return (None, *self.spans[place]) if place < len(self.spans) else None


class PrefixCache:
    """The entries and the free blocks of one pool.

    queue: all free blocks. changes: grows whenever an entry changes, so that what was looked up
    before can be trusted until then. on_evict: takes the id and positions [start, end) of what
    is evicted, the last block of it first; None: it is not told to anyone.
    """

    def __init__(
        self, num_blocks: int, on_evict: Callable[[Hashable, int, int], None] | None = None
    ) -> None:
        self.on_evict = on_evict
        self.queue = FreeQueue(num_blocks)
        self.changes = 0
        self._entries: dict[Hashable, Entry] = {}
        self._watcher: ContentWatcher | None = None

    def watch(self, watcher: ContentWatcher) -> None:
        """Tell which ids have blocks here, now and from now on."""
        self._watcher = watcher
        for key in self._entries:
            watcher.enter(key)

    def find(self, chain: Chain, num_blocks: int) -> tuple[int, int]:
        """Look for the first `num_blocks` blocks of a chain.

        Returns how many are cached, and how many of these, counted from the first, are held.
        """
        num_found = num_held = 0
        for key, end in chain.spans:
            entry = self._entry(key, num_found)
            if entry is None:
                break
            all_held = num_held == num_found
            num_found = min(end, num_blocks, entry.first + entry.num_cached)
            if all_held:
                num_held = min(num_found, entry.first + entry.num_held)
            if num_found < end:
                break
        return num_found, num_held

    def find_later(
        self, chain: Chain, most: int, num_taken: int, entering: list[tuple[Chain, int]]
    ) -> int:
        """Return how many of a chain's first blocks, at most `most`, will be cached.

        Then `num_taken` of the free blocks will be used for something else, and other chains
        will have entered so many of their first ones. Nothing changes.
        """
        ends: dict[Hashable, int] = {}  # behind the last block of each id, where it changes
        for piece in self.queue:
            if num_taken <= 0:
                break
            if (entry := piece.entry) is not None:
                end = ends.get(entry.key, entry.first + entry.num_cached)
                ends[entry.key] = end - min(num_taken, piece.num_blocks)
            num_taken -= piece.num_blocks
        for other, num_blocks in entering:
            ends.update(self._ends_to_enter(other, num_blocks))
        num_found = 0
        for key, end in chain.spans:
            if (known_end := ends.get(key)) is None:
                entry = self._entry(key, num_found)
                known_end = entry.first + entry.num_cached if entry is not None else num_found
            num_found = max(num_found, min(end, most, known_end))
            if num_found < end:
                break
        return num_found

    def _ends_to_enter(self, chain: Chain, num_blocks: int) -> Iterator[tuple[Hashable, int]]:
        """Yield the ids of the blocks that `enter` would enter, with the position behind them."""
        position = chain.num_held
        for key, end in chain.spans:
            if end <= position:
                continue
            entry = self._entries.get(key)
            if position >= num_blocks or (entry and entry.first + entry.num_cached > position):
                return
            position = min(end, num_blocks)
            yield key, position

    def hold(self, chain: Chain, num_blocks: int) -> int:
        """Let a request hold the first blocks of its chain, which are cached.

        Returns how many of them were free.
        """
        num_taken = 0
        for key, end in chain.spans:
            if chain.num_held == num_blocks:
                break
            entry = self._entries[key]
            chain.num_held = min(end, num_blocks)
            chain.entries.append(entry)
            count = chain.num_held - entry.first
            if count > entry.num_held:
                num_taken += count - entry.num_held
                self.queue.take(entry, count - entry.num_held)
            entry.hold(count)
            self.changes += 1
        return num_taken

    def enter(self, chain: Chain, num_blocks: int) -> None:
        """Enter the first blocks of a chain, which the request holds.

        Where another request's copy of the next block is there, this one and those behind it
        stay the request's own.
        """
        while chain.is_open and (span := chain.next_span()):
            entry, key, end = span
            known = entry or self._entry(key, chain.num_held)
            if known is not None and known.first + known.num_cached > chain.num_held:
                chain.is_open = False
            elif chain.num_held >= num_blocks:
                return
            else:
                if entry is None:
                    entry = self._entries[key] = Entry(key, chain.num_held)
                    chain.entries.append(entry)
                    if self._watcher is not None:
                        self._watcher.enter(key)
                chain.num_held = min(end, num_blocks)
                entry.grow(chain.num_held - entry.first)
                self.changes += 1
                if end == _NO_END:  # nobody else has a copy
                    return

    def release(self, chain: Chain) -> int:
        """Let go of the blocks of a chain, the last one first.

        Returns how many no request holds any more; those are free.
        """
        end, total = chain.num_held, 0
        for entry in reversed(chain.entries):
            num_freed = entry.release(end - entry.first)
            if num_freed:
                self.queue.append(entry, num_freed)
                total += num_freed
            end = entry.first
            self.changes += 1
        return total

    def evict(self, num_blocks: int) -> None:
        """Use the least recently used free blocks for something else."""
        for entry, num_lost in self.queue.pop(num_blocks):
            self.lose(entry, num_lost)

    def lose(self, entry: Entry, num_blocks: int) -> None:
        """Forget the last blocks of an entry, which were free and are used for something else."""
        entry.num_cached -= num_blocks
        if self.on_evict is not None:
            start = entry.first + entry.num_cached
            self.on_evict(entry.key, start, start + num_blocks)
        if not entry.num_cached:
            del self._entries[entry.key]
            if self._watcher is not None:
                self._watcher.leave(entry.key)
        self.changes += 1

    def _entry(self, key: Hashable, first: int) -> Entry | None:
        """Return what is cached of an id whose first block is at a position.

        Raises ScenarioError when it was elsewhere in another request.
        """
        entry = self._entries.get(key)
        if entry is not None and entry.first != first:
            raise ScenarioError(
                f"content id {key} begins with block {entry.first} of one request and block "
                f"{first} of another; equal ids must be equal places, as of chain hashes"
            )
        return entry
