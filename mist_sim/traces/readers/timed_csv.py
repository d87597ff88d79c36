"""Readers of CSV traces whose times are seconds: BurstGPT, Vidur, splitwise-sim."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from mist_sim.bounds import TRACE_TIME
from mist_sim.errors import TraceError, brief
from mist_sim.inputs.lines import lines_of
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.opening import (
    Clock,
    FileReader,
    csv_records,
    open_trace,
    tokens_from_text,
)


class _Columns(NamedTuple):
    """Names of columns. session: of the conversation, where the file has one."""

    time: str
    prompt: str
    output: str
    session: str = "session_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedCsv(FileReader):
    """A CSV file with seconds, and tokens of prompt and answer; any other column is not used."""

    COLUMNS: ClassVar[_Columns]

    def _read(self) -> Iterator[TraceRow]:
        path, names = self.path, self.COLUMNS
        has_sessions = names.session in header_of(path)
        columns = names if has_sessions else names[:3]
        sessions: dict[str, int] = {}
        order, clock = Clock(path, names.time), Clock(path, names.time)
        with open_trace(path) as file:
            for line, (stamp, prompt, output, *rest) in csv_records(file, path, columns):
                time = _seconds(stamp, path, line, names.time)
                order.seconds(time, line)
                if self._is_left_out(output):
                    continue
                session = sessions.setdefault(rest[0], len(sessions)) if rest and rest[0] else None
                yield TraceRow(
                    tokens_from_text(prompt, path, line, names.prompt),
                    tokens_from_text(output, path, line, names.output),
                    clock.seconds(time, line),
                    session,
                )

    def _is_left_out(self, output: str) -> bool:
        """Tell whether a row is no request that was answered."""
        return False


@TRACE_READERS.register("burstgpt")
@dataclass(frozen=True, slots=True, kw_only=True)
class BurstGptReader(_TimedCsv):
    """BurstGPT: CSV with Timestamp (seconds), Request tokens, Response tokens.

    `Session ID`, which newer files have, tells which requests belong to a conversation.

    path: the file. num_requests: read the first so many requests; None reads all.
    skip_failed: leave out requests without an answer (0 response tokens) instead of refusing the
        file; the files named without_fails have none.
    Source: BurstGPT (Wang et al., KDD 2025), releases 1.1 and 2.0 of its trace.
    """

    COLUMNS: ClassVar = _Columns("Timestamp", "Request tokens", "Response tokens", "Session ID")

    skip_failed: bool = False

    def _is_left_out(self, output: str) -> bool:
        return self.skip_failed and output.strip() in ("0", "0.0")


@TRACE_READERS.register("vidur")
@dataclass(frozen=True, slots=True, kw_only=True)
class VidurReader(_TimedCsv):
    """Traces that Vidur replays: CSV with arrived_at, num_prefill_tokens, num_decode_tokens.

    Its files of lengths without times are `lengths_csv`.

    path: the file. num_requests: read the first so many rows; None reads all.
    Source: Vidur (Agrawal et al., MLSys 2024), trace replay request generator.
    """

    COLUMNS: ClassVar = _Columns("arrived_at", "num_prefill_tokens", "num_decode_tokens")


@TRACE_READERS.register("splitwise")
@dataclass(frozen=True, slots=True, kw_only=True)
class SplitwiseReader(_TimedCsv):
    """Traces of splitwise-sim: CSV with arrival_timestamp, prompt_size, token_size.

    path: the file. num_requests: read the first so many rows; None reads all.
    Source: splitwise-sim (Patel et al., ISCA 2024), its generated traces.
    """

    COLUMNS: ClassVar = _Columns("arrival_timestamp", "prompt_size", "token_size")


def header_of(path: str) -> list[str]:
    """Return the names of a CSV file's first line; raises as `open_trace` does."""
    with open_trace(path) as file:
        try:
            return [name.strip() for name in next(csv.reader(lines_of(file, path)), [])]
        except csv.Error as error:
            raise TraceError(path, 1, f"not valid CSV: {error}") from error


def _seconds(text: str, path: str, line: int, column: str) -> float:
    """Return a time, or raise TraceError."""
    try:
        time = float(text)
    except ValueError:
        time = math.nan
    if not 0 <= time <= TRACE_TIME:
        raise TraceError(
            path,
            line,
            f"{column} must be seconds from 0 to {TRACE_TIME:g}, got {brief(text)}; "
            "correct or remove the row",
        )
    return time
