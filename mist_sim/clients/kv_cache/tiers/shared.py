"""Tiers that engines of several clients share, and that outlive each of them."""

from __future__ import annotations

from mist_sim.clients.kv_cache.tiers.stores import CacheTier
from mist_sim.clients.prefixes.prefix_cache import PrefixCache


class SharedTiers:
    """The contents of the shared tiers of one run, by name."""

    def __init__(self) -> None:
        self._contents: dict[str, PrefixCache] = {}

    def content(self, tier: CacheTier) -> PrefixCache:
        """Return the content of a shared tier, one object for all its users; empty at first."""
        if tier.name not in self._contents:
            self._contents[tier.name] = PrefixCache(tier.num_blocks)
        return self._contents[tier.name]
