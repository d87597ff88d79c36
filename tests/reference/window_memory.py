"""KV memory page by page for a model with sliding windows that keeps what was computed.

A block of tokens has a page in every group of layers. Its pages in the groups with full attention
are a bundle, and those in the groups with windows another one. Rules, beside those of `memory.py`:

- A full bundle has a name as a block has there. Blocks of an answer are named when the request
  leaves.
- What is found ends where the bundles of the windows before that end are there, as many as W - 1
  tokens can lie in (at least one), or all from the beginning; it is the last such end among the
  full bundles found. The last token is never found. Where a layer drafts, the last bundle before
  that end is computed again, and the windows need one more.
- A request has pages of its own for the windows: what it finds, it has as copies without a name.
  The originals are the latest used from then on, the first one last, if they are free.
- It holds at most so many bundles for the windows as a window can lie in. A piece of a prompt, once
  planned, leaves those before that: they go to the free queue, the last one first, and as many
  pages come from its front. So a piece can be longer than what its request holds.
- A decode that takes a new bundle for the windows first gives back the one that they have left. In
  a step, first all without a name go to the free queue, then the others by who joined first.
- Every bundle for the windows is named if its name is free, when it is planned or, while held, at
  the end. A named bundle has one holder or is free.
- When one page of a bundle is used for something else, the bundle has no name any more.
- What comes from another client takes pages of its own for all of it.
- A request that leaves queues its full bundles, then those of the windows; the last one first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.reference.memory import Block, Memory


@dataclass(frozen=True)
class Windows:
    """A window of tokens, and the groups of layers with full attention and with the window."""

    size: int
    num_full_groups: int
    num_window_groups: int


@dataclass(eq=False)
class Bundle:
    """The pages of a block of tokens in all groups of a kind."""

    pages: list[Page]
    name: Hashable = None
    holders: int = 1
    names: dict[Hashable, list[Bundle]] = field(default_factory=dict)  # where its name stands

    def forget(self) -> None:
        if self.name is not None:
            self.names[self.name].remove(self)
            if not self.names[self.name]:
                del self.names[self.name]
        self.name = None


@dataclass(eq=False)
class Page(Block):
    bundle: Bundle | None = None


class WindowMemory(Memory):
    """A `live` request has bundles in `full`, in `window` by position, and in `spare`."""

    def __init__(
        self, num_pages: int, block_size: int, windows: Windows, most: int, num_recomputed: int
    ) -> None:
        super().__init__(num_pages, block_size, caching=True, num_recomputed=num_recomputed)
        self.free: deque[Any] = deque(Page() for _ in range(num_pages))
        self.windows = windows
        self.most = most
        self.reach = -(-(windows.size - 1) // block_size)  # bundles in front of a new block
        self.full_names: dict[Hashable, list[Bundle]] = {}
        self.window_names: dict[Hashable, list[Bundle]] = {}
        self.enters_answers = False

    # --- what is found ------------------------------------------------------------------------

    def found(self, live: Any) -> list[Any]:
        """Return the full bundles of a waiting request up to a missing one, or its last token's."""
        bundles: list[Bundle] = []
        most = (live.num_known - 1) // self.block_size
        while self.windows.num_full_groups and len(bundles) < most:
            copies = self.full_names.get(self.name(live, len(bundles)))
            if not copies:
                break
            bundles.append(copies[0])
        return bundles

    def end_of_hit(self, live: Any) -> int:
        """Return how many first blocks of a waiting request need no computation."""
        most = (live.num_known - 1) // self.block_size
        if self.windows.num_full_groups:
            most = len(self.found(live))
        for end in range(most, 0, -1):
            first = max(0, end - max(1, self.reach) - self.num_recomputed)
            if all(self.name(live, k) in self.window_names for k in range(first, end)):
                return end - self.num_recomputed
        return 0

    def hit(self, live: Any) -> list[Any]:
        return self.found(live)[: self.end_of_hit(live)]

    def cached_tokens(self, live: Any) -> int:
        return self.end_of_hit(live) * self.block_size

    def num_held(self, live: Any) -> int:
        if live.incoming or live.num_elsewhere:
            return 0
        return sum(len(bundle.pages) for bundle in self.hit(live) if bundle.holders)

    # --- pages --------------------------------------------------------------------------------

    def take(self, number: int) -> list[Page]:
        """Take pages from the front of the queue; what was in them is lost."""
        pages = [self.free.popleft() for _ in range(number)]
        for page in pages:
            if page.bundle:
                page.bundle.forget()
        return pages

    def new(self, number_of_groups: int) -> Bundle:
        bundle = Bundle(self.take(number_of_groups))
        for page in bundle.pages:
            page.bundle = bundle
        return bundle

    def new_full(self) -> Bundle:
        return self.new(self.windows.num_full_groups)

    def new_window(self) -> Bundle:
        return self.new(self.windows.num_window_groups)

    def put(self, bundles: Iterable[Bundle]) -> None:
        """Let go of bundles in this order."""
        for bundle in bundles:
            bundle.holders -= 1
            if not bundle.holders:
                self.free.extend(bundle.pages)

    def count(self, live: Any) -> None:
        bundles = [*live.full, *live.window.values(), *live.spare]
        live.blocks = [page for bundle in bundles for page in bundle.pages]

    # --- the life of a request ----------------------------------------------------------------

    def admit(self, live: Any, num_blocks: int, loads: bool = False) -> None:
        number = -(-live.num_known // self.block_size)
        end = self.end_of_hit(live)
        live.full = self.hit(live)
        live.num_entered = len(live.full)
        for bundle in live.full:
            if not bundle.holders:
                for page in bundle.pages:
                    self.free.remove(page)
            bundle.holders += 1
        for position in reversed(range(max(0, end - max(1, self.reach)), end)):
            [bundle] = self.window_names[self.name(live, position)]
            if not bundle.holders:
                for page in bundle.pages:
                    self.free.remove(page)
                    self.free.append(page)
        live.full += [self.new_full() for _ in range(number - len(live.full))]
        live.spare = [self.new_window() for _ in range(min(number, self.most))]
        live.window = {k: live.spare.pop() for k in range(max(0, end + 1 - self.most), end)}
        live.next_named = end
        self.count(live)
        assert len(live.blocks) == num_blocks

    def enter(self, live: Any, num_tokens: int, private: bool = False) -> None:
        """Plan a piece of a prompt, up to so many tokens."""
        end = -(-num_tokens // self.block_size)
        begin = max(live.window, default=live.next_named - 1) + 1
        num_more = 0
        for position in range(begin, end):
            num_more += not live.spare
            live.window[position] = live.spare.pop() if live.spare else self.lent()
        self.give_names(live, num_tokens, private)
        behind = sorted(position for position in live.window if position < end - self.most)
        assert len(behind) == num_more
        self.put(live.window.pop(position) for position in reversed(behind))
        self.take(num_more * self.windows.num_window_groups)
        self.count(live)

    def lent(self) -> Bundle:
        """Return a bundle on pages that come from the queue when the piece is planned."""
        bundle = Bundle([Page() for _ in range(self.windows.num_window_groups)])
        for page in bundle.pages:
            page.bundle = bundle
        return bundle

    def give_names(self, live: Any, num_tokens: int, private: bool) -> None:
        num_full = num_tokens // self.block_size
        while self.windows.num_full_groups and live.num_entered < num_full:
            name = self.name(live, live.num_entered, private)
            if name is None:
                break
            self.call(live.full[live.num_entered], name, self.full_names)
            live.num_entered += 1
        for position in range(live.next_named, num_full):
            name = self.name(live, position, private)
            if name is not None:
                live.next_named = position + 1
                if position in live.window and name not in self.window_names:
                    self.call(live.window[position], name, self.window_names)

    def call(self, bundle: Bundle, name: Hashable, names: dict[Hashable, list[Bundle]]) -> None:
        bundle.name, bundle.names = name, names
        names.setdefault(name, []).append(bundle)

    def grow(self, needs: list[tuple[Any, int, int]]) -> None:
        left = []
        for live, num_slots, _ in needs:
            first = -(-num_slots // self.block_size) - self.most
            left += [live.window.pop(k) for k in sorted(live.window) if k < first]
        self.put(bundle for bundle in left if bundle.name is None)
        self.put(bundle for bundle in left if bundle.name is not None)
        for live, num_slots, num_more in needs:
            number, num_before = -(-num_slots // self.block_size), len(live.blocks)
            live.full += [self.new_full() for _ in range(number - len(live.full))]
            for position in range(max(live.window, default=-1) + 1, number):
                if position >= number - self.most:
                    live.window[position] = self.new_window()
            self.count(live)
            assert len(live.blocks) == num_before + num_more

    def swap_in(self, live: Any, num_blocks: int, num_slots: int, num_tokens: int) -> None:
        number, end = -(-num_slots // self.block_size), -(-num_tokens // self.block_size)
        first = max(0, end - self.most)
        live.full = [self.new_full() for _ in range(number)]
        live.spare = [self.new_window() for _ in range(min(number, self.most))]
        live.window = {position: live.spare.pop() for position in range(first, end)}
        live.num_entered = 0
        live.next_named = first
        self.give_names(live, num_tokens, private=False)
        self.count(live)
        assert len(live.blocks) == num_blocks

    def reserve(self, live: Any, num_blocks: int) -> int:
        number = -(-(live.num_elsewhere or live.num_known - 1) // self.block_size)
        first = live.next_named = max(0, number - self.most)
        live.full = [self.new_full() for _ in range(number)]
        live.window = {position: self.new_window() for position in range(first, number)}
        live.num_entered = 0
        self.count(live)
        assert len(live.blocks) == num_blocks
        return num_blocks

    def go_on(self, live: Any, num_slots: int, num_more: int) -> None:
        number, num_before = -(-num_slots // self.block_size), len(live.blocks)
        live.full += [self.new_full() for _ in range(number - len(live.full))]
        num_spare = min(number, self.most) - len(live.window)
        live.spare = [self.new_window() for _ in range(num_spare)]
        self.count(live)
        assert len(live.blocks) == num_before + num_more

    def arrive(self, live: Any, num_tokens: int) -> None:
        self.give_names(live, num_tokens, private=False)

    def give_back(self, live: Any) -> None:
        """Forget a request that was given up before it could use what came."""
        self.leave(live, 0, preempted=False)

    def leave(self, live: Any, num_tokens: int, preempted: bool) -> None:
        self.give_names(live, num_tokens, preempted)
        self.put(reversed(live.full))
        self.put(live.spare)
        self.put(live.window[position] for position in sorted(live.window, reverse=True))
        live.full, live.window, live.spare, live.blocks = [], {}, [], []

    def check(self, held: Iterable[list[Any]]) -> None:
        in_use = {page for pages in held for page in pages}
        assert len(in_use) + len(self.free) == self.num_blocks
        free = set(self.free)
        assert not in_use & free
        for names in (self.full_names, self.window_names):
            for name, bundle in [(key, each) for key, copies in names.items() for each in copies]:
                assert bundle.name == name
                assert all(page.bundle is bundle for page in bundle.pages)
                assert all((page in free) == (not bundle.holders) for page in bundle.pages)
