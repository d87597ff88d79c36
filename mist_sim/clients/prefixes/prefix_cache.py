"""The prefix cache: the blocks of other requests that a request can reuse, as counts and ranges.

The blocks of one content id (`core.request.Content`) are entered, held and evicted as a number of
the first ones of a copy, never one by one. This is exact: a request that holds a block of a copy
holds all blocks of it before that, and of the blocks that no request holds the later ones leave
the cache first.

A block may have several copies, since computed blocks are entered even if a copy is there. A
look-up takes the copy that was entered first; if it is evicted the others stay (vLLM's
`BlockHashToBlockMap` in `vllm/v1/core/block_pool.py`). Nearly always an id has one copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from mist_sim.clients.prefixes.free_queue import Entry, FreeQueue
from mist_sim.clients.prefixes.ranked_blocks import RankedBlocks
from mist_sim.core.request import Content
from mist_sim.core.views import ContentWatcher
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.eviction import LRU, Eviction, LruEviction

_NO_END = sys.maxsize


class Chain:
    """The blocks of a request in the order of its tokens, and which of them it holds in the cache.

    spans: (content id, end) of the spans that have blocks; `end` is the position behind the
        span's last block. A block belongs to the span that has its last token.
    num_shared: blocks that other requests may share.
    num_held: blocks that the request holds in the cache, always the first ones.
    place: index in `spans` of the first block that it does not hold there.
    entries: copies that it holds, each from its first block to the next copy's.
    found: result of the latest look-up; kept by the manager.
    """

    __slots__ = ("entries", "found", "num_held", "num_shared", "place", "spans")

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
        """Hold no blocks."""
        self.entries: list[Entry] = []
        self.num_held = self.place = 0
        self.found: Found | None = None

    def make_private(self) -> None:
        """Give the blocks behind the last span an id of this request only."""
        if not self.spans or self.spans[-1][1] != _NO_END:
            self.spans.append((object(), _NO_END))

    def advance(self, position: int) -> None:
        """Note that it holds the blocks before a position, which is in the span of the next."""
        self.num_held = position
        if position == self.spans[self.place][1]:
            self.place += 1

    def parts(self) -> list[Entry]:
        """Return the copies that it holds, including the parts they were split into."""
        for entry in self.entries:
            if entry.rest is not None:
                break
        else:
            return self.entries
        parts = []
        ends = [entry.first for entry in self.entries[1:]]
        for first, end in zip(self.entries, [*ends, self.num_held], strict=True):
            entry = first
            parts.append(entry)
            while entry.end < end and entry.rest is not None:
                entry = entry.rest
                parts.append(entry)
        return parts

    def last_entry(self) -> Entry | None:
        """Return the copy that its last block held is in."""
        if not self.entries:
            return None
        entry = self.entries[-1]
        while entry.end < self.num_held and entry.rest is not None:
            entry = entry.rest  # it was split
        return entry


class Found(NamedTuple):
    """Result of a look-up: the number of first blocks cached, and how many of these are held.

    changes: the cache's `changes` at the look-up. missing: id of the first missing block;
    None: all were found. num_cached: blocks found, without those that a drafting layer recomputes.
        unheld: id and range [start, end) of found blocks that no request holds, in the copies
        found.
    """

    changes: int
    num_found: int
    num_held: int
    missing: Hashable | None
    num_cached: int
    unheld: tuple[tuple[Hashable, int, int], ...]


class PrefixCache:
    """The entries and the free blocks of one pool.

    queue: all free blocks. changes: grows whenever an entry changes; earlier look-ups are valid
        until then. on_evict: receives the id and range [start, end) of evicted blocks without
        another copy, last block first; None: not notified. eviction: the order of free blocks.
    """

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[Hashable, int, int], None] | None = None,
        eviction: Eviction = LRU,
    ) -> None:
        self.on_evict = on_evict
        self.changes = 0
        self.eviction = eviction
        self.queue_anew(num_blocks)
        self._entries: dict[Hashable, list[Entry]] = {}  # at each position the first goes first
        self._watcher: ContentWatcher | None = None

    def queue_anew(self, num_blocks: int) -> None:
        """Begin with so many free blocks, which hold nothing."""
        self.queue = FreeQueue(num_blocks)
        self._counts_finds = type(self.eviction) is not LruEviction
        if self._counts_finds:
            self.queue = RankedBlocks(num_blocks, self.eviction.copy(), lambda: self.changes)

    @property
    def is_watched(self) -> bool:
        """Whether a watcher, or `on_evict`, is notified of blocks that enter or leave."""
        return self._watcher is not None or self.on_evict is not None

    def watch(self, watcher: ContentWatcher) -> None:
        """Tell which ids have blocks here, now and from now on."""
        self._watcher = watcher
        for key in self._entries:
            watcher.enter(key)

    def unwatch(self) -> None:
        """Tell the watcher that all ids have gone, and then no more."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            for key in self._entries:
                watcher.leave(key)

    def copies(self, key: Hashable) -> list[Entry]:
        """Return the cached copies of an id, in the order in which they were entered."""
        return list(self._entries.get(key, ()))

    def find(self, chain: Chain, num_blocks: int) -> Found:
        """Look for the first `num_blocks` blocks of a chain."""
        num_found = num_held = 0
        missing: Hashable | None = None
        unheld = []
        for key, span_end in chain.spans:
            if num_found == num_blocks:
                break
            end = min(span_end, num_blocks)
            entries = self._entries_of(key, num_found)
            while num_found < end and (part := _next_part(entries, num_found, end)):
                entry, stop = part
                held = entry.first + entry.num_held  # without calls of min() and max()
                if held < num_found:
                    held = num_found
                elif held > stop:
                    held = stop
                num_held += held - num_found
                if held < stop:
                    unheld.append((key, held, stop))
                num_found = stop
            if num_found < end:
                missing = key
                break
        return Found(self.changes, num_found, num_held, missing, num_found, tuple(unheld))

    def is_held(self, key: Hashable, start: int, end: int) -> bool:
        """Tell whether a request holds any of the blocks [start, end) of an id, in any copy."""
        return any(
            entry.first < end and start < entry.first + entry.num_held
            for entry in self._entries.get(key, ())
        )

    def hold(self, chain: Chain, num_blocks: int) -> int:
        """Let a request hold the first blocks of its chain, which are cached.

        Returns how many of them were free.
        """
        num_taken = 0
        while chain.num_held < num_blocks:
            key, end = chain.spans[chain.place]
            entries = self._entries[key]
            part = _next_part(entries, chain.num_held, min(end, num_blocks))
            if part is None:
                raise InvariantError(f"block {chain.num_held} of content id {key} is not cached")
            entry, stop = part
            if entry.first < chain.num_held:
                place, entry = entries.index(entry), self.queue.split(entry, chain.num_held)
                entries.insert(place + 1, entry)
            chain.entries.append(entry)
            count = stop - entry.first
            if count > entry.num_held:
                num_taken += count - entry.num_held
                self.queue.take(entry, count - entry.num_held)
            entry.hold(count)
            if self._counts_finds:
                entry.finds[stop] = entry.finds.get(stop, 0) + 1
            chain.advance(stop)
            self.changes += 1
        return num_taken

    def enter(self, chain: Chain, num_blocks: int) -> None:
        """Enter the first blocks of a chain, which the request holds, behind copies of them."""
        while chain.num_held < num_blocks and chain.place < len(chain.spans):
            key, span_end = chain.spans[chain.place]
            origin = chain.spans[chain.place - 1][1] if chain.place else 0
            end = min(span_end, num_blocks)
            entry = chain.last_entry() if chain.num_held > origin else None
            if entry is None or not self._may_grow(entry, chain.num_held, end):
                entry = self._new_entry(chain, key, origin)
            entry.grow(end - entry.first)
            chain.advance(end)
            self.changes += 1

    def _may_grow(self, entry: Entry, start: int, end: int) -> bool:
        """Whether blocks [start, end) may be entered as the next ones of a copy.

        Not if a later block of the copy is there and these come before it.
        """
        if entry.first + entry.num_cached != start:
            return False
        entries = self._entries[entry.key]
        if entries[-1] is entry:
            return True
        others = entries[entries.index(entry) + 1 :]
        between = [other for other in others if other.first < end and start < other.end]
        return not between

    def _new_entry(self, chain: Chain, key: Hashable, origin: int) -> Entry:
        """Begin a copy of the blocks of an id with the next one of a chain."""
        entries = self._entries_of(key, origin)
        entry = Entry(key, origin, chain.num_held)
        entry.written = self.changes
        chain.entries.append(entry)
        if entries:
            entries.append(entry)
            return entry
        self._entries[key] = [entry]
        if self._watcher is not None:
            self._watcher.enter(key)
        return entry

    def release(self, chain: Chain) -> int:
        """Release the blocks of a chain, the last one first.

        Returns the number of blocks that no request holds any more; these are free.
        """
        end, total = chain.num_held, 0
        for entry in reversed(chain.parts()):
            num_freed = entry.release(end - entry.first)
            if num_freed:
                self.queue.append(entry, num_freed)
                total += num_freed
            end = entry.first
            self.changes += 1
        return total

    def evict(self, num_blocks: int) -> None:
        """Reuse the least recently used free blocks."""
        for entry, num_lost in self.queue.pop(num_blocks):
            self.lose(entry, num_lost)

    def lose(self, entry: Entry, num_blocks: int) -> None:
        """Forget the last blocks of an entry, which were free and are now reused."""
        entry.num_cached -= num_blocks
        entries = self._entries[entry.key]
        if self.on_evict is not None:
            for start, stop in _beside(entries, entry.end, entry.end + num_blocks):
                self.on_evict(entry.key, start, stop)
        if not entry.num_cached:
            entries.remove(entry)
            if not entries:
                del self._entries[entry.key]
                if self._watcher is not None:
                    self._watcher.leave(entry.key)
        self.changes += 1

    def _entries_of(self, key: Hashable, origin: int) -> list[Entry]:
        """Return the entries of an id whose first block is at a position.

        Raises ScenarioError if another request had it at another position.
        """
        entries = self._entries.get(key)
        if entries is None:
            return []
        if entries[0].origin != origin:
            raise ScenarioError(
                f"content id {key} begins with block {entries[0].origin} of one request and block "
                f"{origin} of another; equal ids must be equal places, as of chain hashes"
            )
        return entries


def _next_part(entries: list[Entry], start: int, end: int) -> tuple[Entry, int] | None:
    """Return the copy of a block that was entered first; None where the block is not there.

    And up to where, at most `end`, the blocks behind it are taken from that copy, too.
    """
    for entry in entries:
        stop = entry.first + entry.num_cached
        if entry.first <= start < stop:
            break
    else:
        return None
    stop = min(stop, end)
    for other in entries:
        if other is entry:
            break
        if start < other.first < stop:
            stop = other.first
    return entry, stop


def _beside(entries: list[Entry], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) of which no copy is there, the last one first."""
    while start < end:
        stop = max((each.end for each in entries if each.end < end), default=start)
        over = [each.first for each in entries if each.first < end <= each.end]
        if over:
            end = min(over)
        else:
            yield max(start, stop), end
            end = stop


def one_token_up(content: Content) -> Content:
    """Return content without its first token, so that a block ends with the token behind it.

    So a block is the same as another where the token behind it is, too.
    """
    if not content:
        return content
    (first, length), *others = content
    return (*([(first, length - 1)] if length > 1 else []), *others)
