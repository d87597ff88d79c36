"""Moves KV entries into the memory of a lane and out of it; every such move goes through here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from simpy.events import Event

from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.clients.stores.base import KvStore, Stores, Transit
from mist_sim.environment import MOVE, Environment


class Record(Protocol):
    """Writes a move that has ended: its bytes, and when it began and ended (seconds)."""

    def __call__(self, move: KvMove, num_bytes: float, start: float, end: float) -> None: ...


class Mover:
    """Begins and ends all moves of a lane, each with the store at its other end.

    stores: stores of the lane. record: records the moves. end: called when a move has ended, or its
        entries will not come.
    """

    def __init__(
        self, env: Environment, stores: Stores, record: Record, end: Callable[[KvMove], None]
    ) -> None:
        self.stores = stores
        self._env = env
        self._record = record
        self._end = end

    def begin(self, move: KvMove) -> bool:
        """Begin a move; return whether the next step waits for its copy, and it has no end."""
        store = self.stores.of(move)
        if store.has(move):
            return self._copy(store, move)
        move.sequence.visit.started_at = self._env.now
        store.ready(move).callbacks.append(partial(self._copy_awaited, store, move))
        return False

    def _copy_awaited(self, store: KvStore, move: KvMove, _: Event) -> None:
        """Copy entries for which there was memory before; forget it if they do not come."""
        sequence = move.sequence
        if store.has(move) and sequence.incoming is not None:
            sequence.last_token_at = sequence.incoming.last_token_at
            self._copy(store, move)
        else:
            self._end(move)

    def _copy(self, store: KvStore, move: KvMove) -> bool:
        now, visit = self._env.now, move.sequence.visit
        if move.kind == "hand_over" and visit.started_at != visit.started_at:
            visit.started_at = now
        if (kv := move.sequence.incoming) is not None:
            kv.begin_copy()
        transit = store.keep(move) if move.kind == "swap_out" else store.fetch(move)
        if transit.end is None:
            self._record(move, transit.num_bytes, now, now + transit.after)
            return True
        transit.end.callbacks.append(partial(self._arrive, move, transit, now))
        return False

    def _arrive(self, move: KvMove, transit: Transit, start: float, event: Event) -> None:
        """The last byte is there, and the source need not keep anything."""
        if (kv := move.sequence.incoming) is not None:
            kv.release()
        if transit.after:
            use = partial(self._use, move, transit, start)
            self._env.at(self._env.now + transit.after, MOVE).callbacks.append(use)
        else:
            self._use(move, transit, start, event)

    def _use(self, move: KvMove, transit: Transit, start: float, _: Event) -> None:
        """Mark arrived entries as usable."""
        kv = move.sequence.incoming
        if kv is None or not kv.is_lost:
            self._record(move, transit.num_bytes, start, self._env.now)
        self._end(move)
