"""Entries that have come all the way to the engine."""

from __future__ import annotations

from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.clients.stores.base import KvStore, Transit
from mist_sim.environment import ARRIVE, Environment


class Arrived(KvStore):
    """Entries that have already arrived: the levels' times cover the whole way.

    name: name of the client that retrieved them.
    """

    def __init__(self, name: str, env: Environment) -> None:
        self.name = name
        self._env = env

    def fetch(self, move: KvMove) -> Transit:
        """Let them be used at once; their bytes were counted when they came."""
        return Transit(0.0, self._env.at(self._env.now, ARRIVE))
