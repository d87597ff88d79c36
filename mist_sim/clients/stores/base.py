"""The base of every store: memory outside a lane's blocks that keeps KV entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import NamedTuple

from simpy.events import Event

from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.core.visit import HeldKv
from mist_sim.errors import InvariantError


class Transit(NamedTuple):
    """Entries on their way.

    num_bytes: that are recorded; NaN: not known.
    end: happens when the last byte is there, so that their source need not keep them any more;
        None: they are there before the next step of the engine, which waits for `after` seconds.
    after: seconds from the end until they can be used.
    """

    num_bytes: float
    end: Event | None
    after: float = 0.0


class KvStore(ABC):
    """Memory that keeps KV entries: swap space, a tier, another client, a buffer, a parked session.

    Memory is reserved first: for arriving entries, by the scheduler of the lane before it plans the
    move; for leaving ones, in the room of the store (see `Room`). So `fetch` and `keep` only
    determine the time of the transfer. Its end is an event, since links are shared. When it
    happens, fetched entries are no longer needed at their source (`HeldKv.release`).

    name: of the source or the destination, in messages.
    """

    name: str

    def has(self, move: KvMove) -> bool:
        """Tell whether entries can be fetched now; mostly they can."""
        return True

    def ready(self, move: KvMove) -> Event:
        """Return an event: entries still missing can be fetched, or will not come.

        Their memory is already reserved.
        """
        raise InvariantError(f"{self.name} has what {move} moves; nothing has to be awaited")

    def time(self, num_bytes: float) -> float:
        """Return the seconds in which so many bytes arrive, estimated for routers; 0: not known."""
        return 0.0

    @abstractmethod
    def fetch(self, move: KvMove) -> Transit:
        """Begin to send entries to the lane, which has reserved memory for them."""

    def keep(self, move: KvMove) -> Transit:
        """Begin to take entries from the lane, for which there is room.

        Raises InvariantError for a store that lanes only read.
        """
        raise InvariantError(f"{self.name} takes no KV entries, but {move} brings it some")


class StoredKv(HeldKv):
    """Entries of a request in a store of its own, rather than on the GPUs of a client.

    They belong to the first tokens of a prompt, or to a prompt and the answer so far.

    store: the store that sends them.
    """

    __slots__ = ("store",)

    def __init__(
        self,
        store: KvStore,
        let_go: Callable[[], None],
        *,
        num_tokens: int,
        num_prompt_tokens: int | None = None,
        num_output_tokens: int = 0,
        last_token_at: float = nan,
        num_bytes: float = 0.0,
    ) -> None:
        """let_go: called once, when they are not needed any more. The others: as of `HeldKv`."""
        super().__init__(
            store.name,
            let_go,
            num_tokens=num_tokens,
            num_prompt_tokens=num_tokens if num_prompt_tokens is None else num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            last_token_at=last_token_at,
            num_bytes=num_bytes,
        )
        self.store = store


@dataclass(frozen=True)
class Stores:
    """The stores of a lane.

    others: other clients' entries. swap: destination of preempted sequences; None: they are
        computed again. tiers: below the lane's prefix cache, by name.
    """

    others: KvStore
    swap: KvStore | None = None
    tiers: Mapping[str, KvStore] = field(default_factory=dict)

    def of(self, move: KvMove) -> KvStore:
        """Return the store that a move comes from or goes to."""
        kv = move.sequence.incoming
        if kv is not None:
            return kv.store if isinstance(kv, StoredKv) else self.others
        store = self.swap if move.is_swap else self.tiers.get(move.source)
        if store is None:
            raise InvariantError(f"the lane has no store for {move}")
        return store
