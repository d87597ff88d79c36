"""Readers of CSV traces whose times are seconds: BurstGPT, Vidur, splitwise-sim."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TextIO

from mist_sim.bounds import TRACE_TIME
from mist_sim.errors import ScenarioError, TraceError, brief, listed
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.opening import (
    SECONDS,
    TOKENS,
    Clock,
    Faults,
    csv_records,
    open_trace,
    plain_csv,
    timed_rows,
    tokens_from_text,
)
from mist_sim.traces.readers.session_history import SessionReader

_MOST_MODELS = 100  # kept, to tell them where none is the one that is asked for


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
        path, names = self.path, self.COLUMNS
        sessions: dict[str, int] = {}
        clock = Clock(path, names.time)

        def row(fields: tuple[str, ...], line: int) -> TraceRow:
            stamp, prompt, output, *rest = fields
            return TraceRow(
                tokens_from_text(prompt, path, line, names.prompt),
                tokens_from_text(output, path, line, names.output, answer=True),
                clock.seconds(_seconds(stamp, path, line, names.time), line),
                sessions.setdefault(rest[0], len(sessions)) if rest and rest[0] else None,
            )

        with open_trace(path) as file:
            yield from faults.parsed(self._records(file, faults), row)

    def _plain(self) -> Iterator[list[TraceRow]] | None:
        names = self.COLUMNS
        looks = {names.time: SECONDS, names.prompt: TOKENS, names.output: TOKENS}
        columns = plain_csv(self.path, looks, {names.session})
        return timed_rows(columns, Clock(self.path, names.time))

    def _records(self, file: TextIO, faults: Faults) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield (line, time, prompt, output and perhaps session) of every row."""
        names = self.COLUMNS
        return csv_records(file, self.path, names[:3], names.session, faults=faults)


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

    def _records(self, file: TextIO, faults: Faults) -> Iterator[tuple[int, tuple[str, ...]]]:
        wanted, names = self.only_model, self.COLUMNS
        columns = (*names[:3], *([] if wanted is None else ["Model"]))
        others, is_met = dict[str, None](), False
        for line, fields in csv_records(file, self.path, columns, names.session, faults=faults):
            if wanted is None:
                yield line, fields
            elif (model := fields[3].strip()) == wanted:
                is_met = True
                yield line, fields[:3] + fields[4:]
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
