"""Brings KV entries kept by other clients to a client without lanes."""

from __future__ import annotations

from simpy.events import Event

from mist_sim.clients.kv_cache.moves.kv_move import GPU, KvMove
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.stores.base import Stores
from mist_sim.clients.stores.mover import Mover, Record
from mist_sim.clients.stores.other_clients import EntryForm, OtherClients
from mist_sim.core.visit import Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import ScenarioError
from mist_sim.network import Network, Seat


class Inbox:
    """Brings entries to one engine of a client, through the mechanism of all moves.

    seat: the engine. network: None: no network, so that no entries can come. form: of the entries.
    record: records each move that has ended.
    """

    def __init__(
        self,
        env: Environment,
        network: Network | None,
        seat: Seat,
        form: EntryForm,
        record: Record,
    ) -> None:
        self._env = env
        self._seat = seat
        self._block_size = form.block_size
        self._ends: dict[SequenceState, Event] = {}
        stores = Stores(OtherClients(env, network, seat, form))
        self._mover = Mover(env, stores, record, self._end)

    def fetch(self, visit: Visit) -> Event:
        """Begin to copy the entries from which a visit goes on.

        Returns an event; its value is True if they arrived. Where they are lost on the way it
        is False, and the visit is given up. Raises ScenarioError for a visit without entries.
        """
        kv = visit.kv
        if kv is None:
            raise ScenarioError(f"{self._seat.client}: {visit.request} must come with KV entries")
        sequence = SequenceState(visit, kv.num_prompt_tokens, 0)
        sequence.continue_from(kv)
        num_blocks = -(-kv.num_tokens // self._block_size)
        move = KvMove("hand_over", sequence, kv.source, GPU, num_blocks, kv.num_tokens)
        self._ends[sequence] = end = Event(self._env)
        self._mover.begin(move)
        return end

    def _end(self, move: KvMove) -> None:
        kv = move.sequence.incoming
        is_here = kv is not None and not kv.is_lost
        self._env.trigger(self._ends.pop(move.sequence), self._env.now, MOVE, is_here)
