"""Tiers below a prefix cache: how their blocks reach a lane.

Their content is in `kv_cache/tiers`.
"""

from __future__ import annotations

from mist_sim.clients.kv_cache import CacheTier, SerialLink
from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.clients.stores.base import KvStore, Transit
from mist_sim.environment import ARRIVE, Environment
from mist_sim.network import Seat, Store, Ways


class LinkedTier(KvStore):
    """A tier with a link to the engine, over which loads go one after the other.

    block_bytes: NaN: not known.
    """

    def __init__(
        self, env: Environment, tier: CacheTier, link: SerialLink, block_bytes: float
    ) -> None:
        self.name = tier.name
        self._env = env
        self._tier = tier
        self._link = link
        self._block_bytes = block_bytes

    def fetch(self, move: KvMove) -> Transit:
        """Load blocks over the tier's own link, or within the step that needs them."""
        tier, num_blocks = self._tier, move.num_blocks
        seconds = tier.load_time(num_blocks)
        if tier.in_step:
            return Transit(num_blocks * self._block_bytes, None, seconds)
        end = self._link.send(seconds, self._env.now)
        return Transit(num_blocks * self._block_bytes, self._env.at(end, ARRIVE))


class TierOfTopology(KvStore):
    """A tier at a place of a topology; its loads share the links with all other transfers.

    seat: the engine that reads.
    """

    def __init__(self, ways: Ways, seat: Seat, tier: CacheTier, block_bytes: float) -> None:
        self.name = tier.name
        self._ways = ways
        self._seat = seat
        self._latency = tier.latency
        self._store = store_of(tier)
        self._block_bytes = block_bytes

    def fetch(self, move: KvMove) -> Transit:
        """Load blocks over the links of the topology."""
        num_bytes = move.num_blocks * self._block_bytes
        end = self._ways.read([self._seat], self._store, num_bytes, self._latency)
        return Transit(num_bytes, end)


def store_of(tier: CacheTier) -> Store:
    """Return the place of a tier in a topology, and its largest read rate."""
    return Store(tier.at, tier.read_bandwidth)
