"""A user's logs: a CSV file, or JSON lines, whose columns the scenario names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TextIO

from mist_sim.bounds import TRACE_TIME
from mist_sim.errors import TraceError, brief
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.opening import (
    A_SECOND,
    SECONDS,
    TOKENS,
    Clock,
    Faults,
    csv_records,
    first_line,
    json_lines,
    json_records,
    open_trace,
    plain_csv,
    timed_rows,
    tokens_from_text,
)
from mist_sim.traces.readers.session_history import SessionReader

_REMEDY = (
    "; say what yours are called with time_column, prompt_column and output_column, such as "
    "--set workload.trace.time_column=NAME (of mist trace: --set time_column=NAME); a file without "
    "times is a lengths_csv"
)
_STATUS = "status"

TimeUnit = Literal["s", "ms", "us", "ns", "date"]


@TRACE_READERS.register("csv")
@dataclass(frozen=True, slots=True, kw_only=True)
class CsvReader(SessionReader):
    """A log of your own: a CSV file or JSON lines, a request a row, in order of time.

    A column of JSON lines is a key of their objects; usage.prompt_tokens is one of an inner object.

    time_column: name in the header. Times count from the first row's.
    time_unit: of the times: s, ms, us (microseconds) or ns from any moment on, or `date`, such as
        2026-03-01T12:00:00.250Z.
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
        path, sessions = self.path, dict[str, int]()
        columns = self._columns
        clock = Clock(path, self.time_column, "s" if self.time_unit == "date" else self.time_unit)

        def row(fields: tuple[str, ...], line: int) -> TraceRow:
            stamp, prompt, output, *rest = fields
            name = rest[0].strip() if rest and self.session_column is not None else ""
            guess, place = None, int(self.session_column is not None)
            if self.predicted_column is not None:
                guess = tokens_from_text(rest[place], path, line, self.predicted_column)
            found = TraceRow(
                tokens_from_text(prompt, path, line, self.prompt_column),
                tokens_from_text(output, path, line, self.output_column, answer=True),
                clock.seconds(self._time(stamp.strip(), line), line),
                sessions.setdefault(name, len(sessions)) if name else None,
                num_predicted_tokens=guess,
            )
            if len(fields) > len(columns):
                faults.note_status(rest[-1].strip())
            return found

        with open_trace(path) as file:
            if _is_json(file):
                objects = json_lines(path, faults)
                records = json_records(objects, path, columns, _STATUS, _REMEDY)
            else:
                records = csv_records(file, path, columns, _STATUS, _REMEDY, faults)
            yield from faults.parsed(records, row)

    def _plain(self) -> Iterator[list[TraceRow]] | None:
        if self.time_unit == "date" or self.session_column or self.predicted_column:
            return None
        looks = dict(zip(self._columns, (SECONDS, TOKENS, TOKENS), strict=True))
        clock = Clock(self.path, self.time_column, self.time_unit)
        return timed_rows(plain_csv(self.path, looks, {_STATUS}), clock)

    def _time(self, text: str, line: int) -> float:
        """Return a time in the file's unit, or raise TraceError."""
        if self.time_unit == "date":
            return self._moment(text, line)
        most = TRACE_TIME * A_SECOND[self.time_unit]
        try:
            time = float(text)
        except ValueError:
            time = math.nan
        if not 0 <= time <= most:
            hint = "; time_unit: date reads dates" if _is_date(text) else ""
            what = f"a time in {self.time_unit} from 0 to {most:g}{hint}"
            raise self._bad_time(what, text, line)
        return time

    def _moment(self, text: str, line: int) -> float:
        """Return the seconds of a date; one without a time zone is in UTC."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            what = "a date such as 2026-03-01T12:00:00.250Z"
            raise self._bad_time(what, text, line) from None
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()

    def _bad_time(self, what: str, text: str, line: int) -> TraceError:
        column = self.time_column
        return TraceError(
            self.path,
            line,
            f"{column} must be {what}, got {brief(text)}; correct or remove the row",
        )


def _is_json(file: TextIO) -> bool:
    """Tell whether a file holds JSON lines, and go back to its start; a pipe is read as CSV."""
    if not file.seekable():
        return False
    found = first_line(file).lstrip().startswith("{")
    file.seek(0)
    return found


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
