"""The stores of a client's engines: other clients, swap space, and tiers."""

from __future__ import annotations

from math import nan

from mist_sim.clients.kv_cache import CacheTier, LaneMemory, SerialLink, SwapSpace
from mist_sim.clients.stores.base import KvStore, Stores
from mist_sim.clients.stores.other_clients import EntryForm, OtherClients
from mist_sim.clients.stores.swaps import OverlappedSwaps, PausingSwaps, SwapsOverTopology
from mist_sim.clients.stores.tiers import LinkedTier, TierOfTopology
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.network import Network, Seat, Ways


class EngineStores:
    """Makes the stores of lanes; those of one engine share the links below it.

    client: its name. memory: of each of its lanes. form: of its entries.
    swaps_overlap: whether steps go on while blocks are copied to swap space and back.
    """

    def __init__(
        self,
        env: Environment,
        network: Network | None,
        client: str,
        memory: LaneMemory,
        form: EntryForm,
        *,
        swaps_overlap: bool,
    ) -> None:
        self._env = env
        self._network = network
        self._client = client
        self._memory = memory
        self._form = form
        self._swaps_overlap = swaps_overlap
        self._block_bytes = form.block_bytes or nan
        self._links: dict[tuple[int, str], SerialLink] = {}  # by engine and name
        # links of the copies, if the size of blocks is known
        self._ways: Ways | None = None
        if network is not None and form.block_bytes is not None:
            self._ways = network.ways

    def of(self, engine: int) -> Stores:
        """Return the stores of a lane of an engine."""
        seat, space = Seat(self._client, engine), self._memory.swap_space
        return Stores(
            OtherClients(self._env, self._network, seat, self._form),
            None if space is None else self._swaps(seat, space),
            {tier.name: self._tier(seat, tier) for tier in self._memory.tiers},
        )

    def _swaps(self, seat: Seat, space: SwapSpace) -> KvStore:
        if not self._swaps_overlap:
            return PausingSwaps(space, self._block_bytes)
        if self._ways is not None:
            return SwapsOverTopology(self._ways, seat, self._block_bytes)
        out, back = (self._link(seat, f"swaps {way}") for way in ("out", "back"))
        return OverlappedSwaps(self._env, space, out, back, self._block_bytes)

    def _tier(self, seat: Seat, tier: CacheTier) -> KvStore:
        if self._ways is not None:
            if tier.in_step:
                raise ScenarioError(
                    f"{seat.client}: tier {tier.name} of kv_cache.tiers must have loads_in_step: "
                    "false on a network with a topology"
                )
            return TierOfTopology(self._ways, seat, tier, self._block_bytes)
        link = self._link(seat, f"tier {tier.name}")
        return LinkedTier(self._env, tier, link, self._block_bytes)

    def _link(self, seat: Seat, name: str) -> SerialLink:
        return self._links.setdefault((seat.engine, name), SerialLink())
