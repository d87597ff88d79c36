"""KV entries kept by other clients: hand-over, migration, and push."""

from __future__ import annotations

from dataclasses import dataclass

from simpy.events import Event

from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.clients.stores.base import KvStore, Transit
from mist_sim.clients.traits import KvForm
from mist_sim.core.visit import AwaitedKv
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.network import Message, Network, Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryForm:
    """The form of a client's KV entries, as a network needs it.

    block_bytes: of a block over all GPUs of an engine; None: unknown, so that no entries can come.
    block_size: tokens per block. num_layers: number of layers, sent in order.
    in_blocks: whether a network sends them block by block, rather than in one piece per layer.
    """

    block_bytes: float | None
    block_size: int
    num_layers: int
    in_blocks: bool = True

    @classmethod
    def of(cls, form: KvForm) -> EntryForm:
        """Return that of a client whose traits have this form."""
        block_size, num_layers = form.block_size or 1, form.num_layers
        return cls(block_bytes=form.block_bytes, block_size=block_size, num_layers=num_layers)


class OtherClients(KvStore):
    """Sends the entries that other clients keep to an engine, over the network.

    seat: the receiving engine. network: None: no network, so that no entries can come.
    """

    def __init__(
        self, env: Environment, network: Network | None, seat: Seat, form: EntryForm
    ) -> None:
        self.name = f"other clients of {seat.client}"
        self._env = env
        self._network = network
        self._seat = seat
        self._form = form

    def has(self, move: KvMove) -> bool:
        """Whether no entries have to come, or they are there."""
        kv = move.sequence.incoming
        return kv is None or not kv.is_awaited or kv.is_there

    def ready(self, move: KvMove) -> Event:
        """Return an event that fires once entries not computed yet have arrived, or never will."""
        kv, ready = move.sequence.incoming, Event(self._env)
        if not isinstance(kv, AwaitedKv):
            return super().ready(move)
        kv.reserve(lambda: self._env.trigger(ready, self._env.now, MOVE))
        return ready

    def fetch(self, move: KvMove) -> Transit:
        """Send entries over the network; cached ones too unless `destination_missing`."""
        network, form, kv = self._network, self._form, move.sequence.incoming
        if kv is None:
            raise InvariantError(f"no client keeps what {move} moves")
        if network is None or form.block_bytes is None:
            raise ScenarioError(
                f"{self._seat.client}: a network and kv_block_bytes are required for KV entries "
                "of other clients to come here"
            )
        num_blocks = move.num_blocks
        if not network.destination_missing:
            num_blocks = max(num_blocks, -(-kv.num_tokens // form.block_size))
        message = Message(
            Seat(kv.source, kv.engine),
            self._seat,
            num_blocks * form.block_bytes,
            form.num_layers,
            kv.compute_time,
            num_blocks if form.in_blocks else 1,
        )
        after = network.post_processing(message)
        return Transit(message.num_bytes, network.send(message), after)
