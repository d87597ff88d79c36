"""Retrieval-augmented generation: clients that find passages for prompts, batch by batch.

GPUs of a retrieval client: one group per model, of which one works at a time.

The client writes the passes of each model on a track of its own, from which watts, joules and
dollars are computed. The search's cores are in no track: their watts are unknown.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event
from simpy.resources.resource import Request

from mist_sim.checks import Checked, NotNegative, Positive, check_fields
from mist_sim.clients.base import Client
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.step_track import StepTrack
from mist_sim.clients.traits import ClientTraits, TimesOrigin
from mist_sim.clients.workers.base import Device, Waiting
from mist_sim.core.batch import StepBatch
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.visit import Longer, Served, Visit
from mist_sim.environment import Environment, engine_phases
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import load_gpu
from mist_sim.hardware.gpu_group import GpuGroup, GpuWork
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.power import Array, DrawConfidence
from mist_sim.hardware.predictors.analytic.roofline import RooflinePredictor
from mist_sim.hardware.vector_search import Searcher, SearchGpu, VectorIndex
from mist_sim.hardware.work import StepCounts
from mist_sim.inputs import as_numbers, read_csv
from mist_sim.models import load_model
from mist_sim.stages import Prompted, Rag
from mist_sim.units import Bytes, BytesPerSecond, DollarsPerHour, Seconds
from mist_sim.user_paths import user_path

if TYPE_CHECKING:
    import pandas as pd


class BatchedClient(Client):
    """A client with one batch at a time: a batch takes the waiting visits, oldest first.

    Subclasses compute the time of a batch (`batch_seconds`).

    max_batch_size: most visits per batch (>= 1).
    max_wait: seconds that the oldest visit waits for others while the client is free and the batch
        is not full (>= 0).

    device: a device shared with other clients; a batch takes one of its slots. None: not shared.

    A batch that has begun takes no more visits; one that waits for its slot does. Visits given up
    leave the queue at once; in a batch they leave when it ends.
    """

    max_batch_size: int
    max_wait: float
    device: Device | None = None

    @abstractmethod
    def batch_seconds(self, batch: Sequence[Visit]) -> float:
        """Return how long a batch takes that begins now (>= 0)."""

    def batch_ended(self) -> None:
        """Note that the batch is over; its visits are handed back next."""

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation with an empty queue and no batch."""
        super().start(env, client_id, recorder)
        self._waiting = Waiting(self.max_batch_size)
        self._batch: list[Visit] = []
        self._is_serving = False
        # a new object after each failure; the end of an earlier batch is ignored
        self._life = object()
        self._gathering: Event | None = None  # the end of the wait for others
        self._slots = None if self.device is None else self.device.shared_by(self.shared_parts, env)
        self._slot: Request | None = None  # that is held, or asked for
        self._end_phase, self._plan_phase = engine_phases(client_id, 0)

    def accept(self, visit: Visit) -> None:
        """Queue a visit; start a batch if the client is idle, or end the wait if one is full."""
        self._waiting.add(visit)
        if not self._is_serving:
            self._is_serving = True
            self.env.start(self._serve(self._life))
        elif self._gathering is not None and self._waiting.is_full:
            self.env.move(self._gathering, self.env.now, self._plan_phase)
            self._gathering = None

    def abort(self, visit: Visit) -> None:
        """A visit that is given up leaves the queue at once, or leaves with its batch."""
        if visit in self._batch:
            return
        self._waiting.discard(visit)
        self.finish(visit)

    def halt(self) -> None:
        """Discard the batch in flight; its visits are released one by one.

        Visits given up before the failure are released here.
        """
        self._life = object()
        self._give_slot_back()
        batch, self._batch = self._batch, []
        self._gathering, self._is_serving = None, False
        for visit in batch:
            if visit.outcome is not None:
                self.finish(visit)

    def _serve(self, life: object) -> Generator[Event, object, None]:
        """Serve batches until no visit waits, or the client fails."""
        while len(self._waiting):
            # visits that arrive at this instant join first
            yield self.env.at(self.env.now, self._plan_phase)
            if life is not self._life:
                return
            while (until := self._waits_until()) > self.env.now:
                self._gathering = self.env.at(until, self._plan_phase)
                yield self._gathering
                if life is not self._life:
                    return
                self._gathering = None
            if self._slots is not None and len(self._waiting):
                self._slot = self._slots.request()
                yield self._slot
                if life is not self._life:
                    return
            if not len(self._waiting):
                break
            yield self.env.at(self._begin_batch(), self._end_phase)
            if life is not self._life:
                return
            self._give_slot_back()
            self.batch_ended()
            batch, self._batch = self._batch, []
            for visit in batch:
                self.finish(visit)
        self._give_slot_back()
        self._is_serving = False

    def _give_slot_back(self) -> None:
        """Return the slot of the device, or withdraw the request for one."""
        if self._slot is not None and self._slots is not None:
            self._slot.cancel()
            self._slots.release(self._slot)
            self._slot = None

    def _waits_until(self) -> float:
        """Return until when the next batch waits for others; a time that has come: not at all."""
        if not len(self._waiting) or self._waiting.is_full:
            return self.env.now
        return self._waiting.oldest.queued_at + self.max_wait

    def _begin_batch(self) -> float:
        """Take the oldest visits out of the queue, and return when they will be served."""
        self._batch = self._waiting.take()
        for visit in self._batch:
            self.begin(visit)
        return self.env.now + self.batch_seconds(self._batch)


class TextPass(Protocol):
    """Reads texts with a model, several at once."""

    def seconds(self, lengths: Sequence[int]) -> float:
        """Return how long it takes for texts of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPass:
    """A model that reads texts on GPUs of its own, in one pass per batch of texts.

    model: a catalog name, a Hugging Face id or the path of a config.json; an encoder, or a language
        model that only reads prompts.
    gpu: a name of the catalog, or the path of a TOML file.
    tensor_parallel_size: GPUs that each hold a slice of a layer.
    max_num_texts: most texts per pass; 32 is the default of sentence-transformers (`batch_size`).
    enforce_eager: whether the host launches every kernel, as plain PyTorch does.
    gpu_price: dollars per hour of a GPU; by default the median of the catalog's offers.

    A text is cut at the model's longest input (`max_position_embeddings`). Passes are timed by the
    roofline of the model's operators, without tokenising.
    Raises ScenarioError for unknown names, and for a model that does not fit in the GPUs' memory.
    """

    model: str
    gpu: str
    tensor_parallel_size: Positive[int] = 1
    max_num_texts: Positive[int] = 32
    enforce_eager: bool = True
    gpu_price: DollarsPerHour | None = None
    _predictor: RooflinePredictor = field(init=False, repr=False, compare=False)
    _known: dict[tuple[int, ...], float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        model, ranks = load_model(self.model), self.tensor_parallel_size
        cluster = Cluster(load_gpu(self.gpu), ranks)
        predictor = RooflinePredictor(model, cluster, enforce_eager=self.enforce_eager)
        needed, memory = model.weight_bytes_per_rank(ranks), cluster.gpu.memory
        if needed > memory:
            raise ScenarioError(
                f"model must fit the memory of {self.gpu}: {model.name} has weights of "
                f"{needed / 2**30:.2f} GiB a GPU, got {memory / 2**30:.2f} GiB; raise "
                "tensor_parallel_size"
            )
        object.__setattr__(self, "_predictor", predictor)
        object.__setattr__(self, "_known", {})

    @property
    def predictor(self) -> RooflinePredictor:
        """The predictor of the passes."""
        return self._predictor

    @property
    def machine(self) -> Machine:
        """The GPUs that the encoder runs on, for power and cost."""
        predictor = self._predictor
        return Machine(model=predictor.model, cluster=predictor.cluster, price=self.gpu_price)

    @property
    def longest_input(self) -> int:
        """Tokens at which a text is cut."""
        return self._predictor.model.max_position_embeddings

    def seconds(self, lengths: Sequence[int]) -> float:
        """Return how long passes over texts of so many tokens take, one pass after the other."""
        return sum([seconds for _, seconds in self.passes(lengths)])

    def passes(self, lengths: Sequence[int]) -> list[tuple[tuple[int, ...], float]]:
        """Return the passes over texts of these lengths: tokens of each text, and seconds."""
        most, size = self.longest_input, self.max_num_texts
        texts = [min(length, most) for length in lengths if length > 0]
        cut = [tuple(texts[first : first + size]) for first in range(0, len(texts), size)]
        return [(each, self._pass(each)) for each in cut]

    def _pass(self, lengths: tuple[int, ...]) -> float:
        """Return the seconds of one pass; passes over texts of equal lengths are cached."""
        if (known := self._known.get(lengths)) is not None:
            return known
        seconds = self._predictor.step_time(StepBatch(tuple((length, 0) for length in lengths)))
        if len(set(lengths)) == 1:
            self._known[lengths] = seconds
        return seconds


_SIZE, _SECONDS, _PROBES = "batch_size", "seconds", "num_probes"
Curve = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTable:
    """Seconds of a batch by its size, from a CSV file with a header.

    path: a file with the columns batch_size and seconds, and num_probes if the probes were varied.
    num_probes: lists that a query scans; required if the file has the column.

    Between rows the seconds are linear in the size, and in the probes. There is no extrapolation: a
    table begins at batch_size 1, and reaches the client's largest batch.
    Raises ScenarioError for any other file, ValueError for other parameters.
    """

    path: str
    num_probes: int | None = None
    _curve: Curve = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        curves = _read(user_path(self.path))
        object.__setattr__(self, "_curve", self._at(curves))

    @property
    def largest_batch(self) -> int:
        """The largest batch that it has a row for."""
        return int(self._curve[0][-1])

    def seconds(self, batch_size: int) -> float:
        """Return how long a batch of so many takes."""
        return float(np.interp(batch_size, *self._curve))

    def _at(self, curves: dict[float, Curve]) -> Curve:
        """Return the seconds by size for the probes that are asked for."""
        probes, known = self.num_probes, sorted(curves)
        if (probes is None) != (known == [0]):
            rule = "be left out" if probes is not None else "be given"
            has = "no column" if probes is not None else "a column"
            raise ValueError(f"num_probes must {rule}, since {self.path} has {has} num_probes")
        if probes is None:
            return curves[0]
        if not known[0] <= probes <= known[-1]:
            raise ValueError(
                f"num_probes must be from {known[0]:g} to {known[-1]:g}, which {self.path} has, "
                f"got {probes}"
            )
        above = next(value for value in known if value >= probes)
        below = max(value for value in known if value <= probes)
        return _between(curves[below], curves[above], (probes - below) / ((above - below) or 1))


def _between(low: Curve, high: Curve, share: float) -> Curve:
    """Return the curve at a share of the way from one to another, as far as both go."""
    end = min(low[0][-1], high[0][-1])
    sizes = sorted(size for size in {*low[0], *high[0]} if size <= end)
    first, second = np.interp(sizes, *low), np.interp(sizes, *high)
    return tuple(sizes), tuple((first + share * (second - first)).tolist())


def _read(path: Path) -> dict[float, Curve]:
    """Return sizes and seconds by probes; all by 0 where the file has no such column."""
    rows = read_csv(path, (_SIZE, _SECONDS, _PROBES), needed=(_SIZE, _SECONDS))
    for name in rows.columns:
        least = 0 if name == _SECONDS else 1
        values = rows[name] = as_numbers(rows[name])
        if name != _SECONDS:
            values = values.where(values % 1 == 0)
        wrong = rows.index[~(values >= least) | (values == np.inf)]
        if len(wrong):
            what = f"a number >= {least}" if name == _SECONDS else f"a whole number >= {least}"
            raise ScenarioError(f"{path}:{wrong[0]}: {name} must be {what}")
    if _PROBES not in rows:
        rows[_PROBES] = 0
    if not len(rows):
        raise ScenarioError(f"{path}: must have a row with batch_size 1, got no rows")
    numbers: list[float] = rows[_PROBES].unique().tolist()
    return {probes: _curve(path, rows[rows[_PROBES] == probes]) for probes in numbers}


def _curve(path: Path, rows: pd.DataFrame) -> Curve:
    rows = rows.sort_values(_SIZE)
    sizes, seconds = rows[_SIZE].tolist(), rows[_SECONDS].tolist()
    twice = rows.index[rows[_SIZE].duplicated()]
    if len(twice):
        raise ScenarioError(f"{path}:{twice[0]}: batch_size must differ from those of other rows")
    if sizes[0] != 1:
        raise ScenarioError(f"{path}: must have a row with batch_size 1, got {sizes[0]:g} first")
    return tuple(sizes), tuple(seconds)


class WaitingModel(Machine):
    """The idle GPUs of a model while those of another work."""

    __slots__ = ()

    def work(self, counts: StepCounts, busy: Array) -> GpuWork:
        """Return no work."""
        nothing = np.zeros_like(busy)
        return GpuWork(nothing, nothing)


@dataclass(frozen=True, slots=True)
class PassMachine:
    """The GPUs of several models, each of which has a track of steps.

    models: in the order of the tracks. working: the one that works; None: any.
    """

    models: tuple[Machine, ...]
    working: int | None = None
    num_drafts: int = 0

    @property
    def groups(self) -> Sequence[GpuGroup]:
        """A group for each model."""
        return [
            model
            if self.working in (None, number)
            else WaitingModel(**{each.name: getattr(model, each.name) for each in fields(model)})
            for number, model in enumerate(self.models)
        ]

    @property
    def watts_origin(self) -> DrawConfidence:
        """Origin of the watts: measured only if those of all groups are."""
        origins = [model.watts_origin for model in self.models]
        return origins[0] if len(set(origins)) == 1 else "spec-only"

    def of_track(self, number: int) -> PassMachine:
        """Return these GPUs for the steps of a track, in which only one model works."""
        return replace(self, working=number % len(self.models))


_BLOCK = 64  # draws at once


@runtime_checkable
class TokenLaw(Protocol):
    """Draws numbers of tokens: `n` of them, each >= 1, from `rng` alone."""

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Return `n` numbers of tokens, shape (n,), each >= 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageStore(Checked):
    """The store of passages' texts; the texts of a batch are fetched together.

    latency: until the first byte of a batch arrives (>= 0). bandwidth: of the bytes after it (> 0).
    bytes_per_token: of a text (> 0); 4 are a rule of thumb for English (OpenAI's tokenizer).
    Raises ValueError for values outside these ranges.
    """

    latency: NotNegative[Seconds]
    bandwidth: Positive[BytesPerSecond]
    bytes_per_token: Positive[Bytes] = 4.0

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


_READ: Mapping[str, Callable[[Sequence[Query]], list[int]]] = {
    "embed": embedded,
    "rerank": ranked,
}
"""What the model of each step reads."""


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
    passage_tokens: NotNegative[int] | TokenLaw
    num_documents: Positive[int] = 4
    num_candidates: int | None = None
    embedder: TextPass | None = None
    index: VectorIndex | None = None
    search: Searcher | None = None
    reranker: TextPass | None = None
    store: PassageStore | None = None
    latency_table: LatencyTable | None = None
    max_batch_size: Positive[int] = 32
    max_wait: NotNegative[Seconds] = 0.0
    device: Device | None = None

    def __post_init__(self) -> None:
        traits = rag_traits(self.embedder, self.reranker, self.search, self.device)
        super().__init__(self.name, traits)
        check_fields(self)
        self._check_numbers()
        if self.latency_table is not None:
            self._check_table(self.latency_table)
        else:
            self._check_search()

    def _check_numbers(self) -> None:
        for name in ("reranker", "store"):
            if self.passage_tokens == 0 and getattr(self, name) is not None:
                raise ValueError(
                    f"passage_tokens must be > 0 with {name}, whose time depends on it, got 0"
                )
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
        self.num_texts: Counter[str] = Counter()
        self.num_cut: Counter[str] = Counter()
        self._tracks = {step: StepTrack(recorder, client_id) for step in self.readers}

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
        self._count_cut(queries)
        if self.latency_table is not None:
            return self.latency_table.seconds(len(batch))
        return sum(self.steps(queries).values())

    @property
    def readers(self) -> dict[str, EncoderPass]:
        """The models that read texts on GPUs, by step; in the order of their tracks."""
        known = {"embed": self.embedder, "rerank": self.reranker}
        return {step: each for step, each in known.items() if isinstance(each, EncoderPass)}

    def _count_cut(self, queries: Sequence[Query]) -> None:
        """Count the texts of a batch, and those longer than what reads them takes."""
        for step, reader in self.readers.items():
            texts = _READ[step](queries)
            self.num_texts[step] += len(texts)
            self.num_cut[step] += sum([length > reader.longest_input for length in texts])

    def batch_ended(self) -> None:
        """Write the passes of the models, from which watts and GPU time follow."""
        if not self._tracks:
            return
        at, queries = self._begun_at, self._queries
        for step, seconds in self.steps(queries).items():
            if step in self._tracks:
                self._write(self._tracks[step], step, at, queries)
            at += seconds

    def _write(self, track: StepTrack, step: str, at: float, queries: Sequence[Query]) -> None:
        for lengths, seconds in self.readers[step].passes(_READ[step](queries)):
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
