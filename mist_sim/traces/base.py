"""The parts of a workload: rows, their sources, and the registries of sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from mist_sim.bounds import COUNT
from mist_sim.core.request import Content, Images
from mist_sim.registry import Registry

TRACE_READERS = Registry(
    "trace_readers",
    later={
        "burstgpt": "mist_sim.traces.readers.tabular_reader:BurstGptReader",
        "vidur": "mist_sim.traces.readers.tabular_reader:VidurReader",
        "splitwise": "mist_sim.traces.readers.tabular_reader:SplitwiseReader",
        "csv": "mist_sim.traces.readers.tabular_reader:CsvReader",
        "llmservingsim": "mist_sim.traces.readers.serving_sim:LlmServingSimReader",
        "azure": "mist_sim.traces.readers.tabular_reader:AzureReader",
        "mooncake": "mist_sim.traces.readers.tabular_reader:MooncakeReader",
        "timed_trace": "mist_sim.traces.readers.tabular_reader:TimedTraceReader",
        "lengths_csv": "mist_sim.traces.readers.tabular_reader:LengthsCsvReader",
        "chat_parquet": "mist_sim.traces.readers.parquet_reader:ChatParquetReader",
        "mist": "mist_sim.traces.readers.parquet_reader:MistReader",
        "servegen": "mist_sim.traces.readers.servegen:ServeGenReader",
        "sharegpt": "mist_sim.traces.readers.conversations:ShareGptReader",
        "otel": "mist_sim.traces.readers.sessions:OtelReader",
        "ragpulse": "mist_sim.traces.readers.sessions:RagPulseReader",
        "dynamo": "mist_sim.traces.readers.sessions:DynamoReader",
        "agentic_mooncake": "mist_sim.traces.readers.sessions:AgenticMooncakeReader",
        "agentic": "mist_sim.traces.readers.sessions:AgenticReader",
    },
)
"""Sources that read a file: classes with `rows()` (see `TraceReader`)."""

SAMPLERS = Registry("samplers")
"""Sources that draw random lengths: classes with `sample_rows(rng)` (see `RowSampler`)."""

ARRIVALS = Registry("arrivals")
"""Arrival processes, and the markers `trace` and `closed_loop`."""

LENGTHS = Registry("lengths")
"""Distributions of a number of tokens (see `LengthDistribution`)."""


class TraceRow(NamedTuple):
    """One request of a workload, before it gets a pipeline and an arrival process.

    num_prompt_tokens, num_output_tokens: lengths in tokens (>= 1). The source checks them.
    arrival_time: seconds from the first row of the trace; None when the trace has no times.
    session_id: the conversation that the request belongs to; None when it stands alone.
    content: what prompt and answer begin with, for prefix caches: spans of (id, tokens), such as
        ((7, 50), (12, 100)). Equal ids mean equal tokens behind equal tokens; ids of your own are
        any numbers >= 0 (those of traces and conversations are negative).
    model: name of the model that has to answer; None: any.
    think_time: seconds from the end of the previous request of its session until this one is sent,
        if sessions are replayed (`ClosedLoop.sessions`).
    label: name of the request's class; None: no class. priority: smaller is more urgent.
    num_images: images that its prompt has, without their tokens. images: with their sizes; their
        tokens are in num_prompt_tokens.
    num_predicted_tokens: as of the request (`Request.num_predicted_tokens`).
    """

    num_prompt_tokens: int
    num_output_tokens: int
    arrival_time: float | None = None
    session_id: int | None = None
    content: Content = ()
    model: str | None = None
    think_time: float = 0.0
    label: str | None = None
    priority: int = 0
    num_images: int = 0
    images: Images | None = None
    num_predicted_tokens: int | None = None


def rows_of(
    prompts: Iterable[int],
    outputs: Iterable[int],
    times: Iterable[float | None] = repeat(None),
) -> list[TraceRow]:
    """Return the rows of columns, made without a call for each."""
    others = [repeat(default) for default in TraceRow._field_defaults.values()]
    columns: Any = (prompts, outputs, times, *others[1:])
    return list(map(partial(tuple.__new__, TraceRow), zip(*columns, strict=False)))


@runtime_checkable
class TraceReader(Protocol):
    """A source whose rows are fixed, such as a file.

    `rows` streams: it holds a constant amount of memory and opens nothing before the first
    `next()`. Every call starts anew and gives the same rows, with arrival times that never
    decrease. Raises ScenarioError for an unusable file, TraceError (file, line) for a bad row.
    """

    def rows(self) -> Iterator[TraceRow]:
        """Yield the rows, in order of arrival; streams."""


@runtime_checkable
class RowSampler(Protocol):
    """A source that draws its rows at random.

    Equal generators give equal rows, and the first rows of a long run are those of a short one.
    """

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield rows drawn with a generator."""


@runtime_checkable
class NamesModels(Protocol):
    """A reader of files whose rows may name a model."""

    @property
    def path(self) -> str:
        """The file."""

    @property
    def names_models(self) -> bool:
        """Whether every row names one."""

    def models(self) -> Iterator[tuple[int, str]]:
        """Yield every model that a row names for the first time, and the line; reads the file."""


class LeftOut(Protocol):
    """What a reading of a file left out."""

    def sentence(self, path: str) -> str:
        """Return the count of left-out rows in one line; empty if there are none."""


@runtime_checkable
class LeavesOut(Protocol):
    """A reader of files whose rows may be left out."""

    @property
    def path(self) -> str:
        """The file."""

    @property
    def left_out(self) -> LeftOut:
        """What was left out."""


Source = TraceReader | RowSampler


def require_count(name: str, value: int) -> None:
    """Raise ValueError unless a count of tokens, requests or users is in [1, 10^9]."""
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    if value > COUNT:
        raise ValueError(f"{name} must be <= {COUNT}, got {value:.3g}")
