"""KV memory of an engine that would have a prefix cache in reality, and has none here."""

from __future__ import annotations

from collections.abc import Hashable

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.manager import KvCacheManager
from mist_sim.clients.sequence import Sequence


class UncachedManager(KvCacheManager):
    """Counts blocks, and notices whether two sequences began alike.

    might_share: whether a prefix cache would have been looked up for what another one began with.
    """

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self.might_share = False
        self._beginnings: set[Hashable] = set()

    def add(self, sequence: Sequence) -> None:
        content = sequence.visit.request.content
        if not content or self.might_share:
            return
        beginning = content[0][0]
        self.might_share = beginning in self._beginnings
        self._beginnings.add(beginning)
