"""The KV-retrieval client: entries of known contexts come from levels of storage."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

import simpy
from numpy.random import Generator as Rng
from simpy.events import Event

from mist_sim.checks import Positive, check_fields
from mist_sim.clients.base import Client
from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.retrieval.levels import (
    Contents,
    Keeper,
    Read,
    StorageLevel,
    check_levels,
    contents_of,
    described,
    num_blocks_of,
    reading,
    shares,
)
from mist_sim.clients.stores import KvStore, StoredKv, Transit
from mist_sim.clients.traits import ClientTraits
from mist_sim.clients.workers.base import Device, Waiting
from mist_sim.clients.workers.fetching import check_way
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.core.visit import HeldKv, Visit
from mist_sim.environment import ARRIVE, PLAN, Environment
from mist_sim.eviction import LRU, Eviction, check_eviction
from mist_sim.network import Network
from mist_sim.stages import KvRetrieval, Prompted
from mist_sim.units import Bytes


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


Kind = Literal["expected", "drawn", "stored"]
KINDS: tuple[str, ...] = get_args(Kind)

Found = Sequence[float]
"""Tokens that come from each level, the nearest first; with expected hits a mean."""

BLOCK_SIZE = 256
"""Tokens of a block: LMCache's default (`chunk_size`)."""

_TINY = 1e-6  # tokens: what adding up shares of a retrieval may leave


@CLIENTS.register("kv_retrieval")
@dataclass(eq=False)
class KvRetrievalClient(Client):
    """Levels of storage for prompts' KV entries, with MIST's scheduler "Batched".

    All retrievals that wait are one batch: one look-up for all, and the sum of their bytes. The
    engine of the next prefill has the entries that were found, and computes the rest of the prompt:
    the last miss is computed again.

    bytes_per_token: of the KV entries of a token on all GPUs. In a scenario file, by default that
        of `model`.
    levels: levels of storage, the nearest first.
    hits: `expected` takes the expected time, and finds the expected share of the tokens (MIST
        §IV-A3); `drawn` draws one level, or none, for each retrieval; `stored` finds the entries
        stored there.
    eviction: which blocks a full level gives up, with `hits: stored`; by default `lru`.
    block_size: tokens per block, with `hits: stored` (default: 256, as LMCache).
    max_batch_size: most retrievals per batch; by default all that wait.
    device: a card or processor shared with other clients; a batch takes one of its slots.
    to: its place in a topology, such as node0/host, to which levels with `at` send their bytes.
    Raises ValueError for values outside these ranges, for levels out of order, and for options that
    a kind of hits lacks or ignores.
    Source: MIST §III-E and §IV-A3.
    """

    name: str
    _: KW_ONLY
    bytes_per_token: Positive[Bytes]
    levels: tuple[StorageLevel, ...]
    hits: Kind = "expected"
    eviction: Eviction | None = None
    block_size: Positive[int] | None = None
    max_batch_size: Positive[int] | None = None
    device: Device | None = None
    to: str | None = None

    def __post_init__(self) -> None:
        self.levels = tuple(self.levels)
        check_fields(self)
        if self.eviction is not None:
            check_eviction(self.eviction)
        check_levels(self.levels, self.hits)
        self._check_contents()
        self._check_places()
        for level in self.levels:
            level.times  # noqa: B018  a file that is none is found now
        super().__init__(self.name, self._own_traits())

    def _own_traits(self) -> ClientTraits:
        """Return its traits, with the facts on which clients that share parts must agree."""
        contents: dict[str, object] = {}
        if self.hits == "stored":
            contents = {
                "bytes_per_token": self.bytes_per_token,
                "block_size": self.block_size or BLOCK_SIZE,
                "eviction": self.eviction or LRU,
            }
        shared: dict[str, dict[str, object]] = {} if self.device is None else self.device.shared
        for level in self.levels:
            if level.shared:
                shared[f"level {level.name}"] = described(level) | contents
        return ClientTraits(
            serves=(KvRetrieval.kind,),
            uses_links=any(level.at is not None for level in self.levels),
            shared_parts=shared,
        )

    def _check_contents(self) -> None:
        """Raise ValueError for options of contents without any, and levels without a block."""
        for name in ("eviction", "block_size"):
            if self.hits != "stored" and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} must be left out with hits: {self.hits}, got {getattr(self, name)}"
                )
        size = self.block_size or BLOCK_SIZE
        for level in self.levels:
            if not num_blocks_of(level, size, self.bytes_per_token):
                raise ValueError(
                    f"levels: {level.name}: capacity must be that of a block or more, "
                    f"{size} tokens or {size * self.bytes_per_token:g} B; raise it, or lower "
                    "block_size"
                )

    def _check_places(self) -> None:
        """Raise ValueError where a level lies in a topology and the client does not, or back."""
        away = [level.name for level in self.levels if level.at is not None]
        if away and self.to is None:
            raise ValueError(f"to must be given, since the level {away[0]} lies in a topology")
        if self.to is not None and not away:
            raise ValueError(f"to must be left out, since no level has the key at, got {self.to}")

    def join_network(self, network: Network | None) -> None:
        """Check that the network has a way from each level. Raises ScenarioError if it has none."""
        for level in self.levels:
            if level.at is not None and self.to is not None:
                check_way(self.name, "levels.at", (level.at, self.to), network)

    # --- a run ----------------------------------------------------------------------------

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: make the links of the levels, and find shared contents."""
        super().start(env, client_id, recorder)
        parts = self.shared_parts
        self._waiting = Waiting(self.max_batch_size)
        self._batch: dict[Visit, Found] = {}
        self._is_busy = False
        self._kept: dict[HeldKv, None] = {}
        self._reads: list[Read] = [
            reading(level, self.name, self.to, env, self.network, parts) for level in self.levels
        ]
        self._slots = None if self.device is None else self.device.shared_by(parts, env)
        self._turn: simpy.resources.resource.Request | None = None
        self._num_starts = getattr(self, "_num_starts", 0) + 1
        self.contents: Contents | None = None
        if self.hits == "stored":
            self.contents = contents_of(
                self.levels,
                self.block_size or BLOCK_SIZE,
                self.bytes_per_token,
                self.eviction or LRU,
                parts,
            )
        self._rng: Rng | None = None
        if self.hits == "drawn":
            self._rng = self.streams.generator(f"{self.name}: hits")

    def restart(self) -> None:
        """Come back with only the content of shared levels; random draws continue."""
        rng = self._rng
        super().restart()
        self._rng = rng

    def accept(self, visit: Visit) -> None:
        """Queue a visit, and wake the worker if it sleeps."""
        self._waiting.add(visit)
        if not self._is_busy:
            self._is_busy = True
            self.env.start(self._work(self._num_starts))

    def abort(self, visit: Visit) -> None:
        """Release an abandoned visit at once; entries on their way keep moving."""
        if not self._waiting.discard(visit):
            del self._batch[visit]
        self.finish(visit)

    def halt(self) -> None:
        """Forget the batch in flight, and give its slot to others."""
        self._num_starts += 1
        if self._turn is not None and self._slots is not None:
            self._turn.cancel()
            self._slots.release(self._turn)

    @property
    def held_kv(self) -> Iterable[HeldKv]:
        """Entries that were found, and are not fetched yet."""
        return self._kept

    def _work(self, number: int) -> Generator[Event, Any, None]:
        """Serve batches until no visit waits. number: of the start; a later start ends it."""
        yield self.env.at(self.env.now, PLAN)  # all visits of this instant have arrived
        while number == self._num_starts and len(self._waiting):
            if self._slots is not None:
                self._turn = self._slots.request()
                yield self._turn
            if number != self._num_starts:
                return
            if batch := self._waiting.take():
                yield from self._serve(batch)
            if number != self._num_starts:
                return
            self._hand_back()
            if self._slots is not None and self._turn is not None:
                self._slots.release(self._turn)
                self._turn = None
        if number == self._num_starts:
            self._is_busy = False

    def _serve(self, batch: list[Visit]) -> Generator[Event, Any, None]:
        """Look a batch up, and wait until all that is found is there."""
        self._began_at = self.env.now
        asked, by_level = 0, [0.0] * len(self.levels)
        for visit in batch:
            self.begin(visit)
            num_tokens = _num_tokens(visit)
            self._batch[visit] = found = self._find(visit.request, num_tokens)
            asked += num_tokens
            by_level = [sum(pair) for pair in zip(by_level, found, strict=True)]
        each = self.bytes_per_token
        parts = [num_tokens * each for num_tokens in by_level]
        if self.hits == "expected":  # the expected times of the levels add up
            for read, share in zip(self._reads, shares(self.levels), strict=True):
                if share > 0:
                    yield read(asked * each, share)
        elif ends := [r(part, 1.0) for r, part in zip(self._reads, parts, strict=True) if part]:
            yield self.env.all_of(ends)  # each level has its own link

    def _find(self, request: Request, num_tokens: int) -> Found:
        """Return how many of the tokens that a request asks for come from each level."""
        if self.contents is not None:
            return self.contents.find(request.content, num_tokens)
        if self._rng is None:
            return [share * num_tokens for share in shares(self.levels)]
        drawn, found = self._rng.random(), [0.0] * len(self.levels)
        for number, share in enumerate(shares(self.levels)):
            if drawn < share:  # one level, or none, has all of them
                found[number] = float(num_tokens)
                break
            drawn -= share
        return found

    def _hand_back(self) -> None:
        """Let the visits of a batch go, each with the entries that were found for it."""
        batch, self._batch = self._batch, {}
        for visit, found in batch.items():
            self._record(visit, found)
            if self.contents is not None:
                self._keep_up(visit, self.contents, found)
            self._leave_entries(visit, round(sum(found)))
            self.finish(visit)

    def _record(self, visit: Visit, found: Found) -> None:
        """Record the entries from each level, and those that no level had."""
        missed = _num_tokens(visit) - sum(found)
        parts = [*zip((level.name for level in self.levels), found, strict=True), (None, missed)]
        for source, num_tokens in parts:
            if num_tokens > _TINY:
                num_bytes = num_tokens * self.bytes_per_token if source is not None else 0.0
                found_there = source, num_tokens, num_bytes, self._began_at, self.env.now
                self.recorder.retrievals.add(
                    (visit.request.request_id, self.client_id, *found_there)
                )

    def _keep_up(self, visit: Visit, contents: Contents, found: Found) -> None:
        """Note the tokens read, and arrange for the request's computed entries to be written."""
        request = visit.request
        contents.read(request.content, [int(num_tokens) for num_tokens in found])
        if not isinstance(request.keeper, Keeper) or request.keeper.contents is not contents:
            request.keeper = Keeper(request, contents)

    def _leave_entries(self, visit: Visit, num_tokens: int) -> None:
        """Keep the entries that were found for the engine of the next prefill."""
        if not num_tokens:
            return

        def let_go() -> None:
            del self._kept[kept]

        num_bytes = num_tokens * self.bytes_per_token
        store = Arrived(self.name, self.env)
        kept = StoredKv(store, let_go, num_tokens=num_tokens, num_bytes=num_bytes)
        visit.held_kv = kept
        self._kept[kept] = None


def _num_tokens(visit: Visit) -> int:
    """Return the tokens whose entries a visit requests: at most those of the next prompt."""
    asked = sum([stage.num_tokens for stage in visit.stages if isinstance(stage, KvRetrieval)])
    for stage in visit.request.to_serve:
        if isinstance(stage, Prompted) and stage.num_prompt_tokens is not None:
            return min(asked, stage.num_prompt_tokens)
    return asked
