"""Readers of tabular traces: Azure, Mooncake, and files that hold lengths only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from mist_sim.core.request import Content
from mist_sim.errors import TraceError, brief
from mist_sim.traces.base import TRACE_READERS, TraceRow, require_count, rows_of
from mist_sim.traces.readers.opening import (
    TOKENS,
    Clock,
    Faults,
    FileReader,
    NotPlainError,
    backwards,
    csv_records,
    integers,
    json_lines,
    open_trace,
    plain_csv,
    time_from_json,
    tokens_from_json,
    tokens_from_text,
)
from mist_sim.traces.workload import block_content

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_IMAGES = "NumImages"  # of each prompt, in the trace of 2025
_AZURE_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|\+00:?00)?", re.ASCII
)
_PLAIN_TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:[0-5]\d\.\d{7}"  # as in the files of 2023 and 2024
_EXACT = 2**53  # whole numbers up to here are floats
_MOST_DIGITS = 4  # of a number of images
_MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@TRACE_READERS.register("azure")
@dataclass(frozen=True, slots=True, kw_only=True)
class AzureReader(FileReader):
    """Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

    Timestamps are "YYYY-MM-DD HH:MM:SS" with up to 9 digits of a second's fraction, UTC.
    They are subtracted as whole nanoseconds, so the only rounding is that of the result.
    A column NumImages says how many images each prompt has; the workload says how large they are.
    Source: Azure Public Dataset, AzureLLMInferenceDataset2023 (Patel et al., ISCA 2024), 2024, and
    AzureLMMInferenceDataset2025.
    """

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        path = self.path
        start_ns: int | None = None
        last_ns = 0

        def row(fields: tuple[str, ...], line: int) -> TraceRow:
            nonlocal start_ns, last_ns
            stamp, prompt, output, *images = fields
            num_prompt_tokens = tokens_from_text(prompt, path, line, "ContextTokens")
            num_output_tokens = tokens_from_text(output, path, line, "GeneratedTokens", answer=True)
            number = _num_images(images[0], path, line) if images else 0
            time_ns = _azure_time(stamp, path, line)
            if start_ns is None:
                start_ns = last_ns = time_ns
            if time_ns < last_ns:
                raise backwards(path, line, "TIMESTAMP", (last_ns - time_ns) / 1e9)
            last_ns = time_ns
            time = (time_ns - start_ns) / 1_000_000_000
            return TraceRow(num_prompt_tokens, num_output_tokens, time, num_images=number)

        with open_trace(path) as file:
            records = csv_records(file, path, _AZURE_COLUMNS, _IMAGES, faults=faults)
            yield from faults.parsed(records, row)

    def _plain(self) -> Iterator[list[TraceRow]]:
        looks = dict(zip(_AZURE_COLUMNS, (_PLAIN_TIME, TOKENS, TOKENS), strict=True))
        minutes: dict[str, int] = {}  # nanoseconds since 1970
        start_ns = last_ns = None
        for stamps, prompts, outputs in plain_csv(self.path, looks, {_IMAGES}):
            texts = [stamp[:16] for stamp in stamps]
            for text in set(texts) - set(minutes):
                minutes[text] = _azure_time(f"{text}:00", self.path, 0)
            ticks = np.array([int(stamp[17:19] + stamp[20:]) for stamp in stamps])  # of 100 ns
            times = np.array([minutes[text] for text in texts]) + ticks * 100
            start_ns = times[0] if start_ns is None else start_ns
            before = np.concatenate(([start_ns if last_ns is None else last_ns], times[:-1]))
            last_ns = times[-1]
            if (times < before).any() or last_ns - start_ns > _EXACT:
                raise NotPlainError
            seconds = ((times - start_ns) / 1e9).tolist()
            yield rows_of(map(int, prompts), map(int, outputs), seconds)


def _num_images(text: str, path: str, line: int) -> int:
    digits = text.strip()
    if digits.isdecimal() and len(digits) <= _MOST_DIGITS:
        return int(digits)
    raise TraceError(
        path, line, f"{_IMAGES} must be a whole number >= 0, got {brief(text)}; correct the row"
    )


def _azure_time(stamp: str, path: str, line: int) -> int:
    """Return the time of a timestamp, nanoseconds since 1970."""
    match = _AZURE_TIME.fullmatch(stamp.strip())
    try:
        if match is None:
            raise ValueError
        since_epoch = datetime.fromisoformat(match[1] + "+00:00") - _EPOCH
    except ValueError:
        raise TraceError(
            path,
            line,
            "TIMESTAMP must be a UTC time such as 2023-11-16 18:15:46.6805900, "
            f"got {brief(stamp)}; correct or remove the row",
        ) from None
    minute_ns = since_epoch // timedelta(minutes=1) * 60_000_000_000
    second_ns = int(match[2]) * 1_000_000_000 + int((match[3] or "").ljust(9, "0"))
    return minute_ns + second_ns


@TRACE_READERS.register("mooncake")
@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeReader(FileReader):
    """Mooncake traces: one JSON object a line with the keys below; other keys are not used.

    timestamp: milliseconds. input_length, output_length: tokens. hash_ids: one chain hash per
    prompt block, the last perhaps for a part of one; [] where they are not known.
    output_hash_ids: those of the blocks that the answer completes; may be missing.
    hash_block_size: tokens in a block; 512 in Mooncake's own files, 16 by default in vLLM's
    timed_trace dataset.
    model_key: key with the name of the model that has to answer, such as model; None: any does.
    Source: Mooncake (Qin et al., FAST 2025), open trace release.
    """

    UNIT: ClassVar = "ms"

    hash_block_size: int = 512
    model_key: str | None = None

    def __post_init__(self) -> None:
        FileReader.__post_init__(self)
        require_count("hash_block_size", self.hash_block_size)

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        return (row for _, row in self._lines(faults))

    def _lines(self, faults: Faults) -> Iterator[tuple[int, TraceRow]]:
        clock = Clock(self.path, "timestamp", self.UNIT)

        def row(record: dict[str, Any], line: int) -> tuple[int, TraceRow]:
            time, prompt, output, content, model = self._values(record, line)
            return line, TraceRow(prompt, output, clock.seconds(time, line), None, content, model)

        return faults.parsed(json_lines(self.path, faults), row)

    @property
    def names_models(self) -> bool:
        """Whether rows name a model."""
        return self.model_key is not None

    def models(self) -> Iterator[tuple[int, str]]:
        """Yield (line, model) where a model is named for the first time."""
        yield from _firsts(self._lines(Faults(self.skip)), self.num_requests)

    def _values(
        self, record: dict[str, Any], line: int
    ) -> tuple[float, int, int, Content, str | None]:
        """Return (time, prompt, output, content, model) of an object, or raise TraceError."""
        path, key = self.path, self.model_key
        if missing := [key for key in _MOONCAKE_KEYS if key not in record]:
            raise TraceError(
                path,
                line,
                f"a row must be a JSON object with {', '.join(_MOONCAKE_KEYS)}; "
                f"missing: {', '.join(missing)}",
            )
        model = None if key is None else _model_name(record.get(key), path, line, key)
        time = time_from_json(record["timestamp"], path, line, "timestamp", self.UNIT)
        prompt = tokens_from_json(record["input_length"], path, line, "input_length")
        output = tokens_from_json(record["output_length"], path, line, "output_length", answer=True)
        ids, of_output = (
            integers(record, key, path, line) for key in ("hash_ids", "output_hash_ids")
        )
        try:
            content = block_content(ids, of_output, prompt, output, self.hash_block_size)
        except ValueError as error:
            hint = "set hash_block_size, or correct the row"
            raise TraceError(path, line, f"{error}; {hint}") from error
        return time, prompt, output, content, model


@TRACE_READERS.register("timed_trace")
@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTraceReader(MooncakeReader):
    """vLLM's `timed_trace`: Mooncake's keys, with timestamps in seconds and blocks of 16 tokens.

    These are the defaults of `vllm bench serve --dataset-name timed_trace`; with
    --timed-trace-sec-multiplier 0.001 a file is Mooncake's.

    hash_block_size: tokens in a block.
    model_key: key with the name of the model that has to answer; None: any does.
    Source: vLLM, vllm/benchmarks/datasets, TimedTrace.
    """

    UNIT: ClassVar = "s"

    hash_block_size: int = 16


@TRACE_READERS.register("lengths_csv")
@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsCsvReader(FileReader):
    """A CSV file of prompt and output lengths without times, such as Vidur's trace files.

    prompt_column, output_column: names in the header; the defaults are Vidur's.
    model_column: name of the column with the model that has to answer; None: any does.
    """

    prompt_column: str = "num_prefill_tokens"
    output_column: str = "num_decode_tokens"
    model_column: str | None = None

    def __post_init__(self) -> None:
        FileReader.__post_init__(self)
        if self.prompt_column == self.output_column:
            raise ValueError(
                f"output_column must differ from prompt_column, got {brief(self.output_column)}"
            )
        if self.model_column in (self.prompt_column, self.output_column):
            raise ValueError(
                "model_column must differ from those of the lengths, "
                f"got {brief(self.model_column)}"
            )

    @property
    def names_models(self) -> bool:
        """Whether rows name a model."""
        return self.model_column is not None

    def models(self) -> Iterator[tuple[int, str]]:
        """Yield (line, model) where a model is named for the first time."""
        yield from _firsts(self._lines(Faults(self.skip)), self.num_requests)

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        return (row for _, row in self._lines(faults))

    def _plain(self) -> Iterator[list[TraceRow]] | None:
        if self.names_models:
            return None
        columns = plain_csv(self.path, {self.prompt_column: TOKENS, self.output_column: TOKENS})
        return (rows_of(map(int, prompts), map(int, outputs)) for prompts, outputs in columns)

    def _lines(self, faults: Faults) -> Iterator[tuple[int, TraceRow]]:
        path, key = self.path, self.model_column

        def row(fields: tuple[str, ...], line: int) -> tuple[int, TraceRow]:
            prompt, output, *rest = fields
            return line, TraceRow(
                tokens_from_text(prompt, path, line, self.prompt_column),
                tokens_from_text(output, path, line, self.output_column, answer=True),
                model=None if key is None else _model_name(rest[0].strip(), path, line, key),
            )

        columns = [self.prompt_column, self.output_column, *([] if key is None else [key])]
        with open_trace(path) as file:
            yield from faults.parsed(csv_records(file, path, columns, faults=faults), row)


def _model_name(value: object, path: str, line: int, key: str) -> str:
    """Return the name of a model that a row gives, or raise TraceError."""
    if isinstance(value, str) and value:
        return value
    raise TraceError(path, line, f"{key} must name a model, got {brief(value)}; correct the row")


def _firsts(
    rows: Iterator[tuple[int, TraceRow]], num_rows: int | None
) -> Iterator[tuple[int, str]]:
    """Yield (line, model) of each row that is the first with its model."""
    seen: set[str] = set()
    for line, row in islice(rows, num_rows):
        if row.model is not None and row.model not in seen:
            seen.add(row.model)
            yield line, row.model
