"""The host's memory for KV entries of prompts, which all lanes of a client share."""

from __future__ import annotations

from mist_sim.clients.kv_cache import SerialLink
from mist_sim.clients.kv_cache.moves.kv_move import HOST, KvMove
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.stores.base import KvStore, Transit
from mist_sim.environment import MOVE, Environment


class HostBuffer(KvStore):
    """Entries on the host, in a form that both layouts can read (Seesaw 4.2, figure 7).

    Every GPU copies its part over its own link, all at once, so an engine's links act as one;
    copies follow one another in each direction. Arrived entries lie in pinned memory; the host then
    copies them, one after the other, to memory shared by the processes of all GPUs, from where they
    can be read back.

    out, back: the links of an engine. behind: the host's copies. seconds, seconds_behind: of a
    block over the links of an engine, and of a copy on the host. block_bytes: of all GPUs.
    shared_at: when sequences' entries can be read back, for all engines (seconds).
    """

    def __init__(
        self,
        env: Environment,
        out: SerialLink,
        back: SerialLink,
        behind: SerialLink,
        *,
        seconds: float,
        seconds_behind: float,
        block_bytes: float,
        shared_at: dict[SequenceState, float],
    ) -> None:
        self.name = HOST
        self._env = env
        self._out, self._back, self._behind = out, back, behind
        self._seconds, self._seconds_behind = seconds, seconds_behind
        self._block_bytes = block_bytes
        self._shared_at = shared_at

    def keep(self, move: KvMove) -> Transit:
        """Start a copy to pinned memory, and the host's copy to shared memory after it."""
        end = self._out.send(move.num_blocks * self._seconds, self._env.now)
        if self._seconds_behind:
            behind = move.num_blocks * self._seconds_behind
            self._shared_at[move.sequence] = self._behind.send(behind, end)
        return Transit(move.num_blocks * self._block_bytes, self._env.at(end, MOVE))

    def fetch(self, move: KvMove) -> Transit:
        """Send entries back to the GPUs, once the buffer has all of them."""
        begins = max(self._env.now, self._shared_at.pop(move.sequence, 0.0))
        end = self._back.send(move.num_blocks * self._seconds, begins)
        return Transit(move.num_blocks * self._block_bytes, self._env.at(end, MOVE))
