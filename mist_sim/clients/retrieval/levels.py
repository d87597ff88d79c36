"""Levels of KV storage, and the expected time of a retrieval from them (MIST §IV-A3).

Stateful retrieval: the content of a client's levels, and its changes.

Levels are inclusive, and written through: entries computed by an engine are written to every level,
and each level evicts blocks by its own capacity and order. Entries read from a level are written to
the levels in front of it. The alternative is demotion, where a level receives the blocks that the
one in front evicts. We chose write-through for two reasons. A level shared by several clients then
has every client's entries as soon as they are computed, which is the purpose of sharing; with
demotion it lacks the hottest entries, since they stay in front. And such stores write through by
default (LMCache; SGLang's HiCache, `write_through`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise

from simpy.events import Event

from mist_sim.checks import Fraction, NotNegative, Positive, check_fields
from mist_sim.clients.kv_cache.tiers import (
    CacheTier,
    OrderedStore,
    Spans,
    Use,
    found_in,
    parts_of,
)
from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.clients.retrieval.measured import MeasuredTimes, measured_times
from mist_sim.clients.shared_parts import SharedParts
from mist_sim.core.request import Content, Request
from mist_sim.core.visit import Failure, Lost, Visit
from mist_sim.environment import ARRIVE, MOVE, Environment
from mist_sim.errors import InvariantError
from mist_sim.eviction import Eviction
from mist_sim.network import Network
from mist_sim.network.flows import Path
from mist_sim.network.transfers import Transfers
from mist_sim.stages import Prefill
from mist_sim.units import Bytes, BytesPerSecond, Seconds


class EvictingStore(OrderedStore):
    """Keeps written blocks up to its capacity; evicted blocks are lost.

    With `lru` it holds the same blocks as `WriteThroughStore`. With `fifo` the first blocks of a
    prompt may be evicted before later ones, which are then not found until the first ones are
    written again.

    num_written, num_given_up: blocks written and evicted since the start; their difference is the
        number held.
    """

    def __init__(self, tier: CacheTier) -> None:
        super().__init__(tier, None)
        self.num_written = 0
        self.num_given_up = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds."""
        return self._order.num_blocks

    def compute(self, spans: Spans, num_blocks: int) -> None:
        """Write the first blocks of a prompt, as many as the tier can hold.

        Blocks already there are kept, and keep their place in the order; writing them again counts
        as no use. No block of the prompt is evicted for another one of it.
        """
        num_blocks = min(num_blocks, self.tier.num_blocks)
        order, num_missing = self._order, 0
        parts: list[tuple[Hashable, int, int, Use | None]] = []
        for key, start, end, is_there in parts_of(order, spans, num_blocks):
            use = order.take_out(key, start, end) if is_there else None
            parts.append((key, start, end, use))
            num_missing += 0 if is_there else end - start
        num_there = sum(end - start for _, start, end, _ in parts) - num_missing
        self._make_room(num_there + num_missing)
        for key, start, end, use in parts:
            order.add(key, start, end, use)
        self.num_written += num_missing

    def _make_room(self, num_blocks: int) -> None:
        """Give up blocks until there is room for so many, at most all."""
        while (too_many := self.num_blocks + num_blocks - self.tier.num_blocks) > 0:
            _, start, end = self._order.pop(too_many)
            self.num_given_up += end - start

    def fill(self, num_blocks: int) -> None:
        """They are not written, since no other request will look them up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLevel:
    """One level: a client's own memory, a store shared by several, or one in another rack.

    name: unique among the levels of a client.
    read_bandwidth: bytes/s to one client, on all of the way to the engine. MIST takes 150 GB/s
        for eight channels of DDR4-2666 and 7 GB/s for an NVMe disk.
    latency: seconds until the first byte comes, the look-up included. MIST takes 80 ns for DDR4,
        50 us for NVMe, and about 20 ms to another rack.
    hit_rate: share of the look-ups reaching this level that it answers, in [0, 1]. With `hits:
        stored` it follows from the content.
    capacity: bytes that it holds, with `hits: stored`. capacity_tokens: the same in tokens, in
        place of bytes. Without both it holds everything.
    shared: whether all clients that name such a level share its content and its `total_bandwidth`.
        It outlives each of them.
    total_bandwidth: bytes/s to all clients together, shared equally by simultaneous reads. Without
        it reads do not delay one another, as in MIST's table of storage architectures.
    at: place of a topology where it lies, such as remote/storage or node8/host. Its bytes share the
        links from there to the client's place with all other transfers; `read_bandwidth` is left
        out.
    measured: a CSV file of measured reads with the columns num_bytes and seconds, in place of
        `latency` and `read_bandwidth`. Times between two sizes are interpolated linearly.
    Raises ValueError for values outside these ranges, or that contradict one another.
    """

    name: str
    read_bandwidth: Positive[BytesPerSecond] | None = None
    latency: NotNegative[Seconds] = 0.0
    hit_rate: Fraction | None = None
    capacity: Positive[Bytes] | None = None
    capacity_tokens: Positive[int] | None = None
    shared: bool = False
    total_bandwidth: Positive[BytesPerSecond] | None = None
    at: str | None = None
    measured: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        check_fields(self)
        if None not in (self.capacity, self.capacity_tokens):
            raise ValueError("capacity_tokens must be left out with capacity, got both")
        self._check_way()

    def _check_way(self) -> None:
        """Raise ValueError unless exactly one option gives the time of its bytes."""
        if self.total_bandwidth is not None and not self.shared:
            raise ValueError("total_bandwidth must be left out without shared: true")
        timed = [self.read_bandwidth or self.total_bandwidth, self.at, self.measured]
        if sum(each is not None for each in timed) != 1:
            raise ValueError(
                "read_bandwidth must be given, or one in place of it: total_bandwidth of a shared "
                "level, at, or measured; no two of these"
            )
        if self.measured is not None and self.latency:
            raise ValueError("latency must be left out with measured, which has it")

    @property
    def times(self) -> MeasuredTimes | None:
        """The measured reads. Raises ScenarioError for a file of another form."""
        return None if self.measured is None else measured_times(self.measured)

    def read_time(self, num_bytes: float) -> float:
        """Return the seconds of an undisturbed read: T + S / BW, or as measured.

        Raises ValueError for a level in a topology, whose links determine the time.
        """
        if (times := self.times) is not None:
            return times.seconds(num_bytes)
        speeds = [each for each in (self.read_bandwidth, self.total_bandwidth) if each is not None]
        if not speeds:
            raise ValueError(f"{self.name}: the links of the topology give the time of a read")
        return self.latency + num_bytes / min(speeds)


def expected_time(
    num_bytes: float, levels: Sequence[StorageLevel], recomputation: float = 0.0
) -> float:
    """Return the expected seconds in which the entries of a context are there.

    f(S, C_n) = H_n (T_n + S / BW_n) + (1 - H_n) f(S, C_n+1)

    recomputation: seconds in which an engine computes them, which is f behind the last level. The
    paper leaves that open, and says that a miss may need it. Source: MIST §IV-A3.
    """
    if not levels:
        return recomputation
    here, *below = levels
    rate = _hit_rate(here)
    missed = 0.0 if rate == 1 else (1 - rate) * expected_time(num_bytes, below, recomputation)
    return (rate * here.read_time(num_bytes) if rate else 0.0) + missed


def shares(levels: Sequence[StorageLevel]) -> list[float]:
    """Return the share of retrievals that each level answers: H_n times the misses of those above.

    The shares and the misses of all levels sum to 1.
    """
    found, missed = [], 1.0
    for level in levels:
        rate = _hit_rate(level)
        found.append(missed * rate)
        missed *= 1 - rate
    return found


def _hit_rate(level: StorageLevel) -> float:
    if level.hit_rate is None:
        raise ValueError(f"{level.name}: hit_rate is required, since no other option gives it")
    return level.hit_rate


def check_levels(levels: Sequence[StorageLevel], hits: str) -> None:
    """Raise ValueError unless levels are in order and have the options of their kind of hits."""
    if not levels:
        raise ValueError("levels must have at least one entry, got none")
    names = [level.name for level in levels]
    if len({*names}) < len(names):
        raise ValueError(f"levels must have names that differ, got {', '.join(names)}")
    for level in levels:
        for problem in _problems(level, hits):
            raise ValueError(f"levels: {level.name}: {problem}")
    for nearer, further in pairwise(levels):
        _check_order(nearer, further)


def _problems(level: StorageLevel, hits: str) -> list[str]:
    """Return the options that a level lacks, and those without effect, for a kind of hits."""
    if hits != "stored":
        useless = [name for name in ("capacity", "capacity_tokens") if getattr(level, name)]
        found = [f"{name} must be left out with hits: {hits}" for name in useless]
        if level.hit_rate is None:
            found.append(f"hit_rate must be given with hits: {hits}")
        if level.shared and level.total_bandwidth is None:
            found.append(f"shared must be left out with hits: {hits} and no total_bandwidth")
        return found
    if level.hit_rate is not None:
        return ["hit_rate must be left out with hits: stored, of which it is an outcome"]
    return []


def _check_order(nearer: StorageLevel, further: StorageLevel) -> None:
    """Raise ValueError where a level behind another is no later, no slower, and not equal."""
    speeds = nearer.read_bandwidth, further.read_bandwidth
    if speeds[0] is None or speeds[1] is None:
        return
    here, there = (nearer.latency, -speeds[0]), (further.latency, -speeds[1])
    if here != there and all(b <= a for a, b in zip(here, there, strict=True)):
        raise ValueError(
            f"levels must go from the nearest to the furthest, got {further.name} "
            f"({further.latency:g} s, {speeds[1]:g} B/s) behind {nearer.name} "
            f"({nearer.latency:g} s, {speeds[0]:g} B/s); put it in front"
        )


def described(level: StorageLevel) -> dict[str, object]:
    """Return the description of a shared level on which all its clients must agree."""
    said = {field.name: getattr(level, field.name) for field in fields(level)}
    del said["hit_rate"], said["name"]
    return said


class Contents:
    """The blocks in each of a client's levels, the nearest first.

    block_size: tokens of a block; only full ones are kept.
    """

    def __init__(self, stores: Sequence[EvictingStore], block_size: int) -> None:
        self.stores = stores
        self.block_size = block_size

    def find(self, content: Content, num_tokens: int) -> list[int]:
        """Return how many of the first tokens of a request come from each level.

        num_tokens: tokens requested. Changes no level.
        """
        chain = Chain(content, self.block_size)
        most = min(num_tokens // self.block_size, chain.num_shared)
        counts, _ = found_in(self.stores, chain.spans, 0, most)
        return [count * self.block_size for count in counts]

    def read(self, content: Content, found: Sequence[int]) -> None:
        """Record that tokens were read from levels, as returned by `find`.

        Those levels count a use, and the levels in front of the last one hold the tokens from now
        on.
        """
        if not any(found):
            return
        spans = Chain(content, self.block_size).spans
        num_blocks = sum(found) // self.block_size
        deepest = max(number for number, count in enumerate(found) if count)
        for number, store in enumerate(self.stores[: deepest + 1]):
            if found[number]:
                store.use(spans, num_blocks)
            if number < deepest:
                store.compute(spans, num_blocks)

    def write(self, content: Content, num_tokens: int) -> None:
        """Write the first tokens of a request to all levels: an engine has computed them."""
        chain = Chain(content, self.block_size)
        num_blocks = min(num_tokens // self.block_size, chain.num_shared)
        for store in self.stores:
            store.compute(chain.spans, num_blocks)


def contents_of(
    levels: Sequence[StorageLevel],
    block_size: int,
    bytes_per_token: float,
    eviction: Eviction,
    parts: SharedParts | None,
) -> Contents:
    """Return the contents of a client's levels: empty, except for shared ones already in use."""
    stores = []
    for level in levels:
        num_blocks = num_blocks_of(level, block_size, bytes_per_token)
        tier = CacheTier(
            level.name, num_blocks, level.latency, 0.0, shared=level.shared, eviction=eviction
        )
        make = partial(EvictingStore, tier)
        known = parts or SharedParts()
        stores.append(known.part("level", level.name, make) if level.shared else make())
    return Contents(stores, block_size)


def num_blocks_of(level: StorageLevel, block_size: int, bytes_per_token: float) -> int:
    """Return how many blocks a level holds; more than there can be for one without a limit."""
    if level.capacity_tokens is not None:
        return level.capacity_tokens // block_size
    if level.capacity is None:
        return sys.maxsize
    return int(level.capacity // (block_size * bytes_per_token))


class Keeper:
    """Follows the visits of one request.

    The entries of a visit are written when it ends, including those of its answer: all tokens but
    the last have entries. Writes use the other direction of links and delay nothing.
    """

    def __init__(self, request: Request, contents: Contents) -> None:
        self.contents = contents
        self._request = request
        self._num_tokens = 0  # of the prompt, and of its answer so far

    def __call__(self, visit: Visit) -> None:
        """Write the entries of a visit that has ended."""
        if isinstance(visit.outcome, Failure | Lost):
            return
        for stage in visit.stages:
            if isinstance(stage, Prefill):
                self._num_tokens = stage.num_prompt_tokens
        if visit.num_output_tokens:
            self._num_tokens += visit.num_output_tokens
            self.contents.write(self._request.content, self._num_tokens - 1)


Read = Callable[[float, float], Event]
"""Begins to read so many bytes of a level; the event happens when the last of them is there.

The other number is the share of a read that takes place, where times are expected values (0 to 1).
"""


class SharedBandwidth:
    """The bandwidth of a shared level, shared by all clients max-min fairly.

    Each client has its own link in front of the level's, so that none gets more than
    `read_bandwidth`.
    """

    def __init__(self, env: Environment, level: StorageLevel) -> None:
        self._env = env
        self._each = level.read_bandwidth
        self._latency = level.latency
        self._capacities = [level.total_bandwidth or 0.0]
        self._paths: dict[str, Path] = {}
        self._transfers: Transfers | None = None

    def join(self, client: str) -> Read:
        """Return what a client reads by; all clients join before the first one reads."""
        if client not in self._paths:
            if self._transfers is not None:
                raise InvariantError(f"{client} joins a shared level after its first read")
            path: Path = (0,)
            if self._each is not None:
                path = (0, len(self._capacities))
                self._capacities.append(self._each)
            self._paths[client] = path
        return partial(self._send, self._paths[client])

    def _send(self, path: Path, num_bytes: float, share: float) -> Event:
        """Begin to send so many bytes, behind the level's latency."""
        if self._transfers is None:
            self._transfers = Transfers(self._capacities)
            self._transfers.start(self._env)
        return self._transfers.send_alike((path,), share * num_bytes, share * self._latency)


def reading(
    level: StorageLevel,
    client: str,
    to: str | None,
    env: Environment,
    network: Network | None,
    parts: SharedParts | None,
) -> Read:
    """Return how a client reads a level. to: its place in a topology.

    Over a topology bytes look themselves up at the level's place, and share the links from there
    with all else that travels. Without links that are shared, a read takes the level's own time,
    however much other clients read.
    """
    ways = network.ways if network is not None else None
    if level.at is not None and to is not None and ways is not None:
        source, destination = level.at, to

        def over_links(num_bytes: float, share: float) -> Event:
            end = Event(env)

            def carry(_: Event) -> None:
                arrival = ways.carry(source, (destination,), share * num_bytes)
                arrival.callbacks.append(lambda _: env.happen(end))

            env.at(env.now + share * level.latency, MOVE).callbacks.append(carry)
            return end

        return over_links
    if level.total_bandwidth is not None:
        make = partial(SharedBandwidth, env, level)
        shared = (parts or SharedParts()).part("bandwidth of level", level.name, make)
        return shared.join(client)
    seconds = level.read_time if level.times is None else level.times.seconds
    return lambda num_bytes, share: env.at(env.now + share * seconds(num_bytes), ARRIVE)
