"""Readers of tabular traces: Azure, Mooncake, CSV with seconds, logs of one's own, lengths only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, TextIO

import numpy as np

from mist_sim.bounds import TRACE_TIME
from mist_sim.checks import Count
from mist_sim.errors import ScenarioError, brief, listed
from mist_sim.traces.base import TRACE_READERS, TraceRow, rows_of
from mist_sim.traces.readers.opening import (
    A_SECOND,
    SECONDS,
    TOKENS,
    At,
    Clock,
    Faults,
    FileReader,
    NotPlainError,
    SessionReader,
    blocks_in,
    csv_records,
    first_line,
    json_lines,
    json_records,
    open_trace,
    plain_csv,
    timed_rows,
)

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
_MOST_MODELS = 100  # kept, to tell them where none is the one that is asked for
_REMEDY = (
    "; say what yours are called with time_column, prompt_column and output_column, such as "
    "--set workload.trace.time_column=NAME (of mist trace: --set time_column=NAME); a file without "
    "times is a lengths_csv"
)
_STATUS = "status"

TimeUnit = Literal["s", "ms", "us", "ns", "date"]


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
        start_ns: int | None = None
        last_ns = 0

        def row(fields: tuple[str, ...], at: At) -> TraceRow:
            nonlocal start_ns, last_ns
            stamp, prompt, output, *images = fields
            num_prompt_tokens = at.digits(prompt, "ContextTokens")
            num_output_tokens = at.digits(output, "GeneratedTokens", answer=True)
            number = _num_images(images[0], at) if images else 0
            time_ns = _azure_time(stamp, at)
            if start_ns is None:
                start_ns = last_ns = time_ns
            if time_ns < last_ns:
                raise at.backwards("TIMESTAMP", (last_ns - time_ns) / 1e9)
            last_ns = time_ns
            time = (time_ns - start_ns) / 1_000_000_000
            return TraceRow(num_prompt_tokens, num_output_tokens, time, num_images=number)

        with open_trace(self.path) as file:
            records = csv_records(file, self.path, _AZURE_COLUMNS, _IMAGES, faults=faults)
            yield from faults.parsed(records, row)

    def _plain(self) -> Iterator[list[TraceRow]]:
        looks = dict(zip(_AZURE_COLUMNS, (_PLAIN_TIME, TOKENS, TOKENS), strict=True))
        minutes: dict[str, int] = {}  # nanoseconds since 1970
        start_ns = last_ns = None
        for stamps, prompts, outputs in plain_csv(self.path, looks, {_IMAGES}):
            texts = [stamp[:16] for stamp in stamps]
            for text in set(texts) - set(minutes):
                minutes[text] = _azure_time(f"{text}:00", At(self.path, 0))
            ticks = np.array([int(stamp[17:19] + stamp[20:]) for stamp in stamps])  # of 100 ns
            times = np.array([minutes[text] for text in texts]) + ticks * 100
            start_ns = times[0] if start_ns is None else start_ns
            before = np.concatenate(([start_ns if last_ns is None else last_ns], times[:-1]))
            last_ns = times[-1]
            if (times < before).any() or last_ns - start_ns > _EXACT:
                raise NotPlainError
            seconds = ((times - start_ns) / 1e9).tolist()
            yield rows_of(map(int, prompts), map(int, outputs), seconds)


def _num_images(text: str, at: At) -> int:
    digits = text.strip()
    if digits.isdecimal() and len(digits) <= _MOST_DIGITS:
        return int(digits)
    raise at.error(f"{_IMAGES} must be a whole number >= 0, got {brief(text)}; correct the row")


def _azure_time(stamp: str, at: At) -> int:
    """Return the time of a timestamp, nanoseconds since 1970."""
    match = _AZURE_TIME.fullmatch(stamp.strip())
    try:
        if match is None:
            raise ValueError
        since_epoch = datetime.fromisoformat(match[1] + "+00:00") - _EPOCH
    except ValueError:
        raise at.error(
            "TIMESTAMP must be a UTC time such as 2023-11-16 18:15:46.6805900, "
            f"got {brief(stamp)}; correct or remove the row"
        ) from None
    minute_ns = since_epoch // timedelta(minutes=1) * 60_000_000_000
    second_ns = int(match[2]) * 1_000_000_000 + int((match[3] or "").ljust(9, "0"))
    return minute_ns + second_ns


class _Columns(NamedTuple):
    """Names of columns. session: of the conversation, where the file has one."""

    time: str
    prompt: str
    output: str
    session: str = "session_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedCsv(SessionReader):
    """A CSV file with seconds, and tokens of prompt and answer; any other column is not used."""

    COLUMNS: ClassVar[_Columns]

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        names, sessions = self.COLUMNS, dict[str, int]()
        clock = Clock(names.time)

        def row(fields: tuple[str, ...], at: At) -> TraceRow:
            stamp, prompt, output, *rest = fields
            return TraceRow(
                at.digits(prompt, names.prompt),
                at.digits(output, names.output, answer=True),
                clock.seconds(_seconds(stamp, at, names.time), at),
                sessions.setdefault(rest[0], len(sessions)) if rest and rest[0] else None,
            )

        with open_trace(self.path) as file:
            yield from faults.parsed(self._records(file, faults), row)

    def _plain(self) -> Iterator[list[TraceRow]] | None:
        names = self.COLUMNS
        looks = {names.time: SECONDS, names.prompt: TOKENS, names.output: TOKENS}
        return timed_rows(plain_csv(self.path, looks, {names.session}), Clock(names.time))

    def _records(self, file: TextIO, faults: Faults) -> Iterator[tuple[At, tuple[str, ...]]]:
        names = self.COLUMNS
        return csv_records(file, self.path, names[:3], names.session, faults=faults)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(text: str, at: At, column: str) -> float:
    time = _number(text)
    if not 0 <= time <= TRACE_TIME:
        raise at.error(
            f"{column} must be seconds from 0 to {TRACE_TIME:g}, got {brief(text)}; "
            "correct or remove the row"
        )
    return time


@TRACE_READERS.register("burstgpt")
@dataclass(frozen=True, slots=True, kw_only=True)
class BurstGptReader(_TimedCsv):
    """BurstGPT: CSV with Timestamp (seconds), Request tokens, Response tokens.

    `Session ID`, which newer files have, marks the requests of a conversation.

    Requests that failed have 0 response tokens (`skip: cancelled` leaves them out); the files named
    without_fails have none.

    only_model: take the rows of this `Model` alone, such as GPT-4; None: of all.
    Source: BurstGPT (Wang et al., KDD 2025), releases 1.1 and 2.0 of its trace.
    """

    COLUMNS: ClassVar = _Columns("Timestamp", "Request tokens", "Response tokens", "Session ID")

    only_model: str | None = None

    def _plain(self) -> Iterator[list[TraceRow]] | None:
        return None if self.only_model is not None else _TimedCsv._plain(self)  # noqa: SLF001

    def _records(self, file: TextIO, faults: Faults) -> Iterator[tuple[At, tuple[str, ...]]]:
        wanted, names = self.only_model, self.COLUMNS
        columns = (*names[:3], *([] if wanted is None else ["Model"]))
        others, is_met = dict[str, None](), False
        for at, fields in csv_records(file, self.path, columns, names.session, faults=faults):
            if wanted is None:
                yield at, fields
            elif (model := fields[3].strip()) == wanted:
                is_met = True
                yield at, fields[:3] + fields[4:]
            elif len(others) < _MOST_MODELS:
                others[model] = None
        if others and wanted is not None and not is_met:
            raise ScenarioError(
                f"trace {self.path}: no row has Model {brief(wanted)}; the file has "
                f"{listed(others)}"
            )


@TRACE_READERS.register("vidur")
@dataclass(frozen=True, slots=True, kw_only=True)
class VidurReader(_TimedCsv):
    """Traces that Vidur replays: CSV with arrived_at, num_prefill_tokens, num_decode_tokens.

    Its files of lengths without times are `lengths_csv`.

    Source: Vidur (Agrawal et al., MLSys 2024), trace replay request generator.
    """

    COLUMNS: ClassVar = _Columns("arrived_at", "num_prefill_tokens", "num_decode_tokens")


@TRACE_READERS.register("splitwise")
@dataclass(frozen=True, slots=True, kw_only=True)
class SplitwiseReader(_TimedCsv):
    """Traces of splitwise-sim: CSV with arrival_timestamp, prompt_size, token_size.

    Source: splitwise-sim (Patel et al., ISCA 2024), its generated traces.
    """

    COLUMNS: ClassVar = _Columns("arrival_timestamp", "prompt_size", "token_size")


@TRACE_READERS.register("csv")
@dataclass(frozen=True, slots=True, kw_only=True)
class CsvReader(SessionReader):
    """A log of your own: a CSV file or JSON lines, a request a row, in order of time.

    A column of JSON lines is a key of their objects; usage.prompt_tokens is one of an inner object.

    time_column: name in the header. Times count from the first row's.
    time_unit: of the times: s, ms, us (microseconds) or ns from any moment on, or `date`, such as
        2026-03-01T12:00:00.250Z; all with a time zone, or all without one.
    prompt_column, output_column: names of the columns with numbers of tokens.
    session_column: name of the column with the conversation; None: the file has none.
    predicted_column: of that with the predicted tokens of answers; None: the file has none.

    A column `status` is read to count calls that ended early, and to tell how many they are:
    cancelled ones (499, aborted, canceled, cancelled or client_closed) and failed ones (other HTTP
    codes from 400 on, error, failed, failure or timeout).
    """

    time_column: str = "timestamp"
    time_unit: TimeUnit = "s"
    prompt_column: str = "prompt_tokens"
    output_column: str = "output_tokens"
    session_column: str | None = None
    predicted_column: str | None = None

    def __post_init__(self) -> None:
        SessionReader.__post_init__(self)
        columns = self._columns
        if len(set(columns)) < len(columns):
            raise ValueError(f"columns must differ from one another, got {brief(columns)}")
        if self.session_history != "unknown" and self.session_column is None:
            raise ValueError(
                "session_history must be left out without session_column, which names the column "
                f"with the conversation; got {self.session_history}"
            )

    @property
    def _columns(self) -> list[str]:
        more = self.session_column, self.predicted_column
        needed = [self.time_column, self.prompt_column, self.output_column]
        return [*needed, *(column for column in more if column is not None)]

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        path, columns, sessions = self.path, self._columns, dict[str, int]()
        clock = Clock(self.time_column, "s" if self.time_unit == "date" else self.time_unit)
        zoned: list[bool] = []  # whether the first date has a time zone

        def row(fields: tuple[str, ...], at: At) -> TraceRow:
            stamp, prompt, output, *rest = fields
            if len(fields) > len(columns):
                status = rest.pop().strip()
            name = rest.pop(0).strip() if self.session_column is not None else ""
            guess = None
            if self.predicted_column is not None:
                guess = at.digits(rest[0], self.predicted_column)
            found = TraceRow(
                at.digits(prompt, self.prompt_column),
                at.digits(output, self.output_column, answer=True),
                clock.seconds(self._time(stamp.strip(), at, zoned), at),
                sessions.setdefault(name, len(sessions)) if name else None,
                num_predicted_tokens=guess,
            )
            if len(fields) > len(columns):
                faults.note_status(status)
            return found

        with open_trace(path) as file:
            if _is_json(file):
                records = json_records(json_lines(path, faults), columns, _STATUS, _REMEDY)
            else:
                records = csv_records(file, path, columns, _STATUS, _REMEDY, faults)
            yield from faults.parsed(records, row)

    def _plain(self) -> Iterator[list[TraceRow]] | None:
        if self.time_unit == "date" or self.session_column or self.predicted_column:
            return None
        looks = dict(zip(self._columns, (SECONDS, TOKENS, TOKENS), strict=True))
        clock = Clock(self.time_column, self.time_unit)
        return timed_rows(plain_csv(self.path, looks, {_STATUS}), clock)

    def _time(self, text: str, at: At, zoned: list[bool]) -> float:
        """Return a time in the file's unit; dates all without a time zone count as UTC.

        zoned: whether the first date has one; empty before that.
        """
        if self.time_unit == "date":
            if (moment := _moment(text)) is not None:
                has_zone = moment.tzinfo is not None
                if zoned and has_zone != zoned[0]:
                    raise at.error(
                        f"{self.time_column}: {brief(text)} has {'a' if has_zone else 'no'} time "
                        f"zone, and the first date has {'one' if zoned[0] else 'none'}; write the "
                        "same zone, such as Z, in all rows"
                    )
                zoned[:] = (has_zone,)
                return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
            what = "a date such as 2026-03-01T12:00:00.250Z"
        else:
            time, most = _number(text), TRACE_TIME * A_SECOND[self.time_unit]
            if 0 <= time <= most:
                return time
            hint = "; time_unit: date reads dates" if _moment(text) else ""
            what = f"a time in {self.time_unit} from 0 to {most:g}{hint}"
        raise at.error(
            f"{self.time_column} must be {what}, got {brief(text)}; correct or remove the row"
        )


def _is_json(file: TextIO) -> bool:
    """Tell whether a file holds JSON lines, and go back to its start; a pipe is read as CSV."""
    if not file.seekable():
        return False
    found = first_line(file).lstrip().startswith("{")
    file.seek(0)
    return found


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelsReader(FileReader):
    """A reader of a file whose rows may name a model."""

    @property
    def _key(self) -> str | None:
        raise NotImplementedError

    def _lines(self, faults: Faults) -> Iterator[tuple[int, TraceRow]]:
        raise NotImplementedError

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        return (row for _, row in self._lines(faults))

    @property
    def names_models(self) -> bool:
        """Whether rows name a model."""
        return self._key is not None

    def models(self) -> Iterator[tuple[int, str]]:
        """Yield (line, model) where a model is named for the first time."""
        seen: set[str] = set()
        for line, row in islice(self._lines(Faults(self.skip)), self.num_requests):
            if row.model is not None and row.model not in seen:
                seen.add(row.model)
                yield line, row.model

    def _model(self, value: object, at: At) -> str:
        if isinstance(value, str) and value:
            return value
        raise at.error(f"{self._key} must name a model, got {brief(value)}; correct the row")


@TRACE_READERS.register("mooncake")
@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeReader(_ModelsReader):
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

    hash_block_size: Count = 512
    model_key: str | None = None

    @property
    def _key(self) -> str | None:
        return self.model_key

    def _lines(self, faults: Faults) -> Iterator[tuple[int, TraceRow]]:
        clock = Clock("timestamp", self.UNIT)

        def row(record: dict[str, Any], at: At) -> tuple[int, TraceRow]:
            if missing := [key for key in _MOONCAKE_KEYS if key not in record]:
                raise at.error(
                    f"a row must be a JSON object with {', '.join(_MOONCAKE_KEYS)}; "
                    f"missing: {', '.join(missing)}"
                )
            key = self.model_key
            model = None if key is None else self._model(record.get(key), at)
            time = at.time(record["timestamp"], "timestamp", self.UNIT)
            prompt = at.tokens(record["input_length"], "input_length")
            output = at.tokens(record["output_length"], "output_length", answer=True)
            content = blocks_in(record, at, prompt, output, self.hash_block_size)
            seconds = clock.seconds(time, at)
            return at.line, TraceRow(prompt, output, seconds, None, content, model)

        return faults.parsed(json_lines(self.path, faults), row)


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

    hash_block_size: Count = 16


@TRACE_READERS.register("lengths_csv")
@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsCsvReader(_ModelsReader):
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
    def _key(self) -> str | None:
        return self.model_column

    def _plain(self) -> Iterator[list[TraceRow]] | None:
        if self.names_models:
            return None
        columns = plain_csv(self.path, {self.prompt_column: TOKENS, self.output_column: TOKENS})
        return (rows_of(map(int, prompts), map(int, outputs)) for prompts, outputs in columns)

    def _lines(self, faults: Faults) -> Iterator[tuple[int, TraceRow]]:
        def row(fields: tuple[str, ...], at: At) -> tuple[int, TraceRow]:
            prompt, output, *rest = fields
            return at.line, TraceRow(
                at.digits(prompt, self.prompt_column),
                at.digits(output, self.output_column, answer=True),
                model=self._model(rest[0].strip(), at) if rest else None,
            )

        key = self.model_column
        columns = [self.prompt_column, self.output_column, *([] if key is None else [key])]
        with open_trace(self.path) as file:
            yield from faults.parsed(csv_records(file, self.path, columns, faults=faults), row)
