"""Blocks above tiers: these get what is computed or evicted, and blocks come back from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mist_sim.clients.engine.core.blocks import Blocks

if TYPE_CHECKING:
    from mist_sim.clients.kv_cache.tiers import Tiers
    from mist_sim.clients.prefixes.prefix_cache import Chain, Found
    from mist_sim.core.request import Content


class TieredBlocks(Blocks):
    """Blocks with a prefix cache, above tiers.

    tiers: their content, empty at first.
    """

    tiers: Tiers

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.has_tiers = True
        self.publishes = self.loads_in_step = False

    def lie_above(self, tiers: Tiers) -> None:
        """Have tiers below."""
        self.tiers = tiers
        self.publishes, self.loads_in_step = tiers.publishes, tiers.in_step

    def missing(self, chain: Chain, found: Found, num_tokens: int) -> list[int]:
        """Return the blocks of a request with so many tokens to load from each tier; or none."""
        return self.tiers.missing(chain, found.num_cached, (num_tokens - 1) // self.size)

    def held_with(self, found: Found, number: int) -> int:
        """Return the blocks of a request that are here or loaded behind those, so many."""
        return found.num_cached + number

    def load(self, chain: Chain, found: Found, number: int, num_tokens: int) -> int:
        """Take blocks for so many tokens, of which `number` are loaded behind the cached ones.

        Returns how many blocks these tokens have in all.
        """
        num_blocks = self.count(num_tokens)
        self.hold(chain, found.num_cached)
        self.grow(num_blocks - found.num_cached)
        self.tiers.touch(chain)
        self.tiers.load(chain, self.held_with(found, number))
        return num_blocks

    def prefix_tokens(self, content: Content, num_tokens: int) -> int:
        """Return the tokens of a prompt that it would find now, here or in tiers."""
        if not (content and self.shares):
            return 0
        chain = self.chain(content)
        found = self.find(chain, num_tokens)
        number = sum(self.missing(chain, found, num_tokens))
        return int(found.num_cached + number if number else found.num_found) * self.size

    def begin(self, chain: Chain | None, found: Found | None, num_tokens: int, end: int) -> int:
        """Let a request begin with blocks that it finds, and new ones up to so many tokens."""
        number = Blocks.begin(self, chain, found, num_tokens, end)
        if chain is not None:
            self.tiers.touch(chain)
        return number

    def enter(self, chain: Chain, num_tokens: int) -> None:
        """Let others find the full blocks of a request's first tokens, in tiers, too."""
        num_before = chain.num_held
        Blocks.enter(self, chain, num_tokens)
        if chain.num_held > num_before:
            self.tiers.store(chain)

    def enter_answer(self, chain: Chain, num_tokens: int) -> None:
        """Let others find the full blocks of an answer; tiers get them when it leaves."""
        Blocks.enter(self, chain, num_tokens)

    def forget(self, chain: Chain | None, number: int) -> None:
        """Take back blocks that were not used; none has computed entries."""
        self.give_back(chain, number, 0)

    def free(self, chain: Chain | None, number: int, num_tokens: int) -> None:
        """Take back the blocks of a request that leaves; so many of its tokens are computed."""
        if chain is not None:
            self.enter(chain, num_tokens)
        self.release(chain, number, num_tokens)

    def release(self, chain: Chain | None, number: int, num_tokens: int) -> None:
        """Queue blocks as free, the last one first; tiers get what they lack of these."""
        self.tiers.leave(chain, num_tokens // self.size)
        self.give_back(chain, number, num_tokens)

    def give_back(self, chain: Chain | None, number: int, num_tokens: int) -> None:
        """Queue blocks as free, in their order if anybody may find them."""
        if self.shares:
            Blocks.release(self, chain, number, num_tokens)
        else:
            self.num_free += number
