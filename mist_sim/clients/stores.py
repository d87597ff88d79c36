"""Memory that keeps KV entries outside the blocks of a lane, and the one way in and out.

Tiers below a prefix cache: how their blocks reach a lane.

Their content is in `kv_cache/tiers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import nan
from typing import NamedTuple, Protocol

from simpy.events import Event

from mist_sim.clients.kv_cache import CacheTier, LaneMemory, SerialLink, SwapSpace
from mist_sim.clients.kv_cache.moves import GPU, HOST, KvMove
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.traits import KvForm
from mist_sim.core.visit import AwaitedKv, HeldKv, Visit
from mist_sim.environment import ARRIVE, MOVE, Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.network import Message, Network, Seat, Store, Ways


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


class Record(Protocol):
    """Writes a move that has ended: its bytes, and when it began and ended (seconds)."""

    def __call__(self, move: KvMove, num_bytes: float, start: float, end: float) -> None:
        """Write one."""


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

    def begin(self, move: KvMove) -> None:
        """Begin a move, now or as soon as its entries are there."""
        store = self.stores.of(move)
        if store.has(move):
            self._copy(store, move)
        else:
            move.sequence.visit.started_at = self._env.now
            store.ready(move).callbacks.append(partial(self._copy_awaited, store, move))

    def _copy_awaited(self, store: KvStore, move: KvMove, _: Event) -> None:
        """Copy entries for which there was memory before; forget it if they do not come."""
        sequence = move.sequence
        if store.has(move) and sequence.incoming is not None:
            sequence.last_token_at = sequence.incoming.last_token_at
            self._copy(store, move)
        else:
            self._end(move)

    def _copy(self, store: KvStore, move: KvMove) -> None:
        now, visit = self._env.now, move.sequence.visit
        if move.kind == "hand_over" and visit.started_at != visit.started_at:
            visit.started_at = now
        if (kv := move.sequence.incoming) is not None:
            kv.begin_copy()
        transit = store.keep(move) if move.kind == "swap_out" else store.fetch(move)
        if transit.end is None:
            raise InvariantError(f"{store.name} has no end of {move}, for which no step waits")
        transit.end.callbacks.append(partial(self._arrive, move, transit, now))

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


class OtherClients(KvStore):
    """Sends the entries that other clients keep to an engine, over the network.

    seat: the receiving engine. network: None: no network, so that no entries can come.
    in_blocks: whether a network sends them block by block, rather than in one piece per layer.
    """

    def __init__(
        self,
        env: Environment,
        network: Network | None,
        seat: Seat,
        form: KvForm,
        *,
        in_blocks: bool = True,
    ) -> None:
        self.name = f"other clients of {seat.client}"
        self._env = env
        self._network = network
        self._seat = seat
        self._form = form
        self._in_blocks = in_blocks

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
            num_blocks = max(num_blocks, -(-kv.num_tokens // (form.block_size or 1)))
        message = Message(
            Seat(kv.source, kv.engine),
            self._seat,
            num_blocks * form.block_bytes,
            form.num_layers,
            kv.compute_time,
            num_blocks if self._in_blocks else 1,
        )
        after = network.post_processing(message)
        return Transit(message.num_bytes, network.send(message), after)


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
        form: KvForm,
        record: Record,
    ) -> None:
        self._env = env
        self._seat = seat
        self._block_size = form.block_size or 1
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


Begin = Callable[[KvMove], tuple[Event | None, float]]
"""Begins a copy; returns `Transit.end` and `Transit.after`."""


class MemoryBelow(KvStore):
    """Memory below the GPUs of an engine: swap space, or a tier.

    block_bytes: NaN: not known. back, out: begin copies to the GPUs, and from them; None: it is
        only read.
    """

    def __init__(
        self, name: str, block_bytes: float, back: Begin, out: Begin | None = None
    ) -> None:
        self.name = name
        self._block_bytes, self._back, self._out = block_bytes, back, out

    def fetch(self, move: KvMove) -> Transit:
        """Begin to copy blocks to the GPUs."""
        return Transit(move.num_blocks * self._block_bytes, *self._back(move))

    def keep(self, move: KvMove) -> Transit:
        """Begin to copy blocks of the GPUs."""
        if self._out is None:
            return super().keep(move)
        return Transit(move.num_blocks * self._block_bytes, *self._out(move))


def store_of(tier: CacheTier) -> Store:
    """Return the place of a tier in a topology, and its largest read rate."""
    return Store(tier.at, tier.read_bandwidth)


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
        form: KvForm,
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
        """Return swap space that pauses the engine (vLLM v0), or is copied while steps go on.

        Then one copy goes after the other each way, over the host links of all GPUs side by side;
        or over the PCIe links of a topology, which copies share with all else that travels.
        """
        env, ways, size, seconds = self._env, self._ways, self._block_bytes, space.seconds_per_block

        def over(link: SerialLink, move: KvMove) -> tuple[Event, float]:
            return env.at(link.send(move.num_blocks * seconds, env.now), MOVE), 0.0

        if not self._swaps_overlap:
            pause: Begin = lambda move: (None, move.num_blocks * seconds)  # noqa: E731
            return MemoryBelow(HOST, size, pause, pause)
        if ways is not None:
            return MemoryBelow(
                HOST,
                size,
                lambda move: (ways.read([seat], Store(), move.num_blocks * size, 0.0), 0.0),
                lambda move: (ways.write([seat], Store(), move.num_blocks * size, 0.0), 0.0),
            )
        back, out = (partial(over, self._link(seat, f"swaps {way}")) for way in ("back", "out"))
        return MemoryBelow(HOST, size, back, out)

    def _tier(self, seat: Seat, tier: CacheTier) -> KvStore:
        """Return a tier whose loads go one after the other, or over the links of a topology."""
        env, ways, size = self._env, self._ways, self._block_bytes
        if ways is None:
            link = self._link(seat, f"tier {tier.name}")

            def load(move: KvMove) -> tuple[Event | None, float]:
                seconds = tier.load_time(move.num_blocks)
                if tier.in_step:
                    return None, seconds
                return env.at(link.send(seconds, env.now), ARRIVE), 0.0

            return MemoryBelow(tier.name, size, load)
        if tier.in_step:
            raise ScenarioError(
                f"{seat.client}: tier {tier.name} of kv_cache.tiers must have loads_in_step: "
                "false on a network with a topology"
            )
        store = store_of(tier)
        return MemoryBelow(
            tier.name,
            size,
            lambda move: (ways.read([seat], store, move.num_blocks * size, tier.latency), 0.0),
        )

    def _link(self, seat: Seat, name: str) -> SerialLink:
        return self._links.setdefault((seat.engine, name), SerialLink())
