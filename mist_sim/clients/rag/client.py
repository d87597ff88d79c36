"""A client that finds passages for prompts: embed, search, re-rank, fetch (MIST §III-D, §IV-A2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients.rag.batches import BatchedClient
from mist_sim.clients.rag.encoder_passes import EncoderPass, TextPass
from mist_sim.clients.rag.latency_table import LatencyTable
from mist_sim.clients.rag.search_machine import PassMachine
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.step_track import StepTrack
from mist_sim.clients.traits import ClientTraits, TimesOrigin
from mist_sim.clients.workers.devices import Device
from mist_sim.core.batch import StepBatch
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.visit import Longer, Served, Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.vector_search import Searcher, SearchGpu, VectorIndex
from mist_sim.stages import Prompted, Rag
from mist_sim.units import Bytes, BytesPerSecond, Seconds

_BLOCK = 64  # draws at once


@runtime_checkable
class TokenLaw(Protocol):
    """Draws numbers of tokens: `n` of them, each >= 1, from `rng` alone."""

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Return `n` numbers of tokens, shape (n,), each >= 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageStore:
    """The store of passages' texts; the texts of a batch are fetched together.

    latency: until the first byte of a batch arrives (>= 0). bandwidth: of the bytes after it (> 0).
    bytes_per_token: of a text (> 0); 4 are a rule of thumb for English (OpenAI's tokenizer).
    Raises ValueError for values outside these ranges.
    """

    latency: Seconds
    bandwidth: BytesPerSecond
    bytes_per_token: Bytes = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be finite and >= 0 s, got {self.latency}")
        for name in ("bandwidth", "bytes_per_token"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and > 0, got {getattr(self, name)}")

    def seconds(self, num_tokens: int) -> float:
        """Return how long passages of so many tokens take."""
        return self.latency + num_tokens * self.bytes_per_token / self.bandwidth


class Query(NamedTuple):
    """One stage's query: its tokens, and the tokens of the passages found."""

    num_tokens: int
    candidates: tuple[int, ...]
    num_documents: int

    @property
    def num_found_tokens(self) -> int:
        """Tokens of the passages that are handed on."""
        return sum(self.candidates[: self.num_documents])


def embedded(queries: Sequence[Query]) -> list[int]:
    """Return the tokens of the texts that an embedder reads."""
    return [query.num_tokens for query in queries]


def ranked(queries: Sequence[Query]) -> list[int]:
    """Return the tokens of the texts that a re-ranker reads: each query with each candidate."""
    return [query.num_tokens + each for query in queries for each in query.candidates]


def rag_traits(
    embedder: object,
    reranker: object,
    search: Searcher | None = None,
    device: Device | None = None,
) -> ClientTraits:
    """Return the traits of a client with these models that searches on this hardware.

    Its GPUs are known if all of them belong to an `EncoderPass`.
    """
    shared = {} if device is None else device.shared
    plain = replace(ClientTraits.serving([Rag.kind]), shared_parts=shared)
    passes = [each for each in (embedder, reranker) if each is not None]
    known = [each.machine for each in passes if isinstance(each, EncoderPass)]
    searches = isinstance(search, SearchGpu)
    if not passes and not searches:
        return plain
    times = TimesOrigin(estimate="analytic", settings={})
    if searches or len(known) < len(passes):
        return replace(plain, times=times)
    return replace(plain, times=times, machine=PassMachine(tuple(known)))


@CLIENTS.register("rag")
@dataclass(eq=False)
class RagClient(BatchedClient):
    """Retrieves passages batch by batch: embeds queries, searches an index, re-ranks, fetches.

    The four steps of a batch follow one another, and the next batch begins when they are over.
    Found passages lengthen the next prompt.

    passage_tokens: tokens of a passage, or a law, drawn for each passage; 0: the workload's prompts
        already contain the passages, so that the times of a re-ranker or a store are unknown.
    num_documents: passages handed on if a stage sets no number; 4 is LangChain's default
        (`VectorStoreRetriever`, k).
    num_candidates: passages that the search returns to the re-ranker.
    embedder: model that embeds the queries; without it they arrive as vectors.
    index: index searched for the passages nearest to a query.
    search: hardware of the search: cores of a processor, or a GPU.
    reranker: model that reads each query with each of its candidates.
    store: source of the passages' texts; without it they are in memory.
    latency_table: measured seconds of whole batches in place of embedder, index, search, reranker
        and store.
    max_batch_size: most queries per batch.
    max_wait: how long the oldest query waits for others while the client is free.
    device: a card or processor shared with other clients; a batch takes one of its slots.

    A stage `rag` without num_query_tokens uses the whole prompt, with its length at that time.
    Raises ValueError for values out of range, and for options that do not go together;
    ScenarioError for an index that does not fit the memory.
    Source: MIST §II-C, Fig. 4 (a) and §III-E, scheduler "Batched".
    """

    name: str
    _: KW_ONLY
    passage_tokens: int | TokenLaw
    num_documents: int = 4
    num_candidates: int | None = None
    embedder: TextPass | None = None
    index: VectorIndex | None = None
    search: Searcher | None = None
    reranker: TextPass | None = None
    store: PassageStore | None = None
    latency_table: LatencyTable | None = None
    max_batch_size: int = 32
    max_wait: Seconds = 0.0
    device: Device | None = None

    def __post_init__(self) -> None:
        traits = rag_traits(self.embedder, self.reranker, self.search, self.device)
        super().__init__(self.name, traits)
        self.check_batches()
        self._check_numbers()
        if self.latency_table is not None:
            self._check_table(self.latency_table)
        else:
            self._check_search()

    def _check_numbers(self) -> None:
        if isinstance(self.passage_tokens, int) and self.passage_tokens < 0:
            raise ValueError(f"passage_tokens must be >= 0, got {self.passage_tokens}")
        for name in ("reranker", "store"):
            if self.passage_tokens == 0 and getattr(self, name) is not None:
                raise ValueError(
                    f"passage_tokens must be > 0 with {name}, whose time depends on it, got 0"
                )
        if self.num_documents < 1:
            raise ValueError(f"num_documents must be >= 1, got {self.num_documents}")
        if (self.reranker is None) != (self.num_candidates is None):
            rule = "be left out without" if self.reranker is None else "be given with"
            raise ValueError(
                f"num_candidates must {rule} reranker, which chooses from them, "
                f"got {self.num_candidates}"
            )
        if self.num_candidates is not None and self.num_candidates < self.num_documents:
            raise ValueError(
                f"num_candidates must be >= num_documents ({self.num_documents}), "
                f"got {self.num_candidates}"
            )

    def _check_table(self, table: LatencyTable) -> None:
        for name in ("embedder", "index", "search", "reranker", "store"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} must be left out with latency_table, which takes its place"
                )
        if table.largest_batch < self.max_batch_size:
            raise ValueError(
                f"max_batch_size must be <= {table.largest_batch}, the largest of latency_table, "
                f"got {self.max_batch_size}"
            )

    def _check_search(self) -> None:
        for name in ("index", "search"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is required without latency_table")
        if self.index is not None and self.search is not None:
            self.search.check(self.index)

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return 1 if a retrieval is next: each is a separate visit, and one query of a batch."""
        return min(super().takes(stages), 1)

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: start the draws of passages, and open a track for each model."""
        super().start(env, client_id, recorder)
        self._passages = self._lengths()
        self._found: dict[Visit, int] = {}
        self._queries: list[Query] = []
        number = len(self._writing)
        self._tracks = [StepTrack(recorder, client_id) for _ in range(number)]

    def restart(self) -> None:
        """Come back with no visit; passages go on where the last one was drawn."""
        passages = self._passages
        super().restart()
        self._passages = passages

    def finish(self, visit: Visit) -> None:
        """Lengthen the request's prompt by the passages found, and finish the visit."""
        found = self._found.pop(visit, 0)
        if visit.outcome is None and found:
            visit.outcome = Served(changes=(Longer(Prompted, found),))
        super().finish(visit)

    def batch_seconds(self, batch: Sequence[Visit]) -> float:
        """Return the seconds of a batch's steps, and note the passages found for its visits."""
        queries = [self._query(visit) for visit in batch]
        for visit, query in zip(batch, queries, strict=True):
            self._found[visit] = query.num_found_tokens
        self._queries, self._begun_at = queries, self.env.now
        if self.latency_table is not None:
            return self.latency_table.seconds(len(batch))
        return sum(self.steps(queries).values())

    @property
    def _writing(self) -> list[str]:
        """Steps with recorded passes, in the order of their tracks."""
        known = {"embed": self.embedder, "rerank": self.reranker}
        return [step for step, each in known.items() if isinstance(each, EncoderPass)]

    def batch_ended(self) -> None:
        """Write the passes of the models, from which watts and GPU time follow."""
        if not self._writing:
            return
        at, queries = self._begun_at, self._queries
        for step, seconds in self.steps(queries).items():
            if step in self._writing:
                self._write(self._tracks[self._writing.index(step)], step, at, queries)
            at += seconds

    def _write(self, track: StepTrack, step: str, at: float, queries: Sequence[Query]) -> None:
        reader = self.embedder if step == "embed" else self.reranker
        if not isinstance(reader, EncoderPass):
            return
        texts = embedded(queries) if step == "embed" else ranked(queries)
        for lengths, seconds in reader.passes(texts):
            batch = StepBatch(tuple([(length, 0) for length in lengths]))
            track.step(at, at + seconds, batch, num_waiting=self.view.num_waiting)
            at += seconds

    def steps(self, queries: Sequence[Query]) -> dict[str, float]:
        """Return the seconds of a batch's steps by name, in order, without steps left out.

        For a client with an index, in a run or not.
        """
        found: dict[str, float] = {}
        if self.embedder is not None:
            found["embed"] = self.embedder.seconds(embedded(queries))
        if self.index is not None and self.search is not None:
            most = max([len(query.candidates) for query in queries])
            found["search"] = self.search.seconds(self.index, len(queries), most)
        if self.reranker is not None:
            found["rerank"] = self.reranker.seconds(ranked(queries))
        if self.store is not None:
            num_tokens = sum([query.num_found_tokens for query in queries])
            found["fetch"] = self.store.seconds(num_tokens)
        return found

    def _query(self, visit: Visit) -> Query:
        """Return a visit's query, and draw its passages."""
        stage = visit.stages[0]
        asked = stage if isinstance(stage, Rag) else Rag()
        num_documents = asked.num_documents or self.num_documents
        number = num_documents if self.num_candidates is None else self.num_candidates
        if num_documents > number:
            raise ScenarioError(
                f"{self.name}: num_documents of a stage must be <= {number}, num_candidates of the "
                f"client, got {num_documents} of request {visit.request.request_id}; raise "
                "num_candidates"
            )
        candidates = tuple([next(self._passages) for _ in range(number)])
        num_tokens = asked.num_query_tokens or visit.request.num_prompt_tokens
        return Query(num_tokens, candidates, num_documents)

    def _lengths(self) -> Iterator[int]:
        """Yield the tokens of passages without end."""
        law = self.passage_tokens
        if isinstance(law, int):
            while True:
                yield law
        rng = self.streams.generator(f"{self.name}: passage_tokens")
        while True:
            drawn = np.asarray(law.sample(rng, _BLOCK))
            if drawn.shape != (_BLOCK,) or not (drawn >= 1).all():
                raise ScenarioError(
                    f"{self.name}: passage_tokens must be {_BLOCK} whole numbers >= 1 to match the "
                    f"number asked for, got {drawn} from {law}"
                )
            yield from map(int, drawn.tolist())
