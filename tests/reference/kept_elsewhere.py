"""A client whose requests come back to entries that it put into a store, over a slow link."""

from typing import Any

from simpy.events import Event

from mist_sim.clients import LlmClient
from mist_sim.clients.kv_cache import SerialLink
from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.stores import KvStore, StoredKv, Transit
from mist_sim.core.request import Request
from mist_sim.core.visit import HeldKv
from mist_sim.environment import MOVE
from mist_sim.stages import Prefill
from tests.reference.memory import Link


class SlowStore(KvStore):
    """Entries come one request after the other: some seconds for each, and for each block."""

    name = "store"

    def __init__(self, client: LlmClient, latency: float, seconds_per_block: float) -> None:
        self._client = client
        self._seconds = latency, seconds_per_block
        self._link = SerialLink()

    def fetch(self, move: KvMove) -> Transit:
        env, (latency, each) = self._client.env, self._seconds
        end = self._link.send(latency + move.num_blocks * each, env.now)
        num_bytes = move.num_blocks * (self._client.kv_block_bytes or 0.0)
        return Transit(num_bytes, env.at(end, MOVE))


class ParkingClient(LlmClient):
    """Gives prompts the entries that `kept` says, tokens by request id, and no turn but the first.

    num_released: how many of them were let go.
    """

    kept: dict[int, int]
    seconds: tuple[float, float]
    num_released = 0

    def start(self, *run: Any) -> None:
        super().start(*run)
        self._store = SlowStore(self, *self.seconds)

    def serve(self, request: Request, stages: Any, kv: HeldKv | None = None, *more: Any) -> Event:
        num_tokens = self.kept.pop(request.request_id, 0)
        if num_tokens and kv is None and isinstance(stages[0], Prefill):
            kv = StoredKv(self._store, self._let_go, num_tokens=num_tokens)
        return super().serve(request, stages, kv, *more)

    def _let_go(self) -> None:
        self.num_released += 1


class Elsewhere:
    """The same link for the reference, which all lanes of a client share."""

    def __init__(self, latency: float, seconds_per_block: float) -> None:
        self._seconds = latency, seconds_per_block
        self._link = Link()

    def load(self, number: int, now: float) -> float:
        latency, each = self._seconds
        seconds = latency + number * each
        self._link.free_at = max(self._link.free_at, now) + seconds
        return self._link.free_at
