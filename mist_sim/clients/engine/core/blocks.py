"""The KV blocks of a lane: counted, and listed where one request may find another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.clients.prefixes.prefix_cache import Chain, PrefixCache, one_token_up

if TYPE_CHECKING:
    from mist_sim.clients.prefixes.prefix_cache import Found
    from mist_sim.core.request import Content


class Blocks:
    """Equal blocks that requests take and give back.

    Blocks without content are only counted. With a prefix cache, a request with content has a
    chain of blocks that others may find. A preempted request gets one, so that it finds its own
    blocks again.

    num_blocks, size: how many there are, and tokens of each. num_reserved: that admissions leave
    free for running requests. caches: whether there is a prefix cache. uncached_first: as in
    `EngineRules`. num_again: last blocks of what is found that are computed again, where a layer
    drafts. covers_next: whether the name of a block says what the token behind it is.
    shares: whether any request has had a chain so far.
    is_paged: whether requests take and give back blocks one after the other, as a step is planned
    (`PagedBlocks`). per_block: blocks of memory that a block of tokens takes. has_tiers: whether
    there is memory below (`TieredBlocks`).
    """

    def __init__(
        self,
        num_blocks: int,
        size: int,
        num_reserved: int,
        caches: bool,
        uncached_first: bool,
        num_again: int = 0,
        covers_next: bool = False,
    ) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.size, self.num_reserved = size, num_reserved
        self.caches, self.uncached_first = caches, uncached_first
        self.num_again, self.covers_next = num_again, covers_next
        self.shares = self.is_paged = self.has_tiers = False
        self.per_block = 1
        self.cache = PrefixCache(num_blocks)

    def count(self, num_tokens: int) -> int:
        """Return the blocks that so many tokens fill, the last perhaps in part."""
        return (num_tokens + self.size - 1) // self.size

    def chain(self, content: Content) -> Chain:
        """Return the chain of a request; with the first one, keep the order of free blocks."""
        if not self.shares:
            self.shares = True
            self.cache.queue_anew(self.num_free)
        return Chain(one_token_up(content) if self.covers_next else content, self.size)

    def find(self, chain: Chain, num_tokens: int) -> Found:
        """Return which blocks a request with so many tokens begins with; not its last token's."""
        found = chain.found
        if found is None or found.changes != self.cache.changes:
            found = self.cache.find(chain, (num_tokens - 1) // self.size)
            if self.num_again and found.num_found:
                num_cached = found.num_found
                found = self.cache.find(chain, max(0, num_cached - self.num_again))
                found = found._replace(num_cached=num_cached)
            chain.found = found
        return found

    def may_gain(self, found: Found, whole: bool) -> bool:
        """Tell whether a request may need fewer free blocks once others are used up.

        It does if no request holds a block that it finds, but some hold a copy of it. Where only
        its first piece must fit (`whole` is false), any block that none holds is enough.
        """
        if not whole:
            return bool(found.unheld)
        held = [span for span in found.unheld if self.cache.is_held(*span)]
        return bool(held)

    def need(self, found: Found | None, num_tokens: int, num_first: int, whole: bool) -> int:
        """Return the free blocks that an admission takes.

        whole: whether all its tokens must fit, and not only the first `num_first`.
        """
        number = ((num_tokens if whole else num_first) + self.size - 1) // self.size
        return number if found is None else number - found.num_held

    def need_to_bring(
        self, found: Found | None, num_here: int, num_tokens: int, in_pieces: bool
    ) -> int:
        """Return the free blocks for entries that come and what goes on behind them.

        num_here: tokens with entries. in_pieces: whether the others are computed in pieces.
        """
        return self.need(found, num_tokens, 0, True)

    def more(self, num_here: int, num_tokens: int, in_pieces: bool) -> int:
        """Return the blocks that it takes beside those of its first tokens."""
        size = self.size
        return (num_tokens + size - 1) // size - (num_here + size - 1) // size

    def held(self, num_tokens: int) -> int:
        """Return the blocks of one with so many computed tokens."""
        return (num_tokens + self.size - 1) // self.size

    def in_all(self, num_tokens: int) -> int:
        """Return the blocks of so many tokens, none of which came back."""
        return (num_tokens + self.size - 1) // self.size

    def alone(self, num_tokens: int) -> int:
        """Return the blocks that must be free at once for one that is alone."""
        return (num_tokens + self.size - 1) // self.size

    def prefix_tokens(self, content: Content, num_tokens: int) -> int:
        """Return the tokens of a prompt that it would find now."""
        if not (content and self.shares):
            return 0
        return int(self.find(self.chain(content), num_tokens).num_found) * self.size

    def begin(self, chain: Chain | None, found: Found | None, num_tokens: int, end: int) -> int:
        """Let a request begin with blocks that it finds, and new ones up to so many tokens.

        end: of its first piece. Returns how many these are.
        """
        number = num_new = (num_tokens + self.size - 1) // self.size
        if chain is not None and found is not None and found.num_found:
            self.hold(chain, found.num_found)
            num_new -= found.num_found
        self.grow(num_new)
        return number

    def bring(self, chain: Chain | None, found: Found | None, num_tokens: int) -> None:
        """Take blocks for entries that come, but for those that the cache has."""
        number = self.count(num_tokens)
        if chain is not None and found is not None:
            num_found = min(found.num_found, num_tokens // self.size)
            self.hold(chain, num_found)
            number -= num_found
        self.grow(number)

    def hold(self, chain: Chain, num_found: int) -> None:
        """Let a request begin with the first blocks of its chain, which are cached."""
        self.num_free -= self.cache.hold(chain, num_found)

    def grow(self, number: int) -> None:
        """Take new blocks; what is cached in them is lost."""
        self.num_free -= number
        if self.shares:
            self.cache.evict(number)

    def enter(self, chain: Chain, num_tokens: int) -> None:
        """Let others find the full blocks of a request's first tokens."""
        number = num_tokens // self.size
        number = min(number, chain.num_shared)
        if number > chain.num_held:
            self.cache.enter(chain, number)

    def enter_answer(self, chain: Chain, num_tokens: int) -> None:
        """Let others find the full blocks of an answer that goes on."""
        self.enter(chain, num_tokens)

    def forget(self, chain: Chain | None, number: int) -> None:
        """Take back blocks that were not used."""
        self.free(chain, number, 0)

    def free(self, chain: Chain | None, number: int, num_tokens: int) -> None:
        """Take back the blocks of a request that leaves; so many of its tokens are computed."""
        if not self.shares:
            self.num_free += number
            return
        if chain is not None:
            self.enter(chain, num_tokens)
        self.release(chain, number, num_tokens)

    def preempt(self, chain: Chain | None, number: int, num_tokens: int) -> Chain | None:
        """Take back the blocks of a request that comes back; return the chain it then has."""
        if not self.caches:
            self.num_free += number
            return None
        if chain is None:
            chain = self.chain(())
        chain.make_private()
        self.cache.enter(chain, num_tokens // self.size)
        self.release(chain, number, num_tokens)
        chain.start_over()
        return chain

    def swap_out(self, chain: Chain | None, number: int, num_tokens: int) -> None:
        """Take back the blocks of a request, of whose computed tokens the host has a copy."""
        self.free(chain, number, num_tokens)
        if chain is not None:
            chain.start_over()

    def swap_in(self, chain: Chain | None, number: int, num_tokens: int) -> None:
        """Give a request new blocks, into which the entries of its computed tokens come."""
        self.grow(number)
        if chain is not None:
            self.enter(chain, num_tokens)

    def release(self, chain: Chain | None, number: int, num_tokens: int) -> None:
        """Queue blocks as free, the last one first.

        In vLLM the full blocks of computed tokens have a hash, even if no request can match it.
        """
        num_held = 0 if chain is None else chain.num_held
        num_own = number - num_held
        if num_own:
            num_full = num_tokens // self.size - num_held
            num_first = 0
            if self.uncached_first:
                num_first = num_own - num_full if num_full > 0 else num_own
            if num_first:
                self.cache.queue.prepend(num_first)
            if num_own > num_first:
                self.cache.queue.append(None, num_own - num_first)
            self.num_free += num_own
        if chain is not None and num_held:
            self.num_free += self.cache.release(chain)
