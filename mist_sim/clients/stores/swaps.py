"""Host memory that the blocks of preempted sequences are copied to and back from."""

from __future__ import annotations

from mist_sim.clients.kv_cache import SerialLink, SwapSpace
from mist_sim.clients.kv_cache.moves.kv_move import HOST, KvMove
from mist_sim.clients.stores.base import KvStore, Transit
from mist_sim.environment import MOVE, Environment
from mist_sim.network import Seat, Store, Ways


class PausingSwaps(KvStore):
    """Swap space that is copied to and from between two steps, while the engine waits (vLLM v0).

    block_bytes: NaN: not known.
    """

    def __init__(self, space: SwapSpace, block_bytes: float) -> None:
        self.name = HOST
        self._space = space
        self._block_bytes = block_bytes

    def fetch(self, move: KvMove) -> Transit:
        """Copy blocks back from host memory; the steps pause meanwhile."""
        return self._copy(move.num_blocks)

    def keep(self, move: KvMove) -> Transit:
        """Copy blocks to host memory; the steps pause meanwhile."""
        return self._copy(move.num_blocks)

    def _copy(self, num_blocks: int) -> Transit:
        seconds = num_blocks * self._space.seconds_per_block
        return Transit(num_blocks * self._block_bytes, None, seconds)


class OverlappedSwaps(KvStore):
    """Swap space that is copied to and from while steps go on, one copy after the other each way.

    out, back: the host links of all GPUs of the engine, in both directions.
    block_bytes: NaN: not known.
    """

    def __init__(
        self,
        env: Environment,
        space: SwapSpace,
        out: SerialLink,
        back: SerialLink,
        block_bytes: float,
    ) -> None:
        self.name = HOST
        self._env = env
        self._space = space
        self._out = out
        self._back = back
        self._block_bytes = block_bytes

    def fetch(self, move: KvMove) -> Transit:
        """Copy blocks back over the link from host memory, beside the steps."""
        return self._copy(move.num_blocks, self._back)

    def keep(self, move: KvMove) -> Transit:
        """Copy blocks out over the link to host memory, beside the steps."""
        return self._copy(move.num_blocks, self._out)

    def _copy(self, num_blocks: int, link: SerialLink) -> Transit:
        end = link.send(num_blocks * self._space.seconds_per_block, self._env.now)
        return Transit(num_blocks * self._block_bytes, self._env.at(end, MOVE))


class SwapsOverTopology(KvStore):
    """The same over the PCIe links of a topology, which copies share with all else that travels.

    seat: the engine.
    """

    def __init__(self, ways: Ways, seat: Seat, block_bytes: float) -> None:
        self.name = HOST
        self._ways = ways
        self._seat = seat
        self._block_bytes = block_bytes

    def fetch(self, move: KvMove) -> Transit:
        """Read blocks from the host's memory, over the links of the topology."""
        num_bytes = move.num_blocks * self._block_bytes
        return Transit(num_bytes, self._ways.read([self._seat], Store(), num_bytes, 0.0))

    def keep(self, move: KvMove) -> Transit:
        """Write blocks to the host's memory, over the links of the topology."""
        num_bytes = move.num_blocks * self._block_bytes
        return Transit(num_bytes, self._ways.write([self._seat], Store(), num_bytes, 0.0))
