"""A workload: rows from a source, sent by an arrival process, as requests with a pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, repeat
from types import NoneType
from typing import Any, TypeVar, cast

import numpy as np

from mist_sim.checks import Count, Positive, check_fields
from mist_sim.core.content_ids import (
    OF_BLOCK,
    OF_CONVERSATION,
    OF_PREFIX,
    Runs,
    computed_by,
    content_id,
    leading,
    spans_of,
)
from mist_sim.core.request import Content, Request, Stage, token_totals
from mist_sim.errors import ScenarioError, brief
from mist_sim.registry import require_method
from mist_sim.rng import Streams
from mist_sim.stages import EncodeImages, completion, validate_pipeline
from mist_sim.traces.arrivals import (
    AllAtOnce,
    ArrivalProcess,
    ClosedLoop,
    GammaArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from mist_sim.traces.base import (
    ARRIVALS,
    LeavesOut,
    RowSampler,
    Source,
    TraceReader,
    TraceRow,
    require_count,
)
from mist_sim.traces.pipeline_templates import PipelineTemplate, StageTemplate, completion_pipeline
from mist_sim.traces.predictions import Predictions
from mist_sim.traces.prompt_images import ImageLaw
from mist_sim.traces.retries import Retries
from mist_sim.traces.time_limits import TimeLimits
from mist_sim.units import is_number, is_whole

BASE = "base"
"""The name that stands for no adapter: the model's own weights."""


def with_adapters(
    requests: Iterator[Request], drawn: Iterator[str], names: Sequence[str]
) -> Iterator[Request]:
    """Pass requests on, each of which names an adapter, or none where `BASE` is drawn.

    All requests of a conversation name the one that its first request drew. KV entries differ by
    adapter, so equal tokens under two adapters get different content ids (vLLM: the adapter's name
    is part of the hash of a block, `generate_block_hash_extra_keys`).

    names: all names, in an order that tells them apart.
    """
    numbers = {name: number for number, name in enumerate(names)}
    of_session: dict[int, str] = {}
    for request, name in zip(requests, drawn, strict=False):
        own = name
        if request.session_id is not None:
            own = of_session.setdefault(request.session_id, name)
        request.adapter = None if own == BASE else own
        if request.content:
            request.content = computed_by(request.content, numbers[own], len(names))
        yield request


def conversation_content(session_id: int, num_tokens: int) -> Content:
    """Return the content of a turn: the first tokens of its conversation, answer included."""
    return ((content_id(OF_CONVERSATION, session_id), num_tokens),)


def prefix_content(prefix: int, num_tokens: int) -> Content:
    """Return the content of a prompt that begins with one of several known prefixes."""
    return ((content_id(OF_PREFIX, prefix), num_tokens),) if num_tokens else ()


def block_content(
    hash_ids: Sequence[int],
    output_hash_ids: Sequence[int],
    num_prompt_tokens: int,
    num_output_tokens: int,
    block_size: int,
) -> Content:
    """Return the content of chain hashes of blocks of `block_size` tokens.

    hash_ids: those of the prompt's full blocks, and perhaps of the rest (Mooncake has one).
    output_hash_ids: those of the blocks that the answer completes. Raises ValueError if the numbers
    of ids do not fit the numbers of tokens.
    """
    if not hash_ids and not output_hash_ids:
        return ()
    full, rest = divmod(num_prompt_tokens, block_size)
    if len(hash_ids) != full and len(hash_ids) != full + (rest > 0):
        either = f"{full} or {full + 1}" if rest else f"{full}"
        raise ValueError(
            f"hash_ids must have {either} ids for {num_prompt_tokens} tokens in blocks of "
            f"{block_size}, got {len(hash_ids)}"
        )
    content = spans_of(OF_BLOCK, hash_ids, block_size)
    if len(hash_ids) > full:
        content[-1] = (content[-1][0], rest)
    if output_hash_ids:
        completed = (num_prompt_tokens + num_output_tokens) // block_size - full
        if len(hash_ids) != full or len(output_hash_ids) != completed:
            raise ValueError(
                f"output_hash_ids must be the {completed} blocks that {num_output_tokens} tokens "
                f"complete behind {full} blocks in hash_ids, got {len(output_hash_ids)} behind "
                f"{len(hash_ids)}"
            )
        content += spans_of(OF_BLOCK, output_hash_ids, block_size)
    return tuple(content)


_WHOLE = 2.0**64


def sampled(rows: Iterable[TraceRow], share: float, seed: int = 0) -> Iterator[TraceRow]:
    """Yield each conversation, and each request without one, with probability `share`.

    Times stay, so the rate falls to about that share; memory is constant. With the same seed a
    larger share includes all of a smaller one. Raises ValueError for a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share:g}")
    return (
        row for position, row in enumerate(rows) if _place(seed, position, row.session_id) < share
    )


def _place(seed: int, position: int, session: int | None) -> float:
    """Return a random number from 0 to 1 for a conversation, or for a request without one."""
    name = f"{seed} request {position}" if session is None else f"{seed} session {session}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") / _WHOLE


_COUNTS = (NoneType, int)  # of predicted tokens
_BLOCK = 4096  # priorities and models drawn at a time
_FIRST_ROWS = 200  # that tell whether a file knows common prefixes

V = TypeVar("V", int, str)

Arrivals = ArrivalProcess | TraceArrivals | ClosedLoop


@dataclass(frozen=True, slots=True)
class Rows:
    """A source whose rows are given in Python; arrival times are seconds of the run.

    Raises ValueError when there is no row or a length is below 1.
    """

    items: Sequence[TraceRow]

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError("items must have at least one row, got none")
        for position, row in enumerate(self.items):
            require_count(f"items[{position}].num_prompt_tokens", row.num_prompt_tokens)
            require_count(f"items[{position}].num_output_tokens", row.num_output_tokens)

    @property
    def num_requests(self) -> int:
        """The number of rows."""
        return len(self.items)

    def rows(self) -> Iterator[TraceRow]:
        """Yield the rows in their order."""
        return iter(self.items)


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a run: their number, arrivals and stages.

    source: a trace reader, a sampler, or `Rows`. arrivals: an arrival process, the trace's own
    times, or a closed loop. pipeline: makes the stages of a row's request. priorities: share of the
    requests that get each priority, drawn at random (smaller is more urgent); without it they have
    that of their row. time_limits: how long their senders wait; None: without limit.
    retries: which requests are sent again after a failure; without it, none. models: share of the
    requests that name each model, drawn at random; without it, they name that of their row.
    adapters: share of the requests that name each LoRA adapter, drawn at random (`BASE`: none); all
    of a conversation name the same. Without it, none does.
    max_concurrency: most requests of an open loop in flight; others wait with their sender, and
    their latencies count from when they are sent. max_tokens: longest answer; longer ones end
    there. None: no limit. images: that stand before the prompts; None: none.
    predictions: how well lengths of answers are predicted; None: as their rows say, or not at all.
    """

    source: Source
    arrivals: Arrivals
    pipeline: PipelineTemplate = completion_pipeline
    priorities: Mapping[int, Positive[float]] | None = None
    time_limits: TimeLimits | None = None
    retries: Retries | None = None
    models: Mapping[str, Positive[float]] | None = None
    adapters: Mapping[str, Positive[float]] | None = None
    max_concurrency: Count | None = None
    max_tokens: Count | None = None
    images: ImageLaw | None = None
    predictions: Predictions | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_concurrency is not None and isinstance(self.arrivals, ClosedLoop):
            raise ValueError(
                "max_concurrency must be left out with a closed loop, whose concurrency is its "
                f"users, got {self.max_concurrency}"
            )
        if not isinstance(self.source, TraceReader | RowSampler):
            raise ValueError(
                f"source must have rows() or sample_rows(rng), got {type(self.source).__name__}"
            )
        if not isinstance(self.arrivals, ArrivalProcess | TraceArrivals | ClosedLoop):
            raise ValueError(
                "arrivals must have times(rng), or be TraceArrivals or ClosedLoop, "
                f"got {type(self.arrivals).__name__}"
            )
        drawn = isinstance(self.source, RowSampler)
        require_method("source", self.source, "sample_rows(rng)" if drawn else "rows()")
        if not isinstance(self.arrivals, TraceArrivals | ClosedLoop):
            require_method("arrivals", self.arrivals, "times(rng)")
        if not callable(self.pipeline):
            raise ScenarioError(
                "pipeline must be a function from a row to stages, such as "
                f"template([Prefill, Decode]), got {brief(self.pipeline)}"
            )

    @classmethod
    def from_lists(
        cls,
        prompt_tokens: Sequence[int],
        output_tokens: Sequence[int],
        arrival_times: Sequence[float] | None = None,
        *,
        arrivals: Arrivals | None = None,
        pipeline: PipelineTemplate = completion_pipeline,
    ) -> Workload:
        """Return a workload of given lengths, for scripts and tests.

        arrival_times: seconds since the start of the run. arrivals: without it requests arrive at
        `arrival_times`, or all at once when there are none. Raises ValueError for lists of
        different lengths, if both arrivals and arrival_times are given, and for tokens that are no
        whole numbers.
        """
        prompt_tokens, output_tokens = list(prompt_tokens), list(output_tokens)
        times = [None] * len(prompt_tokens) if arrival_times is None else list(arrival_times)
        if not len(prompt_tokens) == len(output_tokens) == len(times):
            raise ValueError(
                "the lists must be equally long, got "
                f"{len(prompt_tokens)}, {len(output_tokens)} and {len(times)}"
            )
        if arrivals is None:
            arrivals = AllAtOnce() if arrival_times is None else TraceArrivals()
        elif arrival_times is not None and not isinstance(arrivals, TraceArrivals):
            raise ValueError("arrival_times must be None when arrivals is given")
        rows = [
            TraceRow(
                whole("prompt_tokens", prompt),
                whole("output_tokens", output),
                None if time is None else float(time),
            )
            for prompt, output, time in zip(prompt_tokens, output_tokens, times, strict=True)
        ]
        return cls(Rows(rows), arrivals, pipeline)

    @property
    def closed_loop(self) -> ClosedLoop | None:
        """The closed loop that sends the requests; None when the workload is open loop."""
        return self.arrivals if isinstance(self.arrivals, ClosedLoop) else None

    @property
    def num_requests(self) -> int | None:
        """Number of requests; None if the source would have to be read."""
        count: int | None = getattr(self.source, "num_requests", None)
        return count

    @property
    def untold(self) -> str:
        """Prefixes that the trace file does not tell, by its first rows, which are now read.

        "prefixes": its prompts share nothing. "prefixes of conversations": neither do they, though
        they have conversations; "session_history": its reader has that option besides. Empty where
        it tells something, and without a file.
        """
        if not hasattr(self.source, "path") or not isinstance(self.source, TraceReader):
            return ""
        first = list(islice(self.source.rows(), _FIRST_ROWS))
        if any(row.content for row in first):
            return ""
        if all(row.session_id is None for row in first):
            return "prefixes"
        has_option = hasattr(self.source, "session_history")
        return "session_history" if has_option else "prefixes of conversations"

    @property
    def left_out(self) -> str:
        """Which rows its trace leaves out, a sentence; empty if none.

        A file that leaves out rows is read if no run has read it. Raises TraceError as readers do.
        """
        source = self.source
        return source.left_out.sentence(source.path) if isinstance(source, LeavesOut) else ""

    def requests(self, streams: Streams, in_runs: bool = True) -> Iterator[Request]:
        """Return the requests in order of arrival, made one at a time; ids count from 0.

        in_runs: whether the blocks of a trace are joined (`Runs`), else each is a span of its own.
        Lengths are drawn from the stream "lengths", times from "arrivals". In a closed loop
        `arrival_time` is None. Raises ScenarioError for a source without the times it needs, times
        that go backwards and stages that do not form a pipeline; TraceError as readers do.
        """
        requests = self._requests(streams, in_runs)
        if self.models:
            requests = _naming(requests, _drawn(self.models, streams.generator("models")))
        if self.predictions:
            requests = self.predictions.applied(requests, streams.generator("predictions"))
        if self.adapters:
            drawn = _drawn(self.adapters, streams.generator("adapters"))
            requests = with_adapters(requests, drawn, list(self.adapters))
        if self.time_limits is None:
            return requests
        return self.time_limits.applied(requests, streams.generator("patience"))

    def _requests(self, streams: Streams, in_runs: bool) -> Iterator[Request]:
        plain, runs = self.pipeline is completion_pipeline, Runs()
        checked: set[tuple[str, ...]] | None = None
        if not plain and not isinstance(self.pipeline, StageTemplate):
            checked = set()
        rows, last = zip(self._timed_rows(streams), self._priorities(streams), strict=False), 0.0
        closed, request_id = self.closed_loop is not None, -1
        for request_id, ((given, time), priority) in enumerate(rows):
            if time is not None or not closed:
                if time is None or (type(time) is not float and not is_number(time)):
                    raise self._out_of_order(time, last)
                if not last <= time < math.inf:
                    raise self._out_of_order(time, last)
                last = time
            row = given
            if not (
                type(given) is TraceRow
                and type(given[0]) is int is type(given[1])
                and type(given.num_predicted_tokens) in _COUNTS
            ):
                row = self._checked_row(given, request_id)
            prompt, output = row.num_prompt_tokens, row.num_output_tokens
            try:
                stages = completion(prompt, output) if plain else self.pipeline(row)
                if checked is not None:
                    stages = _stages_of(stages)
                    _validate_once(stages, checked)
            except ValueError as error:
                raise ScenarioError(f"pipeline of request {request_id}: {error}") from error
            if not plain:
                prompt, output = token_totals(stages)
            yield Request(
                request_id,
                time,
                stages,
                prompt,
                output,
                row.session_id,
                priority or row.priority,
                runs.joined(row.content) if row.content and in_runs else row.content,
                model=row.model,
                think_time=row.think_time,
                label=row.label,
                images=None if row.images and _encodes(stages) else row.images,
                num_predicted_tokens=row.num_predicted_tokens,
            )
        if request_id < 0:
            raise ScenarioError(f"source {type(self.source).__name__} gives no row: give >= 1")

    def _checked_row(self, row: object, position: int) -> TraceRow:
        """Return a row of a source whose numbers are whole; raises ScenarioError for others."""
        where = f"row {position} of {type(self.source).__name__}"
        if not isinstance(row, TraceRow):
            raise ScenarioError(
                f"{where} must be a TraceRow(prompt, output, ...), got {brief(row)}"
            )
        names = ["num_prompt_tokens", "num_output_tokens"]
        if row.num_predicted_tokens is not None:
            names.append("num_predicted_tokens")
        found: dict[str, Any] = {
            name: whole(f"{name} of {where}", getattr(row, name)) for name in names
        }
        return row._replace(**found)

    def _priorities(self, streams: Streams) -> Iterator[int]:
        if not self.priorities:
            return repeat(0)
        return _drawn(self.priorities, streams.generator("priorities"))

    def _timed_rows(self, streams: Streams) -> Iterator[tuple[TraceRow, float | None]]:
        """Return every row with its arrival time in seconds; None in a closed loop."""
        rows = self._rows(streams)
        if isinstance(self.arrivals, ClosedLoop):
            return zip(rows, repeat(None), strict=False)
        if isinstance(self.arrivals, TraceArrivals):
            return _own_times(rows, self._speedup(self.arrivals), self.source)
        times = self.arrivals.times(streams.generator("arrivals"))
        if isinstance(self.arrivals, PoissonArrivals | GammaArrivals) and self.arrivals.stretched:
            all_rows = list(rows)
            end = len(all_rows) / self.arrivals.rate
            return zip(all_rows, _stretched(islice(times, len(all_rows)), end), strict=True)
        return zip(rows, _without_end(times, self.arrivals), strict=False)

    def _speedup(self, arrivals: TraceArrivals) -> float:
        if arrivals.rate is None or isinstance(self.source, RowSampler):
            return arrivals.speedup
        return arrivals.rate / own_rate(self.source)

    def _rows(self, streams: Streams) -> Iterator[TraceRow]:
        if isinstance(self.source, RowSampler):
            rows = self.source.sample_rows(streams.generator("lengths"))
        else:
            rows = self.source.rows()
        if self.images is not None:
            rows = self.images.applied(rows, streams.generator("images"))
        return rows if self.max_tokens is None else _cut_short(rows, self.max_tokens)

    def _out_of_order(self, time: object, last: float) -> ScenarioError:
        return ScenarioError(
            "arrival times must be finite, >= 0 s and never decrease, got "
            f"{brief(time)} s after {last} s from {type(self.source).__name__} with "
            f"{type(self.arrivals).__name__}; sort the requests by time"
        )


def _stretched(times: Iterable[float], end: float) -> Iterator[float]:
    """Yield times in proportion, so that the last one is at the end, seconds."""
    drawn = list(times)
    return (time * (end / drawn[-1]) for time in drawn)


def own_rate(source: TraceReader) -> float:
    """Return a trace's requests per second, from its first request to its last.

    Raises ScenarioError for rows without times, and for fewer than two moments.
    """
    number, last = -1, None
    for row in source.rows():
        number, last = number + 1, row.arrival_time
    if not last:
        times = "gives none" if last is None else "has all at one time"
        raise ScenarioError(
            f"rate needs a trace whose requests come at different times, and "
            f"{type(source).__name__} {times}; choose other arrivals"
        )
    return number / last


def _drawn(shares_of: Mapping[V, float], rng: np.random.Generator) -> Iterator[V]:
    values, shares = zip(*shares_of.items(), strict=True)
    while True:
        yield from rng.choice(values, _BLOCK, p=np.array(shares) / sum(shares)).tolist()


def _cut_short(rows: Iterator[TraceRow], max_tokens: int) -> Iterator[TraceRow]:
    """Yield rows with answers of at most `max_tokens`, without the content of the cut part."""
    for row in rows:
        if row.num_output_tokens <= max_tokens:
            yield row
            continue
        content = leading(row.content, row.num_prompt_tokens + max_tokens)
        yield row._replace(num_output_tokens=max_tokens, content=content)


def _naming(requests: Iterator[Request], models: Iterator[str]) -> Iterator[Request]:
    for request, model in zip(requests, models, strict=False):
        request.model = model
        yield request


def _own_times(
    rows: Iterator[TraceRow], speedup: float, source: Source
) -> Iterator[tuple[TraceRow, float]]:
    """Yield rows with their own times in seconds, sped up; ScenarioError if one has none."""
    for row in rows:
        if row.arrival_time is None:
            others = ", ".join(name for name in ARRIVALS if name != "trace")
            raise ScenarioError(
                f"arrivals 'trace' need arrival times, and {type(source).__name__} gives none; "
                f"choose one of {others}"
            )
        yield row, row.arrival_time / speedup


def _without_end(times: Iterator[float], arrivals: ArrivalProcess) -> Iterator[float]:
    """Yield the times, and raise ScenarioError if they end before the rows do."""
    name, said = type(arrivals).__name__, cast("object", times)
    if not isinstance(said, Iterable):
        raise ScenarioError(f"{name}.times must yield seconds, got {brief(said)}")
    number = 0
    for number, time in enumerate(times, 1):  # noqa: B007 - of the last one
        yield time
    raise ScenarioError(
        f"arrivals must not end before the requests do, got {number} times from {name}.times: "
        "yield them without end"
    )


def _encodes(stages: tuple[Stage, ...]) -> bool:
    return EncodeImages.kind in [stage.kind for stage in stages]


def whole(name: str, value: object) -> int:
    """Return a number of tokens as an int. Raises ScenarioError unless it is a whole number."""
    if not is_whole(value):
        raise ScenarioError(f"{name} must be a whole number, got {brief(value)}")
    return int(cast("int", value))


def _stages_of(said: object) -> tuple[Stage, ...]:
    """Return the stages that a pipeline gave. Raises ValueError for what are no stages."""
    if isinstance(said, Stage | type) or not isinstance(said, Iterable):
        raise ValueError(
            f"must return stages, such as (Prefill(...), Decode(...)), got {brief(said)}"
        )
    stages = tuple(said)
    for stage in stages:
        if not isinstance(stage, Stage):
            hint = ": template([...]) fills classes in" if isinstance(stage, type) else ""
            raise ValueError(f"must return stages, got {brief(stage)} among them{hint}")
        if stage.kind == Stage.kind:
            raise ValueError(
                f"{type(stage).__name__} needs a `kind` of its own, as a class variable"
            )
    return stages


def _validate_once(stages: tuple[Stage, ...], checked: set[tuple[str, ...]]) -> None:
    """Validate a pipeline unless one with the same kinds of stages was validated before."""
    shape = tuple([stage.kind for stage in stages])
    if shape not in checked:
        validate_pipeline(stages)
        checked.add(shape)
