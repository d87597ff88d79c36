"""KV memory block by block: what `mist_sim.clients.kv_cache` counts is here a list of objects.

Every block is in the free queue or in the hands of running requests. With caching, a full block
gets a name, which says what all tokens up to its end are; it keeps the name until it is used for
something else. Rules:

- A block's name is the id of the span that has its last token, and its position. Blocks behind the
  last span get a name only their own request knows, when that is preempted.
- Names are given in order: of a prompt at every step that computes tokens of it, of an answer in
  the step that fills the block (with sliding windows when the request leaves). Several
  blocks may have the same name; who looks for it gets the one that has had it for longest.
- A request begins with the blocks that it finds before that of its last token, and holds no others.
- What is named is written to all tiers below, and other full blocks when a request leaves; but to a
  tier that writes back when the memory right above it forgets it, if it has a name. A tier
  forgets what was not used for longest: used when written, or when a request with it is admitted;
  where it writes back, also when a request with it is loaded.
- As an option, a name also says what the token behind the block is, so that it is given when that
  token is known. A block then belongs to the span that has this token.
- Where a layer drafts, the last block of what is found or could be loaded is computed again, in a
  new block, but held if others are loaded behind it.
- Blocks are loaded one after the other: what the tier of the block before does not have comes from
  the nearest tier that has it.
- What comes from another client is named when the request goes on with it. Blocks that the cache
  has of it are held instead, as of a prompt; tiers are not asked.
- Free blocks are used first in, first out; a request that leaves queues its last block first. As an
  option, those that its computed tokens do not fill go to the front of the queue instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(eq=False)
class Block:
    name: Hashable = None
    holders: int = 0


@dataclass(frozen=True)
class Tier:
    """Memory below the GPU: blocks, and the seconds of a load and of each block."""

    num_blocks: int
    latency: float
    seconds_per_block: float
    writes_back: bool = False
    in_step: bool = False  # the step that admits a request waits for its blocks


@dataclass
class Link:
    """The way from a tier to an engine, free again at a time."""

    free_at: float = 0.0


class Shelf:
    """What lies in a tier, least recently used first, and its link."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.names: dict[Hashable, None] = {}
        self.link = Link()
        self.below: Shelf | None = None

    def use(self, names: list[Hashable]) -> None:
        """Write or touch blocks given from the first one on; the first is the latest used."""
        if self.tier.writes_back:
            return
        for name in reversed(names[: self.tier.num_blocks]):
            self.names.pop(name, None)
            self.names[name] = None
        self.forget_oldest()

    def touch(self, names: list[Hashable]) -> None:
        """Those that are there are the latest used, the first one last of all."""
        for name in reversed(names):
            if self.tier.writes_back and name in self.names:
                del self.names[name]
                self.names[name] = None

    def put(self, name: Hashable) -> None:
        """The memory above forgot a block; only named ones come here."""
        if self.tier.writes_back:
            self.names.pop(name, None)
            self.names[name] = None
            self.forget_oldest()

    def forget_oldest(self) -> None:
        while len(self.names) > self.tier.num_blocks:
            name = next(iter(self.names))
            del self.names[name]
            if self.below and isinstance(name, tuple):
                self.below.put(name)

    def load(self, number: int, now: float) -> float:
        seconds = self.tier.latency + number * self.tier.seconds_per_block
        self.link.free_at = max(self.link.free_at, now) + seconds
        return self.link.free_at


@dataclass(frozen=True)
class SwapSpace:
    """Host memory for the blocks of preempted requests, and the seconds of a copy of each.

    overlaps: steps go on while blocks are copied.
    """

    num_blocks: int
    seconds_per_block: float
    overlaps: bool = False


class Memory:
    """The blocks of one engine; a `live` request has `blocks` and `num_entered`."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        caching: bool,
        tiers: Iterable[Tier] = (),
        num_recomputed: int = 0,
        uncached_first: bool = False,
    ) -> None:
        self.uncached_first = uncached_first
        self.num_recomputed = num_recomputed
        self.block_size = block_size
        self.caching = caching
        self.tiers = [Shelf(tier) for tier in tiers]
        for upper, lower in pairwise(self.tiers):
            upper.below = lower
        self.num_blocks = num_blocks
        self.free = deque(Block() for _ in range(num_blocks))
        self.cached: dict[Hashable, list[Block]] = {}  # who has had the name for longest first
        self.enters_answers = caching  # as they are computed
        self.covers_next = False

    def begin_plan(self) -> None:
        """Nothing: who finds what a plan computes may begin with it at once."""

    def name(self, live: Any, position: int, private: bool = True) -> Hashable:
        """Return the name of a block of a request, None for one without."""
        last_token = (position + 1) * self.block_size - 1 + self.covers_next
        end = 0
        for content_id, length in live.job.content:
            end += length
            if last_token < end:
                return content_id, position
        return (live, position) if private else None

    def shared_names(self, live: Any) -> list[Hashable]:
        """Return the names of the blocks that others may have too, in memory that caches."""
        num_tokens = sum(length for _, length in live.job.content)
        num_blocks = max(0, num_tokens - self.covers_next) // self.block_size
        return self.names(live, num_blocks) if self.caching else []

    def found(self, live: Any) -> list[Any]:
        """Return the first cached blocks of a waiting request, but not that of its last token."""
        blocks: list[Any] = []
        while self.caching and len(blocks) < (live.num_known - 1) // self.block_size:
            copies = self.cached.get(self.name(live, len(blocks)))
            if not copies:
                break
            blocks.append(copies[0])
        return blocks

    def hit(self, live: Any) -> list[Any]:
        """Return the blocks that a waiting request begins with."""
        found = self.found(live)
        return found[: max(0, len(found) - self.num_recomputed)]

    def num_held(self, live: Any) -> int:
        """Return with how many blocks that others hold a waiting request begins."""
        return sum(1 for block in self.hit(live) if block.holders)

    def cached_tokens(self, live: Any) -> int:
        """Tokens of a waiting request that need no computation; the last one always does."""
        return len(self.hit(live)) * self.block_size

    def admit(self, live: Any, num_blocks: int, loads: bool = False) -> None:
        """Take blocks; `loads`: others come from tiers behind those that are found."""
        self.hold(live, self.found(live) if loads else self.hit(live))
        while len(live.blocks) < num_blocks:
            live.blocks.append(self.new_block())
        self.touch(live)
        self.touch_again(live, live.num_entered)

    def hold(self, live: Any, blocks: list[Block]) -> None:
        """Begin with cached blocks."""
        live.blocks = blocks
        live.num_entered = len(blocks)
        for block in blocks:
            if not block.holders:
                self.free.remove(block)
            block.holders += 1

    def grow(self, needs: list[tuple[Any, int, int]]) -> None:
        """Give decodes new blocks: (request, tokens that it needs room for, blocks more)."""
        for live, _, number in needs:
            live.blocks += [self.new_block() for _ in range(number)]

    def reserve(self, live: Any, num_blocks: int) -> int:
        """Hold what is cached of a request, and take new blocks for the rest; return how many."""
        self.hold(live, self.hit(live))
        num_new = num_blocks - len(live.blocks)
        live.blocks += [self.new_block() for _ in range(num_new)]
        return num_new

    def go_on(self, live: Any, num_slots: int, num_more: int) -> None:
        """Take blocks for the rest of a prompt whose first tokens' entries have come."""
        self.grow([(live, num_slots, num_more)])

    def arrive(self, live: Any, num_tokens: int) -> None:
        """Name the blocks that came."""
        self.enter(live, num_tokens)

    def take_back(self, live: Any, num_blocks: int) -> None:
        """Take new blocks, into which others are copied."""
        live.blocks = [self.new_block() for _ in range(num_blocks)]
        live.num_entered = 0

    def swap_in(self, live: Any, num_blocks: int, num_slots: int, num_tokens: int) -> None:
        """Take new blocks for so many slots, into which the first tokens are copied."""
        live.blocks = [self.new_block() for _ in range(num_blocks)]
        live.num_entered = 0
        self.enter(live, num_tokens)

    def carry_in(self, live: Any, num_tokens: int, num_more: int = 0) -> bool:
        """Take what another memory has of a request, if its blocks and some more are free.

        Of its full blocks those that are here are held.
        """
        here = self.hit(live)[: num_tokens // self.block_size]
        num_blocks = -(-num_tokens // self.block_size)
        if num_blocks - len(here) + num_more > len(self.free):
            return False
        self.hold(live, here)
        live.blocks += [self.new_block() for _ in range(num_blocks - len(here))]
        return True

    def touch(self, live: Any) -> None:
        """What a request that is admitted or enters blocks has in the cache is in use below."""
        for tier in self.tiers:
            tier.use(self.names(live, live.num_entered))

    def touch_again(self, live: Any, number: int) -> None:
        """A request with so many blocks is admitted or loaded."""
        for tier in self.tiers:
            tier.touch(self.names(live, number))

    def new_block(self) -> Block:
        block = self.free.popleft()
        if block.name is not None:
            copies = self.cached[block.name]
            copies.remove(block)
            if not copies:
                del self.cached[block.name]
                if self.tiers:
                    self.tiers[0].put(block.name)
        block.name = None
        block.holders = 1
        return block

    def enter(self, live: Any, num_tokens: int, private: bool = False) -> None:
        """Name the blocks that the first tokens fill."""
        num_before = live.num_entered
        self._enter(live, num_tokens, private)
        if live.num_entered > num_before:
            self.touch(live)

    def enter_answer(self, live: Any, num_tokens: int) -> None:
        """Name the blocks that an answer fills; tiers get them when the request leaves."""
        self._enter(live, num_tokens, False)

    def extend_to(self, live: Any, num_blocks: int) -> None:
        """Take new blocks behind those that a request has."""
        while len(live.blocks) < num_blocks:
            live.blocks.append(self.new_block())

    def _enter(self, live: Any, num_tokens: int, private: bool) -> None:
        while self.caching and (live.num_entered + 1) * self.block_size <= num_tokens:
            block = live.blocks[live.num_entered]
            name = self.name(live, live.num_entered, private)
            if name is None:
                break
            block.name = name
            self.cached.setdefault(name, []).append(block)
            live.num_entered += 1

    def leave(self, live: Any, num_tokens: int, preempted: bool) -> None:
        self.enter(live, num_tokens, private=preempted)
        num_full = num_tokens // self.block_size
        for tier in self.tiers:
            tier.use(self.names(live, live.num_entered))
            tier.use([object() for _ in range(num_full - live.num_entered)])
        self.give_back(live, num_full)

    def give_back(self, live: Any, num_full: int = 0) -> None:
        """Free the blocks of a request, of which the first are full or have names."""
        for position, block in reversed([*enumerate(live.blocks)]):
            block.holders -= 1
            if not block.holders:
                is_empty = block.name is None and position >= num_full
                if self.uncached_first and is_empty:
                    self.free.appendleft(block)
                else:
                    self.free.append(block)
        live.blocks = []

    # --- tiers --------------------------------------------------------------------------------

    def share_links(self, other: Memory) -> None:
        for shelf, its in zip(self.tiers, other.tiers, strict=True):
            shelf.link = its.link

    def names(self, live: Any, number: int) -> list[Hashable]:
        return [self.name(live, position) for position in range(number)]

    def loads(self, live: Any) -> list[int]:
        """Return how many blocks of a waiting request come from each tier; not its last token's."""
        sources: list[int] = []
        names = self.names(live, (live.num_known - 1) // self.block_size)
        source: int | None = None
        for name in names[len(self.found(live)) :]:
            if source is None or name not in self.tiers[source].names:
                having = [k for k, tier in enumerate(self.tiers) if name in tier.names]
                if not having:
                    break
                source = having[0]
            sources.append(source)
        if self.num_recomputed:
            sources = sources[:-1]
        return [sources.count(k) for k in range(len(self.tiers))]

    def check(self, held: Iterable[list[Block]]) -> None:
        """Every block is free or held, and what is cached lies under its name."""
        in_use = {block for blocks in held for block in blocks}
        assert len(in_use) + len(self.free) == self.num_blocks
        assert not in_use.intersection(self.free)
        for name, copies in self.cached.items():
            assert copies
            assert all(block.name == name for block in copies)
